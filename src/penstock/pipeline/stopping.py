"""SIGINT and SIGTERM, for the time of a run. The first asks it to stop, a second one ends the process at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from penstock.base.signals import Flag


class Stop(Flag):
    """Set by a signal. A second signal ends the process: nothing is lost by it."""

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_set():
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
