"""Compaction of the commit log and of the offset log, on a real broker (seed 004, "Log Compaction")."""

from __future__ import annotations

import itertools
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.base.errors import CorruptError, UsageError
from penstock.journal.client import Client
from penstock.journal.protocol import FragmentsRequest, FragmentsResponse
from penstock.log import compaction, companion, offsets, positions, walking
from penstock.log import record as rec
from penstock.log.commitlog import CommitLog, LogReader, request_backfill
from penstock.log.compaction import Compacted, Segment, compact, plan
from penstock.log.journals import extent
from penstock.log.message import ByteOffset, Message, MessageOffset, Mode
from penstock.log.offsets import Commit, OffsetLog
from penstock.log.ownership import FencedError
from penstock.log.positions import LogCache, LogPoint
from penstock.log.reader import Survey
from penstock.log.record import Record
from penstock.log.schema import Field, Kind, Schema, Told

NOW = 1_700_000_000_000_000
SECOND = 1_000_000

SEED_KEYS = "AABBAABBCACBAACBA"
"""The keys of offsets 0 to 16 in the seed's picture; 17 to 27 begin again from the front."""


def a_log(client: Client, tmp_path: Path, *, name: str = "shop") -> CommitLog:
    return CommitLog(client, name, tmp_path / "index", 1 << 20, NOW)


def append(log: CommitLog, keys: str) -> None:
    """One message for each letter, its namespace; each is told its offset."""
    first = log.point.offset
    log.append([Message(key, b'{"n":%d}' % (first + i), ts=NOW) for i, key in enumerate(keys)], {}, [], NOW)


def close_segment(log: CommitLog) -> None:
    log.reader.client.roll(log.journal)


def readable(log: CommitLog | LogReader) -> list[tuple[int, str]]:
    reader = log.reader if isinstance(log, CommitLog) else log
    return [(record.offset, record.ns) for record in reader.show(0, 1 << 40)]


def everything(log: CommitLog, limit: int | None = None) -> Compacted:
    """Compact as if every sink had all of the log, or all below `limit`."""
    return compact(log, MessageOffset(log.point.offset if limit is None else limit), now=NOW)


class TestSeed:
    def test_the_seeds_example_of_the_commit_log(self, client: Client, tmp_path: Path) -> None:
        """Of offsets 0 to 16 just 14 C, 15 B, 16 A stay readable; 17 to 27, the active segment, are untouched."""
        log = a_log(client, tmp_path)
        append(log, SEED_KEYS)
        close_segment(log)
        begin = log.point.byte
        append(log, SEED_KEYS[:11])
        active = client.read_bytes(log.journal, begin, 0)
        done = everything(log)
        kept = [(14, "C"), (15, "B"), (16, "A")]
        assert readable(log) == [*kept, *((17 + i, key) for i, key in enumerate(SEED_KEYS[:11]))]
        assert [record.data for record in log.reader.show(14, 16)] == [b'{"n":14}', b'{"n":15}', b'{"n":16}']
        assert client.read_bytes(log.journal, begin, 0) == active
        assert extent(client, log.journal).begin == begin
        assert (done.kept, done.removed, done.first) == (3, 14, LogPoint(MessageOffset(17), begin))

    def test_the_seeds_example_of_the_offset_log(self, client: Client) -> None:
        """Ten offset entries become three."""
        log = OffsetLog(client, "seed", "c0", NOW)
        entries = [
            ("A", 1), ("A", 8), ("B", 1), ("C", 3), ("A", 13), ("B", 12), ("C", 9), ("A", 26), ("B", 23), ("C", 27),
        ]  # fmt: skip
        for ns, offset in entries:
            log.commit(Commit(watermark=offset + 1), {ns: offset}, NOW)
        assert len(entries_of(client, log.journal)) == 10
        assert log.compact(NOW, least_bytes=0)
        assert entries_of(client, log.journal) == [("A", 26), ("B", 23), ("C", 27)]
        state = offsets.load(client, "seed", "c0")
        assert state == log.state
        assert state.namespaces == {"A": 26, "B": 23, "C": 27}
        assert state.commit == Commit(watermark=28)


def entries_of(client: Client, journal: str) -> list[tuple[str, int]]:
    """The namespace entries of an offset log, as they are in the journal."""
    begin, head = extent(client, journal)
    records = rec.decode_all(client.read_bytes(journal, begin, head), journal)
    return [(record.ns, int.from_bytes(record.data)) for _, record in records if not record.control]


class TestTraps:
    """Traps of the original, each under its number in the reference (section 10)."""

    def test_trap_4_compaction_of_an_empty_and_of_an_idle_log_loses_nothing_to_come(
        self, client: Client, tmp_path: Path
    ) -> None:
        log = a_log(client, tmp_path)
        for _ in range(3):
            assert everything(log) == Compacted(0, 0, 0, LogPoint(MessageOffset(0), log.point.byte))
            close_segment(log)
        append(log, "AB")
        assert everything(log).removed == 0
        append(log, "C")
        assert readable(log) == [(0, "A"), (1, "B"), (2, "C")]
        assert readable(a_log(client, tmp_path)) == [(0, "A"), (1, "B"), (2, "C")]

    def test_trap_5_a_sink_that_never_acknowledged_holds_everything_back(
        self, client: Client, tmp_path: Path
    ) -> None:
        log = a_log(client, tmp_path)
        for _ in range(3):
            append(log, "AAA")
            close_segment(log)
        append(log, "A")
        never = offsets.load(client, "shop", "slow").commit.watermark
        assert compact(log, MessageOffset(never), now=NOW).removed == 0
        assert [offset for offset, _ in readable(log)] == list(range(10))

    def test_trap_7_a_sink_whose_offset_was_compacted_away_starts_at_the_next_message_there_is(
        self, client: Client, tmp_path: Path
    ) -> None:
        log = a_log(client, tmp_path)
        append(log, "AAABBB")
        close_segment(log)
        append(log, "AB")
        everything(log)
        recorded = 4  # the last message it had; gone, as is the next one's neighbour
        assert log.reader.messages([recorded]) == {}
        assert log.reader.at_or_after(recorded + 1) == log.reader.first()
        assert [record.offset for record in log.reader.compacted(recorded + 1, 7)] == [5]
        with pytest.raises(UsageError, match=r"message 4 is not in the log .* compacted") as refused:
            log.reader.seek(recorded)
        assert refused.value.hint == "the log begins with message 6"


class TestPlan:
    """Where to cut, as a pure rule."""

    SEGMENTS = (Segment(0, 100, 10), Segment(100, 200, 20), Segment(200, 300, 30), Segment(300, 350, 0))
    OFFSETS: ClassVar = {100: 10, 200: 20, 300: 30}

    @pytest.mark.parametrize(
        ("limit", "keep_bytes", "keep_seconds", "cut"),
        [
            (0, None, None, None),
            (9, None, None, None),
            (10, None, None, 100),
            (29, None, None, 200),
            (30, None, None, 300),
            (10**9, None, None, 300),  # never the active one
            (30, 50, None, 300),
            (30, 51, None, 200),
            (30, 250, None, 100),
            (30, 10**9, None, None),
            (30, None, 0, 300),
            (30, None, 10.5, 200),
            (30, None, 25, 100),
            (30, None, 31, None),
            (15, 51, 25, 100),
        ],
    )
    def test_where_to_cut(
        self, limit: int, keep_bytes: int | None, keep_seconds: float | None, cut: int | None
    ) -> None:
        found = plan(
            self.SEGMENTS,
            self.OFFSETS.get,
            MessageOffset(limit),
            keep_bytes=keep_bytes,
            keep_seconds=keep_seconds,
            now=40 * SECOND,
        )
        expected = None if cut is None else LogPoint(MessageOffset(self.OFFSETS[cut]), ByteOffset(cut))
        assert found == expected

    def test_a_segment_in_no_store_yet_is_young(self) -> None:
        segments = [Segment(0, 100, 0), Segment(100, 200, 0)]
        assert plan(segments, {100: 1}.get, MessageOffset(9), keep_seconds=1, now=10**9 * SECOND) is None

    def test_the_last_segment_with_messages_stays_for_it_says_where_the_log_goes_on(self) -> None:
        segments = [Segment(0, 100, 1), Segment(100, 200, 1), Segment(200, 300, 0)]
        found = plan(segments, lambda byte: 7 if byte == 100 else None, MessageOffset(99))
        assert found == LogPoint(MessageOffset(7), ByteOffset(100))

    def test_nothing_to_plan(self) -> None:
        assert plan([], lambda byte: None, MessageOffset(9), keep_bytes=5, keep_seconds=5) is None


def test_a_segment_that_holds_a_message_nobody_has_acknowledged_stays_whole(
    client: Client, tmp_path: Path
) -> None:
    log = a_log(client, tmp_path)
    for _ in range(3):
        append(log, "AAB")
        close_segment(log)
    append(log, "A")
    assert everything(log, 5).first.offset == 3
    assert [offset for offset, _ in readable(log)] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert everything(log, 6).first.offset == 6
    assert [offset for offset, _ in readable(log)] == [4, 5, 6, 7, 8, 9]


def test_repeated_compactions_carry_what_was_kept_along(client: Client, tmp_path: Path) -> None:
    log = a_log(client, tmp_path)
    append(log, "XAB")
    newest = {"X": 0, "A": 1, "B": 2}
    for number in range(5):
        close_segment(log)
        append(log, "AB"[number % 2] * 3)
        done = everything(log)
        border = done.first.offset
        kept = sorted((offset, ns) for ns, offset in newest.items())
        assert readable(log)[: len(kept)] == kept
        assert readable(log)[len(kept) :] == [(border + i, "AB"[number % 2]) for i in range(3)]
        newest["AB"[number % 2]] = border + 2
        log = a_log(client, tmp_path / str(number))
    assert len(fragments(client, log.reader.companion.journal)) <= 2
    assert done.bytes_freed > 0


def fragments(client: Client, journal: str) -> list[tuple[int, int]]:
    return [(fragment.spec.begin, fragment.spec.end) for fragment in client.fragments(journal)]


ORDERS = Schema((Field("id", Kind.INT, nullable=False), Field("total", Kind.DECIMAL)), key=("id",))


@pytest.mark.parametrize("cache", ["index", "none"])
def test_what_a_source_is_told_survives_compaction(client: Client, tmp_path: Path, cache: str) -> None:
    """Position, mode, last message and schema of each namespace, and a backfill that is pending."""
    log = a_log(client, tmp_path)
    log.append(
        [Message("orders", b'{"id":1}', key=b'{"id":1}'), Message("items", b"{}")],
        {"orders": {"lsn": 1}, "items": {"lsn": 2}},
        [],
        NOW,
        {"orders": ORDERS},
    )
    log.append([Message("items", b'{"last":true}', mode=Mode.SYNC)], {}, [], NOW)
    log.append([], {"quiet": {"id": None}}, ["quiet"], NOW)
    log.append([], {"orders": {"lsn": 9}}, ["orders"], NOW)
    log.append([Message("gone", b"{}")], {"gone": {"id": 5}}, [], NOW)
    log.backfill("gone", "id > 3", NOW)
    close_segment(log)
    log.append([Message("other", b"{}")], {}, [], NOW)
    before, namespaces = log.resume(), log.state.namespaces
    assert everything(log).removed == 1
    again = a_log(client, tmp_path / ("" if cache == "index" else "elsewhere"))
    assert again.resume() == log.resume() == before
    assert again.state.namespaces == namespaces
    orders, gone = before["orders"], before["gone"]
    assert (orders.position, orders.mode, orders.offset) == ({"lsn": 9}, Mode.COMPLETE, 0)
    assert orders.message == Message("orders", b'{"id":1}', key=b'{"id":1}')
    assert (gone.position, gone.mode, gone.where) == ({}, Mode.COPY, "id > 3")
    assert again.state.namespaces["orders"].schema == ORDERS
    assert again.point == LogPoint(MessageOffset(5), again.point.byte)


def test_the_offsets_go_on_where_they_were_though_hardly_a_message_is_left(
    client: Client, tmp_path: Path
) -> None:
    log = a_log(client, tmp_path)
    append(log, "A" * 50)
    close_segment(log)
    append(log, "A")
    close_segment(log)
    everything(log)
    for cache in ("index", "new"):
        again = CommitLog(client, "shop", tmp_path / cache, 1 << 20, NOW)
        assert again.point.offset == 51
        assert again.reader.oldest() == 49
        assert again.reader.state().oldest == 49
    append(again, "A")
    assert [offset for offset, _ in readable(again)] == [49, 50, 51]


def test_retention_by_age_goes_by_the_time_a_segment_was_stored(client: Client, tmp_path: Path) -> None:
    log = a_log(client, tmp_path)
    append(log, "AA")
    close_segment(log)
    append(log, "A")
    deadline = time.monotonic() + 60
    while not next(iter(client.fragments(log.journal))).spec.mod_time:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    now = time.time_ns() // 1000
    limit = log.point.offset
    assert compact(log, limit, keep_seconds=3600, now=now).first.offset == 0
    assert compact(log, limit, keep_bytes=1 << 20, now=now).first.offset == 0
    assert compact(log, limit, keep_seconds=3600, now=now + 3601 * SECOND).first.offset == 2


def test_the_size_of_a_log_counts_what_is_held(client: Client, tmp_path: Path) -> None:
    log = a_log(client, tmp_path)
    log.append([Message("A", b"x" * 10_000) for _ in range(10)], {}, [], NOW)
    close_segment(log)
    append(log, "A")
    before = log.reader.size()
    assert before > 100_000
    done = everything(log)
    assert 10_000 < log.reader.size() < 15_000
    assert abs(before - log.reader.size() - done.bytes_freed) < 1000


def test_a_survey_tells_what_single_questions_tell(client: Client, tmp_path: Path) -> None:
    log = a_log(client, tmp_path)
    reader = LogReader(client, log.journal, None)

    def asked() -> Survey:
        return Survey(reader.state(), reader.first(), reader.size())

    assert reader.survey() == asked()
    append(log, "AABC")
    close_segment(log)
    assert reader.survey() == asked()
    append(log, "AB")
    everything(log)
    survey = reader.survey()
    assert survey == asked()
    assert (survey.state.oldest, survey.first.offset) == (1, 4)


def test_where_a_log_of_many_segments_begins_is_told_by_its_first(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log(client, tmp_path)
    for _ in range(3):
        append(log, "A")
        close_segment(log)
    told: list[int] = []
    calls = client._homes.current.calls
    ask = calls.list_fragments

    def counted(request: FragmentsRequest, **options: Any) -> FragmentsResponse:
        response = ask(request, **options)
        told.append(len(response.fragments))
        return response

    monkeypatch.setattr(calls, "list_fragments", counted)
    assert extent(client, log.journal) == (0, log.point.byte)
    assert told == [1]


def test_an_owner_that_was_replaced_compacts_nothing(client: Client, tmp_path: Path) -> None:
    old = a_log(client, tmp_path)
    append(old, "AAA")
    close_segment(old)
    append(old, "A")
    new = a_log(client, tmp_path)
    with pytest.raises(FencedError):
        everything(old)
    assert [offset for offset, _ in readable(new)] == [0, 1, 2, 3]
    for _ in range(3):
        close_segment(new)
        append(new, "A")
    everything(new, 5)
    kept = readable(new)
    with pytest.raises(FencedError, match="later owner"):
        everything(old, 6)
    assert readable(new) == kept == [(4, "A"), (5, "A"), (6, "A")]


def test_an_owner_that_is_replaced_between_keeping_and_trimming_trims_nothing(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = a_log(client, tmp_path)
    append(old, "AAA")
    close_segment(old)
    append(old, "A")
    monkeypatch.setattr(
        compaction,
        "write_generation",
        lambda *args: (companion.write_generation(*args), a_log(client, tmp_path))[0],
    )
    with pytest.raises(FencedError):
        everything(old)
    assert [offset for offset, _ in readable(old)] == [0, 1, 2, 3]


def test_parts_of_a_generation_that_never_ended_are_passed_over(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(companion, "PART_BYTES", 1)
    log = a_log(client, tmp_path)
    append(log, "ABCABC")
    close_segment(log)
    append(log, "A")

    class CutError(Exception):
        pass

    def torn(self: compaction._Kept, now: int) -> object:
        yield from itertools.islice(whole(self, now), 3)
        raise CutError

    whole = compaction._Kept.records
    with monkeypatch.context() as patch:
        patch.setattr(compaction._Kept, "records", torn)
        with pytest.raises(CutError):
            everything(log)
    assert extent(client, log.reader.companion.journal).size > 0
    assert log.reader.companion.newest() is None
    assert [offset for offset, _ in readable(log)] == list(range(7))
    assert everything(log).kept == 3
    generation = log.reader.companion.newest()
    assert generation is not None
    assert len(generation.parts) == 7
    assert readable(a_log(client, tmp_path / "new")) == [(3, "A"), (4, "B"), (5, "C"), (6, "A")]


def test_a_log_with_a_gap_is_not_trimmed(client: Client, tmp_path: Path) -> None:
    log = a_log(client, tmp_path)
    append(log, "AB")
    client.append(log.journal, rec.encode_messages([Message("A", b"{}")], 7, {}))
    client.roll(log.journal)
    client.append(log.journal, rec.encode_messages([Message("A", b"{}")], 8, {}))
    with pytest.raises(CorruptError, match="message 7 where 2 was expected"):
        everything(log, 8)
    assert extent(client, log.journal).begin == 0


def test_appending_goes_on_while_the_log_is_compacted(client: Client, tmp_path: Path) -> None:
    log = a_log(client, tmp_path)
    stop = threading.Event()
    failures: list[BaseException] = []

    def ingest() -> None:
        try:
            while not stop.is_set():
                append(log, "ABC" * 20)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            failures.append(error)

    thread = threading.Thread(target=ingest)
    append(log, "ABC")
    thread.start()
    for _ in range(6):
        close_segment(log)
        time.sleep(0.02)
        everything(log)
    stop.set()
    thread.join()
    assert not failures
    shown = readable(log)
    border = log.reader.first().offset
    assert border > 60
    assert [offset for offset, _ in shown if offset >= border] == list(range(border, log.point.offset))
    assert {ns for offset, ns in shown if offset < border} == set("ABC")
    assert a_log(client, tmp_path / "new").state.namespaces == log.state.namespaces


def test_a_reader_meets_a_log_that_is_being_compacted(client: Client, tmp_path: Path) -> None:
    """Whenever it looks: the newest of each namespace, and an end that only moves on."""
    log = a_log(client, tmp_path)
    append(log, "ABCD")
    stop = threading.Event()
    failures: list[BaseException] = []
    looks = 0

    def look() -> None:
        nonlocal looks
        reader = LogReader(client, log.journal, None)
        before = 0
        while not stop.is_set():
            state = reader.state()
            assert state.next >= before
            shown = [(record.offset, record.ns) for record in reader.show(0, state.next - 1)]
            assert [offset for offset, _ in shown] == sorted({offset for offset, _ in shown})
            assert {ns for _, ns in shown} == set("ABCD")
            assert shown[-1][0] == state.next - 1
            assert {ns: known.offset for ns, known in state.namespaces.items()}["D"] == 3
            assert 3 in reader.messages([3, 0])
            before, looks = state.next, looks + 1

    def watched() -> None:
        try:
            look()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            failures.append(error)

    thread = threading.Thread(target=watched)
    thread.start()
    for _ in range(12):
        append(log, "ABC")
        close_segment(log)
        append(log, "A")
        everything(log)
    stop.set()
    thread.join()
    if failures:
        raise failures[0]
    assert looks > 3


def test_the_index_forgets_what_is_gone_and_still_finds_the_rest(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "GRANULE", 500)
    monkeypatch.setattr("penstock.log.commitlog.GRANULE", 500)
    log = a_log(client, tmp_path)
    for _ in range(4):
        for _ in range(20):
            append(log, "ABC")
        close_segment(log)
    cache = LogCache(tmp_path / "index", log.journal)
    append(log, "A")
    before = cache.entries()
    first = everything(log, 130).first
    assert first.offset == 120
    assert cache.entries() == [point for point in before if point.byte >= first.byte]
    bare = LogReader(client, log.journal, None)
    for offset in range(120, 242, 7):
        assert log.reader.seek(offset) == bare.seek(offset)
    assert log.reader.messages([117, 118, 120, 200, 240, 5]).keys() == {117, 118, 120, 200, 240}


def test_ten_thousand_namespaces_are_kept(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than is held in memory while the log is walked, and in more than one append."""
    monkeypatch.setattr(compaction, "_IN_MEMORY", 200_000)
    monkeypatch.setattr(companion, "PART_BYTES", 400_000)
    log = a_log(client, tmp_path)
    names = [f"ns{number:05}" for number in range(10_000)]
    log.append([Message(ns, b'{"old":1}') for ns in names], {}, [], NOW)
    log.append([Message(ns, b'{"of":"%s"}' % ns.encode()) for ns in names], {}, [], NOW)
    close_segment(log)
    append(log, "A")
    done = everything(log)
    assert (done.kept, done.removed, done.first.offset) == (10_000, 10_000, 20_000)
    generation = log.reader.companion.newest()
    assert generation is not None
    assert len(generation.parts) == 3
    kept = [(record.ns, record.data) for record in log.reader.compacted(0, 1 << 40)]
    assert kept == [(ns, b'{"of":"%s"}' % ns.encode()) for ns in names]


@pytest.mark.soak
def test_a_log_is_compacted_without_being_in_memory(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_IN_MEMORY", 1 << 19)
    monkeypatch.setattr(companion, "PART_BYTES", 1 << 19)
    monkeypatch.setattr(walking, "CHUNK", 1 << 19)
    log = CommitLog(client, "wide", tmp_path / "index", 1 << 30, NOW)
    names, body = [f"ns{number}" for number in range(100)], b'{"pad":"%s"}' % (b"x" * 40_000)
    for _ in range(5):
        log.append([Message(ns, body) for ns in names], {}, [], NOW)
    close_segment(log)
    append(log, "A")
    size = log.reader.size()
    tracemalloc.start()
    try:
        done = everything(log)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (done.kept, done.removed) == (100, 400)
    assert peak < size / 4, f"{peak:,} bytes of a log of {size:,}"
    assert {len(record.data) for record in log.reader.compacted(0, 1 << 40)} == {len(body)}


class TestBackfill:
    def test_a_backfill_resets_the_namespace_until_its_copy_is_complete(
        self, client: Client, tmp_path: Path
    ) -> None:
        log = a_log(client, tmp_path)
        log.append([Message("orders", b"{}", mode=Mode.SYNC)], {"orders": {"lsn": 7}}, [], NOW)
        log.append([Message("items", b"{}")], {"items": {"lsn": 8}}, [], NOW)
        request_backfill(client, "shop", tmp_path / "index", "orders", "id > 3", NOW)
        again = a_log(client, tmp_path)
        assert (again.resume()["orders"].position, again.resume()["orders"].where) == ({}, "id > 3")
        assert again.resume()["items"].position == {"lsn": 8}
        again.append([Message("orders", b"{}")], {"orders": {"id": 4}}, [], NOW)
        half = a_log(client, tmp_path).resume()["orders"]
        assert (half.mode, half.position, half.where) == (Mode.COPY, {"id": 4}, "id > 3")
        assert half.before == {"lsn": 7}
        third = a_log(client, tmp_path)
        third.append([], {"orders": {"lsn": 9}}, ["orders"], NOW)
        done = a_log(client, tmp_path / "new").resume()["orders"]
        assert (done.mode, done.position, done.where, done.before) == (Mode.COMPLETE, {"lsn": 9}, None, None)

    def test_a_second_backfill_goes_on_from_where_the_first_one_would_have(
        self, client: Client, tmp_path: Path
    ) -> None:
        log = a_log(client, tmp_path)
        log.append([Message("orders", b"{}", mode=Mode.SYNC)], {"orders": {"lsn": 7}}, [], NOW)
        log.backfill("orders", "id > 3", NOW)
        log.append([Message("orders", b"{}")], {"orders": {"id": 4}}, [], NOW)
        log.backfill("orders", "id > 1", NOW)
        again = a_log(client, tmp_path / "new").resume()["orders"]
        assert (again.position, again.where, again.before) == ({}, "id > 1", {"lsn": 7})

    def test_a_backfill_of_everything_leaves_the_source_nothing_to_resume_from(
        self, client: Client, tmp_path: Path
    ) -> None:
        log = a_log(client, tmp_path)
        log.append([Message("orders", b"{}", mode=Mode.SYNC)], {"orders": {"lsn": 7}}, [], NOW)
        log.backfill("orders", None, NOW)
        assert log.resume() == {}
        assert a_log(client, tmp_path / "new").resume() == {}

    def test_a_backfill_of_an_unknown_namespace_or_pipeline_is_refused_and_makes_nothing(
        self, client: Client, tmp_path: Path
    ) -> None:
        with pytest.raises(UsageError, match="no pipeline 'shop'"):
            request_backfill(client, "shop", tmp_path, "orders", None, NOW)
        assert client.list() == []
        append(a_log(client, tmp_path), "A")
        with pytest.raises(UsageError, match="no namespace 'order'; known: A"):
            request_backfill(client, "shop", tmp_path, "order", None, NOW)


class TestSchemas:
    def test_a_schema_is_logged_before_the_messages_and_only_when_it_changes(
        self, client: Client, tmp_path: Path
    ) -> None:
        log = a_log(client, tmp_path)
        wider = Schema((*ORDERS.fields, Field("note", Kind.STRING)), key=("id",))
        for schema in (ORDERS, ORDERS, wider):
            log.append([Message("orders", b"{}", mode=Mode.SYNC)], {}, [], NOW, {"orders": schema})
        records = [record for _, record in log.reader.records(ByteOffset(0), log.point.byte)][1:]
        assert [_what(record) for record in records] == ["schema", 0, 1, "schema", 2]
        assert [record.mode for record in records[3:]] == [Mode.SYNC, Mode.SYNC]
        for again in (log, a_log(client, tmp_path), a_log(client, tmp_path / "new")):
            assert again.state.namespaces["orders"].schema == wider
        a_log(client, tmp_path).append([], {}, [], NOW, {"orders": wider})
        assert log.reader.state().namespaces["orders"].schema == wider

    @pytest.mark.parametrize("cache", ["index", "elsewhere"])
    def test_those_that_held_for_messages_that_are_gone_are_forgotten(
        self, client: Client, tmp_path: Path, cache: str
    ) -> None:
        log = a_log(client, tmp_path)
        numbers, texts, lists = (Schema((Field("x", kind),)) for kind in (Kind.INT, Kind.STRING, Kind.LIST))
        for schema in (numbers, texts):
            log.append([Message("orders", b"{}"), Message("orders", b"{}")], {}, [], NOW, {"orders": schema})
        close_segment(log)
        log.append([Message("orders", b"{}")], {}, [], NOW)
        log.append([Message("orders", b"{}")], {}, [], NOW, {"orders": lists})
        assert log.state.told("orders") == (Told(0, numbers), Told(2, texts), Told(5, lists))
        everything(log)
        again = a_log(client, tmp_path / ("" if cache == "index" else cache))
        for state in (log.state, again.state):
            assert state.told("orders") == (Told(0, texts), Told(5, lists))

    def test_a_schema_alone_gives_a_source_nothing_to_resume_from(
        self, client: Client, tmp_path: Path
    ) -> None:
        log = a_log(client, tmp_path)
        log.append([], {}, [], NOW, {"orders": ORDERS})
        assert log.resume() == a_log(client, tmp_path / "new").resume() == {}


def _what(record: Record) -> str | int:
    return next(iter(record.extra)) if record.control and record.extra else record.offset
