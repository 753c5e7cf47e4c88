"""The codec of the replication stream: bytes made by hand, and none that it does not understand."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.adaptors.postgres import pgoutput as out


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def row(*values: bytes | None) -> bytes:
    found = struct.pack(">h", len(values))
    for value in values:
        found += b"n" if value is None else b"t" + struct.pack(">i", len(value)) + value
    return found


RELATION = (
    b"R" + struct.pack(">I", 16385) + text("public") + text("orders") + b"d" + struct.pack(">h", 2)
    + b"\1" + text("id") + struct.pack(">Ii", 20, -1)
    + b"\0" + text("Ünï") + struct.pack(">Ii", 1700, 786438)
)  # fmt: skip
ORDERS = out.Relation(
    16385, "public", "orders", "d",
    (out.RelationColumn("id", 20, -1, True), out.RelationColumn("Ünï", 1700, 786438, False)),
)  # fmt: skip

VECTORS: list[tuple[bytes, out.Decoded]] = [
    (b"B" + struct.pack(">qqI", 0x16B3748, 7, 4294967295), out.Begin(0x16B3748, 7 + out.EPOCH, 4294967295)),
    (b"C\0" + struct.pack(">qqq", 10, 20, -1), out.Commit(10, 20, out.EPOCH - 1)),
    (b"O" + struct.pack(">q", 5) + text("elsewhere"), out.Origin(5, "elsewhere")),
    (b"M\1" + struct.pack(">q", 9) + text("app") + struct.pack(">i", 3) + b"a\0b", out.Note(9, True, "app", b"a\0b")),
    (RELATION, ORDERS),
    (b"R" + struct.pack(">I", 1) + text("") + text("t") + b"f\0\0", out.Relation(1, "pg_catalog", "t", "f", ())),
    (b"Y" + struct.pack(">I", 99) + text("public") + text("mood"), out.TypeName(99, "public", "mood")),
    (b"I" + struct.pack(">I", 1) + b"N" + row(b"1", None, b""), out.Insert(1, (b"1", None, b""))),
    (b"U" + struct.pack(">I", 1) + b"N" + row(b"1"), out.Update(1, (b"1",))),
    (b"U" + struct.pack(">I", 1) + b"K" + row(b"0") + b"N" + row(b"1"), out.Update(1, (b"1",), (b"0",), False)),
    (b"U" + struct.pack(">I", 1) + b"O" + row(b"0") + b"N\0\1u", out.Update(1, (out.UNCHANGED,), (b"0",), True)),
    (b"D" + struct.pack(">I", 1) + b"K" + row(b"1", None), out.Delete(1, (b"1", None), False)),
    (b"D" + struct.pack(">I", 1) + b"O" + row(b"1", b"x"), out.Delete(1, (b"1", b"x"), True)),
    (b"T" + struct.pack(">ibII", 2, 3, 7, 8), out.Truncate((7, 8), True, True)),
    (b"T" + struct.pack(">ib", 0, 0), out.Truncate((), False, False)),
]  # fmt: skip


@pytest.mark.parametrize(("content", "expected"), VECTORS, ids=lambda value: type(value).__name__)
def test_each_message_reads_as_what_it_is(content: bytes, expected: out.Decoded) -> None:
    assert out.decode(content) == expected


@pytest.mark.parametrize(
    "content", [vector[0] for vector in VECTORS], ids=lambda content: content[:1].decode()
)
def test_a_message_that_is_cut_or_too_long_is_one_error_with_its_position(content: bytes) -> None:
    for length in range(len(content)):
        with pytest.raises(out.CorruptStream) as caught:
            out.decode(content[:length])
        assert 0 <= caught.value.position <= length
    with pytest.raises(out.CorruptStream, match="1 bytes too many"):
        out.decode(content + b"x")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"X", "of the kind 'X'"),
        (b"I" + struct.pack(">I", 1) + b"K" + row(b"1"), "'N' wanted, found 'K'"),
        (b"U" + struct.pack(">I", 1) + b"Z" + row(b"1"), "of the kind 'Z'"),
        (b"D" + struct.pack(">I", 1) + b"N" + row(b"1"), "of the kind 'N'"),
        (b"I" + struct.pack(">I", 1) + b"N\0\1b\0\0\0\1x", "of the kind 'b'"),
        (b"I" + struct.pack(">I", 1) + b"N\0\1t\xff\xff\xff\xff", "-1 bytes wanted"),
        (b"I" + struct.pack(">I", 1) + b"N\xff\xff", "a count of -1"),
        (b"O" + struct.pack(">q", 5) + b"\xff\0", "not UTF-8"),
    ],
)
def test_what_is_no_message_says_so(content: bytes, complaint: str) -> None:
    with pytest.raises(out.CorruptStream, match=complaint):
        out.decode(content)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_the_one_error(content: bytes) -> None:
    for read in (out.decode, out.unwrap):
        try:
            read(content)
        except out.CorruptStream as error:
            assert error.position <= len(content)  # noqa: PT017 - of any bytes, some are messages


def test_the_wrapping_tells_data_from_signs_of_life() -> None:
    assert out.unwrap(b"w" + struct.pack(">QQq", 1, 2, 3) + b"rest") == out.XLogData(1, 2, b"rest")
    assert out.unwrap(b"k" + struct.pack(">QqB", 9, 0, 1)) == out.Keepalive(9, True)
    assert out.status(5, 4, out.EPOCH + 1) == b"r" + struct.pack(">QQQqB", 5, 4, 4, 1, 0)


def test_places_in_the_log_are_written_as_the_server_does() -> None:
    assert out.lsn_text(0x16_B374_8000) == "16/B3748000"
    assert out.lsn_of("16/B3748000") == 0x16_B374_8000
