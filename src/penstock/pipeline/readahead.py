"""What a source has given and the log does not have yet: what is being made durable, and what waits for its turn.

While one batch is appended the next is read, and then waits. Rows of a copy that come as columns do not wait for each
append: those that come meanwhile are kept, up to `TOGETHER` bytes, and become one append, so that the disk syncs once
for several. Whatever else a batch says (changes, schemas, ends of copies, bad rows, the end of a transaction that was
given in parts) is in an append of its own, so that no transaction of the source grows and nothing changes its place.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple

from penstock.adaptors.base import Batch
from penstock.log.message import Mode
from penstock.log.packing import Numbered

TOGETHER = 16 << 20
"""Bytes that may wait together; a single batch may have more."""
MOST = 64
"""Batches that may wait together, however small."""


class Given(NamedTuple):
    """What the source gave, and what is packed of that, with its offsets. `closes`: it may end a transaction."""

    batch: Batch
    rows: Sequence[Numbered]
    closes: bool = False


class ReadAhead:
    """Between the thread that reads and one of its own that appends. Ends with everything appended, or with an error.

    As a context manager: at its end what was given is durable, also if the source has failed meanwhile.
    """

    def __init__(self, append: Callable[[Sequence[Given]], None], failed: Callable[[], object]) -> None:
        """`append` is called with what was given, in its order, in another thread; `failed` once it has failed."""
        self._append = append
        self._failed = failed
        self._changed = threading.Condition()
        self._waiting: list[Given] = []
        self._busy = False
        self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="append", daemon=True)

    def __enter__(self) -> ReadAhead:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()
        failure, self._error = self._error, None  # what it holds goes with it
        if failure is not None and error is not failure:
            raise failure

    def give(self, given: Given) -> None:
        """Have a batch appended; waits for its turn. Raises what an earlier one has failed of."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._takes(given))
            if self._error is not None:
                raise self._error
            self._waiting.append(given)
            self._changed.notify_all()

    def _takes(self, given: Given) -> bool:
        if not self._busy and not self._waiting:
            return True
        return is_copied(given) and (not self._waiting or may_join(self._waiting, given))

    def _run(self) -> None:
        given: Sequence[Given] = ()
        try:
            while given := self._next():
                self._append(given)
        except BaseException as error:  # noqa: BLE001 - raised by `give`, or at the end
            # Nobody needs these rows any more, and whoever tries again and again would fill the memory with them.
            given = ()
            traceback.clear_frames(error.__traceback__)
            with self._changed:
                self._error, self._waiting = error, []
                self._changed.notify_all()
            self._failed()

    def _next(self) -> Sequence[Given]:
        """All that waits; nothing once there will be no more."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting or self._ended)
            given, self._waiting, self._busy = self._waiting, [], True
            self._changed.notify_all()
        return given


def may_join(waiting: Sequence[Given], given: Given) -> bool:
    """Whether a batch may go into the log together with those that wait, of which there is at least one."""
    fits = len(waiting) < MOST and sum(map(_size, (*waiting, given))) <= TOGETHER
    return fits and is_copied(waiting[-1]) and is_copied(given)


def together(given: Sequence[Given]) -> Given:
    """One batch that says what these do, which have joined each other. There is at least one."""
    if len(given) == 1:
        return given[0]
    positions = {ns: position for one in given for ns, position in one.batch.positions.items()}
    rows = [row for one in given for row in one.rows]
    return Given(Batch(positions=positions), rows)


def is_copied(given: Given) -> bool:
    """Whether all that a batch says is rows of a copy, as columns, and where the source stands after them."""
    batch = given.batch
    if given.closes or batch.messages or batch.completed or batch.schemas or batch.bad or batch.more:
        return False
    return bool(given.rows) and all(rows.last_mode is Mode.COPY for rows in given.rows)


def _size(given: Given) -> int:
    return sum(len(rows.content) for rows in given.rows)
