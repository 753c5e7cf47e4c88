"""An end to waiting, from another thread."""

from __future__ import annotations

import threading
from typing import Protocol, TypeVar


class Cancellable(Protocol):
    def cancel(self) -> bool: ...


C = TypeVar("C", bound=Cancellable)


class Halt:
    """Once it is asked for, whoever waits in a call with it is let go at once, and so is everyone who comes after."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = False
        self._call: Cancellable | None = None

    @property
    def asked(self) -> bool:
        return self._asked

    def ask(self) -> None:
        with self._lock:
            self._asked = True
            if self._call is not None:
                self._call.cancel()

    def clear(self) -> None:
        with self._lock:
            self._asked, self._call = False, None

    def over(self, call: C) -> C:
        """The call, to be ended with this; one at a time."""
        with self._lock:
            self._call = call
            if self._asked:
                call.cancel()
        return call
