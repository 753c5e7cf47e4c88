"""State that leaked out of a handler, and is changed while none runs: a plain handler has the state itself.

A fingerprint of the state is taken when a record has been handled, and again before the next one. In a re-run of a log
that is done each time; while an instance serves, as often as it costs no more than a fiftieth of the time, and not at
all where the state is large.
"""

from __future__ import annotations

from collections.abc import Callable

LARGE = 4 << 20
"""Bytes of state from which on a serving instance is not looked at."""
_SHARE = 100
"""Of twice the time that one look takes."""

Look = Callable[[int | None], int | None]
"""A fingerprint of the state; None if it has more bytes than the limit, if there is one."""


class Leaks:
    """Of one machine. Pure but for the clock that it is given."""

    def __init__(self, look: Look, clock: Callable[[], float], *, always: bool) -> None:
        self._look = look
        self._clock = clock
        self._limit = None if always else LARGE
        self._then: int | None = None
        self._next = 0.0
        self._grown_since = -1

    def left(self, size: int) -> None:
        """Something was handled; `size` is that of the last checkpoint."""
        if self._limit is None:
            self._then = self._look(None)
            return
        began = self._clock()
        if began < self._next or size > self._limit or size == self._grown_since:
            return
        self._then = self._look(self._limit)
        if self._then is None:
            self._grown_since = size  # not again before the next checkpoint tells its size
        ended = self._clock()
        self._next = ended + _SHARE * (ended - began)

    def has_changed(self) -> bool:
        """Before the next thing is handled: whether the state is another one than was left."""
        then, self._then = self._then, None
        return then is not None and then != self._look(self._limit)

    def forget(self) -> None:
        """The state becomes another one, and should."""
        self._then = None
