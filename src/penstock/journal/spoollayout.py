"""Spool files by their names, and where things lie in them.

    BEGIN.open.spool                  a fragment under construction, or complete
        0       content               the fragment's bytes, uncompressed, from its begin
        room    slots      128 KiB    two commit records, or what is left of them
    BEGIN-END-SUM-FIRST.whole.spool   a complete fragment on its way into the store: content, and nothing else
    BEGIN.spool                       the layout of earlier versions: the slots at 0, the content behind them

Content begins where the file does, so that a file that is complete becomes one of the store as it is: its records are
cut off, and it gets another name. Until then its name says what they said: where it ends, its SHA1, and when its first
append came (µs, in decimal).

The room before the slots is 256 KiB, or eight times that, and so on; a hole until content fills it. Content that needs
more has the records moved first, a step at a time (`SpoolFile`). So the size of a file tells where they are: behind the
largest room that leaves something for them or, if the power went while they were moved, behind the one below it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from penstock.journal.fragment import Codec, Fragment
from penstock.journal.protocol import LabelSet
from penstock.journal.spoolrecord import SLOTS_BYTES, CommitRecord

SUFFIX = ".spool"
OPEN = f".open{SUFFIX}"
WHOLE = f".whole{SUFFIX}"
FIRST_ROOM = 256 << 10
GROWTH = 8
"""So much that slots behind one room never reach the next."""
_WHOLE_NAME = re.compile(
    rf"([0-9a-f]{{16}})-([0-9a-f]{{16}})-([0-9a-f]{{40}})-(-?[0-9]{{1,20}}){re.escape(WHOLE)}"
)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where content begins, and where the slots do; `room` is what content may take, if the slots are behind it."""

    content: int
    slots: int
    room: int | None = None


EARLIER = Layout(content=SLOTS_BYTES, slots=0)


def behind(room: int) -> Layout:
    """With the slots behind so much room."""
    return Layout(content=0, slots=room, room=room)


def room_for(length: int) -> int:
    """The least room that takes so much content."""
    room = FIRST_ROOM
    while room < length:
        room *= GROWTH
    return room


def layouts(path: Path, size: int) -> list[Layout]:
    """Where the slots of a file of this size may be, the likeliest first."""
    if not path.name.endswith(OPEN):
        return [EARLIER]
    rooms = [FIRST_ROOM]
    while rooms[-1] * GROWTH < size:
        rooms.append(rooms[-1] * GROWTH)
    return [behind(room) for room in reversed(rooms[-2:])]


def content_at(path: Path) -> int:
    """Where the content of a spool file begins."""
    return 0 if path.name.endswith((OPEN, WHOLE)) else EARLIER.content


def is_whole(path: Path) -> bool:
    """Whether the file has content and nothing else."""
    return path.name.endswith(WHOLE)


def open_name(begin: int) -> str:
    return f"{begin:016x}{OPEN}"


def whole_name(record: CommitRecord) -> str:
    """What a complete file is called once its name has to say what its record does."""
    fragment = record.fragment
    return f"{fragment.begin:016x}-{fragment.end:016x}-{fragment.sum.hex()}-{record.first_append}{WHOLE}"


def parse_whole(journal: str, path: Path) -> CommitRecord | None:
    """What the name of a complete file says; None if it is no such name. Nothing is known of registers."""
    found = _WHOLE_NAME.fullmatch(path.name)
    if found is None:
        return None
    begin, end, digest, first_append = found.groups()
    fragment = Fragment(journal, int(begin, 16), int(end, 16), bytes.fromhex(digest), Codec.NONE)
    return CommitRecord(0, fragment, LabelSet(), int(first_append))
