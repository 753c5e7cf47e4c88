"""What is durable at a point of the log, what is not, and the disk that a choice among the latter leaves.

`Replay` walks the log. A sync that returned makes durable what was issued on that inode before it started;
every other step is an `Atom`: an unsynced write or truncate of a file, or an unsynced change of one folder's
entries. Given the fate of each atom, `Replay.tree` is the disk after the power came back. Two rules keep it
one that a file system could leave: an entry change applies only where its source entry is as it was, and a
rename between folders never loses the file (it may leave both names).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from penstock.testing.powerloss.events import (
    ROOT,
    Create,
    Event,
    Link,
    Log,
    Remove,
    Rename,
    Site,
    SyncEnd,
    Truncate,
    Write,
)


@dataclass(frozen=True, slots=True)
class Tear:
    """A write of which only these ranges of its bytes arrived.

    Elsewhere stands what stood there before; `grown` says that the file has its new length all the same, with
    zeros where nothing stood.
    """

    kept: tuple[tuple[int, int], ...]
    grown: bool

    def __str__(self) -> str:
        ranges = ", ".join(f"{start}:{stop}" for start, stop in self.kept) or "nothing"
        return f"{ranges} arrived{', file grown' if self.grown else ''}"


Fate: TypeAlias = bool | Tear
"""Of an atom: lost, kept, or (writes only) torn."""

AtomKey: TypeAlias = tuple[int, int]
"""Index of the event, and 1 for the arriving half of a rename between folders."""

Fates: TypeAlias = Mapping[AtomKey, Fate]


@dataclass(frozen=True)
class Content:
    """The bytes of a file; those from the end of `data` up to `size` are zeros and take no memory."""

    data: bytes
    size: int

    @cached_property
    def digest(self) -> bytes:
        return hashlib.blake2b(self.data, digest_size=16, key=self.size.to_bytes(8, "big")).digest()

    def __bytes__(self) -> bytes:
        return self.data.ljust(self.size, b"\0")


@dataclass(frozen=True, slots=True)
class Node:
    """A name in an image: a file with its content, or a folder."""

    path: str
    inode: int
    mode: int
    content: Content | None


@dataclass(frozen=True, slots=True)
class Change:
    """An event's effect on the entries of one folder: `source` goes, `target` comes, both for `inode`."""

    source: str | None
    target: str | None
    inode: int
    fresh: bool = False

    def apply(self, entries: dict[str, int]) -> None:
        if self.source is not None and entries.get(self.source) != self.inode:
            return
        if self.fresh and self.target in entries:
            return
        if self.source is not None:
            del entries[self.source]
        if self.target is not None:
            entries[self.target] = self.inode


@dataclass(frozen=True, slots=True)
class Atom:
    """A step that is not durable yet; `inode` is that of the file written to, or of the folder changed."""

    key: AtomKey
    event: Event
    inode: int
    step: Write | Truncate | Change

    @property
    def is_entry(self) -> bool:
        return isinstance(self.step, Change)

    def __str__(self) -> str:
        half = ""
        if isinstance(self.event, Rename) and self.event.folder != self.event.target_folder:
            half = " (new name)" if self.key[1] else " (old name)"
        return f"#{self.key[0]} {self.event}{half}"


@dataclass(slots=True)
class _File:
    durable: Content
    pending: list[Atom] = field(default_factory=list)


@dataclass(slots=True)
class _Folder:
    durable: dict[str, int]
    pending: list[Atom] = field(default_factory=list)


class Replay:
    """The state of the disk after each event of the log in turn; `drop` names a sync site to disregard."""

    def __init__(self, log: Log, drop: Site | None = None) -> None:
        self._drop = drop
        self._files = {inode: _File(Content(data, len(data))) for inode, data in log.base.files.items()}
        self._folders = {inode: _Folder(dict(names)) for inode, names in log.base.folders.items()}
        self._modes = dict(log.base.modes)
        self._forced: set[AtomKey] = set()
        self._contents: dict[tuple[int, tuple[tuple[AtomKey, Fate], ...]], Content] = {}

    def step(self, index: int, event: Event) -> bool:
        """Take the next event; false if it changed nothing about what may survive."""
        self._contents.clear()
        match event:
            case Write() | Truncate():
                self._files[event.inode].pending.append(Atom((index, 0), event, event.inode, event))
            case Create():
                self._create(index, event)
            case Link():
                named = Change(None, event.target_name, event.inode, fresh=True)
                self._change(index, event, event.target_folder, named)
            case Remove():
                self._change(index, event, event.folder, Change(event.name, None, event.inode))
            case Rename():
                self._rename(index, event)
            case SyncEnd():
                return self._sync(event)
            case _:
                return False
        return True

    def atoms(self) -> list[Atom]:
        """The steps whose fate is open, in the order in which they were taken."""
        folders = self._folders.values()
        named = {inode for folder in folders for inode in folder.durable.values()}
        entries = [atom for folder in folders for atom in folder.pending]
        named.update(atom.step.inode for atom in entries if isinstance(atom.step, Change))
        data = [atom for inode, file in self._files.items() if inode in named for atom in file.pending]
        return sorted(
            (atom for atom in entries + data if atom.key not in self._forced), key=lambda atom: atom.key
        )

    def possible(self, fates: dict[AtomKey, Fate], *, in_order: bool = False) -> dict[AtomKey, Fate]:
        """Lose more until the choice is one that a file system could leave.

        A rename between folders takes the old name away only if it brought the new one; one of a directory
        does both or neither. `in_order`: of each folder's changes, a prefix survives.
        """
        changed = True
        while changed:
            changed = False
            for lost, by in self._consequences(in_order):
                if fates.get(lost) and not fates.get(by, True):
                    fates[lost] = False
                    changed = True
        return fates

    def tree(self, fates: Fates) -> list[Node]:
        """The disk on which exactly these atoms arrived, folders before what is in them."""
        nodes: list[Node] = []
        self._walk("", ROOT, fates, nodes)
        return nodes

    def _walk(self, prefix: str, inode: int, fates: Fates, nodes: list[Node]) -> None:
        for name, child in sorted(self._entries(inode, fates).items()):
            path = prefix + name
            if child in self._folders:
                nodes.append(Node(path, child, self._modes[child], None))
                self._walk(path + "/", child, fates, nodes)
            else:
                nodes.append(Node(path, child, self._modes[child], self._content(child, fates)))

    def _entries(self, inode: int, fates: Fates) -> dict[str, int]:
        folder = self._folders[inode]
        entries = dict(folder.durable)
        for atom in folder.pending:
            if isinstance(atom.step, Change) and (atom.key in self._forced or fates.get(atom.key)):
                atom.step.apply(entries)
        return entries

    def _content(self, inode: int, fates: Fates) -> Content:
        file = self._files[inode]
        survivors = tuple((atom.key, fate) for atom in file.pending if (fate := fates.get(atom.key, False)))
        if not survivors:
            return file.durable
        content = self._contents.get((inode, survivors))
        if content is None:
            content = _apply(file.durable, ((atom, fates.get(atom.key, False)) for atom in file.pending))
            self._contents[inode, survivors] = content
        return content

    def _create(self, index: int, event: Create) -> None:
        self._modes[event.inode] = event.mode
        if event.is_dir:
            self._folders[event.inode] = _Folder({})
        else:
            self._files[event.inode] = _File(Content(b"", 0))
        self._change(index, event, event.folder, Change(None, event.name, event.inode, fresh=True))

    def _rename(self, index: int, event: Rename) -> None:
        if event.folder == event.target_folder:
            self._change(index, event, event.folder, Change(event.name, event.target_name, event.inode))
            return
        self._change(index, event, event.folder, Change(event.name, None, event.inode))
        self._change(index, event, event.target_folder, Change(None, event.target_name, event.inode), half=1)

    def _change(self, index: int, event: Event, folder: int, change: Change, half: int = 0) -> None:
        self._folders[folder].pending.append(Atom((index, half), event, folder, change))

    def _sync(self, event: SyncEnd) -> bool:
        if event.dropped or event.site == self._drop:
            return False
        if event.is_dir:
            return self._sync_folder(self._folders[event.inode], event.start)
        file = self._files[event.inode]
        arrived = [atom for atom in file.pending if atom.key[0] < event.start]
        file.durable = _apply(file.durable, ((atom, True) for atom in arrived))
        file.pending = file.pending[len(arrived) :]
        return bool(arrived)

    def _sync_folder(self, folder: _Folder, start: int) -> bool:
        arrived = [atom for atom in folder.pending if atom.key[0] < start]
        for atom in arrived:
            if isinstance(atom.step, Change):
                atom.step.apply(folder.durable)
            self._forced.update(self._implied(atom))
        folder.pending = folder.pending[len(arrived) :]
        return bool(arrived)

    def _implied(self, atom: Atom) -> Iterator[AtomKey]:
        """The other half of a rename between folders, if it is certain once this half is durable."""
        event = atom.event
        if isinstance(event, Rename) and event.folder != event.target_folder:
            index, half = atom.key
            twin = (index, 1 - half)
            other = self._folders[event.folder if half else event.target_folder]
            if (half == 0 or event.is_dir) and any(atom.key == twin for atom in other.pending):
                yield twin

    def _consequences(self, in_order: bool) -> Iterator[tuple[AtomKey, AtomKey]]:
        """Pairs (a, b): a is lost if b is."""
        for folder in self._folders.values():
            before: AtomKey | None = None
            for atom in folder.pending:
                if atom.key in self._forced:
                    continue
                if isinstance(atom.event, Rename) and atom.event.folder != atom.event.target_folder:
                    index, half = atom.key
                    if half == 0 or atom.event.is_dir:
                        yield atom.key, (index, 1 - half)
                if in_order and before is not None:
                    yield atom.key, before
                before = atom.key


def _apply(content: Content, steps: Iterable[tuple[Atom, Fate]]) -> Content:
    data = bytearray(content.data)
    size = content.size
    for atom, fate in steps:
        step = atom.step
        if isinstance(step, Truncate) and fate:
            size = step.size
            del data[size:]
        elif isinstance(step, Write) and fate:
            tear = fate if isinstance(fate, Tear) else Tear(((0, len(step.data)),), grown=True)
            for start, stop in tear.kept:
                if start == stop:
                    continue
                at = step.position + start
                data.extend(bytes(max(0, at - len(data))))
                data[at : at + stop - start] = step.data[start:stop]
            size = max(size, len(data), step.position + len(step.data) if tear.grown else 0)
    return Content(bytes(data.rstrip(b"\0")), size)
