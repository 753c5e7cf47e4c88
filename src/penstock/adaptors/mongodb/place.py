"""How far a collection has been read, as the log keeps it.

    {"after": {"$oid": …}, "copied": 1200, "time": [t, i]}      in the copy: the last `_id`, and where the changes begin
    {"token": "8263…", "time": [t, i]}                          behind it: the resume token of the last change
    {"token": "8263…", "time": [t, i], "until": [t, i]}         changes up to `until` may be in the copy already

    … "within": true                                            and the next change is of the same transaction

`time` is MongoDB's cluster time. Resume tokens are hexadecimal and sort in the order of the changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.adaptors.mongodb.values import Reader, Writer
from penstock.log.message import Mode, Position, Resume

Time = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment in the stream of changes: behind the change with this token, or from this time on."""

    time: Time
    token: str | None = None

    def is_before(self, token: str, time: Time) -> bool:
        """Whether a change comes after this mark."""
        return token > self.token if self.token is not None else time >= self.time

    @property
    def order(self) -> tuple[Time, str]:
        return self.time, self.token or ""


class _Known(msgspec.Struct):
    after: object = None
    copied: int = 0
    time: Time | None = None
    token: str | None = None
    until: Time | None = None
    within: bool = False


@dataclass(slots=True)
class Place:
    """How far a namespace has been read. `mark` is None if the server could not tell the time when the copy began."""

    ns: str
    mode: Mode = Mode.COPY
    mark: Mark | None = None
    after: tuple[Any, ...] = ()
    """The last `_id` that was copied, if any."""
    copied: int = 0
    until: Time | None = None
    where: str | None = None
    then: Mark | None = None
    """Of a copy of the documents that meet `where`: from where on all changes are read."""
    streamed: bool = False
    """Whether the stream that is open has served it from its beginning."""
    within: bool = False
    """Whether its last change is of a transaction that goes on."""

    @property
    def is_new(self) -> bool:
        """Whether its copy has not begun."""
        return self.mode is Mode.COPY and self.mark is None and not self.after

    def position(self, writer: Writer) -> Position:
        position: Position = {}
        if self.mode is Mode.COPY:
            if self.after:
                position["after"] = msgspec.json.decode(msgspec.json.encode(writer.value(self.after[0])))
            position["copied"] = self.copied
        if self.mark is not None:
            position["time"] = list(self.mark.time)
            if self.mark.token is not None:
                position["token"] = self.mark.token
        if self.until is not None:
            position["until"] = list(self.until)
        if self.within:
            position["within"] = True
        return position

    def move(self, token: str, time: Time) -> None:
        """A change was read."""
        self.mark = Mark(time, token)
        if self.until is not None and time > self.until:
            self.until = None

    def complete(self, now: Time | None) -> None:
        """The copy is done: what changed since it began follows, up to `now` it may be in the copy as well."""
        self.mode, self.after, self.until = Mode.SYNC, (), now
        if self.where is not None:
            self.mark, self.where = self.then or self.mark, None


def resumed(ns: str, known: Resume) -> Place:
    """The place that the log knows."""
    found = msgspec.convert(known.position, _Known) if known.position else _Known()
    mark = _mark(found)
    if known.mode is not Mode.COPY:
        return Place(ns, Mode.SYNC, mark, until=found.until, within=found.within)
    after: tuple[Any, ...] = ()
    if "after" in known.position:
        text = msgspec.json.encode({"_id": known.position["after"]})
        after = (Reader("date").document(text)["_id"],)
    then = _mark(msgspec.convert(known.before, _Known)) if known.before else None
    return Place(ns, Mode.COPY, mark, after, found.copied, None, known.where, then)


def _mark(known: _Known) -> Mark | None:
    return Mark(known.time, known.token) if known.time is not None else None
