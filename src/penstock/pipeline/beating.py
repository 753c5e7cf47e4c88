"""The beat of a run: a sign of life every few seconds, from a thread of its own.

The run's main thread may be busy for longer than a beat may be late: while Spark starts, or while a batch is waited
for. A run that does not beat is taken for dead by those who cannot see its lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.pipeline.errortext import first_line

log = logging.getLogger(__name__)


@contextmanager
def beating(beat: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call `beat` every so many seconds for the time of the block. One that fails is told, and tried again."""
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(seconds):
            try:
                beat()
            except Exception as error:  # noqa: BLE001 - a run that stops beating is taken for dead, and replaced
                log.warning("no sign of life could be given: %s", first_line(error))

    thread = threading.Thread(target=go_on, name="beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(seconds)
