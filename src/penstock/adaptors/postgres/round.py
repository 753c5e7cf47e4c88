"""A round of copies: some tables at one moment, read by the copier in a thread beside the stream."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from penstock.adaptors.base import Copier, CopyTask
from penstock.adaptors.postgres.position import Key
from penstock.adaptors.postgres.snapshot import Range, Snapshot
from penstock.adaptors.postgres.table import Table
from penstock.base.errors import PenstockError
from penstock.log.packing import Packed

AHEAD = 2
"""Ranges that may wait to be taken."""


@dataclass(frozen=True)
class Wanted:
    """A table to copy: behind which key, and which of its rows."""

    table: Table
    after: Key | None = None
    where: str | None = None


class Round:
    """Runs until all is copied; `close` it in any case. `ready` is called when there is something to take."""

    def __init__(
        self, copier: Copier, snapshot: Snapshot, tables: Sequence[Wanted], ready: Callable[[], None]
    ) -> None:
        self.snapshot = snapshot
        self.open = {wanted.table.ns for wanted in tables}
        """What is not copied to its end yet."""
        self._tables, self._ready = tables, ready
        self._planned: deque[Range] = deque()
        self._halt = threading.Event()
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Range, Sequence[Packed]]] = deque()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(copier,), name="penstock-copy", daemon=True)
        self._thread.start()

    def take(self, seconds: float) -> tuple[Range, Sequence[Packed]] | None:
        """The next range, if there is one by then."""
        with self._changed:
            if not self._waiting and self._error is None and seconds:
                self._changed.wait(seconds)
            if self._waiting:
                found = self._waiting.popleft()
                if found[0].last:
                    self.open.discard(found[0].table.ns)
                self._changed.notify_all()
                return found
            if self._error is not None:
                raise self._error
            return None

    @property
    def has_some(self) -> bool:
        """Whether `take` has something to give or to raise."""
        return bool(self._waiting) or self._error is not None

    @property
    def is_done(self) -> bool:
        return not self.open

    def close(self) -> None:
        """Stop copying, and let the moment go."""
        with self._changed:
            self._halt.set()
            self._changed.notify_all()
        self._thread.join()
        self.snapshot.close()

    def _run(self, copier: Copier) -> None:
        ended = 0
        try:
            for packed in copier.run(self._tasks(), self._halt):
                planned = self._planned.popleft()
                ended += planned.last
                self._put(planned, packed)
                if self._halt.is_set():
                    return
            if ended < len(self._tables) and not self._halt.is_set():
                raise PenstockError("the copy ended before its last range")
        except BaseException as error:  # noqa: BLE001 - told to whoever takes
            with self._changed:
                self._error = error
                self._changed.notify_all()
            self._ready()

    def _tasks(self) -> Iterator[CopyTask]:
        for wanted in self._tables:
            for planned, task in self.snapshot.ranges(wanted.table, wanted.after, wanted.where):
                self._planned.append(planned)
                yield task

    def _put(self, planned: Range, packed: Sequence[Packed]) -> None:
        with self._changed:
            while len(self._waiting) >= AHEAD and not self._halt.is_set():
                self._changed.wait()
            self._waiting.append((planned, packed))
            self._changed.notify_all()
        self._ready()
