"""Batches of a commit log end where no transaction of the source is cut. On a real broker, without Spark."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.journal.client import Client
from penstock.log import commitlog, positions, walking
from penstock.log import record as rec
from penstock.log.commitlog import CommitLog
from penstock.log.message import Message, Mode
from penstock.log.packing import pack
from penstock.spark.planning import RecordPlanner

from .places import NOW, Place, Stream, opened


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with opened(tmp_path / "data") as place:
        yield place


def a_log(place: Place) -> CommitLog:
    return CommitLog(place.client, "shop", place.path / "index", 1 << 20, NOW)


def some(count: int, mode: Mode = Mode.SYNC, size: int = 20) -> list[Message]:
    return [Message("orders", b'{"a":"%s"}' % (b"x" * size), ts=NOW, mode=mode) for _ in range(count)]


def offsets(rows: list[tuple[object, ...]]) -> list[object]:
    return [row[0] for row in rows]


@pytest.mark.parametrize("limits", [{"maxMessages": "1"}, {"maxBytes": "1"}, {"maxMessages": "6"}])
def test_what_was_read_in_one_go_while_following_is_given_in_one_batch(
    place: Place, limits: dict[str, str]
) -> None:
    log = a_log(place)
    for count in (5, 1, 7, 2):
        log.append(some(count), {"orders": {"n": count}}, [], NOW)
    stream = Stream(place, pipeline="shop", **limits)
    sizes = []
    while batch := stream.batch():
        sizes.append(len(batch))
    together = limits.get("maxMessages") == "6"
    assert sizes == ([6, 7, 2] if together else [5, 1, 7, 2])


def test_what_is_copied_may_be_cut_anywhere(place: Place) -> None:
    a_log(place).append(some(5, Mode.COPY), {}, [], NOW)
    stream = Stream(place, pipeline="shop", maxMessages=2)
    assert [len(stream.batch()) for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.parametrize("index", [True, False], ids=["with the index", "without"])
def test_a_transaction_in_several_appends_is_given_once_its_end_is_there(
    place: Place, monkeypatch: pytest.MonkeyPatch, index: bool
) -> None:
    for module in (positions, commitlog):
        monkeypatch.setattr(module, "GRANULE", 500 if index else 1 << 30)
    monkeypatch.setattr("penstock.spark.planner.SMALL_BATCH", 600)
    log = a_log(place)
    log.append(some(3), {}, [], NOW)
    stream = Stream(place, pipeline="shop", maxBytes=1000)
    for part in range(4):
        packed = pack("items", _texts(20), ts=NOW, mode=Mode.SYNC)
        log.append(some(10), {"orders": {"n": part}}, [], NOW, packed=[packed], more=True)
        assert offsets(stream.batch()) == ([0, 1, 2] if part == 0 else [])
        assert (log.closed.offset, log.is_open) == (3, True)
    log.append(some(1), {}, [], NOW)
    log.append(some(2), {}, [], NOW)
    assert log.closed == log.point
    assert offsets(stream.batch()) == list(range(3, 124))
    assert offsets(stream.batch()) == [124, 125]
    assert stream.batch() == []


def _texts(count: int) -> object:
    import pyarrow as pa

    return pa.array([b'{"b":%d}' % n for n in range(count)])


def test_a_transaction_that_a_crash_has_cut_is_given_with_what_the_next_run_adds(place: Place) -> None:
    log = a_log(place)
    log.append(some(2), {}, [], NOW)
    log.append(some(3), {"orders": {"transaction": 7, "read": 3}}, [], NOW, more=True)
    for again in (a_log(place), CommitLog(place.client, "shop", place.path / "new", None, NOW)):
        assert again.is_open
        assert (again.closed.offset, again.point.offset) == (2, 5)
        assert again.resume()["orders"].position == {"transaction": 7, "read": 3}
    stream = Stream(place, pipeline="shop")
    assert offsets(stream.batch()) == [0, 1]
    assert stream.batch() == []
    again.append([], {"quiet": {}}, [], NOW, more=True)
    assert stream.batch() == []
    again.append(some(1), {"orders": {"transaction": 8}}, [], NOW)
    assert offsets(stream.batch()) == [2, 3, 4, 5]


@pytest.mark.parametrize("index", [True, False], ids=["with the index", "without"])
def test_a_query_that_starts_anew_before_a_transaction_does_not_cut_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, index: bool
) -> None:
    """A watermark is a message, and the mark of its unit stands before that."""
    for module in (positions, commitlog):
        monkeypatch.setattr(module, "GRANULE", 100 if index else 1 << 30)
    log = a_log(place)
    for _ in range(5):
        log.append(some(4), {"orders": {}, "quiet": {}}, [], NOW)
    for watermark in range(0, 20, 4):
        start = log.reader.seek(watermark)
        stream = Stream(place, pipeline="shop", maxMessages=1, startOffset=start.offset, startByte=start.byte)
        assert offsets(stream.batch()) == list(range(watermark, watermark + 4))
    assert log.reader.first() == log.reader.seek(0)


def test_planning_waits_for_the_end_of_a_transaction_instead_of_asking_again(place: Place) -> None:
    log = a_log(place)
    log.append(some(3), {}, [], NOW, more=True)
    source = place.source(pipeline="shop", wait=20)
    from .places import schema_of

    reader = source.streamReader(schema_of(source.schema()))
    position, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    assert reader.latestOffset(position, limit) == position
    found: list[object] = []
    began = time.monotonic()
    waiting = threading.Thread(target=lambda: found.append(reader.latestOffset(position, limit)))
    waiting.start()
    time.sleep(0.3)
    assert not found, "it came back with nothing new"
    log.append(some(1), {}, [], NOW)
    waiting.join(15)
    assert found == [log.point._asdict()]
    assert time.monotonic() - began < 15


def test_a_transaction_that_grows_is_looked_through_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log(place)
    stream = Stream(place, pipeline="shop", startOffset="earliest")
    looked: list[int] = []
    ranges = RecordPlanner._range

    def noted(self: RecordPlanner, begin: int, end: int) -> object:
        looked.append(end - begin)
        return ranges(self, begin, end)

    monkeypatch.setattr(RecordPlanner, "_range", noted)
    for _ in range(10):
        log.append(some(20), {}, [], NOW, more=True)
        assert stream.batch() == []
    assert sum(looked) <= log.point.byte
    log.append(some(1), {}, [], NOW)
    assert len(stream.batch()) == 201


@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (3, 4, 5))]
)
def test_no_batch_ends_within_a_unit_whatever_the_limits(
    place: Place, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Against a model: the ends of appends that nothing keeps open, and any place in what was copied."""
    rng = random.Random(seed)
    for module in (positions, commitlog):
        monkeypatch.setattr(module, "GRANULE", rng.choice([200, 2000, 1 << 30]))
    monkeypatch.setattr("penstock.spark.planner.SMALL_BATCH", rng.choice([300, 4 << 20]))
    log, allowed, is_open = a_log(place), {0}, False
    for _ in range(60):
        mode = rng.choice([Mode.COPY, Mode.SYNC])
        before, count = log.point.offset, rng.randint(0, 6)
        is_open = rng.random() < 0.2
        was_open = log.is_open
        log.append(some(count, mode, rng.randint(0, 90)), {"orders": {"n": 1}}, [], NOW, more=is_open)
        if mode is Mode.COPY and not (is_open or was_open):
            allowed |= set(range(before, log.point.offset))
        if not is_open:
            allowed.add(log.point.offset)
        if rng.random() < 0.1:
            if rng.random() < 0.5:
                log.cache.discard()  # and so made anew
            log = a_log(place)
    if is_open:
        log.append(some(1), {}, [], NOW)
        allowed.add(log.point.offset)
    for limit in (1, 3, 10, 100):
        stream = Stream(
            place, pipeline="shop", maxMessages=limit, maxBytes=rng.choice([90 * limit, 64 << 20])
        )
        seen: list[object] = []
        while (at := stream.position["offset"]) < log.point.offset:
            assert at in allowed
            seen += offsets(stream.batch())
            assert stream.position["offset"] > at or stream.position["byte"] > 0
        assert seen == list(range(log.point.offset))


def test_a_sink_far_behind_does_not_look_through_an_open_transaction_for_each_of_its_batches(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (positions, commitlog):
        monkeypatch.setattr(module, "GRANULE", 500)
    monkeypatch.setattr("penstock.spark.planner.SMALL_BATCH", 600)
    log = a_log(place)
    for _ in range(20):
        log.append(some(10), {}, [], NOW)
    closed = log.point
    log.append(some(500), {}, [], NOW, more=True)
    walked: list[int] = []
    chunks = walking.chunks

    def noted(client: Client, journal: str, begin: int, end: int, split: Any) -> Any:
        if split is not rec.boundaries:  # those look at a record or two
            walked.append(max(end, closed.byte) - max(begin, closed.byte))
        return chunks(client, journal, begin, end, split)

    monkeypatch.setattr(walking, "chunks", noted)
    stream = Stream(place, pipeline="shop", maxBytes=1000)
    given = []
    while batch := stream.batch():
        given += offsets(batch)
    assert given == list(range(200))
    whole = [size for size in walked if size >= log.point.byte - closed.byte]
    assert len(whole) <= 3, f"looked through {len(whole)} times"
