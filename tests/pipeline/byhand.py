"""A commit log, and sinks that are given its messages in this process, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from penstock.adaptors.base import Publisher, Refusal, Sink, SinkPosition, Staged
from penstock.adaptors.file.sink import FileSink
from penstock.functions.base import Function
from penstock.functions.chain import Step
from penstock.journal.client import Client
from penstock.log import offsets
from penstock.log import record as rec
from penstock.log.commitlog import CommitLog
from penstock.log.journals import extent
from penstock.log.message import Message
from penstock.log.offsets import OffsetLog, SinkOffsets
from penstock.pipeline.namespace import Namespace
from penstock.spark.single import Delivered, SingleDelivery, batch_of

NOW = 1_700_000_000_000_000


@dataclass
class ByHand:
    """The pipeline `p`, whose sinks write `NAME.jsonl`."""

    client: Client
    path: Path
    log: CommitLog = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.opened()

    def opened(self, *, segment_bytes: int | None = None, pipeline: str = "p") -> CommitLog:
        """The log, claimed anew: as after a restart."""
        self.log = CommitLog(self.client, pipeline, self.path / "index", segment_bytes, NOW)
        return self.log

    def append(self, keys: str) -> None:
        """One message for each letter, its namespace; each is told its offset."""
        first = self.log.point.offset
        self.log.append(
            [Message(ns, b'{"n":%d}' % n, ts=NOW) for n, ns in enumerate(keys, first)], {}, [], NOW
        )

    def close_segment(self) -> None:
        self.client.roll(self.log.journal)

    def readable(self) -> list[tuple[int, str]]:
        return [(record.offset, record.ns) for record in self.log.reader.show(0, 1 << 40)]

    def deliver(
        self,
        *functions: Function | tuple[Function, str],
        sink: str = "s",
        ns: str = ".*",
        to: Sink | None = None,
        bury: list[Refusal] | None = None,
    ) -> Delivered:
        """Give the sink what it has not acknowledged; a function may come with its namespace."""
        steps = [one if isinstance(one, tuple) else (one, ".*") for one in functions]
        held = OffsetLog(self.client, "p", sink, NOW)
        end = self.log.point.offset
        delivery = SingleDelivery(
            sink_name=sink,
            sink=to or FileSink(self.target(sink)),
            accept=Namespace(ns),
            steps=[Step(function.name, function, Namespace(of)) for function, of in steps],
            offsets=held,
            log_id=self.log.log_id,
            scratch=self.path / "scratch",
            bury=None if bury is None else bury.append,
        )
        with delivery:
            records = list(self.log.reader.show(held.state.commit.watermark, end))
            return delivery.deliver([batch_of(records)] if records else [], end)

    def target(self, sink: str = "s") -> Path:
        return self.path / f"{sink}.jsonl"

    def lines(self, sink: str = "s") -> list[str]:
        return self.target(sink).read_text().splitlines()

    def held(self, sink: str = "s") -> SinkOffsets:
        """What the offset log of a sink says."""
        return offsets.load(self.client, "p", sink)

    def commits(self, sink: str = "s") -> list[int]:
        """The watermarks that a sink has written, one by one."""
        journal = offsets.offsets_journal("p", sink)
        begin, head = extent(self.client, journal)
        content = self.client.read_bytes(journal, begin, head)
        closing = [
            record.data for _, record in rec.decode_all(content, journal) if record.control and record.data
        ]
        return [msgspec.json.decode(data, type=offsets.Commit).watermark for data in closing]


class Forgetful(FileSink):
    """A target that keeps no position of its own: all that a repetition can be told by is the offset log."""

    def __init__(self, target: Path) -> None:
        super().__init__(target)
        self._path = target

    def publisher(self) -> Publisher:
        return ForgetfulPublisher(self._path)


class ForgetfulPublisher(Publisher):
    def __init__(self, target: Path) -> None:
        self._target = target

    def open(self, start: SinkPosition) -> None:
        return None

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        with self._target.open("a") as file:
            file.writelines(Path(staged.part).read_text() for staged in parts if staged.part)

    def close(self) -> None:
        pass


def numbered(numbers: Iterable[int]) -> list[str]:
    """The lines of these messages."""
    return [f'{{"n":{n}}}' for n in numbers]
