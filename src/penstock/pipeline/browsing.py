"""The log page by page: from an offset or a moment on, of some namespaces, with some text; forwards or backwards.

A page never looks at more than a bounded part of the log. One that ends before it is full says where to go on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.log.record import Record
from penstock.pipeline.namespace import Namespace
from penstock.pipeline.operations import Directory
from penstock.pipeline.recompute import entry
from penstock.pipeline.records import LogEntry

_PIECE = 1000


@dataclass(frozen=True, slots=True)
class Page:
    """Messages in the order of the log. `looked` counts those that were looked at, `more` is where to go on.

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
    deadline = time.monotonic() + patience
    found: list[LogEntry] = []
    looked, more = 0, None
    begin = min(start, end - 1) if backwards else max(start, oldest)
    for first, last in _pieces(begin, oldest, end, count, backwards):
        records = list(directory.reader(pipeline).show(first, last))
        for record in reversed(records) if backwards else records:
            if len(found) == count:
                more = record.offset
                break
            looked += 1
            if search.wants(record):
                found.append(entry(record))
        going = first - 1 if backwards else last + 1
        if more is None and oldest <= going < end and (len(found) == count or time.monotonic() > deadline):
            more = going
        if more is not None:
            break
    return Page(found[::-1] if backwards else found, looked, more)


def _pieces(start: int, oldest: int, end: int, count: int, backwards: bool) -> Iterator[tuple[int, int]]:
    """Ranges of offsets to look at, small ones first."""
    size, at = max(count, 20), start
    while oldest <= at < end:
        if backwards:
            yield max(at - size + 1, oldest), at
            at -= size
        else:
            yield at, min(at + size, end) - 1
            at += size
        size = min(4 * size, _PIECE)


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
