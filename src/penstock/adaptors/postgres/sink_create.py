"""Tables that are not there yet: which columns they get, and how they are made.

One whose every field the source knows is made by the first task that has rows for it, empty: all rows of the batch are
then staged as its columns at once, by all tasks. What the fields of others are, all rows of a batch must tell: those
the publisher makes (`sink_grow`), inside the transaction that fills them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.adaptors.base import Schemas
from penstock.adaptors.growing import Seen
from penstock.adaptors.needs import need
from penstock.adaptors.postgres.sink_rows import METADATA, Lines
from penstock.adaptors.postgres.sink_session import quoted
from penstock.adaptors.postgres.sink_table import Name, create_statement, has_schema
from penstock.log.schema import Field, Kind, Schema

if TYPE_CHECKING:
    import psycopg

LOOKED_AT = 10_000
"""Messages that tell a task which of the known fields there are: functions may have left some out."""

_METADATA = (
    Field(METADATA[0], Kind.INT),
    Field(METADATA[1], Kind.STRING),
    Field(METADATA[2], Kind.TIMESTAMP),
)


def schema_of(rows: Iterable[Lines], schemas: Schemas, *, append: bool, metadata: bool) -> Schema:
    """What a table needs for all these rows."""
    seen = Seen()
    for lines in rows:
        for message in _messages(lines):
            seen.add(*message)
    return _completed(seen.schema(schemas), append=append, metadata=metadata)


def known_schema(lines: Lines, schemas: Schemas, *, append: bool, metadata: bool) -> Schema | None:
    """What a table needs, if the source knows all fields of its messages."""
    seen = Seen()
    for message in islice(_messages(lines), LOOKED_AT):
        seen.add(*message)
    names = {one.name for schema in seen.told(schemas) for one in schema.fields}
    if not all(map(schemas, seen.origins)) or not seen.fields or not names.issuperset(seen.fields):
        return None
    return _completed(seen.schema(schemas), append=append, metadata=metadata)


def _messages(lines: Lines) -> Iterator[tuple[str, int, str, str | None, str]]:
    offsets = map(lines.offset, range(len(lines)))
    return zip(lines.origin, offsets, lines.op, lines.key, lines.data, strict=True)


def create(connection: psycopg.Connection[Any], target: Name, schema: Schema) -> None:
    if not has_schema(connection, target.schema):
        connection.execute(f"CREATE SCHEMA {quoted(target.schema)}")
    connection.execute(create_statement(connection, target, schema))


def create_with_others(connection: psycopg.Connection[Any], target: Name, schema: Schema) -> None:
    """The same where others may be at it: what they made is as good."""
    errors = need("psycopg", "postgres").errors
    there = (errors.DuplicateTable, errors.DuplicateSchema, errors.UniqueViolation)
    for _ in range(2):  # the schema, then the table
        try:
            with connection.transaction():
                create(connection, target, schema)
            return
        except there:
            continue


def _completed(found: Schema, *, append: bool, metadata: bool) -> Schema:
    if not append:
        return found
    return Schema((*found.fields, *(_METADATA if metadata else ())), ())
