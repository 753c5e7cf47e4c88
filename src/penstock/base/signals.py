"""Waiting where signals must be seen to.

The system gives a signal to whichever thread of a process it likes, and Python runs the handler in the main one, which
does not hear of it as long as it waits for something else without an end. So such a wait looks up now and then.
"""

from __future__ import annotations

import time
from contextlib import suppress
from queue import Empty, Queue, SimpleQueue
from typing import TypeVar

_LOOK = 0.5  # seconds

T = TypeVar("T")


def next_of(items: Queue[T]) -> T:
    """What the queue holds next, however long that takes to come."""
    while True:
        with suppress(Empty):
            return items.get(timeout=_LOOK)


class Flag:
    """An event that a signal handler may set. Threads that wait for it may be woken for other reasons as well.

    A handler may run within any call of the thread that waits. `threading.Event` has a lock, and might find it taken
    by that very call; to put into a queue of this kind is allowed even then.
    """

    def __init__(self) -> None:
        self._set = False
        self._nudges: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self.nudge()

    def nudge(self) -> None:
        """End a wait, or the next one: there is something to look at."""
        self._nudges.put(None)

    def wait(self, seconds: float | None = None) -> bool:
        """Until it is set or somebody nudges, or for so long at most; whether it is set."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._set:
            rest = _LOOK if deadline is None else min(deadline - time.monotonic(), _LOOK)
            if rest <= 0:
                break
            with suppress(Empty):
                self._nudges.get(timeout=rest)
                break
        return self._set
