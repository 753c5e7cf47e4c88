"""Stands between a worker and its sink and reads along: who is to die at a frame dies when that frame is seen.

The frame itself does not go on, and nothing behind it does: what one side has sent, the other has not heard.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType

from penstock.connector.frames import Message, frame_of
from penstock.connector.framing import LENGTH_BYTES, Splitter
from penstock.connector.inner import CONTROL_STREAM, inner_of


class Proxy:
    """Listens in front of a sink. At the frame `at`, when it comes for the `turn`-th time, it carries out `then`."""

    def __init__(self, sink: tuple[str, int], at: str, then: Callable[[], None], *, turn: int = 1) -> None:
        self._sink = sink
        self._at = at
        self._then = then
        self._turn = turn
        self._guard = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.seen: list[str] = []
        """The frames of both sides by name, in the order in which they came."""
        self.met = threading.Event()
        """The frame was seen, and its consequence is carried out."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._start(self._accept)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()[:2]
        return host, port

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._guard:
            _shut(self._listener, *self._sockets)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                worker, _ = self._listener.accept()
            except OSError:
                return
            try:
                sink = socket.create_connection(self._sink)
            except OSError:
                worker.close()
                continue
            with self._guard:
                self._sockets += [worker, sink]
            self._start(partial(self._pass, worker, sink))
            self._start(partial(self._pass, sink, worker))

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        splitter = Splitter()
        with contextlib.suppress(OSError):
            while data := one.recv(64 << 10):
                for payload in splitter.feed(data):
                    if self._is_it(payload):
                        _shut(one, other)
                        return
                    other.sendall(len(payload).to_bytes(LENGTH_BYTES, "big") + payload)
        _shut(one, other)

    def _is_it(self, payload: memoryview) -> bool:
        """Whether this is the frame; what follows from it is done then."""
        with self._guard:
            self.seen.append(name_of(payload))
            if self.met.is_set() or self.seen[-1] != self._at or self.seen.count(self._at) < self._turn:
                return False
            self._then()
            self.met.set()
            return True

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()


def name_of(payload: memoryview) -> str:
    """The frame by name; what is inside of it, if it is part of the two-phase commit."""
    frame = frame_of(payload)
    if isinstance(frame, Message) and frame.stream == CONTROL_STREAM:
        return type(inner_of(memoryview(frame.body))).__name__
    return type(frame).__name__


def _shut(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
