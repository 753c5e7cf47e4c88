"""A storage in memory, for tests of the kit, and sinks made of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.base.errors import RefusedError
from penstock.connector.sink import Storage, Transaction, Workers


class MemoryStorage(Storage):
    """Keeps bytes; refuses to prepare what holds `bad`."""

    def __init__(self) -> None:
        self.content = b""
        self.committed = 0
        self.calls: list[str] = []
        self.retired: list[str] = []

    def recover(self, committed: int, prepared: Transaction | None) -> int:
        end = committed if prepared is None else prepared.end
        self.content = self.content[:end]
        return len(self.content)

    def write(self, offset: int, data: memoryview) -> None:
        self.content = self.content[:offset] + bytes(data)

    def prepare(self, transaction: Transaction) -> None:
        self.calls.append(f"prepare {transaction.id}")
        if b"bad" in self.content[transaction.start :]:
            raise RefusedError("it is bad")

    def commit(self, transaction: Transaction) -> None:
        self.calls.append(f"commit {transaction.id}")
        self.committed = transaction.end

    def discard(self, offset: int) -> None:
        self.calls.append(f"discard {offset}")
        self.content = self.content[:offset]

    def retire(self, mark: str) -> None:
        self.retired.append(mark)
        self.content, self.committed = b"", 0

    def holds(self, offset: int, data: memoryview) -> bool:
        return self.content[offset : offset + len(data)] == data


class Shelf:
    """The storages of a sink, by worker."""

    def __init__(self) -> None:
        self.of: dict[str, MemoryStorage] = {}

    def __call__(self, worker: str) -> MemoryStorage:
        return self.of.setdefault(worker, MemoryStorage())

    def workers(
        self,
        directory: Path,
        *,
        always: bool = False,
        patience: float = 0.05,
        clock: Callable[[], int] = lambda: 7,
    ) -> Workers:
        return Workers(directory, self, always_commits=always, patience=patience, clock=clock)
