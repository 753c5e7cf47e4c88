"""How far a topic has been read, and what the brokers say that is now impossible: a value, without a broker.

The position of a namespace in the log is

    {"id": "…", "next": {"0": 17, "1": 4}, "until": {"0": 20, "1": 4}}

`id` is the topic's own, which tells it from another one of the same name; `next` the offset to go on with in each
partition; `until`, while it is copied, where each partition ended when the copy began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.log.message import Mode, Position, Resume


@dataclass(frozen=True, slots=True)
class Span:
    """What a broker has of a partition: records from `low` to below `end`, decided ones to below `committed`."""

    low: int
    committed: int
    end: int


class _Known(msgspec.Struct):
    """A position as the log gives it back."""

    id: str = ""
    next: dict[str, int] = {}
    until: dict[str, int] | None = None


@dataclass(slots=True)
class Place:
    """How far a topic has been read."""

    topic: str
    id: str
    next: dict[int, int] = field(default_factory=dict)
    until: dict[int, int] | None = None
    """None if the copy is over."""
    goal: dict[int, int] = field(default_factory=dict)
    """Of a source that does not tail: where each partition ends for it."""
    began: int = 0
    """The sum of `next` when this start began, to count from."""

    @property
    def mode(self) -> Mode:
        return Mode.SYNC if self.until is None else Mode.COPY

    @property
    def position(self) -> Position:
        position: Position = {"id": self.id, "next": {str(p): n for p, n in sorted(self.next.items())}}
        if self.until is not None:
            position["until"] = {str(p): n for p, n in sorted(self.until.items())}
        return position

    @property
    def is_copied(self) -> bool:
        return self.until is None or all(self.next[p] >= end for p, end in self.until.items())

    def wants(self, partition: int) -> bool:
        """Whether there is something to read in it, now: behind its copy only when the whole topic is copied."""
        at = self.next[partition]
        if self.until is not None:
            return at < self.until[partition]
        return not self.goal or at < self.goal[partition]

    def ends(self, partition: int) -> int | None:
        """Records from this offset on are not wanted now; None if all are."""
        if self.until is not None:
            return self.until[partition]
        return self.goal.get(partition)

    def reached(self, partition: int, offset: int) -> None:
        """There is no record in front of `offset` that was not read."""
        self.next[partition] = max(self.next[partition], offset)


def resumed(
    topic: str, id: str, known: Resume | None, spans: Mapping[int, Span], *, tail: bool
) -> tuple[Place, Sequence[str]]:
    """Where to go on in a topic, and what was lost since: a sentence for each loss, behind which it would go on."""
    position = msgspec.convert(known.position, _Known) if known is not None else _Known()
    copying = known is None or known.mode is Mode.COPY
    lost = []
    if position.id and id and position.id != id:
        lost.append(f"topic '{topic}' was deleted and made anew: what came behind the position is gone")
        position = _Known()
    place = Place(topic, id, until={} if copying else None)
    for partition, span in spans.items():
        where = f"topic '{topic}', partition {partition}"
        at = position.next.get(str(partition), 0 if position.next else span.low)
        if at < span.low:
            lost.append(f"{where}: the records {at} to {span.low - 1} were removed before they were read")
            at = span.low
        elif at > span.end:
            lost.append(f"{where} ends at {span.end}, but was read up to {at}: its broker lost records")
            at = span.end
        place.next[partition] = at
        if place.until is not None:
            ends = (position.until or {}).get(str(partition), span.committed)
            place.until[partition] = min(ends, span.end)
        if not tail:
            place.goal[partition] = span.committed
    place.began = sum(place.next.values())
    return place, lost


def add_partition(place: Place, partition: int, span: Span, *, tail: bool) -> None:
    """A partition that was added: all of it is new."""
    place.next[partition] = span.low
    if place.until is not None:
        place.until[partition] = span.committed
    if not tail:
        place.goal[partition] = span.committed
