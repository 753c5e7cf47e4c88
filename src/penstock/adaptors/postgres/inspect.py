"""What stands in the way of reading a database, each with the statement that mends it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.adaptors.base import Finding
from penstock.adaptors.postgres.connection import Connection, quoted
from penstock.adaptors.postgres.slot import (
    Names,
    add_to_publication,
    create_publication,
    publish_all,
    published,
    slot_of,
    unpublished,
)
from penstock.adaptors.postgres.table import Table

_LARGE = frozenset(
    {"text", "varchar", "bytea", "json", "jsonb", "xml", "numeric", "bpchar", "hstore", "tsvector"}
)
"""Types of which a value may be so large that an update that does not touch it does not bring it."""


def findings_of(connection: Connection, tables: Sequence[Table], names: Names | None) -> list[Finding]:
    """All there is to say about these tables; `names` are those of slot and publication if they are to be followed."""
    user = str(_value(connection, "SELECT current_user"))
    found = list(_rights(tables, user))
    if names is not None:
        found += _server(connection, names, user)
        found += _identities(tables)
        found += _publication(connection, names, tables, user)
    found += _partly(tables, tail=names is not None)
    return found


def _rights(tables: Sequence[Table], user: str) -> Iterator[Finding]:
    for schema in sorted({table.schema_name for table in tables if not table.usable}):
        yield Finding(
            f"{user} may not look into schema {schema}",
            f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(user)}",
            fatal=True,
        )
    for table in tables:
        if not table.readable:
            yield Finding(
                f"{user} may not read {table.ns}",
                f"GRANT SELECT ON {table.sql} TO {quoted(user)}",
                fatal=True,
            )
        elif table.filtered:
            yield Finding(
                f"policies hide rows of {table.ns} from {user}",
                f"ALTER ROLE {quoted(user)} BYPASSRLS",
                fatal=True,
            )


def _server(connection: Connection, names: Names, user: str) -> Iterator[Finding]:
    level = _value(connection, "SHOW wal_level")
    if level != "logical":
        yield Finding(
            f"wal_level is {level}: the server does not log what changes need",
            "ALTER SYSTEM SET wal_level = 'logical'; -- and restart the server",
            fatal=True,
        )
    if not _value(
        connection, "SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user"
    ) and not _is_managed_replicator(connection):
        yield Finding(
            f"{user} may not use replication slots", f"ALTER ROLE {quoted(user)} REPLICATION", fatal=True
        )
    slot = slot_of(connection, names.slot)
    if slot is not None and slot.lost:
        yield Finding(
            f"replication slot {names.slot} is lost ({slot.lost}): its tables have to be copied anew",
            f"SELECT pg_drop_replication_slot('{names.slot}'); -- and `penstock backfill` each namespace",
            fatal=True,
        )
    # One more for the moment at which a copy begins.
    yield from _limit(connection, "max_replication_slots", "pg_replication_slots", 2 if slot is None else 1)
    yield from _limit(connection, "max_wal_senders", "pg_stat_replication", 2)


def _limit(connection: Connection, setting: str, used_in: str, wanted: int) -> Iterator[Finding]:
    most = int(str(_value(connection, f"SHOW {setting}")))
    used = int(str(_value(connection, f"SELECT count(*) FROM {used_in}")))
    if most - used < wanted:
        yield Finding(
            f"{setting} is {most}, and {used} are in use: {wanted} more are wanted",
            f"ALTER SYSTEM SET {setting} = {used + wanted + 8}; -- and restart the server",
            fatal=True,
        )


def _is_managed_replicator(connection: Connection) -> bool:
    """Hosted servers give the right by a role of their own."""
    found = connection.execute(
        "SELECT pg_has_role(oid, 'MEMBER') FROM pg_roles WHERE rolname IN ('rds_replication', 'cloudsqlreplica')"
    ).fetchall()
    return any(row[0] for row in found)


def _identities(tables: Sequence[Table]) -> Iterator[Finding]:
    for table in tables:
        if table.unlogged:
            yield Finding(
                f"{table.ns} is unlogged: its changes are not in the server's log",
                f"ALTER TABLE {table.sql} SET LOGGED",
                fatal=True,
            )
        if not table.has_identity:
            yield Finding(
                f"{table.ns} has neither a primary key nor another replica identity: its updates and deletes cannot be "
                "followed, and the server would refuse them once it is published",
                f"ALTER TABLE {table.sql} REPLICA IDENTITY FULL",
                fatal=True,
            )
        elif table.identity != "f" and (large := _large_of(table)):
            yield Finding(
                f"{table.ns}: an update that leaves a large value of {', '.join(large)} as it is does not bring it; it "
                "is looked up by the row's key, and may be newer than the update",
                f"ALTER TABLE {table.sql} REPLICA IDENTITY FULL",
            )


def _large_of(table: Table) -> list[str]:
    return [
        column.name
        for column in table.columns
        if (column.type.array or column.type.base in _LARGE) and column.name not in table.key
    ]


def _publication(
    connection: Connection, names: Names, tables: Sequence[Table], user: str
) -> Iterator[Finding]:
    there = published(connection, names.publication)
    if untold := unpublished(connection, names.publication):
        yield Finding(
            f"publication {names.publication} leaves out every {', '.join(untold)}",
            publish_all(names.publication),
            fatal=True,
        )
    able = [table for table in tables if table.has_identity and not table.unlogged]
    missing = [table for table in able if there is None or table.ns not in there]
    if not missing:
        return
    statement = (
        create_publication(names.publication, able)
        if there is None
        else add_to_publication(names.publication, missing)
    )
    what = "is not there" if there is None else f"lacks {', '.join(table.ns for table in missing)}"
    if not names.own_publication:
        yield Finding(f"publication {names.publication} {what}", statement, fatal=True)
        return
    foreign = [table.ns for table in missing if not table.owned]
    may_create = _value(connection, "SELECT has_database_privilege(current_database(), 'CREATE')")
    if foreign or (there is None and not may_create):
        why = f"does not own {', '.join(foreign)}" if foreign else "may not create in this database"
        yield Finding(f"{user} cannot publish: it {why}; its owner can", statement, fatal=True)


def _partly(tables: Sequence[Table], *, tail: bool) -> Iterator[Finding]:
    for table in tables:
        if table.generated:
            yield Finding(f"{table.ns}: generated columns are not read: {', '.join(table.generated)}")
        if not table.key:
            again = (
                "after a crash it is copied anew as a whole"
                if table.has_identity or not tail
                else "it has no key"
            )
            yield Finding(
                f"{table.ns} has no primary key: {again}, and a sink cannot tell its rows apart",
                f"ALTER TABLE {table.sql} ADD PRIMARY KEY (…)",
            )


def _value(connection: Connection, statement: str) -> object:
    found = connection.execute(statement).fetchone()
    return found[0] if found else None
