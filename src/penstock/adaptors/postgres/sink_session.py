"""Sessions of the PostgreSQL sink: how they are set up, and what an error of the server means.

A session depends on no setting of the server, the database or the role that could change what is written: time zone,
date style, search path. It waits for a lock for a while and not forever, and the server notices when the client is
gone, so that what a killed run held is free soon.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.adaptors.needs import need
from penstock.base.errors import AwayError, PenstockError, RefusedError, UsageError
from penstock.base.secrets import mask

if TYPE_CHECKING:
    import psycopg

LOCK_SECONDS = 30
"""How long to wait for somebody who holds a table."""

OLDEST = 130000

_SETTINGS = {
    "timezone": "UTC", "datestyle": "ISO, YMD", "intervalstyle": "postgres", "extra_float_digits": "1",
    "synchronous_commit": "on", "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off", "standard_conforming_strings": "on", "xmloption": "content",
    "lock_timeout": f"{LOCK_SECONDS}s", "statement_timeout": "0", "idle_in_transaction_session_timeout": "10min",
    "tcp_keepalives_idle": "15", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3",
}  # fmt: skip

_PATH = "set_config('search_path', 'pg_catalog, ' || current_setting('search_path') || ', pg_temp', false)"
"""What is the server's own is found first; behind it what triggers, and the operators of other types, rely on."""

AGAIN = frozenset({"40001", "40P01", "55006"})
"""Serialization failure, deadlock, an object in use: nothing is wrong but the moment."""

_LOCKED = "55P03"
"""A lock not had in time, which was waited for long enough."""

_WRONG = re.compile(
    r"authentication failed|no password|password must|does not exist|no pg_hba|not permitted|permission denied|"
    r"certificate|does not support SSL|SSL required|invalid (?:port|integer|connection|URI|sslmode|value)",
    re.IGNORECASE,
)
"""What the server, or libpq, says to a connection that will not be better for waiting."""


def connect(uri: str, name: str, timeout: float) -> psycopg.Connection[Any]:
    """A session that commits each statement by itself. `name` is what the server shows of it."""
    driver = need("psycopg", "postgres")
    try:
        connection: psycopg.Connection[Any] = driver.connect(
            uri, autocommit=True, application_name=name[:63], connect_timeout=max(2, round(timeout)),
            client_encoding="utf8", keepalives_idle=15, keepalives_interval=5, keepalives_count=3,
            tcp_user_timeout=60_000,
        )  # fmt: skip
    except driver.Error as error:
        raise _cannot_connect(uri, error) from None
    try:
        _set_up(connection)
    except driver.Error as error:
        connection.close()
        raise meaning(error, "cannot set up a session") from None
    except PenstockError:
        connection.close()
        raise
    return connection


def _set_up(connection: psycopg.Connection[Any]) -> None:
    if connection.info.server_version < OLDEST:
        raise UsageError(
            f"the server is PostgreSQL {connection.info.server_version // 10000}, "
            f"{OLDEST // 10000} or newer is wanted"
        )
    settings = dict(_SETTINGS)
    if connection.info.server_version >= 140000:
        settings["client_connection_check_interval"] = "2s"
    chosen = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())
    connection.execute(f"SELECT {_PATH}, {chosen}")


def _cannot_connect(uri: str, error: Exception) -> PenstockError:
    text, place = mask(" ".join(str(error).split())), mask(uri.partition("?")[0])
    if _WRONG.search(text):
        return UsageError(f"cannot connect to {place}: {text}", hint="see the setting 'uri'")
    return AwayError(f"cannot connect to {place}: {text}")


def meaning(error: psycopg.Error, what: str) -> PenstockError:
    """The error to raise instead; `what` could not be done."""
    said = mask(_said(error))
    state = error.sqlstate or ""
    family = state[:2]
    if not state or family in ("08", "53", "57", "58") or state in AGAIN or state in (_LOCKED, "25006"):
        return AwayError(f"{what}: {said}")
    if family in ("21", "22", "23", "27", "44", "54", "P0"):
        return RefusedError(f"{what}: {said}")
    if family in ("0A", "28", "3D", "3F", "42", "55"):
        return UsageError(f"{what}: {said}", hint=error.diag.message_hint)
    return PenstockError(f"{what}: {said}")


def _said(error: psycopg.Error) -> str:
    """What the server says of an error: what, and which value."""
    said = error.diag.message_primary or " ".join(str(error).split())
    return f"{said} ({error.diag.message_detail})" if error.diag.message_detail else said


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Errors of the server come out with their meaning."""
    psycopg = need("psycopg", "postgres")
    try:
        yield
    except psycopg.Error as error:
        raise meaning(error, what) from error


def quoted(*names: str) -> str:
    """A name as SQL has it, with its schema if given."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(text: str) -> str:
    """A text as SQL has it, whatever is in it."""
    return "'" + text.replace("'", "''") + "'"
