"""Connections that give query results as Arrow, kept for the next task of the same process.

To open one costs the driver as much as to read ten thousand rows. One that is not used for a while is closed; between
two tasks none is in a transaction, so that nothing is held back at the server.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from penstock.adaptors.needs import need
from penstock.adaptors.postgres.connection import EXTRA, Server

IDLE_SECONDS = 10.0

_lock = threading.Lock()
_idle: dict[str, list[tuple[float, Any]]] = {}


@contextmanager
def cursor(server: Server, begin: Sequence[str]) -> Iterator[Any]:
    """A cursor in a transaction that the statements `begin` have begun; it is rolled back."""
    uri = server.arrow_uri()
    connection = _begun(uri, begin)
    try:
        with connection.cursor() as found:
            yield found
        _run(connection, ["ROLLBACK"])
    except BaseException:
        _close(connection)
        raise
    _keep(uri, connection)


def _begun(uri: str, begin: Sequence[str]) -> Any:
    """One that was kept, if it still lives, or a new one."""
    driver = need("adbc_driver_postgresql.dbapi", EXTRA)
    errors = need("adbc_driver_manager", EXTRA)
    with _lock:
        kept = _idle[uri].pop()[1] if _idle.get(uri) else None
    if kept is not None:
        try:
            _run(kept, begin)
        except errors.Error:
            _close(kept)
        else:
            return kept
    connection = driver.connect(uri, autocommit=True)
    try:
        _run(connection, begin)
    except BaseException:
        _close(connection)
        raise
    return connection


def _run(connection: Any, statements: Sequence[str]) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _keep(uri: str, connection: Any) -> None:
    with _lock:
        _idle.setdefault(uri, []).append((time.monotonic(), connection))
    reaper = threading.Timer(IDLE_SECONDS + 0.5, close_idle)
    reaper.daemon = True
    reaper.start()


def close_idle(seconds: float = IDLE_SECONDS) -> None:
    """Close what was not used for so long."""
    oldest = time.monotonic() - seconds
    with _lock:
        gone = [one for kept in _idle.values() for since, one in kept if since <= oldest]
        for uri in list(_idle):
            _idle[uri] = [(since, one) for since, one in _idle[uri] if since > oldest]
            if not _idle[uri]:
                del _idle[uri]
    for connection in gone:
        _close(connection)


def _close(connection: Any) -> None:
    with suppress(Exception):  # it is of no use any more, whatever it says
        connection.close()


atexit.register(close_idle, 0.0)
