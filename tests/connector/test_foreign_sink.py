"""A sink that others have written, whose NOTIFY_ACK tells what its process remembers: 0 after a restart, and too much
after uncommitted bytes were cut off. Every batch is there once all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.connector.foreign import ForeignSink
from tests.connector.test_sink_attempts import messages

from penstock.adaptors.base import AbortedError, Stage, Staged
from penstock.adaptors.connector import Connector
from penstock.adaptors.connector.sink import ConnectorPublisher, ConnectorStager
from penstock.base.errors import AwayError
from penstock.log.offsets import Lane


@pytest.fixture
def sink() -> Iterator[ForeignSink]:
    with ForeignSink().serving() as sink:
        yield sink
        assert not sink.died


class Batches:
    """Batches of a pipeline, decided one after the other."""

    def __init__(self, sink: ForeignSink) -> None:
        settings = Connector(to=sink.address, timeout=60.0)
        self.stager = ConnectorStager(settings, "p.out")
        self.publisher = ConnectorPublisher(settings, "p.out")
        self.decided: dict[str, Lane] = {}

    def plan(self, *numbers: int) -> str:
        return self.publisher.begin(self.decided, lambda: None, (numbers[0], numbers[-1] + 1), 0)

    def attempt(self, plan: str, rows: Iterator[pa.RecordBatch]) -> Staged:
        return self.stager.stage(Stage(Path(), "attempt", 0, plan, 0), rows)

    def deliver(self, *numbers: int) -> None:
        self.decide(self.attempt(self.plan(*numbers), iter([messages(*numbers)])))

    def decide(self, staged: Staged) -> None:
        lanes = self.publisher.judge([staged])
        self.decided |= lanes
        self.publisher.tell(lanes)


def lines(count: int) -> bytes:
    return b"".join(b'{"n":%d}\n' % n for n in range(count))


def test_a_sink_that_forgot_its_offset_in_a_restart_is_sent_the_next_batch(sink: ForeignSink) -> None:
    batches = Batches(sink)
    batches.deliver(0, 1, 2)
    sink.restart()
    batches.publisher.close()
    batches.deliver(3, 4, 5)
    assert (sink.stored.content, sink.stored.committed) == (lines(6), len(lines(6)))


def test_a_sink_that_tells_an_offset_which_it_has_cut_off_is_sent_the_batch_again(sink: ForeignSink) -> None:
    batches = Batches(sink)
    batches.deliver(0, 1, 2)
    plan = batches.plan(3, 4, 5)

    def dying() -> Iterator[pa.RecordBatch]:
        yield messages(3, 4)
        raise RuntimeError("the executor is lost")

    with pytest.raises(RuntimeError, match="the executor is lost"):
        batches.attempt(plan, dying())
    batches.decide(batches.attempt(plan, iter([messages(3, 4, 5)])))
    assert sink.stored.content == lines(6)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("closes", ["not at all", "before the reply", "after the reply"])
def test_the_six_vote_rules(sink: ForeignSink, commit: bool, closes: str) -> None:
    """A vote that was lost on the way is asked for again, and is the same; after one to abort all is sent again."""
    batches = Batches(sink)
    plan = batches.plan(0, 1)
    sink.moods = [commit]
    if closes == "before the reply":
        sink.cut_before_reply = True
        with pytest.raises(AwayError):
            batches.attempt(plan, iter([messages(0, 1)]))
    sink.cut_after_reply = closes == "after the reply"
    staged = batches.attempt(plan, iter([messages(0, 1)]))
    if commit:
        batches.decide(staged)
    else:
        with pytest.raises(AbortedError, match="voted to abort"):
            batches.decide(staged)
        assert sink.stored.committed == 0
        batches.deliver(0, 1)
    assert (sink.stored.content, sink.stored.committed) == (lines(2), len(lines(2)))
    assert sink.stored.votes == {}


def test_the_greeting_names_the_capability_behind_what_every_sink_reads(sink: ForeignSink) -> None:
    Batches(sink).deliver(0)
    assert {(hello.version, hello.instance) for hello in sink.hellos} == {("v0.0.1", "p.out.0")}
    assert all(hello.capabilities == {"offsets"} for hello in sink.hellos)
