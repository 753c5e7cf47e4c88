"""A batch that is being published while the next one is staged: at most one, in a thread of its own.

Whoever stages next calls `settle` before anything else of his reaches the target or the offset log. So batches are
published in their order, one after the other, and a failure comes out where the next one would have gone on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.log.positions import LogPoint


class Overlap:
    """What is under way. `begin` and `settle` are for the thread that stages, the rest for any."""

    def __init__(self, name: str, failed: Callable[[BaseException], None]) -> None:
        """`failed` hears of a failure at once: it may be long until somebody settles."""
        self._name = name
        self._failed = failed
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.end: int | None = None
        """Up to which message the offset log will stand once it is settled; None if nothing has begun since."""
        self.since: LogPoint | None = None
        """Where the batch begins, as long as the offset log is not past it: while it is under way, and if it failed."""

    @property
    def busy(self) -> bool:
        thread = self._thread
        return thread is not None and thread.is_alive()

    def begin(self, publish: Callable[[], None], begin: LogPoint, end: int) -> None:
        assert self.end is None
        self.since, self.end = begin, end
        self._thread = threading.Thread(target=self._run, args=(publish,), name=self._name, daemon=True)
        self._thread.start()

    def wait(self, patience: float | None = None) -> bool:
        """Wait for its end, good or bad; False if it takes too long."""
        thread = self._thread
        if thread is not None:
            thread.join(patience)
        return not self.busy

    def settle(self) -> bool:
        """Wait for its end; raises what it failed of. False if there was nothing to wait for."""
        self.wait()
        begun = self.end is not None
        error, self._error, self.end = self._error, None, None
        if error is not None:
            raise error
        return begun

    def forget(self) -> None:
        """Begin anew, with nothing under way: what failed has been told."""
        assert not self.busy
        self._thread = self._error = self.end = self.since = None

    def _run(self, publish: Callable[[], None]) -> None:
        try:
            publish()
        except BaseException as error:  # noqa: BLE001 - raised by `settle`
            self._error = error
            self._failed(error)
        else:
            self.since = None
