"""The disks that power loss may leave, at every point of a recording.

`images` cuts the log after each event and tries a set of choices there. An image is held in memory and costs
IO only when it is built. The same log, seed and cut give the same images, whatever other cuts are asked for.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from penstock.testing.powerloss.choices import Choice, choices
from penstock.testing.powerloss.events import Event, Log, Mark, Site
from penstock.testing.powerloss.model import Atom, AtomKey, Node, Replay


@dataclass(frozen=True)
class Image:
    """A disk after power loss. `cut` counts the events that happened; `event` is the last of them."""

    cut: int
    event: Event | None
    marks: tuple[Mark, ...]
    nodes: tuple[Node, ...]
    made_by: Choice
    unsynced: tuple[Atom, ...]

    @property
    def choice(self) -> str:
        """How the image came about: what of the unsynced steps was lost, torn and kept."""
        return self.made_by.describe(self.unsynced)

    @property
    def files(self) -> dict[str, bytes]:
        """Path and content of every file."""
        return {node.path: bytes(node.content) for node in self.nodes if node.content is not None}

    @property
    def folders(self) -> list[str]:
        return [node.path for node in self.nodes if node.content is None]

    @cached_property
    def digest(self) -> bytes:
        """Equal for images that no program can tell apart."""
        total = hashlib.blake2b(digest_size=16)
        first: dict[int, str] = {}
        for node in self.nodes:
            same_as = first.setdefault(node.inode, node.path)
            total.update(f"{node.path}\0{node.mode}\0{same_as}\0".encode())
            total.update(b"d" if node.content is None else b"f" + node.content.digest)
        return total.digest()

    def build(self, path: Path) -> None:
        """Make the directory `path` and put the disk into it."""
        os.mkdir(path)
        prefix = f"{path}/"
        written: dict[int, str] = {}
        for node in self.nodes:
            target = prefix + node.path
            if node.content is None:
                os.mkdir(target, node.mode)
            elif node.inode in written:
                os.link(written[node.inode], target)
            else:
                _write(target, node)
                written[node.inode] = target


def images(
    log: Log,
    *,
    seed: int,
    cuts: Collection[int] | None = None,
    per_cut: int = 12,
    drop: Site | None = None,
    entries_in_order: bool = False,
) -> Iterator[Image]:
    """What the disk may look like after power loss at each of `cuts` (all if none are given).

    Cut n is the moment after n events. `per_cut` is the number of random choices beyond the systematic ones.
    `drop` disregards the syncs of a site, and leaves out the images that could arise without that.
    `entries_in_order` assumes a journalling file system, on which a folder's changes survive as a prefix; the
    contract of `Disk` does not promise that. Images that differ in nothing, promises included, come once.
    """
    seen: set[tuple[int, bytes]] = set()
    changed = False
    for cut in _cuts(log, drop):
        changed |= cut.changed
        if not changed or (cuts is not None and cut.number not in cuts):
            continue
        changed = False
        if cut.late is not None and not cut.late:
            continue
        for image in _images_at(cut, random.Random(f"{seed}:{cut.number}"), per_cut, entries_in_order):
            key = (len(image.marks), image.digest)
            if key not in seen:
                seen.add(key)
                yield image


@dataclass(slots=True)
class _Cut:
    """The moment after an event. `late`: the steps that would be durable but for a dropped sync."""

    number: int
    event: Event | None
    changed: bool
    marks: tuple[Mark, ...]
    replay: Replay
    late: frozenset[AtomKey] | None


def _cuts(log: Log, drop: Site | None) -> Iterator[_Cut]:
    replay = Replay(log, drop)
    honest = Replay(log) if drop is not None else None
    marks: tuple[Mark, ...] = ()
    late = None if honest is None else frozenset[AtomKey]()
    yield _Cut(0, None, True, marks, replay, late)
    for index, event in enumerate(log.events):
        changed = replay.step(index, event)
        if isinstance(event, Mark):
            marks += (event,)
            changed = True
        if honest is not None:
            honest.step(index, event)
            late = frozenset(atom.key for atom in replay.atoms()) - {atom.key for atom in honest.atoms()}
        yield _Cut(index + 1, event, changed, marks, replay, late)


def _images_at(cut: _Cut, draw: random.Random, count: int, in_order: bool) -> Iterator[Image]:
    atoms = tuple(cut.replay.atoms())
    for choice in choices(atoms, draw, count):
        fates = cut.replay.possible(choice.fates, in_order=in_order)
        if cut.late is not None and all(fates[key] is True for key in cut.late):
            continue
        nodes = tuple(cut.replay.tree(fates))
        yield Image(cut.number, cut.event, cut.marks, nodes, choice, atoms)


def _write(target: str, node: Node) -> None:
    assert node.content is not None
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, node.mode)
    try:
        data = memoryview(node.content.data)
        while data:
            data = data[os.write(fd, data) :]
        if node.content.size > len(node.content.data):
            os.ftruncate(fd, node.content.size)
    finally:
        os.close(fd)
