"""The transport of one connection at a worker: bytes out, reading held back and resumed, an end that can be read.

A connection that is closed with bytes on their way to us is reset, and the peer may never read what it was told last.
So the end is a half-close: our side is over, what still comes is thrown away, and soon the connection is gone.
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import socket
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import Final

LINGER: Final = 2.0
"""Seconds for a peer to read an ERROR or a RESTART and close."""
DEAF: Final = 1 << 20
"""Bytes that wait for a peer that does not read."""
QUIET, EVERY, TIMES = 30, 10, 3
"""Keep-alive: seconds until a silent peer is asked, and between two questions; how many may stay without an answer."""
UNANSWERED = 60.0
"""Seconds that a peer may leave without an answer what was sent: nothing is asked of it meanwhile."""
_GONE: Final = getattr(select, "POLLRDHUP", 0)
"""What a peer that has closed is told by, besides errors, however much of what it sent is not read yet."""


class Wire:
    """Given its transport once there is one."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.reading = True
        self._end = Timer()

    def made(self, transport: asyncio.BaseTransport) -> str:
        """The address of the peer."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        keep_alive(transport.get_extra_info("socket"))
        return _shown(transport.get_extra_info("peername"))

    def write(self, data: bytes) -> None:
        if self._works:
            assert self.transport is not None
            self.transport.write(data)

    @property
    def is_deaf(self) -> bool:
        """Whether the peer does not read what it is sent."""
        return self.transport is not None and self.transport.get_write_buffer_size() > DEAF

    def hold(self) -> None:
        """Read no more for now."""
        if self.reading and self._works:
            assert self.transport is not None
            self.reading = False
            self.transport.pause_reading()

    def resume(self) -> None:
        if not self.reading and self._works:
            assert self.transport is not None
            self.reading = True
            self.transport.resume_reading()

    @property
    def is_gone(self) -> bool:
        """Whether the peer has closed the connection, or it broke. The loop does not see that while nothing is read."""
        if self.transport is None or not self._works:
            return False
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket"), _GONE)
        return bool(poll.poll(0))

    def finish(self) -> None:
        """Nothing more is said; the connection closes when the peer does, or soon."""
        if not self._works:
            return
        assert self.transport is not None
        self.resume()
        with suppress(OSError):  # the peer may be gone, and the loop not know it yet
            if self.transport.can_write_eof():
                self.transport.write_eof()
        self._end.arm(LINGER, self.transport.abort)

    def cut(self) -> None:
        """Close at once; what was written and is not on its way by now is lost."""
        if self._works:
            assert self.transport is not None
            self.transport.abort()

    def lost(self) -> None:
        self._end.disarm()

    @property
    def _works(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()


class Timer:
    """What happens unless something else does first."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None

    @property
    def is_armed(self) -> bool:
        return self._handle is not None

    def arm(self, seconds: float, call: Callable[..., None], *arguments: object) -> None:
        self.disarm()
        self._handle = asyncio.get_running_loop().call_later(seconds, call, *arguments)

    def disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


def keep_alive(sock: socket.socket | None) -> None:
    """A peer that vanished without a word is noticed within about a minute; one that is quiet stays."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", QUIET), ("TCP_KEEPINTVL", EVERY), ("TCP_KEEPCNT", TIMES)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    bear(sock, UNANSWERED)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def bear(sock: socket.socket, unanswered: float) -> None:
    """How long a peer may leave without an answer what was sent.

    Linux takes this limit for the questions of keep-alive as well, in the place of their number.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT") and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(unanswered * 1000))


def under_way(sock: socket.socket) -> int:
    """Bytes that were given to the kernel and that the peer's has not confirmed."""
    room = bytearray(4)
    fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, room)
    return int.from_bytes(room, sys.byteorder)


def _shown(peer: object) -> str:
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else str(peer or "")
