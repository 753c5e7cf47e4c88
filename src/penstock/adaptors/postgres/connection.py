"""Connections to a PostgreSQL server, and what its errors mean to a run.

Every session has the same settings, so that values are printed in one way whatever the server, the database or the role
are set to; it cannot be ended for being idle, and it notices within a minute that its server is gone.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlencode

from penstock.adaptors.needs import need
from penstock.base import secrets
from penstock.base.errors import AwayError, PenstockError, UsageError

if TYPE_CHECKING:
    import psycopg
    from psycopg.pq.abc import PGconn

Connection: TypeAlias = "psycopg.Connection[Any]"

EXTRA = "postgres"

SESSION: Mapping[str, str] = {
    "DateStyle": "ISO", "IntervalStyle": "iso_8601", "TimeZone": "UTC", "bytea_output": "hex",
    "extra_float_digits": "3", "client_encoding": "UTF8", "search_path": "pg_catalog",
    "idle_in_transaction_session_timeout": "0", "statement_timeout": "0", "xmlbinary": "base64", "row_security": "off",
}  # fmt: skip
"""What decides how values are printed, and what could end a session that waits.

Without row security, the server refuses to read a table of which a policy would hide rows; with it, it would leave them
out without a word, while the stream has them all.
"""

LIVENESS: Mapping[str, str] = {
    "keepalives": "1", "keepalives_idle": "20", "keepalives_interval": "10", "keepalives_count": "3",
    "tcp_user_timeout": "60000", "application_name": "penstock",
}  # fmt: skip

OLDEST = 140000
"""The first version that reads a table by ranges of its pages."""

_AWAY_CLASSES = ("08", "53", "57", "58", "40")
"""Connection, resources, operator's intervention, the server's own system, a transaction that lost."""

_AWAY = frozenset({"55006", "55P03", "72000", "42P01", "42703", "3F000"})
"""In use, locked, snapshot too old; and a table or column that went while it was read: the next look sees that."""

_LIMIT = "53400"
"""More slots than the server is set up for: that is for a person."""


@dataclass(frozen=True)
class Server:
    """Where the database is; picklable. The password is in the uri and never in an error."""

    uri: str
    timeout: float = 10.0
    range_bytes: int = 6 * 1024 * 1024
    """About how much of a table is copied in one go."""

    def connect(self) -> Connection:
        """A session for queries, in autocommit."""
        driver = need("psycopg", EXTRA)
        try:
            connection: Connection = driver.connect(
                self.uri, autocommit=True, options=_options(), **self._parameters()
            )
        except driver.Error as error:
            raise self.connection_error(str(error)) from None
        connection.prepare_threshold = None
        if connection.info.server_version < OLDEST:
            version = connection.info.parameter_status("server_version")
            connection.close()
            raise UsageError(f"PostgreSQL {version} is too old", hint="14 is the oldest that can be read")
        return connection

    def replication(self) -> PGconn:
        """A session that speaks the replication protocol, for this database; driven by hand."""
        psycopg = need("psycopg", EXTRA)
        parameters = {**self._parameters(), "options": _options(), "replication": "database"}
        conninfo = psycopg.conninfo.make_conninfo(self.uri, **parameters)
        connection: PGconn = psycopg.pq.PGconn.connect_start(conninfo.encode())
        if not self._come_up(connection):
            connection.finish()
            raise AwayError(f"cannot connect to {self}: no answer within {self.timeout:g} s")
        if connection.status != psycopg.pq.ConnStatus.OK:
            what = connection.error_message.decode("utf-8", "replace").strip()
            connection.finish()
            raise self.connection_error(what)
        return connection

    def _come_up(self, connection: PGconn) -> bool:
        """Wait until a connection is made or refused; False if neither happens in time.

        libpq's own way to wait would have all threads of this process wait with it.
        """
        pq = need("psycopg.pq", EXTRA)
        events = {pq.PollingStatus.READING: select.POLLIN, pq.PollingStatus.WRITING: select.POLLOUT}
        deadline = time.monotonic() + max(2.0, self.timeout)
        while connection.status != pq.ConnStatus.BAD:
            wanted = events.get(connection.connect_poll())
            if wanted is None:
                return True
            ready = select.poll()
            ready.register(connection.socket, wanted)
            if not ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return False
        return True

    def arrow_uri(self) -> str:
        """For a driver that takes nothing but a uri."""
        parameters = {
            **{name: str(value) for name, value in self._parameters().items()},
            "options": _options(),
        }
        # A uri spells a blank as %20; a plus is a plus.
        query = urlencode(parameters).replace("+", "%20")
        return f"{self.uri}{'&' if '?' in self.uri else '?'}{query}"

    def _parameters(self) -> dict[str, str | int]:
        return {**LIVENESS, "connect_timeout": max(2, int(self.timeout))}

    @contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """Errors of the driver come out as what they mean to a run."""
        psycopg = need("psycopg", EXTRA)
        try:
            yield
        except psycopg.Error as error:
            # An error without a state is about the connection itself.
            raise self.error(what, error.sqlstate or "08000", _first_line(str(error))) from error

    def connection_error(self, text: str) -> PenstockError:
        """A connection that was refused tells no code, only words."""
        what = f"cannot connect to {self}: {_first_line(text)}"
        for words, hint in _REFUSALS:
            if any(word in text for word in words):
                return UsageError(secrets.mask(what), hint=hint)
        return AwayError(secrets.mask(what))

    def error(self, what: str, state: str, text: str) -> PenstockError:
        """`state` is SQLSTATE."""
        message = secrets.mask(f"{what}: {text}")
        if state == _LIMIT or state.startswith("28") or state in ("42501", "55000", "3D000"):
            return UsageError(message, hint=_HINTS.get(state))
        if state[:2] in _AWAY_CLASSES or state in _AWAY:
            return AwayError(message)
        return PenstockError(message)

    def __str__(self) -> str:
        return secrets.mask(self.uri.partition("?")[0])

    def __repr__(self) -> str:
        return f"Server({self})"


_REFUSALS = (
    (
        ("password authentication failed", "no password supplied", "authentication"),
        "check user and password in the uri",
    ),
    (("does not exist",), "check the names of database and role in the uri"),
    (
        ("no pg_hba.conf entry",),
        "let this host in: a line for it in pg_hba.conf, then SELECT pg_reload_conf()",
    ),
    (
        ("permission denied", "must be superuser or replication role", "REPLICATION attribute"),
        "ALTER ROLE … REPLICATION",
    ),
    (
        (
            "invalid connection option",
            "invalid URI",
            "invalid port",
            "invalid integer",
            "does not support SSL",
            "invalid sslmode",
        ),
        None,
    ),
    (
        ("certificate", "SSL required", "no encryption"),
        "see `sslmode`, `sslrootcert`, `sslcert` and `sslkey` in the uri",
    ),
)

_HINTS = {
    _LIMIT: "ALTER SYSTEM SET max_replication_slots = 20; then restart the server; or drop a slot nobody uses",
    "55000": "`penstock plan` tells what the server is not set up for",
    "42501": "`penstock plan` names the statement that grants it",
}


def _options() -> str:
    return " ".join(f"-c {name}={value}" for name, value in SESSION.items())


def _first_line(text: str) -> str:
    return " ".join(text.split("\n")[0].split())


def quoted(*names: str) -> str:
    """A name as SQL has it, of as many parts."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(text: str) -> str:
    """A text as SQL has it, whatever it holds."""
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'" if "\\" in text else f"'{escaped}'"
