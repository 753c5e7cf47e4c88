"""`postgres`: the tables of a PostgreSQL database, copied at one moment and followed change by change; and written.

Each table is a namespace, `schema.table`. What the source promises is told in `penstock.adaptors.postgres.source`,
what the sink promises in `penstock.adaptors.postgres.sink`; what becomes of each type in
`penstock.adaptors.postgres.types`. Servers from PostgreSQL 13 on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from penstock.adaptors.base import Adaptor, Sink, Source
from penstock.base import secrets
from penstock.base.settings import setting
from penstock.base.units import Unit

_SCHEMES = ("postgres", "postgresql")
_SLOT = re.compile(r"[a-z0-9_]{1,63}")


@dataclass(frozen=True, repr=False)
class Postgres(Adaptor):
    """A PostgreSQL database."""

    name: ClassVar[str] = "postgres"
    description: ClassVar[str] = (
        "PostgreSQL. Source: copies tables as they are at one moment, several ranges at once, and, if asked to, "
        "follows every change through a replication slot that it sets up itself. Sink: writes rows by their keys, or "
        "appends them, in the order of the log and each exactly once."
    )
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    extra: ClassVar[str] = "postgres"

    uri: str = setting(
        "the database, as libpq takes it", example="postgresql://penstock:${SHOP_PASSWORD}@db.example/shop"
    )
    tail: bool = setting("source: go on with what changes after the copy", default=False)
    slot: str = setting(
        "source: the replication slot; if not given, one is made and named after pipeline and source",
        default="",
    )
    publication: str = setting(
        "source: a publication that is there already and holds all tables; if not given, one is made like the slot",
        default="",
    )
    range_bytes: int = setting(
        "source: about how much of a table is copied in one go", default=6 * 1024 * 1024, unit=Unit.BYTES
    )
    timeout: float = setting("seconds to wait for an answer when connecting", default=10.0)
    mode: Literal["upsert", "append"] = setting(
        "sink: 'upsert' keeps the newest state of each row, by the table's key; 'append' adds a row for each message",
        default="upsert",
    )
    schema: str = setting("sink: the schema of tables whose namespace names none", default="public")
    schemas: dict[str, str] = setting(  # noqa: RUF009 - a field, made by a function
        "sink: schemas by the name that namespaces have for them, such as {'shop': 'replica'}; others keep their name",
        default={},
    )
    create_tables: bool = setting("sink: make tables that are missing", default=False)
    add_columns: bool = setting("sink: add columns for fields that a table has none for", default=False)
    unknown_fields: Literal["error", "ignore"] = setting(
        "sink: a field without a column: refuse the message with an 'error', or 'ignore' the field",
        default="error",
    )
    metadata: bool = setting(
        "sink: 'append' also fills the columns penstock_offset, penstock_op and penstock_ts", default=False
    )
    own_schema: str = setting(
        "sink: the schema in which it keeps its position and stages rows", default="penstock"
    )

    def __post_init__(self) -> None:
        parts = urlsplit(self.uri)
        if parts.scheme not in _SCHEMES:
            raise ValueError("setting 'uri': expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE")
        if parts.password:
            secrets.register(parts.password)
        if self.slot and not _SLOT.fullmatch(self.slot):
            raise ValueError(
                f"setting 'slot': expected at most 63 lower case letters, digits and _, got '{self.slot}'"
            )
        if self.range_bytes < 1:
            raise ValueError(f"setting 'range_bytes': expected more than 0, got {self.range_bytes}")
        if not self.timeout > 0:
            raise ValueError(f"setting 'timeout': expected more than 0, got {self.timeout}")

    def __repr__(self) -> str:
        return f"Postgres(uri={secrets.mask(self.uri)!r}, tail={self.tail})"

    def source(self) -> Source:
        from penstock.adaptors.postgres.connection import Server
        from penstock.adaptors.postgres.source import PostgresSource

        server = Server(self.uri, self.timeout, self.range_bytes)
        return PostgresSource(server, tail=self.tail, slot=self.slot, publication=self.publication)

    def sink(self) -> Sink:
        from penstock.adaptors.postgres.sink import PostgresSink
        from penstock.adaptors.postgres.sink_stage import Options

        return PostgresSink(
            Options(
                self.uri, mode=self.mode, schema=self.schema, schemas=tuple(self.schemas.items()),
                own_schema=self.own_schema, create_tables=self.create_tables, add_columns=self.add_columns,
                unknown_fields=self.unknown_fields, metadata=self.metadata, timeout=self.timeout,
            )
        )  # fmt: skip
