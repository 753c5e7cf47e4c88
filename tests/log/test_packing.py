"""Packed messages are those that `encode_messages` writes, and the log takes them as such."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.journal.client import Client
from penstock.log import record as rec
from penstock.log.commitlog import CommitLog, MessageTooLargeError
from penstock.log.message import MAX_MESSAGE_BYTES, Message, Mode, NotTextError, Op
from penstock.log.packing import Packed, numbered, pack, pack_lines
from penstock.log.record import CorruptRecordError

NOW = 1_700_000_000_000_000

texts = st.text(max_size=40).map(str.encode)
rows = st.lists(
    st.tuples(
        texts,
        st.none() | texts,
        st.none() | st.text(max_size=9).map(str.encode),
        st.sampled_from(Op),
        st.integers(0, (1 << 63) - 1),
    ),
    max_size=12,
)


def packed_of(messages: list[Message], ns: str = "orders", kind: pa.DataType | None = None) -> Packed:
    kind = kind or pa.binary()
    modes = {message.mode for message in messages} or {Mode.COPY}
    return pack(
        ns,
        pa.array([message.data for message in messages], kind),
        ts=np.array([message.ts for message in messages], np.int64),
        keys=pa.array([message.key for message in messages], kind),
        old_keys=pa.array([message.old_key for message in messages], kind),
        ops=np.array([message.op for message in messages], np.uint8),
        mode=modes.pop(),
    )


@settings(max_examples=200, deadline=None)
@given(
    rows,
    st.sampled_from(["", "orders", "ünïcode", "nul\0"]),
    st.sampled_from(Mode),
    st.sampled_from([pa.binary(), pa.large_binary()]),
    st.integers(0, 1 << 60),
)
def test_packed_records_are_those_of_the_same_messages(
    given_rows: list[tuple[bytes, bytes | None, bytes | None, Op, int]],
    ns: str,
    mode: Mode,
    kind: pa.DataType,
    first: int,
) -> None:
    messages = [Message(ns, data, op, ts, mode, key, old) for data, key, old, op, ts in given_rows]
    packed = packed_of(messages, ns, kind)
    assert len(packed) == len(messages)
    assert packed.starts.tolist() == rec.boundaries(packed.content, "here")[0]
    if messages:
        assert numbered(packed, first, MAX_MESSAGE_BYTES).content == rec.encode_messages(messages, first, {})
        assert packed.last_mode is mode


def test_offsets_are_written_into_the_records_themselves() -> None:
    packed = packed_of([Message("orders", b"{}", Op.INSERT, 1, Mode.COPY)], "orders", pa.binary())
    assert numbered(packed, 7, MAX_MESSAGE_BYTES).content is packed.content


def packed_lines(lines: list[bytes], ns: str = "orders", **more: Any) -> Packed:
    text = b"".join(line + b"\n" for line in lines)
    return pack_lines(ns, text, np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")), ts=NOW, **more)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=40).map(str.encode),
        max_size=12,
    ),
    st.sampled_from(["", "orders", "ünïcode", "nul\0", "two\nlines"]),
    st.sampled_from(Mode),
    st.integers(0, 1 << 60),
)
def test_packed_lines_are_their_texts_packed(lines: list[bytes], ns: str, mode: Mode, first: int) -> None:
    packed = packed_lines(lines, ns, mode=mode)
    expected = packed_of([Message(ns, line, ts=NOW, mode=mode) for line in lines], ns)
    assert packed.starts.tolist() == expected.starts.tolist()
    if lines:
        assert (packed.ns, packed.content) == (ns, expected.content)
        given, meant = (numbered(rows, first, MAX_MESSAGE_BYTES) for rows in (packed, expected))
        assert given.content == meant.content


def test_what_is_behind_the_last_newline_is_not_packed() -> None:
    text = b'{"a":1}\n{"b":2}\n{"c'
    packed = pack_lines("orders", text, np.array([7, 15]), ts=NOW)
    assert packed.content == packed_lines([b'{"a":1}', b'{"b":2}']).content
    first = pack_lines("orders", text, np.array([7]), ts=NOW)
    assert first.content == packed_lines([b'{"a":1}']).content


def test_lines_that_are_too_large_are_refused() -> None:
    with pytest.raises(MessageTooLargeError, match="has 11 bytes, the limit is 10"):
        packed_lines([b"x" * 10, b"x" * 11], max_bytes=10)
    with pytest.raises(MessageTooLargeError, match="with its key and position"):
        packed_lines([b"{}"], "n" * rec.MAX_SIZE)


def test_slices_chunks_and_strings_are_packed_as_they_are() -> None:
    data = pa.array(["no", '{"a":1}', '{"ä":2}', "{}", "no"]).slice(1, 3)
    keys = pa.chunked_array([["1"], [None, "3"]], pa.string())
    packed = pack("a", data, ts=NOW, keys=keys, mode=Mode.SYNC, ops=Op.UPDATE)
    expected = [
        Message("a", text, Op.UPDATE, NOW, Mode.SYNC, key)
        for text, key in ((b'{"a":1}', b"1"), ('{"ä":2}'.encode(), None), (b"{}", b"3"))
    ]
    assert numbered(packed, 0, 100).content == rec.encode_messages(expected, 0, {})


def test_a_row_above_the_limit_is_named_when_it_is_packed() -> None:
    with pytest.raises(MessageTooLargeError, match="namespace 'big' has 11 bytes, the limit is 10"):
        pack("big", pa.array([b"x" * 10, b"x" * 11]), ts=0, max_bytes=10)
    with pytest.raises(MessageTooLargeError, match="record of namespace 'big' has"):
        pack("big", pa.array([b"x" * MAX_MESSAGE_BYTES]), ts=0, keys=pa.array([b"k" * (1 << 20)]))


def test_a_row_without_data_is_refused() -> None:
    with pytest.raises(ValueError, match="without data"):
        pack("a", pa.array([b"{}", None]), ts=0)


@pytest.mark.parametrize("harm", ["cut", "gap", "other namespace", "behind the end"])
def test_records_that_do_not_add_up_never_reach_the_log(harm: str) -> None:
    good = packed_of([Message("a", b"{}"), Message("a", b'{"b":1}')], "a")
    bad = {
        "cut": Packed("a", good.content[:-1], good.starts),
        "gap": Packed("a", good.content, good.starts[1:]),
        "other namespace": Packed("ab", good.content, good.starts),
        "behind the end": Packed("a", good.content, np.append(good.starts, len(good.content))),
    }[harm]
    with pytest.raises(CorruptRecordError, match="do not add up"):
        numbered(bad, 0, 100)


@pytest.mark.parametrize("bit", [rec.CONTROL, rec.NEWER])
def test_packed_records_that_are_no_messages_are_refused(bit: int) -> None:
    """They would take an offset that no reader counts."""
    good = pack("a", pa.array([b"one", b"two"]), ts=NOW)
    content = bytearray(good.content)
    content[int(good.starts[1]) + 20] |= bit
    with pytest.raises(CorruptRecordError, match="do not add up"):
        numbered(Packed("a", bytes(content), good.starts), 0, 100)


def test_packed_records_whose_data_does_not_fill_them_are_refused() -> None:
    good = pack("a", pa.array([b"one", b"two"]), ts=NOW)
    content = bytearray(good.content)
    content[int(good.starts[1]) + 29] -= 1
    with pytest.raises(CorruptRecordError, match="do not add up"):
        numbered(Packed("a", bytes(content), good.starts), 0, 100)


@pytest.mark.parametrize("op", [7, 16, 255])
def test_an_operation_that_is_none_is_refused(op: int) -> None:
    with pytest.raises(ValueError, match=f"an operation {op}"):
        pack("a", pa.array([b"{}", b"{}"]), ts=NOW, ops=np.array([0, op], np.uint8))


@pytest.mark.parametrize("column", ["data", "keys", "old_keys"])
def test_what_is_no_text_is_never_packed(column: str) -> None:
    good, bad = pa.array([b"{}", b"{}"]), pa.array([b"{}", b'{"a":"\xff"}'])
    columns = {"data": good, "keys": good, "old_keys": good} | {column: bad}
    with pytest.raises(NotTextError, match="namespace 'a' is not UTF-8"):
        pack("a", columns["data"], ts=NOW, keys=columns["keys"], old_keys=columns["old_keys"])


class TestInTheLog:
    def test_packed_batches_and_the_same_messages_leave_the_same_log_state(
        self, client: Client, tmp_path: Path
    ) -> None:
        plain = CommitLog(client, "plain", tmp_path / "index", None, NOW)
        packing = CommitLog(client, "packed", tmp_path / "index", None, NOW)
        few = [Message(ns, b"{}", ts=NOW, key=b"1") for ns in "aba"]
        many = {
            ns: [Message(ns, b'{"n":%d}' % n, ts=NOW, mode=mode) for n in range(5)]
            for ns, mode in (("b", Mode.SYNC), ("c", Mode.COPY), ("d", Mode.COPY))
        }
        batches = [
            (few, ["b", "c"], {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 3}}, []),
            ([], ["c"], {"c": {"n": 4}}, ["c"]),
            (few, ["d"], {}, ["d"]),
            ([], ["b"], {"quiet": {"n": 1}}, []),
        ]
        for messages, names, positions, completed in batches:
            rest = [message for ns in names for message in many[ns]]
            plain.append([*messages, *rest], positions, completed, NOW)  # type: ignore[arg-type]
            columns = [packed_of(many[ns], ns) for ns in names]
            packing.append(messages, positions, completed, NOW, packed=columns)  # type: ignore[arg-type]
        for one, two in itertools.product(
            (plain, CommitLog(client, "plain", tmp_path / "new", None, NOW)),
            (packing, CommitLog(client, "packed", tmp_path / "new", None, NOW)),
        ):
            assert one.state.namespaces == two.state.namespaces
            assert (one.state.next, one.state.oldest) == (two.state.next, two.state.oldest)
            assert one.resume() == two.resume()
        told = [record._replace(extra=None) for record in plain.reader.show(0, 1 << 40)]
        assert [record._replace(extra=None) for record in packing.reader.show(0, 1 << 40)] == told
        assert len(told) == plain.point.offset

    def test_the_limit_of_the_log_holds_for_packed_messages_and_nothing_of_the_batch_is_logged(
        self, client: Client, tmp_path: Path
    ) -> None:
        log = CommitLog(client, "shop", tmp_path / "index", None, NOW, max_message_bytes=100)
        fitting = packed_of([Message("a", b"x" * 100, key=b"a key that does not count")], "a")
        large = packed_of([Message("big", b"x"), Message("big", b"x" * 101, key=b"1")], "big")
        with pytest.raises(MessageTooLargeError, match="namespace 'big' has 101 bytes, the limit is 100"):
            log.append([], {"a": {"n": 1}}, [], NOW, packed=[fitting, large])
        assert (log.point.offset, log.resume()) == (0, {})
        assert log.append([], {}, [], NOW, packed=[fitting]).offset == 1

    @pytest.mark.parametrize("what", ["data", "key", "old_key"])
    def test_a_message_that_no_sink_could_read_is_refused_and_nothing_of_its_batch_is_logged(
        self, client: Client, tmp_path: Path, what: str
    ) -> None:
        log = CommitLog(client, "shop", tmp_path / "index", None, NOW)
        texts = {"data": b'{"a":"\xc3\xa9"}', "key": b"1", "old_key": b"2"} | {what: b'"\xff"'}
        bad = Message("bad", texts["data"], key=texts["key"], old_key=texts["old_key"])
        with pytest.raises(NotTextError, match="namespace 'bad' is not UTF-8"):
            log.append([Message("a", b"{}"), bad], {"a": {"n": 1}}, [], NOW)
        assert (log.point.offset, log.resume()) == (0, {})

    def test_nothing_packed_is_nothing(self, client: Client, tmp_path: Path) -> None:
        log = CommitLog(client, "shop", tmp_path / "index", None, NOW)
        before = log.point
        assert log.append([], {}, [], NOW, packed=[packed_of([])]) == before
