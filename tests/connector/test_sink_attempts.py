"""Attempts of tasks at a connector sink: again, at the same time, after one that died, and one that comes too late."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from tests.connector.storing import MemoryStorage, Shelf

from penstock.adaptors.base import Stage, Staged
from penstock.adaptors.connector import Connector
from penstock.adaptors.connector.sink import ConnectorPublisher, ConnectorStager, Prepared
from penstock.base.errors import PenstockError
from penstock.connector.sink import SinkServer
from penstock.functions.chain import Chain
from penstock.log.message import MAX_MESSAGE_BYTES, Mode, Op
from penstock.log.offsets import Lane
from penstock.log.record import Record
from penstock.pipeline.namespace import Namespace
from penstock.spark.single import batch_of

NUMBERS = b"".join(b'{"n":%d}\n' % n for n in range(6))


class Rig:
    """A sink, its coordinator, and tasks of one lane."""

    def __init__(self, settings: Connector, stored: MemoryStorage) -> None:
        self.stager = ConnectorStager(settings, "p.out")
        self.publisher = ConnectorPublisher(settings, "p.out")
        self.decided: dict[str, Lane] = {}
        self.stored = stored

    def plan(self, begin: int = 0) -> str:
        return self.publisher.begin(self.decided, lambda: None, (begin, begin + 6), 0)

    def attempt(self, plan: str, rows: Iterator[pa.RecordBatch]) -> Staged:
        return self.stager.stage(Stage(Path(), "attempt", 0, plan, 0), rows)

    def commit(self, *attempts: Staged) -> None:
        """Spark takes the report of one attempt of a task: the last of these."""
        lanes = self.publisher.judge(attempts[-1:])
        self.decided |= lanes
        self.publisher.tell(lanes)

    @property
    def committed(self) -> bytes:
        return self.stored.content[: self.stored.committed]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    shelf = Shelf()
    with SinkServer(("127.0.0.1", 0), shelf.workers(tmp_path)) as server:
        yield Rig(Connector(to=f"127.0.0.1:{server.address[1]}"), shelf("p.out.0"))


def messages(*offsets: int) -> pa.RecordBatch:
    return rows_of(*((n, b'{"n":%d}' % n) for n in offsets))


def rows_of(*documents: tuple[int, bytes]) -> pa.RecordBatch:
    records = [Record(n, 0, Mode.COPY, Op.INSERT, "a", data) for n, data in documents]
    return Chain([]).apply(batch_of(records), Namespace(".*")).batch


def test_the_longest_message_there_is_passes(rig: Rig) -> None:
    """It is as long as the longest frame that a sink takes, whose head comes before it."""
    longest = b'{"n":"%s"}' % (b"x" * (MAX_MESSAGE_BYTES - 8))
    assert len(longest) == MAX_MESSAGE_BYTES
    rig.commit(rig.attempt(rig.plan(), iter([rows_of((0, longest), (1, b"{}"))])))
    assert rig.committed == longest + b"\n{}\n"


def test_a_second_attempt_finds_the_transaction_of_the_first_and_sends_nothing(rig: Rig) -> None:
    plan = rig.plan()
    first = rig.attempt(plan, iter([messages(0, 1, 2), messages(3, 4, 5)]))
    again = rig.attempt(plan, iter([messages(0, 1, 2, 3, 4, 5)]))
    assert first.part == again.part
    rig.commit(first, again)
    assert rig.committed == NUMBERS


def test_two_attempts_at_once_come_after_each_other(rig: Rig) -> None:
    plan, sent, go_on = rig.plan(), threading.Event(), threading.Event()

    def slowly() -> Iterator[pa.RecordBatch]:
        yield messages(0, 1, 2)
        sent.set()
        assert go_on.wait(60)
        yield messages(3, 4, 5)

    def quickly() -> Iterator[pa.RecordBatch]:
        assert sent.wait(60)
        go_on.set()
        yield messages(0, 1, 2, 3, 4, 5)

    with ThreadPoolExecutor() as pool:
        attempts = [pool.submit(rig.attempt, plan, rows()) for rows in (slowly, quickly)]
    first, second = (attempt.result() for attempt in attempts)
    assert first.part == second.part
    rig.commit(first, second)
    assert rig.committed == NUMBERS


def test_an_attempt_that_died_in_the_middle_leaves_nothing(rig: Rig) -> None:
    def dying() -> Iterator[pa.RecordBatch]:
        yield messages(0, 1, 2)
        raise RuntimeError("the executor is lost")

    plan = rig.plan()
    with pytest.raises(RuntimeError, match="the executor is lost"):
        rig.attempt(plan, dying())
    rig.commit(rig.attempt(plan, iter([messages(0, 1, 2, 3, 4, 5)])))
    assert rig.committed == NUMBERS


def test_an_attempt_that_comes_too_late_changes_nothing(rig: Rig) -> None:
    """Its job was given up: another has the lane, or is done with it. Only the runner decides."""
    old = rig.plan()
    voted = rig.attempt(old, iter([messages(0, 1)]))
    new = rig.plan()
    assert rig.stored.content == b"", "what the job before had prepared is aborted"
    done = rig.attempt(new, iter([messages(0, 1, 2, 3, 4, 5)]))
    with pytest.raises(PenstockError, match="is open at the sink"):
        rig.attempt(old, iter([messages(0, 1)]))
    rig.commit(done)
    with pytest.raises(PenstockError, match="expects byte 48 next"):
        rig.attempt(old, iter([messages(0, 1)]))
    assert rig.committed == rig.stored.content == NUMBERS
    assert msgspec.json.decode(voted.part, type=Prepared).transaction != done.part


def test_an_attempt_that_comes_too_late_does_not_keep_others_from_leaving(rig: Rig) -> None:
    """What it has voted on stays open until the runner settles it."""
    rig.attempt(rig.plan(), iter([messages(0, 1)]))
    rig.publisher.leave(["p.out.1"])
    rig.publisher.settle(rig.decided, lambda: None)
    assert rig.stored.content == b""
    rig.commit(rig.attempt(rig.plan(), iter([messages(0, 1, 2, 3, 4, 5)])))
    assert rig.committed == NUMBERS
