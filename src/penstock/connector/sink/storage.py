"""What the author of a sink writes: where the bytes of a worker go, and how they become visible or vanish.

The kit has the protocol, the transaction log, the votes and the recovery. It calls a `Storage` from one thread at a
time, in this order for each transaction:

    write, write, ...   bytes as they come, at growing offsets; nothing need be durable yet
    prepare             all of it durable, none of it visible; raising `RefusedError` is a vote to abort
    commit              visible. May be called again after a crash: the second time changes nothing
    or discard          gone, as if it had never come

and `recover` first of all, whenever a worker connects: the process may have died anywhere in between.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transaction:
    """The bytes [start, end) of a worker's stream, under the id that the coordinator gave them."""

    id: str
    start: int
    end: int


class Storage(ABC):
    """The bytes of one worker. An `OSError` that it raises ends the connection, and the worker comes again."""

    @abstractmethod
    def recover(self, committed: int, prepared: Transaction | None) -> int:
        """Keep what is committed and what is prepared, drop everything else; how many bytes are held then.

        Fewer than `prepared.end` means that what was prepared is lost: the kit then votes to abort it. Fewer than
        `committed` must be a `CorruptError`. Durable on return. Called before anything else, and often.
        """

    @abstractmethod
    def write(self, offset: int, data: memoryview) -> None:
        """Take the bytes at `offset`, which is where the last ones ended."""

    @abstractmethod
    def prepare(self, transaction: Transaction) -> None:
        """Make its bytes durable, so that `commit` cannot fail for want of anything. They stay invisible."""

    @abstractmethod
    def commit(self, transaction: Transaction) -> None:
        """Make its bytes visible; durable on return. Does nothing if that was done before."""

    @abstractmethod
    def discard(self, offset: int) -> None:
        """Forget everything from `offset` on, prepared or not; durable on return."""

    @abstractmethod
    def retire(self, mark: str) -> None:
        """The worker has left for good: set its state aside under `mark`, so that one of its name begins at 0.

        What was committed stays for its consumers. Durable on return. May be called again after a crash.
        """

    def holds(self, offset: int, data: memoryview) -> bool:
        """Whether exactly these bytes, not committed yet, are held at `offset`: a repetition is ignored then."""
        return False

    def advertise(self, committed: int) -> None:  # noqa: B027 - most have visible and invisible rows
        """What is committed holds for good, and this much it is: for storages whose consumers need to be told."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """The connection has ended."""


StorageOf = Callable[[str], Storage]
"""Makes the storage of a worker, by its name."""
