"""Which files of a place have been read, told in a bounded position.

Files come and go in any order, and a name that sorts early may appear late. Each file has a *time*, at which it came to
where it is, by the clock of where it lies. A pass reads all files that are new, in order. Of the files read

- those that came before `floor` are known by that alone;
- during a pass, those that came before `bar` and do not sort behind `after` are known by that;
- the last ones are remembered one by one, by a digest of name and content tag.

`bar` lags behind the newest file of the pass by `late`: so much later than its time a file may show up and is still
found, unless `MOST` newer ones were read meanwhile. A file that was read and then changed has another tag and a later
time, and is new.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

FileOrder = Literal["name", "time"]

MOST = 1000
"""Files that are remembered one by one."""


class Entry(NamedTuple):
    """A file that is whole. `time` in microseconds; `tag` is another if the content is."""

    name: str
    time: int
    size: int
    tag: str

    @property
    def digest(self) -> str:
        text = f"{self.name}\0{self.tag}".encode()
        return base64.b64encode(hashlib.blake2b(text, digest_size=6).digest()).decode()


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """The ledger as it stands in a position."""

    floor: int = 0
    bar: int = 0
    after: tuple[int, str] | None = None
    recent: tuple[tuple[int, str], ...] = ()
    older: tuple[tuple[int, str], ...] = ()


@dataclass
class Ledger:
    """What was read. Values in, values out."""

    order: FileOrder
    late: int
    floor: int = 0
    bar: int = 0
    after: tuple[int, str] | None = None
    recent: dict[str, int] = field(default_factory=dict)
    """Digests of files that were read in this pass, and their times."""
    older: dict[str, int] = field(default_factory=dict)
    """The same of those before."""
    behind: dict[str, int] = field(default_factory=dict)
    """The same of files that came during the pass, sort in front of where it is, and are to be read next."""

    @classmethod
    def of(cls, kept: Kept, order: FileOrder, late: int) -> Ledger:
        recent, older = ({one: at for at, one in some} for some in (kept.recent, kept.older))
        return cls(order, late, kept.floor, kept.bar, kept.after, recent, older)

    def kept(self) -> Kept:
        recent, older = (tuple((at, one) for one, at in some.items()) for some in (self.recent, self.older))
        return Kept(self.floor, self.bar, self.after, recent, older)

    def has(self, entry: Entry) -> bool:
        """Whether a file has been read."""
        if entry.time < self.floor or entry.digest in self.recent or entry.digest in self.older:
            return True
        return self.after is not None and entry.time < self.bar and self._key(entry) <= self.after

    def new(self, entries: Iterable[Entry]) -> Sequence[Entry]:
        """The files to read, in order: of the pass that is under way, or else of the next."""
        found = sorted((one for one in entries if not self.has(one)), key=self._key)
        if found and self.after is None:
            self.bar = max(self.floor, max(one.time for one in found) - self.late)
        after = self.after
        self.behind = {one.digest: one.time for one in found if after is not None and self._key(one) <= after}
        return found

    def add(self, entry: Entry) -> None:
        """A file has been read to its end."""
        key = self._key(entry)
        self.after = key if self.after is None else max(self.after, key)
        self.recent[entry.digest] = entry.time
        self.behind.pop(entry.digest, None)
        if len(self.recent) > MOST:
            # The pass covers those that came before its bar, unless they are still to be read. Of files with the same
            # time all are remembered or none, and always the newest, which may get company.
            times = sorted(self.recent.values())
            edge = min(times[-MOST // 2], times[-1] - 1, *(at - 1 for at in self.behind.values()))
            self.bar = max(self.bar, edge + 1)
            self.recent = {one: at for one, at in self.recent.items() if at > edge}

    def end_pass(self) -> None:
        """Every file of the pass has been read."""
        self.floor, self.after = max(self.floor, self.bar), None
        newest = sorted((self.older | self.recent).items(), key=lambda one: one[1])
        if sum(at >= self.floor for _, at in newest) > MOST:
            self.floor = max(self.floor, newest[-MOST // 2][1])
        spare = newest[-MOST // 2 :]  # of use if somebody touches a file that was read
        self.older = dict([one for one in newest if one[1] >= self.floor] + spare)
        self.recent, self.behind = {}, {}

    def _key(self, entry: Entry) -> tuple[int, str]:
        return (entry.time if self.order == "time" else 0, entry.name)
