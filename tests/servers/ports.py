"""Ports for servers that must be told theirs before they start.

A port that the system gives out (bind to 0) and that is free again may be given to the next connection of anybody, and
the server then finds it taken. So these lie below those that systems give out by themselves; processes that run tests
at the same time each draw from a part of their own, and leave alone for good what they drew.
"""

from __future__ import annotations

import os
import random
import socket

_PARTS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_PART = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_RANGE = range(12_000 + _PART, 32_000, _PARTS)
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
