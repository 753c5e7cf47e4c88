"""Which worker is connected, and what is kept for each: its transaction log, its storage, its place in the file system.

A worker's name belongs to one connection at a time. The transaction logs lie in one directory, which one process at a
time has; that of a worker who has left stays there, under another name.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from penstock.base import faults
from penstock.base.disk import Disk
from penstock.base.locks import lock_directory
from penstock.connector.sink.keeper import Keeper
from penstock.connector.sink.ledger import Decided, Left, RuleError, Voted
from penstock.connector.sink.storage import StorageOf
from penstock.connector.sink.txnlog import TransactionLog, read_ledger

log = logging.getLogger(__name__)

_LOGS: Final = ".txnlog"


class Workers:
    """All workers of a sink. For several threads."""

    def __init__(
        self,
        directory: Path,
        storage_of: StorageOf,
        *,
        always_commits: bool = False,
        patience: float = 2.0,
        disk: Disk | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        """`patience` is how many seconds a name that is taken is waited for: its connection may be on its way out."""
        self._directory = directory
        self._storage_of = storage_of
        self._always = always_commits
        self._patience = patience
        self._disk = disk or Disk()
        self._clock = clock
        self._free = threading.Condition()
        self._taken: set[str] = set()
        """Those that are connected, on their way in, or being set aside."""
        self._disk.make_dirs(directory)
        # Two servers on one directory would each believe their own half.
        self._lock = lock_directory(
            directory,
            f"another sink has the directory {directory}",
            "stop it first, or give this one another",
        )

    def attach(self, worker: str) -> Keeper:
        """Take a name; `RuleError` if another connection has it and keeps it."""
        with self._free:
            if not self._is_free(worker):
                raise RuleError(f"worker {worker} is already active")
            self._taken.add(worker)
        try:
            return self._opened(worker)
        except BaseException:
            self._release(worker)
            raise

    def detach(self, keeper: Keeper) -> None:
        """The connection of a worker has ended."""
        try:
            keeper.close()
        finally:
            self._release(keeper.worker)

    def left(self, teller: str, workers: Sequence[str]) -> None:
        """Set the state of workers aside; whoever is not known has been, or never came."""
        for worker in workers:
            with self._free:
                if worker == teller or not self._is_free(worker):
                    raise RuleError(f"worker {worker} has not left: it is connected")
                self._taken.add(worker)
            try:
                if log_path(self._directory, worker).exists():
                    self._dismiss(worker)
            finally:
                self._release(worker)

    def _is_free(self, worker: str) -> bool:
        """Whether nobody has a name, or whoever has it gives it back in time. With `_free` held."""
        return self._free.wait_for(lambda: worker not in self._taken, self._patience)

    def close(self) -> None:
        """Let the directory go."""
        descriptor, self._lock = self._lock, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _opened(self, worker: str) -> Keeper:
        txnlog = TransactionLog(self._disk, log_path(self._directory, worker))
        if txnlog.ledger.left is not None:  # a crash came between
            txnlog.close()
            self._retire(worker, txnlog.ledger.left)
            txnlog = TransactionLog(self._disk, log_path(self._directory, worker))
        try:
            storage = self._storage_of(worker)
            try:
                return Keeper(worker, storage, txnlog, self._clock, always_commits=self._always)
            except BaseException:
                storage.close()
                raise
        except BaseException:
            txnlog.close()
            raise

    def _dismiss(self, worker: str) -> None:
        """First the intention, on the disk; then as often as it takes."""
        txnlog = TransactionLog(self._disk, log_path(self._directory, worker))
        try:
            mark = txnlog.ledger.left or f"left-{self._clock()}"
            if txnlog.ledger.left is None:
                txnlog.append(Left(mark))
        finally:
            txnlog.close()
        with faults.step("sink left"):
            self._retire(worker, mark)

    def _retire(self, worker: str, mark: str) -> None:
        """What was stored before the log: a log without its intention would want the bytes back."""
        storage = self._storage_of(worker)
        try:
            storage.retire(mark)
        finally:
            storage.close()
        path = log_path(self._directory, worker)
        self._disk.rename(
            path, path.with_name(f"{path.name}.{mark}")
        )  # synced before the next log is believed
        log.info("worker %s has left", worker)

    def _release(self, worker: str) -> None:
        with self._free:
            self._taken.discard(worker)
            self._free.notify_all()


class WorkerView:
    """What a sink holds of one worker, for people and programs to look at."""

    def __init__(self, path: Path) -> None:
        ledger = read_ledger(path)
        self.worker = unquote(path.name.removesuffix(_LOGS))
        self.committed: int = ledger.committed
        self.in_flight: tuple[Voted, ...] = tuple(ledger.unresolved.values())
        """Transactions that are voted on and not decided, each with its vote."""
        self.decided: tuple[Decided, ...] = tuple(ledger.decided)
        """The last decisions, the newest last."""
        self.forced: str | None = ledger.forced


def transactions(directory: Path) -> list[WorkerView]:
    """The workers of a sink and their transactions, from its directory of logs; it may be at work meanwhile."""
    return [WorkerView(path) for path in sorted(directory.glob(f"*{_LOGS}"))]


def file_name(worker: str) -> str:
    """A worker's name as part of a file's name; no two names become the same, none leads elsewhere."""
    name = quote(worker, safe="")
    return "%2E" + name[1:] if name.startswith(".") else name


def log_path(directory: Path, worker: str) -> Path:
    return directory / f"{file_name(worker)}{_LOGS}"
