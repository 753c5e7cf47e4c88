"""Ports for servers that must be told theirs before they start.

A port that the system gives out (bind to 0) and that is free again may be given to the next connection of anybody, and
the server then finds it taken. So these lie below those that systems give out by themselves; two tests that draw the
same one at the same time are unlikely, and each drawn one is left alone by this process for good.
"""

from __future__ import annotations

import random
import socket

_RANGE = range(12_000, 32_000)
_drawn: set[int] = set()
_draw = random.SystemRandom()


def free_port() -> int:
    """A port of 127.0.0.1 at which nobody listens."""
    while True:
        port = _draw.choice(_RANGE)
        if port not in _drawn and _is_free(port):
            _drawn.add(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
