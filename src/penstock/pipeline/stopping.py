"""SIGINT and SIGTERM, for the time of a run. The first asks it to stop, a second one ends the process at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType


class Stop:
    """Set by a signal. A second signal ends the process: nothing is lost by it.

    Who waits for it may be woken for other reasons as well. A queue serves for that, since a signal may come within
    any call of the thread that waits: to put into it is allowed even then.
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

    def wait(self, seconds: float) -> None:
        """For so long at most."""
        with suppress(Empty):
            self._nudges.get(timeout=seconds)

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self._set:
            os._exit(128 + number)
        self.set()


@contextmanager
def signals() -> Iterator[Stop]:
    """Take the two signals; only a main thread can, elsewhere they stay with whoever has them."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGINT, stop.handle)
    signal.signal(signal.SIGTERM, stop.handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
