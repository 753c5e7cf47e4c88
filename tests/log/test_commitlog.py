"""The commit log and the offset log, on a real broker."""

from __future__ import annotations

import itertools
import pickle
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.base.errors import CorruptError, UsageError
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.protocol import ApplyRequest
from penstock.log import commitlog, offsets, positions, walking
from penstock.log import record as rec
from penstock.log.commitlog import CommitLog, LogReader, MessageTooLargeError, log_journal
from penstock.log.journals import extent
from penstock.log.message import MAX_MESSAGE_BYTES, ByteOffset, Message, Mode, Op
from penstock.log.offsets import Commit, OffsetLog
from penstock.log.ownership import FencedError
from penstock.log.packing import Packed, pack
from penstock.log.positions import LogCache, LogPoint
from penstock.log.record import Record
from penstock.log.schema import Field, Kind, LatestSchemas, Schema, Told

NOW = 1_700_000_000_000_000


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        yield client


def a_log(client: Client, tmp_path: Path, segment: int = 1 << 20) -> CommitLog:
    return CommitLog(client, "shop", tmp_path / "index", segment, NOW)


def some(count: int, ns: str = "orders", size: int = 10) -> list[Message]:
    return [Message(ns, b'{"n":%d,"pad":"%s"}' % (i, b"x" * size), ts=NOW + i) for i in range(count)]


def rows_of(ns: str, count: int, size: int, mode: Mode = Mode.COPY) -> Packed:
    data = pa.array(['{"pad":"' + size * "x" + '"}'] * count, pa.string())
    return pack(ns, data, ts=NOW, mode=mode)


def test_messages_get_consecutive_offsets_from_zero(client: Client, tmp_path: Path) -> None:
    log = a_log(client, tmp_path)
    assert log.point.offset == 0
    assert log.append(some(3), {}, [], NOW).offset == 3
    assert log.append(some(2, "items"), {}, [], NOW).offset == 5
    shown = list(log.reader.show(0, 4))
    assert [record.offset for record in shown] == [0, 1, 2, 3, 4]
    assert [record.ns for record in shown] == ["orders"] * 3 + ["items"] * 2


def test_everything_of_a_message_comes_back(client: Client, tmp_path: Path) -> None:
    log = a_log(client, tmp_path)
    before = b'{"id": 1.0, "\\u00e9": "\n\\"quoted\\""}'
    message = Message(
        "ünïcode", '{"é":1.10}'.encode(), Op.UPDATE, NOW + 123_456, Mode.SYNC, b'{"id":1}', before
    )
    log.append([message], {}, [], NOW)
    (record,) = log.reader.show(0, 0)
    assert (record.ns, record.data, record.op, record.ts, record.mode, record.key, record.old_key) == (
        message.ns, message.data, message.op, message.ts, message.mode, message.key, message.old_key,
    )  # fmt: skip
    log.append([msgspec.structs.replace(message, key=None)], {message.ns: {"lsn": 3}}, [], NOW)
    assert log.resume()[message.ns].position == {"lsn": 3}
    assert log.resume()[message.ns].message == msgspec.structs.replace(message, key=None)


def test_a_source_gets_back_what_it_told_with_its_last_batch(client: Client, tmp_path: Path) -> None:
    log = a_log(client, tmp_path)
    log.append([*some(2), *some(1, "items")], {"orders": {"id": 2}, "items": {"id": 1}}, [], NOW)
    log.append(some(1), {"orders": {"id": 3}}, ["orders"], NOW)
    log.append([], {"empty": {"id": None}}, ["empty"], NOW)
    for again in (log, a_log(client, tmp_path), a_log(client, tmp_path / "without cache")):
        resume = again.resume()
        assert {ns: (r.mode, r.position, r.offset) for ns, r in resume.items()} == {
            "orders": (Mode.COMPLETE, {"id": 3}, 3),
            "items": (Mode.COPY, {"id": 1}, 2),
            "empty": (Mode.COMPLETE, {"id": None}, -1),
        }
        assert again.point.offset == 4


def test_positions_take_no_message_offsets(client: Client, tmp_path: Path) -> None:
    log = a_log(client, tmp_path)
    log.append([], {"orders": {"id": 0}}, ["orders"], NOW)
    assert log.append(some(1), {}, [], NOW).offset == 1
    assert [record.offset for record in log.reader.show(0, 0)] == [0]


def test_a_message_above_the_limit_is_refused_and_nothing_of_its_batch_logged(
    client: Client, tmp_path: Path
) -> None:
    log = a_log(client, tmp_path)
    with pytest.raises(MessageTooLargeError, match="namespace 'big' has 16,777,217 bytes"):
        log.append([*some(1), Message("big", bytes(MAX_MESSAGE_BYTES + 1))], {}, [], NOW)
    assert log.append(some(1), {}, [], NOW) == log.point
    assert log.point.offset == 1
    assert log.append([Message("big", b"x" * MAX_MESSAGE_BYTES)], {}, [], NOW).offset == 2
    assert [len(record.data) for record in log.reader.show(1, 1)] == [MAX_MESSAGE_BYTES]


def test_a_new_owner_fences_the_old_one(client: Client, tmp_path: Path) -> None:
    old = a_log(client, tmp_path)
    old.append(some(1), {}, [], NOW)
    new = a_log(client, tmp_path)
    with pytest.raises(FencedError):
        old.append(some(1), {}, [], NOW)
    assert new.append(some(1), {}, [], NOW).offset == 2


def test_a_log_of_a_newer_format_is_refused(client: Client, tmp_path: Path) -> None:
    a_log(client, tmp_path)
    (journal,) = client.list()
    for label in journal.spec.labels.labels:
        if label.name == commitlog.FORMAT_LABEL:
            label.value = "2"
    client.apply([ApplyRequest.Change(expect_mod_revision=-1, upsert=journal.spec)])
    with pytest.raises(CorruptError, match="log format 2"):
        a_log(client, tmp_path)


@pytest.fixture
def long_log(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommitLog:
    monkeypatch.setattr(positions, "GRANULE", 2000)
    monkeypatch.setattr(commitlog, "GRANULE", 2000)
    monkeypatch.setattr(walking, "CHUNK", 3000)
    log = a_log(client, tmp_path, segment=10_000)
    rng = random.Random(4)
    for i in range(60):
        log.append(
            some(rng.randint(1, 9), rng.choice(["a", "b"]), rng.randint(0, 90)), {"a": {"i": i}}, [], NOW
        )
    return log


def test_seek_finds_every_message_with_the_index_and_without(long_log: CommitLog, tmp_path: Path) -> None:
    cache = LogCache(tmp_path / "index", long_log.journal)
    assert len(cache.entries()) > 5
    bare = LogReader(long_log.reader.client, long_log.journal, None)
    for offset in range(0, long_log.point.offset + 1, 3):
        assert long_log.reader.seek(offset) == bare.seek(offset)
    with pytest.raises(UsageError, match="is not in the log"):
        bare.seek(long_log.point.offset + 1)


def test_points_are_places_between_records(long_log: CommitLog) -> None:
    found = long_log.reader.points(LogPoint(*positions.ORIGIN), long_log.point.byte)
    assert found[0] == positions.ORIGIN
    assert found[-1] == long_log.point
    for point in found[1:]:
        assert long_log.reader.seek(point.offset).byte >= point.byte
    middle = long_log.reader.seek(100)
    onwards = long_log.reader.points(middle, long_log.point.byte)
    assert onwards[0] == middle
    assert onwards[-1] == long_log.point


def test_the_index_knows_places_within_an_append_that_may_be_cut(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commitlog, "GRANULE", 500)
    log = a_log(client, tmp_path)
    parts = [rows_of("a", 10, 20), rows_of("b", 1, 5), rows_of("a", 30, 20), rows_of("b", 10, 90)]
    log.append(some(3), {"a": {"i": 1}}, ["b"], NOW, {}, parts)
    entries = LogCache(tmp_path / "index", log.journal).entries()
    places = set(walking.borders(log.reader.client, log.journal, ByteOffset(0), log.point.byte))
    assert set(entries) <= places | {log.point}
    assert [point.offset for point in entries] == [13, 44, 54], "behind each part, where it is far enough"
    assert log.reader.points(LogPoint(*positions.ORIGIN), log.point.byte)[1:] == [*entries, log.point]


def test_the_index_knows_no_place_within_a_unit(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commitlog, "GRANULE", 100)
    log = a_log(client, tmp_path)
    changes = [rows_of("a", 10, 20, Mode.SYNC), rows_of("b", 10, 20, Mode.SYNC)]
    log.append((), {}, [], NOW, {}, changes, more=True)
    log.append((), {}, [], NOW, {}, changes, more=True)
    assert LogCache(tmp_path / "index", log.journal).entries() == []
    log.append((), {}, [], NOW, {}, changes)
    assert LogCache(tmp_path / "index", log.journal).entries() == [log.point]


def test_packed_rows_may_be_numbered_before_their_append(client: Client, tmp_path: Path) -> None:
    log = a_log(client, tmp_path)
    first = log.number([rows_of("a", 2, 5), rows_of("a", 0, 0), rows_of("b", 3, 5)], 3)
    assert [(rows.ns, rows.first, len(rows)) for rows in first] == [("a", 3, 2), ("b", 5, 3)]
    second = log.number([rows_of("a", 2, 5)], 8)
    with pytest.raises(ValueError, match="numbered from 8 on where 0 comes next"):
        log.append((), {}, [], NOW, {}, second)
    assert log.point == positions.ORIGIN._replace(byte=log.point.byte), "nothing of it is in the log"
    log.append(some(3), {}, [], NOW, {}, first)
    log.append((), {}, [], NOW, {}, second)
    assert [record.offset for record in log.reader.show(0, 99)] == list(range(10))


@pytest.mark.parametrize("damage", ["missing", "torn", "garbage", "no text", "of another log", "ahead"])
def test_a_wrong_cache_is_noticed_and_made_anew(
    long_log: CommitLog, client: Client, tmp_path: Path, damage: str
) -> None:
    long_log.close()
    expected = [long_log.reader.seek(offset) for offset in range(0, long_log.point.offset, 7)]
    cache = LogCache(tmp_path / "index", long_log.journal)
    entries = len(cache.entries())
    index, state = cache._index, cache._state
    if damage == "missing":
        cache.discard()
    elif damage == "torn":
        index.write_bytes(index.read_bytes()[:-3])
        state.write_bytes(state.read_bytes()[:-3])
    elif damage == "garbage":
        index.write_bytes(random.Random(1).randbytes(160))
        state.write_bytes(b"{}garbage")
    elif damage == "no text":
        state.write_bytes(b'{"namespaces":{"\xff\xfe":{}}}')
    elif damage == "of another log":
        cache.discard()
        cache.add([LogPoint(o, b) for o, b in zip(range(5, 50, 5), range(100, 1000, 100), strict=True)])  # type: ignore[arg-type]
        cache.save(positions.LogState(next=12, byte=777, oldest=0))
    elif damage == "ahead":
        cache.add([LogPoint(99_999, 99_999_999)])  # type: ignore[arg-type]
        cache.save(positions.LogState(next=99_999, byte=99_999_999, oldest=0))
    again = a_log(client, tmp_path, segment=10_000)
    assert again.point.offset == long_log.point.offset
    assert again.resume() == long_log.resume()
    assert [again.reader.seek(offset) for offset in range(0, long_log.point.offset, 7)] == expected
    assert len(cache.entries()) >= entries - 1


def test_a_log_whose_offsets_do_not_count_up_is_refused(client: Client, tmp_path: Path) -> None:
    log = a_log(client, tmp_path)
    log.append(some(2), {}, [], NOW)
    client.append(log_journal("shop"), rec.encode_messages(some(1), 7, {}))
    with pytest.raises(CorruptError, match="message 7 where 2 was expected"):
        a_log(client, tmp_path)


class TestSegments:
    def length(self, client: Client) -> int:
        (journal,) = client.list()
        return journal.spec.fragment.length

    def test_a_log_takes_the_segment_length_that_is_asked_for_from_its_next_start_on(
        self, client: Client, tmp_path: Path
    ) -> None:
        assert commitlog.DEFAULT_SEGMENT_BYTES == 1 << 30
        old = a_log(client, tmp_path, segment=64 << 20)
        old.append(some(3), {}, [], NOW)
        assert self.length(client) == 64 << 20
        again = a_log(client, tmp_path, segment=commitlog.DEFAULT_SEGMENT_BYTES)
        assert self.length(client) == 1 << 30
        assert again.log_id == old.log_id
        assert again.append(some(1), {}, [], NOW).offset == 4

    def test_without_a_length_it_stays_as_it_is(self, client: Client, tmp_path: Path) -> None:
        a_log(client, tmp_path, segment=1 << 20)
        CommitLog(client, "shop", tmp_path / "index", None, NOW)
        assert self.length(client) == 1 << 20


def test_a_snapshot_of_an_older_version_is_read(client: Client, tmp_path: Path) -> None:
    """One without schemas, backfills and positions to go on from."""
    log = a_log(client, tmp_path)
    log.append(some(3), {"orders": {"id": 2}}, [], NOW)
    log.close()
    point = log.point
    (tmp_path / "index" / "pipelines%shop%log.state").write_text(
        f'{{"next":3,"byte":{point.byte},"oldest":0,'
        '"namespaces":{"orders":{"offset":2,"mode":0,"position":{"id":2}}}}'
    )
    again = a_log(client, tmp_path)
    assert again.resume() == log.resume()
    assert again.point.offset == 3


def test_a_log_tells_which_schema_held_for_a_message(client: Client, tmp_path: Path) -> None:
    numbers, texts = (Schema((Field("x", kind),)) for kind in (Kind.INT, Kind.STRING))
    log = a_log(client, tmp_path)
    log.append(some(3), {}, [], NOW)
    log.append(some(2), {}, [], NOW, {"orders": numbers})
    log.append(some(1, "items"), {"orders": {"id": 1}}, [], NOW, {"orders": texts})
    log.append([], {}, [], NOW, {"orders": numbers})  # of which there is no message
    log.append(some(1), {}, [], NOW, {"orders": texts})
    log.append(some(1), {}, [], NOW, {"orders": texts})
    log.append(some(1), {}, [], NOW, {"orders": numbers})
    log.close()
    expected = (Told(3, numbers), Told(5, texts), Told(6, texts), Told(8, numbers))
    for cache in (tmp_path, tmp_path / "new"):
        assert a_log(client, cache).state.told("orders") == expected
    known = LatestSchemas(log.state.told, log.state.all_told)
    held = [known.at("orders", offset) for offset in range(10)]
    assert held == [None, None, None, numbers, numbers, texts, texts, texts, numbers, numbers]
    assert known("orders") == numbers
    assert pickle.loads(pickle.dumps(known)).told("orders") == expected
    assert known.since(6).told("orders") == expected[2:]


def test_a_snapshot_that_knows_but_the_newest_schema_is_made_anew(client: Client, tmp_path: Path) -> None:
    numbers, texts = (Schema((Field("x", kind),)) for kind in (Kind.INT, Kind.STRING))
    log = a_log(client, tmp_path)
    log.append(some(3), {}, [], NOW, {"orders": numbers})
    log.append(some(3), {}, [], NOW, {"orders": texts})
    log.close()
    (tmp_path / "index" / "pipelines%shop%log.state").write_text(
        f'{{"next":6,"byte":{log.point.byte},"oldest":0,"namespaces":{{"orders":{{"offset":5,"mode":0,'
        '"schema":{"fields":[{"name":"x","kind":"string"}]}}}}'
    )
    assert a_log(client, tmp_path).state.told("orders") == (Told(0, numbers), Told(3, texts))


def test_the_limit_of_a_message_can_be_lowered(client: Client, tmp_path: Path) -> None:
    log = CommitLog(client, "shop", tmp_path / "index", None, NOW, max_message_bytes=100)
    with pytest.raises(MessageTooLargeError, match="has 101 bytes, the limit is 100"):
        log.append([Message("a", b"x" * 101)], {}, [], NOW)
    assert log.append([Message("a", b"x" * 100)], {}, [], NOW).offset == 1


def test_a_source_gets_back_its_last_message(client: Client, tmp_path: Path) -> None:
    log = a_log(client, tmp_path)
    last = Message("orders", b'{"last":1}', Op.UPDATE, NOW, Mode.SYNC, b"7")
    log.append([*some(3), last, *some(2, "items")], {"orders": {"id": 1}, "empty": {}}, [], NOW)
    for again in (log, a_log(client, tmp_path / "new")):
        resume = again.resume()
        assert resume["orders"].message == last
        assert resume["empty"].message is None
        assert set(resume) == {"orders", "empty"}  # of items nothing was told


def test_messages_are_found_wherever_they_are(long_log: CommitLog) -> None:
    everything = {record.offset: record for record in long_log.reader.show(0, 1 << 40)}
    rng = random.Random(5)
    for _ in range(10):
        wanted = rng.sample(range(long_log.point.offset + 20), 9)
        assert long_log.reader.messages(wanted) == {o: everything[o] for o in wanted if o in everything}
    assert long_log.reader.messages([]) == {}


class TestOffsets:
    def test_a_new_sink_has_nothing_and_asking_makes_nothing(self, client: Client) -> None:
        assert offsets.load(client, "shop", "audit").commit == Commit()
        assert client.list() == []

    def test_commits_come_back_whole(self, client: Client) -> None:
        log = OffsetLog(client, "shop", "audit", NOW)
        log.commit(Commit(watermark=4, delivered=3, dropped=1), {"a": 3, "b": 2}, NOW + 1)
        log.commit(Commit(watermark=9, delivered=8, dropped=1), {"a": 8}, NOW + 2)
        for state in (log.state, OffsetLog(client, "shop", "audit", NOW).state):
            assert state.commit == Commit(watermark=9, delivered=8, dropped=1)
            assert state.namespaces == {"a": 8, "b": 2}
            assert state.updated == NOW + 2
            assert state.entries == 3

    def test_the_seeds_example(self, client: Client) -> None:
        """Commit log at 15, c0 at 12, c1 at 13; after a clean resume both at 15 (seed 004)."""
        c0, c1 = (OffsetLog(client, "seed", name, NOW) for name in ("c0", "c1"))
        for log, marks in ((c0, (1, 4, 6, 7, 10, 12)), (c1, (4, 5, 7, 13))):
            for last in marks:
                log.commit(Commit(watermark=last + 1), {}, NOW)
        held = [offsets.load(client, "seed", name).commit.watermark - 1 for name in ("c0", "c1")]
        assert held == [12, 13]

    def test_namespace_records_are_the_seeds_layout(self) -> None:
        raw = offsets.encode_commit(Commit(), {"orders": 1}, 0, 1_700_000_100)
        vector = (
            "0000000000000000 00000016 000000006553f164 00 00000006 6f7264657273 00000008 0000000000000001"
        )
        assert raw.startswith(bytes.fromhex(vector.replace(" ", "")))

    def test_an_old_owner_cannot_move_the_offsets(self, client: Client) -> None:
        old = OffsetLog(client, "shop", "audit", NOW)
        OffsetLog(client, "shop", "audit", NOW)
        with pytest.raises(FencedError):
            old.commit(Commit(watermark=1), {}, NOW)

    def test_a_commit_of_an_older_version_is_read(self, client: Client) -> None:
        log = OffsetLog(client, "shop", "audit", NOW)
        fields = b'{"watermark":4,"generation":1,"delivered":3,"dropped":1,"dead":0,"rows":3}'
        old = rec.encode(Record(-1, NOW, Mode.COPY, Op.INSERT, "", fields, control=True))
        client.append(log.journal, old)
        assert offsets.load(client, "shop", "audit").commit == Commit(4, 1, 3, 1, 0, 3)

    def test_what_is_noted_is_lost_in_a_crash_and_kept_by_a_flush(self, client: Client) -> None:
        log = OffsetLog(client, "shop", "audit", NOW)
        log.note(Commit(watermark=3), {"a": 2})
        assert (log.state.commit.watermark, log.state.namespaces) == (3, {"a": 2})
        assert offsets.load(client, "shop", "audit").commit == log.durable == Commit()
        assert log.flush(NOW + 1)
        assert log.durable == Commit(watermark=3)
        assert not log.flush(NOW + 2)
        assert offsets.load(client, "shop", "audit") == log.state
        log.note(Commit(watermark=9), {"a": 8})
        assert OffsetLog(client, "shop", "audit", NOW).state.commit.watermark == 3

    def test_a_commit_writes_what_was_noted_before(self, client: Client) -> None:
        log = OffsetLog(client, "shop", "audit", NOW)
        log.note(Commit(watermark=3), {"a": 2})
        log.commit(Commit(watermark=5), {"b": 4}, NOW)
        assert offsets.load(client, "shop", "audit").namespaces == {"a": 2, "b": 4}
        assert not log.flush(NOW)

    def test_an_edit_says_what_all_namespaces_are_and_going_back_opens_a_generation(
        self, client: Client
    ) -> None:
        run = OffsetLog(client, "shop", "audit", NOW)
        run.commit(Commit(watermark=9, generation=2), {"a": 8, "b": 3}, NOW)
        back = offsets.edit(client, "shop", "audit", NOW, lambda held: (Commit(4, 2), {"b": 3}))
        assert (back.commit.watermark, back.commit.generation, back.namespaces) == (4, 3, {"b": 3})
        assert offsets.load(client, "shop", "audit") == back
        on = offsets.edit(client, "shop", "audit", NOW, lambda held: (Commit(7, 3), held.namespaces))
        assert (on.commit.watermark, on.commit.generation, on.namespaces) == (7, 3, {"b": 3})
        with pytest.raises(FencedError):
            run.commit(Commit(watermark=10), {}, NOW)

    def test_an_edit_of_an_unknown_sink_or_to_nonsense_is_refused(self, client: Client) -> None:
        with pytest.raises(UsageError, match="no sink 'audit' of 'shop'"):
            offsets.edit(client, "shop", "audit", NOW, lambda held: (Commit(4), {}))
        assert client.list() == []
        OffsetLog(client, "shop", "audit", NOW)
        with pytest.raises(UsageError, match="negative"):
            offsets.edit(client, "shop", "audit", NOW, lambda held: (Commit(-1), {}))

    def test_a_sink_that_was_forgotten_begins_anew_in_another_generation(self, client: Client) -> None:
        log = OffsetLog(client, "shop", "audit", NOW)
        log.commit(Commit(watermark=9, generation=1, delivered=9), {"a": 8}, NOW)
        assert offsets.forget(client, "shop", "audit")
        assert client.list() == []
        assert not offsets.forget(client, "shop", "audit")
        assert offsets.load(client, "shop", "audit") == offsets.SinkOffsets()
        state = OffsetLog(client, "shop", "audit", NOW).state
        assert (state.commit, state.namespaces) == (Commit(generation=2), {})

    def test_compaction_asks_the_broker_nothing_until_it_is_worth_it(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = OffsetLog(client, "shop", "audit", NOW)
        namespaces = {f"ns{i}": i for i in range(40)}
        sizes = []
        for i in range(60):
            log.commit(Commit(watermark=100 + i), namespaces, NOW)
            with monkeypatch.context() as patch:
                if extent(client, log.journal).size < 20_000:
                    patch.setattr(client, "roll", None)
                log.compact(NOW, least_bytes=20_000)
            sizes.append(extent(client, log.journal).size)
        assert 15_000 < max(sizes) < 25_000
        assert sum(after < before for before, after in itertools.pairwise(sizes)) >= 3
        assert offsets.load(client, "shop", "audit") == log.state
        assert log.state.namespaces == namespaces

    def test_a_reader_meets_a_log_that_is_being_compacted(self, client: Client) -> None:
        log = OffsetLog(client, "shop", "audit", NOW)
        stop = threading.Event()
        seen: list[int] = []

        def look() -> None:
            while not stop.is_set():
                seen.append(offsets.load(client, "shop", "audit").commit.watermark)

        reader = threading.Thread(target=look)
        reader.start()
        for i in range(1, 25):
            log.commit(Commit(watermark=i), {"a": i - 1}, NOW)
            log.compact(NOW, least_bytes=0)
        stop.set()
        reader.join()
        assert seen == sorted(seen)
        assert len(set(seen)) > 3


def test_a_snapshot_taken_while_a_batch_is_being_noted_gives_no_offset_twice(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends takes one, maybe while the thread that appends has just heard that its batch is durable."""
    log = a_log(client, tmp_path)
    log.append(some(2), {"orders": {"id": 2}}, [], NOW)
    advance = positions.LogState.advance

    def slowly(state: positions.LogState, *told: Any) -> None:
        log.close()
        advance(state, *told)

    monkeypatch.setattr(positions.LogState, "advance", slowly)
    log.append(some(3), {"orders": {"id": 5}}, [], NOW)
    again = a_log(client, tmp_path)
    assert again.point.offset == 5
    assert again.resume()["orders"].position == {"id": 5}
    again.append(some(1), {}, [], NOW)
    assert [record.offset for record in again.reader.show(0, 9)] == list(range(6))
