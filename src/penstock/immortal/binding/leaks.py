"""State that leaked out of a handler, and is changed while none runs: a plain handler has the state itself.

The state is encoded when a record has been handled, and again before the next one. In a re-run of a log that is done
each time; while an instance serves, as often as it costs no more than a fiftieth of the time, and not at all where the
state is large.
"""

from __future__ import annotations

from collections.abc import Callable

LARGE = 4 << 20
"""Bytes of a checkpoint from which on a serving instance is not looked at."""
_SHARE = 100
"""Of twice the time that one look takes."""


class Leaks:
    """Of one machine. Pure but for the clock that it is given."""

    def __init__(self, encode: Callable[[], bytes], clock: Callable[[], float], *, always: bool) -> None:
        self._encode = encode
        self._clock = clock
        self._always = always
        self._then: bytes | None = None
        self._next = 0.0

    def left(self, size: int) -> None:
        """Something was handled; `size` is that of the last checkpoint."""
        if self._always:
            self._then = self._encode()
            return
        began = self._clock()
        if began < self._next or size > LARGE:
            return
        self._then = self._encode()
        ended = self._clock()
        self._next = ended + _SHARE * (ended - began)

    def has_changed(self) -> bool:
        """Before the next thing is handled: whether the state is another one than was left."""
        then, self._then = self._then, None
        return then is not None and then != self._encode()

    def forget(self) -> None:
        """The state becomes another one, and should."""
        self._then = None
