"""All that a coordinator knows about its instance: what was accepted, what is in the log, what was sent. Pure.

    binding  ->  `sent`       calls are counted and kept for their destinations; calls to itself come back as input
    peers    ->  `accept`     input is counted and gathered
             ->  `record`     what has gathered becomes the next record of the log, with counts in its trailer
    the log  ->  `durable`    counts that may be told to the senders
             ->  `delivered`  counts that a checkpoint at this place of the log holds
             ->  `replay`     a record read back: the counts of its trailer hold again

An instance's own name and the empty name both mean itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from penstock.base.disk import Buffer
from penstock.immortal.logformat import LogRecord, Met, Source, encode_log_record
from penstock.immortal.outputs import Output
from penstock.immortal.routing import route
from penstock.immortal.wire.between import ReplayFrom
from penstock.immortal.wire.records import HEADER_BYTES
from penstock.immortal.wire.zigzag import CorruptWireError

COMMIT_BUFFER = 8 << 20
"""A record holds about so much; a single message may be larger."""


class OutputHead(msgspec.Struct, frozen=True):
    """One destination in the head of a checkpoint; `size` bytes of messages follow elsewhere."""

    name: str
    replayable: int
    count: int
    size: int
    incarnation: str
    base: int


class StateHead(msgspec.Struct, frozen=True):
    """The counts of a checkpoint."""

    committer: int
    incarnation: str
    sequence: int
    """Of the first record that is not part of the state."""
    sources: dict[str, tuple[int, int, str, int]]
    outputs: list[OutputHead]
    pending: bytes = b""
    """The first input of all, while it is not in the log yet."""


class NewRecord(NamedTuple):
    """A record to be appended and, when it is durable, to be delivered."""

    sequence: int
    body: bytes
    sources: dict[str, Source]
    acknowledged: dict[str, int]

    def encoded(self, committer: int) -> list[Buffer]:
        return encode_log_record(committer, self.sequence, self.body, self.sources, self.acknowledged)


class State:
    """Of one instance, in one life."""

    def __init__(self, name: str, committer: int, incarnation: str) -> None:
        self.name = name
        self.committer = committer
        self.incarnation = incarnation
        self.sequence = 0
        """The next record's id."""
        self.calls = 0
        """What was accepted in this life, from others and from itself."""
        self.sources: dict[str, Source] = {"": Source()}
        """What was accepted, whether it is in the log or not."""
        self._delivered: dict[str, Source] = {"": Source()}
        self.outputs: dict[str, Output] = {"": Output("")}
        self.next_delivered = 0
        self._gathered: list[tuple[bytes, str, Source]] = []
        """Messages with the count of their sender behind them."""
        self.gathered_bytes = 0
        self._acknowledged: dict[str, int] = {}
        self._own = name.encode()
        self._takes_own = False

    # From the binding.

    def sent(self, kind: int, data: bytes, *, in_replay: bool = False) -> list[Output]:
        """An RPC, or a batch of them, from the binding; the outputs that have something new."""
        touched = []
        for key, routed in route(kind, data, self._own).items():
            try:
                name = key.decode()
            except UnicodeDecodeError:
                raise CorruptWireError("a destination that is not UTF-8", position=0) from None
            if in_replay and routed.impulses:
                raise CorruptWireError("an Impulse in replay: it would come again in each one", position=0)
            output = self.output(name)
            output.take(routed.data, routed.count, routed.replayable)
            touched.append(output)
        if self._takes_own:
            self._pump()
        return touched

    def output(self, name: str) -> Output:
        """The output to a destination, made if need be."""
        output = self.outputs.get(name)
        if output is None:
            output = self.outputs[name] = Output(name)
        return output

    def initial(self, message: bytes) -> None:
        """The first input of all, which counts for nobody."""
        self._gather(message, "", self.sources[""])

    # Input.

    def begin(self) -> None:
        """Replay is over: from now on calls to itself become input."""
        own = self.sources[""]
        self.outputs[""].open(ReplayFrom(own.number + 1, own.replayable + 1))
        self._takes_own = True
        self._pump()

    def introduce(self, source: str, incarnation: str, epoch: int) -> Source | None:
        """A sender opens a stream; what was accepted from it, or None if a later claimant of its log was heard.

        One that was made anew counts from nothing.
        """
        known = self.sources.get(source, Source())
        if known.incarnation == incarnation and known.epoch > epoch:
            return None
        if known.incarnation != incarnation:
            known = Source(incarnation=incarnation)
        self.sources[source] = known._replace(epoch=epoch)
        return self.sources[source]

    def accept(self, source: str, message: bytes, count: int, replayable: int) -> None:
        """Input from a sender, as it is to be delivered."""
        known = self.sources[source]
        now = known._replace(number=known.number + count, replayable=known.replayable + replayable)
        self.sources[source] = now
        self.calls += count
        self._gather(message, source, now)

    def _pump(self) -> None:
        output = self.outputs[""]
        while (unsent := output.unsent()) is not None:
            message, count, replayable = unsent
            self.accept("", message, count, replayable)

    def _gather(self, message: bytes, source: str, counts: Source) -> None:
        self._gathered.append((message, source, counts))
        self.gathered_bytes += len(message)

    def acknowledged(self, output: Output) -> None:
        """A receiver has more of our output durably: the log is to know it."""
        self._acknowledged[output.name] = output.acked_replayable

    # The log.

    def record(self) -> NewRecord | None:
        """What has gathered, as the next record; None if nothing has."""
        if not self._gathered:
            return None
        taken = self._gathered
        if self.gathered_bytes > COMMIT_BUFFER - HEADER_BYTES:
            fitting = self._fitting()
            taken, self._gathered = taken[:fitting], taken[fitting:]
        else:
            self._gathered = []
        body = b"".join([message for message, _, _ in taken])
        sources = {source: counts for _, source, counts in taken}
        self.gathered_bytes -= len(body)
        acknowledged, self._acknowledged = self._acknowledged, {}
        made = NewRecord(self.sequence, body, sources, acknowledged)
        self.sequence += 1
        return made

    def _fitting(self) -> int:
        room = COMMIT_BUFFER - HEADER_BYTES
        for index, entry in enumerate(self._gathered):
            room -= len(entry[0])
            if room < 0:
                return max(index, 1)
        return len(self._gathered)

    def durable(self, record: NewRecord) -> None:
        """A record is in the log: what it holds of calls to itself needs no keeping any more."""
        own = record.sources.get("")
        if own is not None:
            self.outputs[""].committed(own.number, own.replayable)

    def delivered(self, sequence: int, sources: dict[str, Source]) -> None:
        """A record was handed to the binding: a checkpoint that it takes now holds it."""
        self._delivered.update(sources)
        self.next_delivered = sequence + 1

    def replay(self, record: LogRecord) -> None:
        """A record of an earlier life was read, and goes to the binding."""
        self.sources.update(record.sources)
        self.sequence = record.sequence + 1
        self.delivered(record.sequence, record.sources)
        for name, replayable in record.acknowledged.items():
            self.output(name).durable_replayable(replayable)
        if (own := record.sources.get("")) is not None:
            self.outputs[""].durable_replayable(own.replayable)

    def met(self, mark: Met) -> None:
        """In replay: a destination that was met at this place of the log."""
        output = self.output(mark.name)
        output.incarnation, output.base = mark.incarnation, mark.base

    # Checkpoints.

    def head(self, pending: bytes = b"") -> tuple[StateHead, list[bytes]]:
        """The counts that belong to the state of the binding now, and the messages that they speak of."""
        heads, kept = [], []
        for output in self.outputs.values():
            messages = output.kept()
            size = sum(map(len, messages))
            count, inc, base = output.kept_count, output.incarnation, output.base
            heads.append(OutputHead(output.name, output.replayable, count, size, inc, base))
            kept += messages
        sources = {
            name: (source.number, source.replayable, source.incarnation, source.epoch)
            for name, source in self._delivered.items()
        }
        head = StateHead(self.committer, self.incarnation, self.next_delivered, sources, heads, pending)
        return head, kept

    @classmethod
    def restored(cls, name: str, head: StateHead, kept: Iterable[bytes]) -> State:
        """From a checkpoint; `kept` gives the messages of one output after the other."""
        state = cls(name, head.committer, head.incarnation)
        state.sequence = state.next_delivered = head.sequence
        for source, counts in head.sources.items():
            state.sources[source] = state._delivered[source] = Source(*counts)
        for one, messages in zip(head.outputs, kept, strict=True):
            output = state.outputs[one.name] = Output(one.name, replayable=one.replayable)
            output.incarnation, output.base = one.incarnation, one.base
            output.restore(messages, one.count)
        return state

    @property
    def output_bytes(self) -> int:
        return sum(output.size for output in self.outputs.values())
