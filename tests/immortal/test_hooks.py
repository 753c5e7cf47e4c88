"""State that a class saves and loads itself: as it is, in pieces, and no larger in memory than a piece of it."""

from __future__ import annotations

import tracemalloc
from typing import BinaryIO

import msgspec
import pytest
from tests.immortal.apps import PAGE, PAGES, Archive
from tests.immortal.world import COMMITTER, World

from penstock.immortal import DeterminismError, Immortal, custom, impulse, wire
from penstock.immortal.binding import snapshot
from penstock.immortal.binding.machine import Checkpoint, Machine
from penstock.immortal.wire import MessageType, Record


class Index:
    """No type that checkpoints know."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}


class Library(Immortal):
    books: int = 0
    index: Index = custom(Index)
    titles: dict[str, int] = custom(dict)

    @impulse
    def add(self, title: str) -> int:
        self.books += 1
        self.index.words[title] = self.titles[title] = self.books
        return self.books

    def save(self, file: BinaryIO) -> None:
        for table in (self.index.words, self.titles):
            line = msgspec.json.encode(table)
            file.write(len(line).to_bytes(4, "big") + line)

    def load(self, file: BinaryIO) -> None:
        words, titles = (
            msgspec.json.decode(file.read(int.from_bytes(file.read(4), "big")), type=dict[str, int])
            for _ in range(2)
        )
        self.index.words = words
        self.titles = titles
        assert len(words) == self.books, "declared fields are there already"


class Meddler(Immortal):
    count: int = 0

    def save(self, file: BinaryIO) -> None:
        self.count += 1


def test_what_hooks_save_is_loaded_again() -> None:
    world = World()
    world.start(Library, "library")
    for title in ("dune", "emma"):
        world.ask("library", "add", title)
    world.checkpoint("library")
    world.ask("library", "add", "ulysses")
    found = world.crash("library")
    assert isinstance(found, Library)
    assert found.index.words == {"dune": 1, "emma": 2, "ulysses": 3}
    assert dict(found.titles) == found.index.words


def test_a_checkpoint_is_no_time_to_change_state() -> None:
    with pytest.raises(DeterminismError, match="count was to be changed outside of a handler"):
        World().start(Meddler, "meddler")


def machine() -> Machine:
    return Machine(Archive, "archive", now=lambda: 1.0)


def control(to: Machine, kind: MessageType) -> Checkpoint:
    to.receive(Record(COMMITTER, -1, wire.encode_message(kind)))
    taken = to.out.pop()
    assert isinstance(taken, Checkpoint)
    return taken


def test_what_hooks_write_in_pieces_is_never_in_memory_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "IN_MEMORY", 2 * PAGE)
    tracemalloc.start()
    try:
        taken = control(machine(), MessageType.TAKE_BECOMING_PRIMARY_CHECKPOINT)
        assert taken.length > PAGES * PAGE
        with taken.file as file:
            again = machine()
            again.load(file)
            assert file.read() == b""
        assert tracemalloc.get_traced_memory()[1] < 8 * PAGE
    finally:
        tracemalloc.stop()
    assert isinstance(again.instance, Archive)
    assert again.instance.read == PAGES
