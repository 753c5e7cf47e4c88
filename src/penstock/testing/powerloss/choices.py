"""Which of the unsynced steps survive: the choices tried at one cut.

First those that find most: everything lost, everything kept, entries without data, data without entries,
files grown without data; each step lost alone and kept alone; each write torn alone; each prefix of a
folder's changes. Then random ones. The same generator gives the same choices.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock.testing.powerloss.events import Write
from penstock.testing.powerloss.model import Atom, AtomKey, Fate, Tear

MOST_ALONE = 32
"""At a cut with more unsynced steps than this, that many of them (drawn) are lost, kept and torn alone."""

SECTOR = 512


@dataclass(frozen=True, slots=True)
class Choice:
    """A fate for every atom. `name` says how it was made."""

    name: str
    fates: dict[AtomKey, Fate]

    def describe(self, atoms: Sequence[Atom]) -> str:
        """What was lost and what was torn, in full if it is short."""
        if not atoms:
            return f"{self.name}: nothing was unsynced"
        lost = [str(atom) for atom in atoms if not self.fates[atom.key]]
        kept = [str(atom) for atom in atoms if self.fates[atom.key] is True]
        torn = [f"{atom} ({fate})" for atom in atoms if isinstance(fate := self.fates[atom.key], Tear)]
        parts = [
            f"{word} {_some(steps)}"
            for word, steps in (("lost", lost), ("torn", torn), ("kept", kept))
            if steps
        ]
        return f"{self.name}: " + "; ".join(parts)


def choices(atoms: Sequence[Atom], draw: random.Random, count: int) -> Iterator[Choice]:
    """The systematic choices, then `count` random ones."""
    yield Choice("all lost", _all(atoms, False))
    yield Choice("all kept", _all(atoms, True))
    if not atoms:
        return
    yield Choice("entries without data", {atom.key: atom.is_entry for atom in atoms})
    yield Choice("data without entries", {atom.key: not atom.is_entry for atom in atoms})
    yield Choice("growth without data", {atom.key: _grown(atom) for atom in atoms})
    for atom in list(atoms) if len(atoms) <= MOST_ALONE else draw.sample(list(atoms), MOST_ALONE):
        yield from _alone(atom, atoms, draw)
    yield from _prefixes(atoms)
    for number in range(count):
        yield Choice(f"random {number}", _random(atoms, draw))


def _alone(atom: Atom, atoms: Sequence[Atom], draw: random.Random) -> Iterator[Choice]:
    yield Choice("lost alone", _all(atoms, True) | {atom.key: False})
    yield Choice("kept alone", _all(atoms, False) | {atom.key: True})
    if isinstance(atom.step, Write):
        tear = _tear(atom.step, draw)
        yield Choice("torn alone", _all(atoms, True) | {atom.key: tear})
        yield Choice("torn, other data lost", {a.key: a.is_entry for a in atoms} | {atom.key: tear})


def _prefixes(atoms: Sequence[Atom]) -> Iterator[Choice]:
    """Every prefix of each folder's changes, the rest of the disk kept."""
    folders: dict[int, list[Atom]] = {}
    for atom in atoms:
        if atom.is_entry:
            folders.setdefault(atom.inode, []).append(atom)
    for changes in folders.values():
        for length in range(1, len(changes)):
            yield Choice("prefix of entries", _all(atoms, True) | _all(changes[length:], False))


def _random(atoms: Sequence[Atom], draw: random.Random) -> dict[AtomKey, Fate]:
    odds, torn = draw.choice((0.2, 0.5, 0.8)), draw.choice((0.1, 0.5, 0.9))
    fates: dict[AtomKey, Fate] = {}
    for atom in atoms:
        if isinstance(atom.step, Write) and draw.random() < torn:
            fates[atom.key] = _tear(atom.step, draw)
        else:
            fates[atom.key] = draw.random() < odds
    return fates


def _tear(write: Write, draw: random.Random) -> Tear:
    """Cut at a byte, cut at a sector, the end without the beginning, or any of the sectors."""
    size = len(write.data)
    grown = draw.random() < 0.5
    edges = [0, *range(SECTOR - write.position % SECTOR, size, SECTOR), size]
    match draw.randrange(4):
        case 0:
            return Tear(((0, draw.randrange(size)),), grown)
        case 1:
            return Tear(((0, draw.choice(edges[:-1])),), grown)
        case 2:
            return Tear(((draw.randrange(1, size + 1), size),), grown)
        case _:
            sectors = pairwise(edges)
            return Tear(tuple(sector for sector in sectors if draw.random() < 0.5), grown)


def _grown(atom: Atom) -> Fate:
    return Tear((), grown=True) if isinstance(atom.step, Write) else True


def _all(atoms: Sequence[Atom], fate: Fate) -> dict[AtomKey, Fate]:
    return dict.fromkeys((atom.key for atom in atoms), fate)


def _some(steps: Sequence[str], most: int = 6) -> str:
    more = f" and {len(steps) - most} more" if len(steps) > most else ""
    return ", ".join(steps[:most]) + more
