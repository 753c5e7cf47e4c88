"""`mysql`: the tables of a MySQL or MariaDB server, copied and followed change by change; and written.

Each table is a namespace, `database.table`. What the source promises is told in `penstock.adaptors.mysql.source`,
what the sink promises in `penstock.adaptors.mysql.sink`; what becomes of each type in
`penstock.adaptors.mysql.types`. Servers from MySQL 8.0 and MariaDB 10.5 on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal
from urllib.parse import unquote, urlsplit

from penstock.adaptors.base import Adaptor, Sink, Source
from penstock.adaptors.mysql.connection import Server
from penstock.base import secrets
from penstock.base.settings import setting

_SCHEMES = ("mysql", "mariadb")


@dataclass(frozen=True, repr=False)
class MySql(Adaptor):
    """A MySQL or MariaDB server."""

    name: ClassVar[str] = "mysql"
    description: ClassVar[str] = (
        "MySQL and MariaDB. Source: copies tables and, if asked to, follows every change of them through the binlog, "
        "by GTID where the server has them. Sink: upserts rows in the order of the log, in one transaction with its "
        "position."
    )
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    extra: ClassVar[str] = "mysql"

    uri: str = setting(
        "the server, and a database of it if not all are meant",
        example="mysql://penstock:${SHOP_PASSWORD}@db.example:3306/shop",
    )
    tail: bool = setting("source: go on with what changes after the copy", default=False)
    server_id: int | None = setting(
        "source: as which replica to follow; if not given, a number made of the names of pipeline and source",
        default=None,
    )
    tls: bool = setting("encrypt, and check the server's certificate and name", default=False)
    ca: str = setting(
        "a file with the certificates to check by, for `tls`; if not given, the system's", default=""
    )
    timeout: float = setting("seconds to wait for an answer when connecting", default=10.0)

    create_tables: bool = setting("sink: make tables that are missing", default=False)
    add_columns: bool = setting("sink: add columns for fields that a table has none for", default=False)
    unknown_fields: Literal["error", "ignore"] = setting(
        "sink: a field without a column: refuse the message with an 'error', or 'ignore' the field",
        default="error",
    )
    own_database: str = setting(
        "sink: the database in which it keeps its position, if the uri names none", default="penstock"
    )

    def __post_init__(self) -> None:
        parts = urlsplit(self.uri)
        if parts.scheme not in _SCHEMES or not parts.hostname:
            raise ValueError("setting 'uri': expected mysql://USER:PASSWORD@HOST:PORT/DATABASE")
        if parts.password:
            secrets.register(parts.password)
            secrets.register(unquote(parts.password))
        if parts.query:
            raise ValueError(
                "setting 'uri': nothing may follow the database; what was a parameter is a setting here"
            )
        if self.server_id is not None and not 0 < self.server_id < 1 << 32:
            raise ValueError(f"setting 'server_id': expected 1 to 4294967295, got {self.server_id}")
        if not self.timeout > 0:
            raise ValueError(f"setting 'timeout': expected more than 0, got {self.timeout}")

    def __repr__(self) -> str:
        return f"MySql(uri={secrets.mask(self.uri)!r}, tail={self.tail})"

    @property
    def server(self) -> Server:
        return Server(self.uri, self.timeout, self.tls, self.ca)

    def source(self) -> Source:
        from penstock.adaptors.mysql.source import MySqlSource

        return MySqlSource(self.server, tail=self.tail, server_id=self.server_id)

    def sink(self) -> Sink:
        from penstock.adaptors.mysql.sink import MySqlSink, Options

        return MySqlSink(
            Options(
                self.server,
                create_tables=self.create_tables,
                add_columns=self.add_columns,
                unknown_fields=self.unknown_fields,
                own_database=self.own_database,
            )
        )
