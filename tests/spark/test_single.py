"""One message at a time, without Spark: what `step`, replays and careful delivery rest on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from penstock.adaptors.base import Refusal
from penstock.adaptors.file.sink import FileSink
from penstock.functions.base import Editable, Function, FunctionError
from penstock.functions.chain import Step
from penstock.functions.skip import Skip
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.message import Mode, Op
from penstock.log.offsets import Commit, OffsetLog, load
from penstock.log.record import Record
from penstock.pipeline.namespace import Namespace
from penstock.spark.single import Delivered, SingleDelivery, batch_of


@dataclass(frozen=True)
class Poison(Function):
    name: ClassVar[str] = "poison"
    description: ClassVar[str] = "for tests"
    text: str = "poison"

    def apply(self, message: Editable) -> bool:
        if self.text in str(message.text()):
            raise FunctionError("this one is poison")
        return True


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        yield client


def record(offset: int, data: str | None = None, ns: str = "A") -> Record:
    return Record(offset, 1, Mode.COPY, Op.INSERT, ns, (data or f'{{"n":{offset}}}').encode())


@dataclass
class Place:
    client: Client
    path: Path

    @property
    def lines(self) -> list[str]:
        return (self.path / "out.jsonl").read_text().splitlines()

    @property
    def commit(self) -> Commit:
        return load(self.client, "p", "s").commit

    def delivery(self, *steps: Function, ns: str = ".*", bury: list[Refusal] | None = None) -> SingleDelivery:
        return SingleDelivery(
            sink_name="s",
            sink=FileSink(self.path / "out.jsonl"),
            accept=Namespace(ns),
            steps=[Step(step.name, step, Namespace(".*")) for step in steps],
            offsets=OffsetLog(self.client, "p", "s", 1),
            log_id="log",
            scratch=self.path / "scratch",
            bury=None if bury is None else bury.append,
        )

    def deliver(self, delivery: SingleDelivery, records: list[Record], end: int) -> Delivered:
        with delivery:
            return delivery.deliver([batch_of(records[:2]), batch_of(records[2:])], end)


@pytest.fixture
def place(client: Client, tmp_path: Path) -> Place:
    return Place(client, tmp_path)


def test_each_message_is_acknowledged_before_the_next(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    watermarks: list[int] = []
    real = OffsetLog.commit

    def seen(self: OffsetLog, commit: Commit, *rest: object) -> None:
        real(self, commit, *rest)  # type: ignore[arg-type]
        watermarks.append(commit.watermark)
        assert len(place.lines) == commit.watermark, "published, then acknowledged, one by one"

    monkeypatch.setattr(OffsetLog, "commit", seen)
    done = place.deliver(place.delivery(), [record(i) for i in range(5)], 5)
    assert done == Delivered(5, delivered=5)
    assert watermarks == [1, 2, 3, 4, 5]


def test_the_first_that_fails_ends_it_and_what_lies_before_is_delivered(place: Place) -> None:
    records = [record(0), record(1), record(2, '{"n":"poison"}'), record(3)]
    done = place.deliver(place.delivery(Poison()), records, 4)
    assert done.refused == Refusal(2, "A", "this one is poison", "poison")
    assert (done.watermark, done.delivered, place.commit.watermark) == (2, 2, 2)
    assert place.lines == ['{"n":0}', '{"n":1}']


def test_a_buried_message_is_passed_by(place: Place) -> None:
    buried: list[Refusal] = []
    records = [record(0), record(1, '{"n":"poison"}'), record(2)]
    done = place.deliver(place.delivery(Poison(), bury=buried), records, 3)
    assert (done.watermark, done.delivered, done.dead) == (3, 2, 1)
    assert [refusal.offset for refusal in buried] == [1]
    assert (place.commit.dead, place.lines) == (1, ['{"n":0}', '{"n":2}'])


def test_dropped_filtered_and_missing_messages_are_acknowledged(place: Place) -> None:
    records = [record(0), record(1, ns="B"), record(3), record(5)]
    keep = Skip(field="n", operator=">", match=0)
    done = place.deliver(place.delivery(keep, ns="A"), records, 8)
    assert done == Delivered(8, delivered=2, dropped=6)
    assert (place.commit.watermark, place.commit.delivered, place.commit.dropped) == (8, 2, 6)
    assert load(place.client, "p", "s").namespaces == {"A": 5, "B": 1}


def test_what_an_operator_acknowledged_ahead_is_not_sent(place: Place) -> None:
    offsets = OffsetLog(place.client, "p", "s", 1)
    offsets.commit(Commit(acked=(1, 2)), {}, 1)
    done = place.deliver(place.delivery(), [record(i) for i in range(4)], 4)
    assert done == Delivered(4, delivered=2, dropped=2)
    assert place.lines == ['{"n":0}', '{"n":3}']
    assert place.commit.acked == ()


def test_what_was_delivered_is_not_sent_again(place: Place) -> None:
    place.deliver(place.delivery(), [record(i) for i in range(3)], 3)
    done = place.deliver(place.delivery(), [record(i) for i in range(5)], 5)
    assert done == Delivered(5, delivered=2)
    assert len(place.lines) == 5


def test_a_crash_between_publish_and_commit_doubles_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: OffsetLog, commit: Commit, *rest: object) -> None:
        raise OSError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(OffsetLog, "commit", lost)
        with pytest.raises(OSError, match="killed"):
            place.deliver(place.delivery(), [record(0), record(1)], 2)
    assert place.commit.watermark == 0
    done = place.deliver(place.delivery(), [record(0), record(1)], 2)
    assert done == Delivered(2, delivered=2)
    assert place.lines == ['{"n":0}', '{"n":1}']


def test_careful_ends_where_it_was_to_end(place: Place) -> None:
    OffsetLog(place.client, "p", "s", 1).commit(Commit(careful=3), {}, 1)
    place.deliver(place.delivery(), [record(i) for i in range(2)], 2)
    assert place.commit.careful == 3
    place.deliver(place.delivery(), [record(2)], 3)
    assert place.commit.careful == 0


def test_rows_of_one_message_stay_together(place: Place) -> None:
    rows = [record(0), record(1), record(1), record(1), record(2)]
    done = place.deliver(place.delivery(), rows, 3)
    assert done == Delivered(3, delivered=3)
    assert place.lines == ['{"n":0}', '{"n":1}', '{"n":1}', '{"n":1}', '{"n":2}']


def test_a_replay_moves_no_position(place: Place) -> None:
    place.deliver(place.delivery(), [record(0), record(1)], 2)
    with place.delivery(Poison()) as delivery:
        assert delivery.redeliver(record(0)) is None
        refused = delivery.redeliver(record(1, '{"n":"poison"}'))
    assert refused is not None
    assert refused.error == "this one is poison"
    assert place.commit.watermark == 2
    assert place.lines == ['{"n":0}', '{"n":1}', '{"n":0}']
