"""The server of a sink: a thread for each connection, between its socket and its machine (`session.py`).

Data is read as fast as the storage takes it, and no faster: what is not read waits at the worker (TCP). Frames and
connections are limited; who does not say HELLO in time, or does not take its answers, is let go.

    with SinkServer(("127.0.0.1", 7200), Workers(directory, storage_of), Terms(cookie=b"...")) as server:
        server.wait()
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from penstock.base import faults
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.base.secrets import mask
from penstock.base.signals import Flag
from penstock.base.texts import one_line
from penstock.connector.frames import MAX_FRAME, NOT_NOW
from penstock.connector.framing import Splitter
from penstock.connector.sink.keeper import Keeper
from penstock.connector.sink.session import SinkSession, Terms
from penstock.connector.sink.workers import Workers

log = logging.getLogger(__name__)

_READ: Final = 256 << 10
_NO_TERMS: Final = Terms()


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a server, against peers that are broken or mean harm. Bytes and seconds."""

    connections: int = 256
    frame: int = MAX_FRAME
    patience: float = 10.0
    """From the connection to HELLO, and for each answer to be taken."""
    silence: int = 45
    """Until a worker whose machine has vanished without a word is noticed, and its name is free again; 3 or more."""


_NO_LIMITS: Final = Limits()


class SinkServer:
    """Listens, and serves until it is closed."""

    def __init__(
        self,
        listen: tuple[str, int],
        workers: Workers,
        terms: Terms = _NO_TERMS,
        limits: Limits = _NO_LIMITS,
    ) -> None:
        self._workers = workers
        self._terms = terms
        self._limits = limits
        self._guard = threading.Lock()
        self._sockets: dict[socket.socket, threading.Thread] = {}
        self._closing = Flag()
        self._listener = _listening(listen)
        self._accepting = threading.Thread(target=self._accept, name="sink listener", daemon=True)
        self._accepting.start()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()[:2]
        return host, port

    def wait(self, timeout: float | None = None) -> bool:
        """Until somebody asks it to end; False if that takes longer."""
        return self._closing.wait(timeout)

    def ask_to_end(self) -> None:
        """Let `wait` return. Safe in a signal handler."""
        self._closing.set()

    def close(self) -> None:
        """No new connections; those that are there end after the frame that they are at."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        with self._guard:
            open_now = dict(self._sockets)
        for connection in open_now:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in open_now.values():
            thread.join()
        self._workers.close()

    def __enter__(self) -> SinkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._closing.wait(0.05):  # out of descriptors, say
                    return
                continue
            thread = threading.Thread(
                target=self._serve, args=(connection,), name="sink connection", daemon=True
            )
            with self._guard:
                if len(self._sockets) >= self._limits.connections:
                    connection.close()
                    continue
                self._sockets[connection] = thread
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        session = SinkSession(self._terms, self._workers.attach, self._workers.left)
        try:
            _prepare(connection, self._limits)
            self._converse(connection, session)
        except (OSError, PenstockError) as error:
            log.warning("sink: a connection ended: %s", one_line(mask(str(error))))
        except Exception:  # a storage of any author: the server goes on
            log.exception("sink: a connection ended")
        finally:
            self._gone(connection, session.keeper)

    def _converse(self, connection: socket.socket, session: SinkSession) -> None:
        splitter = Splitter(self._limits.frame)
        while not session.ended:
            data = connection.recv(_READ)
            if not data:
                return
            for payload in splitter.feed(data):
                self._send(connection, session, self._answer(session, payload))
                if session.ended:
                    break
            if splitter.fault is not None and not session.ended:
                self._send(connection, session, session.refuse(splitter.fault.message))
        _half_closed(connection)

    @staticmethod
    def _answer(session: SinkSession, payload: memoryview) -> bytes:
        """A storage or a log that cannot go on: the worker is told, and comes again, at once or when there is room."""
        try:
            return session.receive(payload)
        except (OSError, PenstockError) as error:
            log.warning("sink: %s", one_line(mask(str(error))))
            later = NOT_NOW if isinstance(error, (OSError, AwayError)) else ""
            return session.refuse(later + mask(str(error)))

    def _send(self, connection: socket.socket, session: SinkSession, answer: bytes) -> None:
        if not answer:
            return
        with faults.step("sink reply"):
            connection.settimeout(self._limits.patience)
            connection.sendall(answer)
            if session.keeper is not None:  # a worker may be silent for as long as it likes
                connection.settimeout(None)
        with faults.step("sink replied"):
            pass

    def _gone(self, connection: socket.socket, keeper: Keeper | None) -> None:
        try:
            if keeper is not None:
                self._workers.detach(keeper)
        except Exception:
            log.exception("sink: a worker was not let go")
        finally:
            connection.close()
            with self._guard:
                self._sockets.pop(connection, None)


def _listening(listen: tuple[str, int]) -> socket.socket:
    try:
        return socket.create_server(listen, backlog=128)
    except OSError as error:
        raise UsageError(f"cannot listen on {listen[0]}:{listen[1]}: {error.strerror or error}") from None


def _prepare(connection: socket.socket, limits: Limits) -> None:
    """Answers go out at once; a worker that has vanished is noticed, be it idle or with an answer on its way."""
    connection.settimeout(limits.patience)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = limits.silence // 3
    pause = max(idle // 3, 1)
    for name, value in (
        ("TCP_KEEPIDLE", idle),
        ("TCP_KEEPINTVL", pause),
        ("TCP_KEEPCNT", (limits.silence - idle) // pause),
        ("TCP_USER_TIMEOUT", limits.silence * 1000),  # nobody is probed while an answer is on its way
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _half_closed(connection: socket.socket) -> None:
    """Let the peer read the ERROR before it sees the end: what it has still sent is taken and thrown away."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(1.0)
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline and connection.recv(_READ):
            pass
