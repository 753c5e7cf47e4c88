"""What stands in the way of writing a PostgreSQL database, for `plan`: with the statement that mends it.

Where the namespaces are known that will come, their tables are looked at: that they are there, and may be written.
Where they are not, all tables of the schemas that the settings name are, and what would matter if a message came
for one is told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from penstock.adaptors.base import Finding
from penstock.adaptors.postgres.sink_session import connect, quoted, telling
from penstock.adaptors.postgres.sink_stage import Options
from penstock.adaptors.postgres.sink_table import Name, Table, has_schema, name_of, tables_of

if TYPE_CHECKING:
    import psycopg

MOST = 200
"""Tables that are looked at."""


def findings(options: Options, namespaces: Sequence[str] | None) -> Sequence[Finding]:
    """Connects, changes nothing."""
    with (
        closing(connect(options.uri, f"penstock {options.name} plan", options.timeout)) as connection,
        telling("cannot look at the target"),
    ):
        schemas = {options.schema, *dict(options.schemas).values()}
        wanted: list[Name] = []
        if namespaces is not None:
            wanted = sorted({name_of(ns, options.schema, dict(options.schemas)) for ns in namespaces})
            schemas = {name.schema for name in wanted}
        found = [*_own_schema(connection, options), *_schema(connection, options, schemas)]
        names = wanted if namespaces is not None else _tables(connection, options)
        tables = tables_of(connection, names)
        if not options.create_tables:
            found += [_missing(name) for name in wanted if name not in tables]
        for _, table in sorted(tables.items(), key=lambda item: item[0]):
            found += _table(connection, options, table, certain=namespaces is not None)
        if options.mode != "append":
            found += _heirs(connection, list(tables.values()), certain=namespaces is not None)
        return found


def _missing(name: Name) -> Finding:
    return Finding(
        f"there is no table {name}",
        f"set create_tables=True, or make it: CREATE TABLE {name.sql} (…)",
        fatal=True,
    )


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


def _schema(
    connection: psycopg.Connection[Any], options: Options, schemas: Collection[str]
) -> Iterator[Finding]:
    role = quoted(_one(connection, "SELECT current_user"))
    may_make = _one(connection, "SELECT has_database_privilege(current_database(), 'CREATE')")
    for schema in sorted(schemas):
        if not has_schema(connection, schema):
            if not options.create_tables or not may_make:
                owner = f" AUTHORIZATION {role}" if options.create_tables else ""
                yield Finding(f"there is no schema {schema}", f"CREATE SCHEMA {quoted(schema)}{owner}")
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


def _table(
    connection: psycopg.Connection[Any], options: Options, table: Table, *, certain: bool
) -> Iterator[Finding]:
    """`certain` if it will be written, and not only may be."""
    name = table.name.sql
    if table.kind not in ("r", "p"):
        yield Finding(f"{table.name} is no table that rows can be put into", fatal=certain)
        return
    role = quoted(_one(connection, "SELECT current_user"))
    wanted = ["SELECT", "INSERT", "UPDATE", "DELETE"] if options.mode == "upsert" else ["INSERT"]
    lacks = [
        right
        for right in wanted
        if not _one(connection, "SELECT has_table_privilege(%s, %s)", table.oid, right)
    ]
    if lacks:
        rights = ", ".join(lacks)
        # Without the right to delete, everything goes well up to the first delete.
        fatal = certain and lacks != ["DELETE"]
        yield Finding(
            f"no right {rights} on table {table.name}", f"GRANT {rights} ON {name} TO {role}", fatal
        )
    owns = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = %s"
    if options.add_columns and not _one(connection, owns, table.oid):
        yield Finding(
            f"columns cannot be added to table {table.name}: it belongs to another role",
            f"ALTER TABLE {name} OWNER TO {role}",
        )
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


def _heirs(
    connection: psycopg.Connection[Any], tables: Sequence[Table], *, certain: bool
) -> Iterator[Finding]:
    """Tables that inherit from others that are written, too: what is deleted there would be deleted of them."""
    by_oid = {table.oid: table.name for table in tables if table.kind == "r"}
    rows = connection.execute(
        "SELECT inhparent::bigint, inhrelid::bigint FROM pg_inherits "
        "WHERE inhparent = ANY(%s) AND inhrelid = ANY(%s) ORDER BY 1, 2",
        [list(by_oid), list(by_oid)],
    ).fetchall()
    for above, heir in rows:
        yield Finding(
            f"table {by_oid[heir]} inherits from {by_oid[above]}, and both are written: what changes or goes in "
            f"{by_oid[above]} changes or goes in {by_oid[heir]} under the same key",
            f"ALTER TABLE {by_oid[heir].sql} NO INHERIT {by_oid[above].sql}",
            fatal=certain,
        )


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
