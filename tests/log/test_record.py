"""Records of the log, byte for byte: the reference's vectors, every cut, and the columns that Spark gets."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log import record as rec
from penstock.log.message import Message, Mode, Op
from penstock.log.positions import LogState
from penstock.log.record import CorruptRecordError, Record

VECTORS = [
    (
        Record(0, 1700000000, Mode.COPY, Op.INSERT, "orders", b'{"_id":"a1","qty":3}'),
        "0000000000000000 00000022 000000006553f100 00 00000006 6f7264657273 00000014"
        "7b225f6964223a226131222c22717479223a337d",
    ),
    (
        Record(1, 1700000060, Mode.SYNC, Op.UPDATE, "orders", b'{"_id":"a1","qty":4}'),
        "0000000000000001 00000022 000000006553f13c 05 00000006 6f7264657273 00000014"
        "7b225f6964223a226131222c22717479223a347d",
    ),
    (
        Record(2, 1700000061, Mode.SYNC, Op.DELETE, "users", b'{"_id":"u9"}'),
        "0000000000000002 00000019 000000006553f13d 09 00000005 7573657273 0000000c 7b225f6964223a227539227d",
    ),
    (
        Record(0, 1700000100, Mode.COPY, Op.INSERT, "orders", struct.pack(">Q", 1)),
        "0000000000000000 00000016 000000006553f164 00 00000006 6f7264657273 00000008 0000000000000001",
    ),
]

records = st.builds(
    Record,
    offset=st.integers(0, 2**63 - 1),
    ts=st.integers(0, 2**62),
    mode=st.sampled_from(Mode),
    op=st.sampled_from(Op),
    ns=st.text(max_size=20).filter(lambda text: text.isprintable()),
    data=st.binary(max_size=60),
    key=st.none() | st.binary(max_size=20),
    extra=st.none() | st.dictionaries(st.text(max_size=5), st.integers(-(2**60), 2**60), max_size=3),
    control=st.just(False),
)


@pytest.mark.parametrize(("record", "expected"), VECTORS)
def test_the_references_vectors(record: Record, expected: str) -> None:
    raw = bytes.fromhex(expected.replace(" ", ""))
    assert rec.encode(record) == raw
    assert rec.decode(raw, 0, "test") == record


@given(records)
def test_a_record_reads_back_as_it_was_written(record: Record) -> None:
    assert rec.decode(rec.encode(record), 0, "test") == record


def test_without_key_and_position_a_record_is_the_seeds_layout() -> None:
    raw = rec.encode(Record(5, 6, Mode.SYNC, Op.DELETE, "ns", b"data"))
    assert raw == struct.pack(">QIQBI2sI4s", 5, 8 + 2 + 4, 6, 0b01001, 2, b"ns", 4, b"data")


def test_a_control_record_takes_no_offset() -> None:
    raw = rec.encode(Record(7, 1, Mode.COMPLETE, Op.NOOP, "ns", b"", control=True))
    assert raw[:8] == b"\xff" * 8
    assert rec.decode(raw, 0, "test").offset == -1


@given(st.lists(records, max_size=5), st.data())
def test_a_cut_buffer_gives_its_whole_records(written: list[Record], data: st.DataObject) -> None:
    encoded = [rec.encode(record) for record in written]
    buffer = b"".join(encoded)
    cut = data.draw(st.integers(0, len(buffer)))
    starts, consumed = rec.boundaries(buffer[:cut], "test")
    ends = [sum(map(len, encoded[: i + 1])) for i in range(len(encoded))]
    whole = [end for end in ends if end <= cut]
    assert consumed == (whole[-1] if whole else 0)
    assert [rec.decode(buffer, start, "test") for start in starts] == written[: len(whole)]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda raw: raw[:8] + struct.pack(">I", 7) + raw[12:], "a record of size 7"),
        (lambda raw: raw[:8] + b"\xff\xff\xff\xff" + raw[12:], "a record of size 4294967295"),
        (lambda raw: raw[:20] + b"\x80" + raw[21:], "newer format"),
        (lambda raw: raw[:21] + struct.pack(">I", 99) + raw[25:], "key longer than its record"),
        (lambda raw: raw[:27] + struct.pack(">I", 1) + raw[31:], "lengths that do not add up"),
        (lambda raw: raw[:20] + b"\x20" + raw[21:], "damaged header"),
    ],
)
def test_nonsense_is_named_with_its_place(change: object, complaint: str) -> None:
    good = rec.encode(Record(0, 1, Mode.COPY, Op.INSERT, "ns", b"data"))
    bad = change(good)  # type: ignore[operator]
    with pytest.raises(CorruptRecordError, match=complaint) as error:
        list(rec.decode_all(good + bad, "a/journal", base=1000))
    assert error.value.where == "a/journal"
    assert error.value.position == 1000 + len(good)


messages = st.builds(
    Message,
    ns=st.sampled_from(["orders", "items", "a namespace longer than twelve bytes", "ü"]),
    data=st.text(max_size=40).map(str.encode),
    op=st.sampled_from(Op),
    ts=st.integers(0, 2**50),
    mode=st.sampled_from(Mode),
    key=st.none() | st.text(max_size=20).map(str.encode),
)


@given(st.lists(messages, max_size=20), st.integers(0, 2**40), st.data())
def test_a_batch_is_encoded_as_its_records_one_by_one(
    batch: list[Message], first: int, data: st.DataObject
) -> None:
    with_extra = data.draw(st.sets(st.integers(0, max(len(batch) - 1, 0))))
    extras: dict[int, dict[str, object]] = {i: {"position": {"n": i}} for i in with_extra if i < len(batch)}
    expected = b"".join(
        rec.encode(Record(first + i, m.ts, m.mode, m.op, m.ns, m.data, m.key, extras.get(i)))
        for i, m in enumerate(batch)
    )
    assert rec.encode_messages(batch, first, extras) == expected


@given(st.lists(st.tuples(messages, st.booleans(), st.booleans()), max_size=20), st.integers(0, 40))
def test_a_fold_that_skims_knows_what_one_knows_that_takes_every_record(
    written: list[tuple[Message, bool, bool]], tail: int
) -> None:
    offset = 5
    records: list[Record] = []
    for message, extra, control in written:
        told: dict[str, object] | None = {"position": {"at": len(records)}} if extra else None
        records.append(
            Record(
                -1 if control else offset, message.ts, message.mode, message.op, message.ns, message.data,
                message.key, told, control,
            )
        )  # fmt: skip
        offset += not control
    buffer = b"".join(map(rec.encode, records))
    cut_off = rec.encode(Record(99, 0, Mode.COPY, Op.INSERT, "orders", bytes(40)))[:tail]
    slow, quick = LogState(), LogState()
    for record in records:
        slow.apply(record, "test", 0)
    slow.byte = len(buffer)
    _, consumed = quick.skim(buffer + cut_off, "test", 0)
    assert consumed == len(buffer)
    assert quick == slow


@given(st.lists(st.tuples(messages, st.booleans(), st.booleans()), max_size=20), st.integers(0, 40))
def test_columns_hold_what_the_records_say(written: list[tuple[Message, bool, bool]], tail: int) -> None:
    """The decoder on columns, against the decoder of one record at a time."""
    from penstock.spark import columns

    buffer = b"".join(
        rec.encode(
            Record(i, m.ts, m.mode, m.op, m.ns, m.data, m.key, {"position": {}} if extra else None, control)
        )
        for i, (m, extra, control) in enumerate(written)
    )
    cut_off = rec.encode(Record(99, 0, Mode.COPY, Op.INSERT, "orders", bytes(40)))[:tail]
    batch, consumed = columns.decode(buffer + cut_off, "test")
    assert consumed == len(buffer)
    expected = [record for _, record in rec.decode_all(buffer, "test") if not record.control]
    assert batch.num_rows == len(expected)
    assert batch.column("offset").to_pylist() == [record.offset for record in expected]
    assert batch.column("ts").cast("int64").to_pylist() == [record.ts for record in expected]
    assert batch.column("mode").to_pylist() == [record.mode.word for record in expected]
    assert batch.column("op").to_pylist() == [record.op.word for record in expected]
    assert batch.column("ns").to_pylist() == [record.ns for record in expected]
    assert batch.column("data").to_pylist() == [record.data.decode() for record in expected]
    keys = [None if record.key is None else record.key.decode() for record in expected]
    assert batch.column("key").to_pylist() == keys
    batch.validate(full=True)


@pytest.mark.parametrize("damage", [(20, 0x80), (24, 0xFF), (20, 0x20), (20, 0x1C), (31, 0xFF)])
def test_columns_refuse_what_records_refuse(damage: tuple[int, int]) -> None:
    from penstock.spark import columns

    raw = bytearray(rec.encode(Record(0, 1, Mode.COPY, Op.INSERT, "ns", b"data")))
    at, value = damage
    raw[at] = value
    with pytest.raises(CorruptRecordError):
        columns.decode(bytes(raw), "test")


def test_large_rows_travel_in_small_batches() -> None:
    from penstock.spark import columns

    written = [Message("ns", b"x" * 10_000) for _ in range(100)]
    batch, _ = columns.decode(rec.encode_messages(written, 0, {}), "test")
    pieces = list(columns.cut(batch, 1000, 100_000))
    assert sum(piece.num_rows for piece in pieces) == 100
    assert max(piece.num_rows for piece in pieces) <= 10
    assert [row for piece in pieces for row in piece.column("offset").to_pylist()] == list(range(100))
