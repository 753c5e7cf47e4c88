"""The stream of a replication slot, read by a thread of its own.

The thread does two things: it takes what the server sends into a bounded buffer, and it answers. The server ends a
stream that is silent for `wal_sender_timeout`; so answers go out also while nobody takes from the buffer and nothing is
read any more. What is acknowledged is what `acknowledge` was told last, and nothing else.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.adaptors.needs import need
from penstock.adaptors.postgres.connection import EXTRA, Server, literal, quoted
from penstock.adaptors.postgres.pgoutput import Keepalive, XLogData, lsn_text, status, unwrap
from penstock.adaptors.postgres.snapshot import slot_error
from penstock.base.errors import AwayError, PenstockError, UsageError

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

BUFFER_BYTES = 8 * 1024 * 1024
"""What may wait to be taken."""
ANSWER_SECONDS = 1.0
"""Between two answers, at most; the server's patience is a minute, or what it was set to."""
STUCK_SECONDS = 10.0
"""For which a server may take no answers."""
LISTEN_SECONDS = 0.2
IN_USE_SECONDS = 8.0
"""How long a slot may be in use by a connection that is just ending."""

_IN_USE = b"55006"


class Stream:
    """An open stream. `close` it; a stream that failed tells so at `take`."""

    def __init__(
        self, server: Server, slot: str, publications: Sequence[str], start: int, acknowledged: int
    ) -> None:
        self._server, self._slot = server, slot
        self._connection = _started(server, slot, publications, start)
        self._changed = threading.Condition()
        self._buffer: deque[XLogData | Keepalive] = deque()
        self._bytes = 0
        self._seen, self._acknowledged = acknowledged, acknowledged
        self._error: PenstockError | None = None
        self._room, self._made_room = socket.socketpair()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"penstock-{slot}", daemon=True)
        self._thread.start()

    def take(self, seconds: float) -> Sequence[XLogData | Keepalive]:
        """What has come, in order; waits for it a while, and may be empty."""
        with self._changed:
            if not self._buffer and self._error is None:
                self._changed.wait(seconds)
            if not self._buffer and self._error is not None:
                raise self._error
            taken, self._buffer, size, self._bytes = self._buffer, deque(), self._bytes, 0
        if size >= BUFFER_BYTES:
            self._made_room.send(b"!")
        return taken

    def wake(self) -> None:
        """End a wait in `take`."""
        with self._changed:
            self._changed.notify_all()

    def acknowledge(self, lsn: int) -> None:
        """All below `lsn` is safe: the server may forget it. Sent within a second."""
        self._acknowledged = max(lsn, self._acknowledged)

    def close(self) -> None:
        self._closing = True
        self._made_room.send(b"!")
        self._thread.join()
        self._room.close()
        self._made_room.close()

    def _run(self) -> None:
        try:
            self._listen()
        except PenstockError as error:
            found: PenstockError = error
        except Exception as error:  # noqa: BLE001 - told to whoever takes
            found = AwayError(f"the stream of replication slot '{self._slot}' broke: {error}")
        else:
            found = AwayError(f"the stream of replication slot '{self._slot}' was closed")
        finally:
            self._connection.finish()
        with self._changed:
            self._error = found
            self._changed.notify_all()

    def _listen(self) -> None:
        answered, told = 0.0, -1
        while not self._closing:
            wanted = self._take_in()
            now = time.monotonic()
            if wanted or now - answered >= ANSWER_SECONDS or self._acknowledged != told:
                told, answered = self._acknowledged, now
                self._answer(told)
            room = self._room.fileno()
            reads = [room] if self._bytes >= BUFFER_BYTES else [room, self._connection.socket]
            ready, _, _ = select.select(reads, [], [], LISTEN_SECONDS)
            if room in ready:
                self._room.recv(64)
            if self._connection.socket in ready:
                self._connection.consume_input()
        self._answer(self._acknowledged)

    def _take_in(self) -> bool:
        """Move what has arrived into the buffer; whether the server wants an answer."""
        wanted = False
        found: list[XLogData | Keepalive] = []
        size = 0
        while self._bytes + size < BUFFER_BYTES:
            length, content = self._connection.get_copy_data(1)
            if length == 0:
                break
            if length < 0:
                raise self._ended()
            message = unwrap(bytes(content))
            wanted |= isinstance(message, Keepalive) and message.wants_reply
            self._seen = max(self._seen, message.end)
            found.append(message)
            size += len(content) + 100
        if found:
            with self._changed:
                self._buffer.extend(found)
                self._bytes += size
                self._changed.notify_all()
        return wanted

    def _answer(self, flushed: int) -> None:
        self._connection.put_copy_data(status(max(self._seen, flushed), flushed, time.time_ns() // 1000))
        while self._connection.flush():
            _, writable, _ = select.select([], [self._connection.socket], [], STUCK_SECONDS)
            if not writable:
                raise AwayError(f"{self._server} does not take answers")

    def _ended(self) -> PenstockError:
        result = self._connection.get_result()
        driver = need("psycopg", EXTRA)
        if result is None or result.status != driver.pq.ExecStatus.FATAL_ERROR:
            return AwayError(f"{self._server} ended the stream of replication slot '{self._slot}'")
        return stream_error(self._server, self._slot, result)


def _started(server: Server, slot: str, publications: Sequence[str], start: int) -> PGconn:
    """A connection on which the stream flows."""
    driver = need("psycopg", EXTRA)
    names = literal(", ".join(map(quoted, publications)))
    command = (
        f"START_REPLICATION SLOT {quoted(slot)} LOGICAL {lsn_text(start)} "
        f"(proto_version '1', publication_names {names})"
    )
    deadline = time.monotonic() + IN_USE_SECONDS
    while True:
        connection = server.replication()
        result = connection.exec_(command.encode())
        if result.status == driver.pq.ExecStatus.COPY_BOTH:
            connection.nonblocking = 1
            return connection
        connection.finish()
        in_use = result.error_field(driver.pq.DiagnosticField.SQLSTATE) == _IN_USE
        if not in_use or time.monotonic() > deadline:
            raise stream_error(server, slot, result)
        time.sleep(0.1)


def stream_error(server: Server, slot: str, result: PGresult) -> PenstockError:
    """An error about a slot that must not be passed over: its changes may be gone."""
    driver = need("psycopg", EXTRA)
    error = slot_error(server, slot, result)
    state = result.error_field(driver.pq.DiagnosticField.SQLSTATE) or b""
    if state in (b"55000", b"58P01", b"42704"):
        return UsageError(
            f"{error.message}; changes since the last ones logged cannot be read any more, or not by these means",
            hint=f"`penstock plan` shows what there is; if the slot is lost, `penstock release` it, then "
            f"`penstock backfill` every namespace of this source (slot '{slot}')",
        )
    return error
