"""What stands in the way of writing a PostgreSQL database, for `plan`: with the statement that mends it.

The sink does not know before a run which tables it will write. So it looks at all tables of the schemas that it may
write to, and tells what would matter if a message came for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from penstock.adaptors.base import Finding
from penstock.adaptors.postgres.sink_session import connect, quoted, telling
from penstock.adaptors.postgres.sink_stage import Options
from penstock.adaptors.postgres.sink_table import Name, Table, has_schema, tables_of

if TYPE_CHECKING:
    import psycopg

MOST = 200
"""Tables that are looked at."""


def findings(options: Options) -> Sequence[Finding]:
    """Connects, changes nothing."""
    with (
        closing(connect(options.uri, f"penstock {options.name} plan", options.timeout)) as connection,
        telling("cannot look at the target"),
    ):
        found = [*_own_schema(connection, options), *_schema(connection, options)]
        names = _tables(connection, options)
        for table in tables_of(connection, names).values():
            found += _table(connection, options, table)
        return found


def _one(connection: psycopg.Connection[Any], query: str, *values: object) -> Any:
    row = connection.execute(query, values).fetchone()
    assert row is not None
    return row[0]


def _own_schema(connection: psycopg.Connection[Any], options: Options) -> Iterator[Finding]:
    """Where the position is kept and rows are staged."""
    own = options.own_schema
    role = quoted(_one(connection, "SELECT current_user"))
    if not has_schema(connection, own):
        if not _one(connection, "SELECT has_database_privilege(current_database(), 'CREATE')"):
            yield Finding(
                f"there is no schema {own}, in which the sink keeps its position, and it may not make it",
                f"CREATE SCHEMA {quoted(own)} AUTHORIZATION {role}",
                fatal=True,
            )
        return
    for right in ("USAGE", "CREATE"):
        if not _one(connection, "SELECT has_schema_privilege(%s, %s)", own, right):
            yield Finding(
                f"no right {right} on the schema {own}, in which the sink keeps its position",
                f"GRANT {right} ON SCHEMA {quoted(own)} TO {role}",
                fatal=True,
            )


def _schema(connection: psycopg.Connection[Any], options: Options) -> Iterator[Finding]:
    role = quoted(_one(connection, "SELECT current_user"))
    for schema in sorted({options.schema, *dict(options.schemas).values()}):
        if not has_schema(connection, schema):
            if not options.create_tables:
                yield Finding(f"there is no schema {schema}", f"CREATE SCHEMA {quoted(schema)}")
            continue
        for right in ("USAGE", "CREATE") if options.create_tables else ("USAGE",):
            if not _one(connection, "SELECT has_schema_privilege(%s, %s)", schema, right):
                yield Finding(
                    f"no right {right} on the schema {schema}",
                    f"GRANT {right} ON SCHEMA {quoted(schema)} TO {role}",
                )


def _tables(connection: psycopg.Connection[Any], options: Options) -> list[Name]:
    """Those that a namespace may name: of the schemas that the settings name, or of all if any can be meant."""
    schemas = sorted({options.schema, *dict(options.schemas).values()})
    rows = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname = ANY(%s) AND n.nspname <> %s "
        "ORDER BY 1, 2 LIMIT %s",
        [schemas, options.own_schema, MOST],
    ).fetchall()
    return [Name(*row) for row in rows]


def _table(connection: psycopg.Connection[Any], options: Options, table: Table) -> Iterator[Finding]:
    name = table.name.sql
    role = quoted(_one(connection, "SELECT current_user"))
    wanted = ["SELECT", "INSERT", "UPDATE", "DELETE"] if options.mode == "upsert" else ["INSERT"]
    lacks = [
        right
        for right in wanted
        if not _one(connection, "SELECT has_table_privilege(%s, %s)", table.oid, right)
    ]
    if lacks:
        rights = ", ".join(lacks)
        yield Finding(f"no right {rights} on table {table.name}", f"GRANT {rights} ON {name} TO {role}")
    if options.mode == "append":
        return
    if not table.key:
        yield Finding(
            f"table {table.name} has no primary key: it takes inserts, and refuses updates and deletes",
            f"ALTER TABLE {name} ADD PRIMARY KEY (…)",
        )
    if not table.plain:
        yield Finding(
            f"table {table.name} has triggers, rules or cascades: its changes go in the order of the log and not at "
            "once, and what these do comes on top of what the messages say"
        )
    yield from _constraints(connection, table)


def _constraints(connection: psycopg.Connection[Any], table: Table) -> Iterator[Finding]:
    """Unique constraints beside the key that cannot wait for the end of a transaction."""
    rows = connection.execute(
        "SELECT f.conname, pg_get_constraintdef(f.oid) FROM pg_constraint f "
        "WHERE f.conrelid = %s AND f.contype = 'u' AND NOT f.condeferrable ORDER BY 1",
        [table.oid],
    ).fetchall()
    for constraint, definition in rows:
        yield Finding(
            f"the constraint {constraint} of table {table.name} cannot be deferred: rows that swap their values in one "
            "transaction of the source are refused",
            f"ALTER TABLE {table.name.sql} DROP CONSTRAINT {quoted(constraint)}, ADD CONSTRAINT "
            f"{quoted(constraint)} {definition} DEFERRABLE",
        )
