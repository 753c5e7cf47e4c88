"""The log page by page: from an offset or a moment on, of some namespaces, with some text; forwards or backwards.

A page never looks at more than a bounded part of the log. One that ends before it is full says where to go on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.log.reader import LogReader
from penstock.log.record import Record
from penstock.pipeline.namespace import Namespace
from penstock.pipeline.operations import Directory
from penstock.pipeline.records import LogEntry, entry

_LOOK_AT_THE_CLOCK = 20
"""After so many messages."""
_PIECE_BYTES = 8 << 20
"""About so much is read at once, backwards."""


@dataclass(frozen=True, slots=True)
class Page:
    """Messages in the order of the log. `looked` counts those that were read for it, `more` is where to go on.

    `more` is None at the end of the log, or at its beginning if it was read backwards.
    """

    entries: Sequence[LogEntry]
    looked: int
    more: int | None


@dataclass(frozen=True, slots=True)
class Search:
    """What is wanted. Text is looked for in the message's own text and in its key, whatever the case."""

    ns: Namespace | None = None
    text: str = ""

    def wants(self, record: Record) -> bool:
        if self.ns is not None and not self.ns.matches(record.ns):
            return False
        if not self.text:
            return True
        wanted = self.text.casefold()
        return any(
            wanted in part.decode(errors="replace").casefold() for part in (record.data, record.key or b"")
        )


def page(
    directory: Directory,
    pipeline: str,
    search: Search,
    *,
    start: int,
    count: int,
    backwards: bool = False,
    patience: float = 2.0,
) -> Page:
    """Up to `count` messages that are wanted, from offset `start` on; backwards those up to it."""
    oldest, end = max(directory.oldest(pipeline), 0), directory.current(pipeline) + 1
    reader, deadline = directory.reader(pipeline), time.monotonic() + patience
    if backwards:
        return _up_to(reader, search, min(start, end - 1), oldest, count, deadline)
    return _from(reader, search, max(start, oldest), end, count, deadline)


def _from(reader: LogReader, search: Search, start: int, end: int, count: int, deadline: float) -> Page:
    found: list[LogEntry] = []
    looked = 0
    for record in reader.show(start, end - 1) if start < end else ():
        tired = looked >= count and looked % _LOOK_AT_THE_CLOCK == 0 and time.monotonic() > deadline
        if len(found) == count or tired:
            return Page(found, looked, record.offset)
        looked += 1
        if search.wants(record):
            found.append(entry(record))
    return Page(found, looked, None)


def _up_to(reader: LogReader, search: Search, start: int, oldest: int, count: int, deadline: float) -> Page:
    """A log is read forwards, so piece by piece, of which only what is wanted is kept; later ones are larger."""
    found: list[LogEntry] = []
    looked, read, last, size = 0, 0, start, max(count, _LOOK_AT_THE_CLOCK)
    while last >= oldest:
        if len(found) == count or (looked and time.monotonic() > deadline):
            return Page(found, looked, last)
        first = max(last - size + 1, oldest)
        wanted: deque[LogEntry] = deque(maxlen=count - len(found))
        for record in reader.show(first, last):
            looked, read = looked + 1, read + len(record.data)
            if search.wants(record):
                wanted.append(entry(record))
        found = [*wanted, *found]
        last = (found[0].offset if len(found) == count else first) - 1
        average = read // max(looked, 1)
        size = min(4 * size, max(_PIECE_BYTES // max(average, 100), 1))
    return Page(found, looked, None)


def offset_at(directory: Directory, pipeline: str, ts: int) -> int:
    """The first message that was logged at `ts` (us) or later, else the next one to come. Times are taken to ascend."""
    reader = directory.reader(pipeline)
    low, high = int(reader.first().offset), reader.state().next
    while low < high:
        middle = (low + high) // 2
        record = reader.messages([middle]).get(middle)
        if record is not None and record.ts < ts:
            low = middle + 1
        else:
            high = middle
    return low
