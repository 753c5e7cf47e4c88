"""Connections to a MySQL or MariaDB server, and what its errors mean to a run.

Every session has the same settings, so that values are printed and taken in one way whatever the server is set to:
UTC, utf8mb4, strict SQL mode. Foreign keys and unique keys are checked as the server does it. A session is not ended
for being slow, and notices within a minute that its server is gone.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, cast
from urllib.parse import unquote, urlsplit

from penstock.adaptors import tls
from penstock.adaptors.needs import need
from penstock.base import secrets
from penstock.base.errors import AwayError, PenstockError, UsageError

if TYPE_CHECKING:
    import pymysql
    import pymysql.cursors

EXTRA = "mysql"
PORT = 3306
ANSWER = 60.0
"""Seconds in which a server has to answer."""

LONG = 6 * 3600.0
"""The same for statements about whole tables. That a server is gone is noticed sooner, by its machine's silence."""

_SESSION = (
    "SET SESSION time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO', "
    "net_write_timeout = 3600, net_read_timeout = 3600, wait_timeout = 86400, group_concat_max_len = 1048576"
)
"""Without NO_ZERO_DATE: a date that the source has is a date that the target takes."""

_AWAY = frozenset(
    {
        2002, 2003, 2006, 2012, 2013, 2014, 2055,  # the connection
        1040, 1041, 1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1226,  # too many, shutting down
        1205, 1213, 1317, 1927, 3024, 3169, 4031,  # lost to another transaction, or killed
        1021, 1114, 1037, 1038, 1030, 1026, 1836, 3100, 1792,  # no room, read only for now
        1290, 1020, 1412,  # and a table that was made anew under a snapshot
    }
)  # fmt: skip

_REFUSED = {
    1045: "check user and password in the uri",
    1698: "check user and password in the uri",
    1049: "check the name of the database in the uri",
    1044: "`penstock plan` names the statement that grants it",
    1142: "`penstock plan` names the statement that grants it",
    1143: "`penstock plan` names the statement that grants it",
    1227: "`penstock plan` names the statement that grants it",
    1130: "the server does not let this host in: CREATE USER 'name'@'host' …",
    1251: None,
    2026: "check `tls` and `ca`",
    2059: None,
    2061: None,
}

_FOUND_ROWS = 2

Rows = Sequence[tuple[Any, ...]]


@cache
def _driver() -> Any:
    """The driver's connection, but that all share one context where TLS was not asked for.

    There the driver takes what the server offers and checks nothing; and for each connection it would first read all
    certificates that this machine trusts, 40 ms.
    """

    class Connection(need("pymysql", EXTRA).Connection):  # type: ignore[misc]
        unchecked: ClassVar[ssl.SSLContext | None] = None

        def _create_ssl_ctx(self, given: object) -> ssl.SSLContext:
            if given:
                return cast("ssl.SSLContext", super()._create_ssl_ctx(given))
            if Connection.unchecked is None:
                Connection.unchecked = super()._create_ssl_ctx(given)
            return Connection.unchecked

    return Connection


@dataclass(frozen=True)
class Server:
    """Where the server is, and as whom; picklable. The password is in the uri and never in an error."""

    uri: str
    timeout: float = 10.0
    tls: bool = False
    ca: str = ""

    @property
    def database(self) -> str:
        """The one that the uri names; empty if it names none."""
        return unquote(urlsplit(self.uri).path.lstrip("/"))

    def connect(
        self, *, raw: bool = False, found_rows: bool = False, read_timeout: float = ANSWER
    ) -> Session:
        """A session in autocommit.

        `raw` gives values as the bytes that the server sent; with `found_rows` an update counts the rows that it found,
        also those that it left as they were.
        """
        parts = urlsplit(self.uri)
        encoders = need("pymysql.converters", EXTRA).encoders
        converting: dict[str, object] = {"conv": dict(encoders), "use_unicode": False} if raw else {}
        with self.telling("cannot connect"):
            connection = _driver()(
                host=parts.hostname or "localhost",
                port=parts.port or PORT,
                user=unquote(parts.username or ""),
                password=unquote(parts.password or ""),
                charset="utf8mb4",
                autocommit=True,
                client_flag=_FOUND_ROWS if found_rows else 0,
                connect_timeout=max(1, int(self.timeout)),
                read_timeout=read_timeout,
                write_timeout=ANSWER,
                program_name="penstock",
                **converting,
                **self._tls(),
            )
        _keep_alive(connection)
        session = Session(self, connection, raw=raw)
        try:
            session.run(_SESSION)
        except BaseException:
            session.close()
            raise
        return session

    def _tls(self) -> dict[str, object]:
        """Where TLS is wanted, certificate and host name are checked."""
        if not (self.tls or self.ca):
            return {}
        return {"ssl": tls.context(self.ca)}

    @contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """Errors of the driver come out as what they mean to a run."""
        pymysql = need("pymysql", EXTRA)
        try:
            yield
        except pymysql.MySQLError as error:
            raise tls.untrusted(error, str(self)) or self.error(what, error) from error
        except (OSError, EOFError) as error:
            if distrust := tls.untrusted(error, str(self)):
                raise distrust from None
            raise AwayError(secrets.mask(f"{what}: {self}: {error}")) from error

    def error(self, what: str, error: Exception) -> PenstockError:
        code = code_of(error)
        text = str(error.args[1]) if len(error.args) > 1 else str(error)
        message = secrets.mask(f"{what}: {self}: {text} ({code})")
        if code in _REFUSED:
            return UsageError(message, hint=_REFUSED[code])
        if code in _AWAY or code == 0:  # the driver says 0 when it finds its own connection closed
            return AwayError(message)
        return PenstockError(message)

    def __str__(self) -> str:
        parts = urlsplit(self.uri)
        return f"{parts.hostname}:{parts.port or PORT}"

    def __repr__(self) -> str:
        return f"Server({self})"


class Session:
    """One connection. Not for two threads at once."""

    def __init__(self, server: Server, connection: pymysql.Connection[Any], *, raw: bool = False) -> None:
        self.server = server
        self.connection = connection
        self.raw = raw
        self.maria = "mariadb" in str(connection.get_server_info()).lower()  # type: ignore[no-untyped-call]

    def query(self, statement: str, values: Sequence[object] = ()) -> Rows:
        """All rows of the answer."""
        with self.server.telling("cannot query"), self.connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def run(self, statement: str, values: Sequence[object] = ()) -> int:
        """Run a statement; how many rows it touched."""
        with self.server.telling("cannot run a statement"), self.connection.cursor() as cursor:
            return int(cursor.execute(statement, values or None))

    def each(self, statement: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows one by one, as they come; nothing else may use the session in the meantime.

        A percent sign that is meant is written twice.
        """
        cursors = need("pymysql.cursors", EXTRA)
        with self.server.telling("cannot read"):
            cursor = self.connection.cursor(cursors.SSCursor)
            cursor.execute(statement, tuple(values))
            if self.raw:
                cursor._result._read_row_from_packet = _raw_row
            done = False
            try:
                while (row := cursor.fetchone()) is not None:
                    yield row
                done = True
            finally:
                if done:
                    cursor.close()
                else:
                    _forget(cursor)
                    self.close()

    def variable(self, name: str) -> str | None:
        """A global variable of the server; None if it has none of this name."""
        found = self.query("SHOW GLOBAL VARIABLES LIKE %s", [name])
        return None if not found else str(found[0][1])

    def close(self) -> None:
        """Let go at once, without a word to a server that may be gone."""
        self.connection._force_close()  # type: ignore[attr-defined]

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _keep_alive(connection: pymysql.Connection[Any]) -> None:
    """Ask after a machine that is silent for twenty seconds; it is gone if it does not answer three times."""
    connected = connection._sock  # type: ignore[attr-defined]
    if connected.family in (socket.AF_INET, socket.AF_INET6):
        for option, value in ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3)):
            connected.setsockopt(socket.IPPROTO_TCP, option, value)


def _raw_row(packet: Any) -> tuple[bytes | None, ...]:
    """The values of a row as bytes, in a third of the time that the driver takes to ask what each of them is."""
    data: bytes = packet._data
    found: list[bytes | None] = []
    place, end = 0, len(data)
    while place < end:
        size = data[place]
        place += 1
        if size == 0xFB:
            found.append(None)
            continue
        if size > 0xFB:
            width = _WIDTHS[size]
            size = int.from_bytes(data[place : place + width], "little")
            place += width
        found.append(data[place : place + size])
        place += size
    return tuple(found)


_WIDTHS = {0xFC: 2, 0xFD: 3, 0xFE: 8}
"""Bytes of a length that does not fit into one, by what stands before it."""


def _forget(cursor: pymysql.cursors.Cursor) -> None:
    """Let go of an answer that was not read to its end; the driver would read the rest of it, maybe all of a table."""
    result = cursor._result  # type: ignore[attr-defined]
    if result is not None:
        result.unbuffered_active, result.connection = False, None
    cursor._result = cursor.connection = None  # type: ignore[attr-defined,assignment]


def code_of(error: Exception) -> int:
    """The number of a driver's error; 0 if it has none."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def quoted(*names: str) -> str:
    """A name as SQL has it, of as many parts."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)
