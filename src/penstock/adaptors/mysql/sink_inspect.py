"""What stands in the way of writing a MySQL or MariaDB server, for `plan`: with the statement that mends it.

Whether rows of a table may be written, the server is asked itself, by the plan of a statement that would: it refuses to
explain what it would refuse to do, and changes nothing. So rights count that come from roles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from penstock.adaptors.base import Finding
from penstock.adaptors.mysql.connection import EXTRA, Session, code_of, quoted
from penstock.adaptors.mysql.sink import POSITIONS, Options
from penstock.adaptors.mysql.sink_table import Table, place_of, table_of
from penstock.adaptors.needs import need
from penstock.base.errors import UsageError

MOST = 200
"""Tables that are looked at."""

_DENIED = frozenset({1044, 1142, 1143, 1227})
_TRIALS = {
    "SELECT": "SELECT 1 FROM {table} WHERE 1 = 0",
    "INSERT": "INSERT INTO {table} ({column}) VALUES (NULL)",
    "UPDATE": "UPDATE {table} SET {column} = NULL WHERE 1 = 0",
    "DELETE": "DELETE FROM {table} WHERE 1 = 0",
}
"""Statements that need a right, to be explained."""


def findings(session: Session, options: Options, namespaces: Sequence[str] | None) -> list[Finding]:
    """Changes nothing."""
    found = [*_server(session), *_positions(session, options)]
    if namespaces is not None:
        found += _namespaces(session, options, sorted(namespaces)[:MOST])
    return found


def _server(session: Session) -> Iterator[Finding]:
    durable = session.variable("innodb_flush_log_at_trx_commit")
    if durable not in (None, "1"):
        yield Finding(
            f"a loss of power may cost the server what it has committed: innodb_flush_log_at_trx_commit is {durable}",
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
        )
    if session.variable("read_only") == "ON":
        yield Finding("the server is read only", "SET GLOBAL read_only = OFF", fatal=True)


def _positions(session: Session, options: Options) -> Iterator[Finding]:
    """The table in which the sink keeps its position: it writes that one whatever comes."""
    database = options.server.database or options.own_database
    if _has_table(session, database, POSITIONS):
        yield from _rights(session, quoted(database, POSITIONS), "watermark", ("SELECT", "INSERT", "UPDATE"))
    elif not _may(session, "CREATE", database):
        yield Finding(
            f"there is no table {database}.{POSITIONS}, in which the sink keeps its position, and the user may not "
            "make it",
            f"GRANT CREATE, SELECT, INSERT, UPDATE ON {quoted(database)}.* TO {_user(session)}",
            fatal=True,
        )


def _namespaces(session: Session, options: Options, namespaces: Sequence[str]) -> Iterator[Finding]:
    owners: dict[tuple[str, str], str] = {}
    for ns in namespaces:
        try:
            place = place_of(ns, options.server.database)
        except UsageError as error:
            yield Finding(error.message, error.hint, fatal=True)
            continue
        owner = owners.setdefault(place, ns)
        if owner != ns:
            yield Finding(
                f"namespaces '{owner}' and '{ns}' are both the table {'.'.join(place)}",
                "rename one with the function `remap`, or give the uri no database",
                fatal=True,
            )
            continue
        table = table_of(session, ns, options.server.database)
        yield from _table(session, table) if table is not None else _missing(session, options, *place)


def _missing(session: Session, options: Options, database: str, name: str) -> Iterator[Finding]:
    if not session.query("SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s", [database]):
        fix = f"CREATE DATABASE {quoted(database)} CHARACTER SET utf8mb4"
        yield Finding(f"there is no database {database}, or the user may not see it", fix, fatal=True)
    elif not options.create_tables:
        yield Finding(
            f"there is no table {database}.{name}, or the user may not see it",
            f"set create_tables=True, or make it: CREATE TABLE {quoted(database, name)} (…) ENGINE = InnoDB",
            fatal=True,
        )
    elif not _may(session, "CREATE", database):
        yield Finding(
            f"the user may not make the table {database}.{name}",
            f"GRANT CREATE ON {quoted(database)}.* TO {_user(session)}",
            fatal=True,
        )


def _table(session: Session, table: Table) -> Iterator[Finding]:
    shown = f"{table.database}.{table.name}"
    if table.engine.lower() != "innodb":
        yield Finding(
            f"table {shown} is of the engine {table.engine}, which knows no transactions",
            f"ALTER TABLE {table.sql} ENGINE = InnoDB",
            fatal=True,
        )
    if not table.target.key:
        yield Finding(
            f"table {shown} has no key: it takes inserts, and refuses updates and deletes",
            f"ALTER TABLE {table.sql} ADD PRIMARY KEY (…)",
        )
    if table.folded:
        yield Finding(
            f"the key of table {shown} does not tell all texts apart, by {', '.join(table.folded)}: rows whose keys "
            "are alike to it are one row",
            f"ALTER TABLE {table.sql} MODIFY … COLLATE utf8mb4_bin, if the source tells them apart",
        )
    if table.columns:
        yield from _rights(session, table.sql, next(iter(table.columns)), tuple(_TRIALS))


def _rights(session: Session, table: str, column: str, wanted: Sequence[str]) -> Iterator[Finding]:
    """Rights that are missing. Without the one to delete, everything goes well up to the first delete."""
    lacks = [right for right in wanted if _is_denied(session, right, table, quoted(column))]
    if lacks:
        rights = ", ".join(lacks)
        yield Finding(
            f"no right {rights} on table {table}",
            f"GRANT {rights} ON {table} TO {_user(session)}",
            fatal=lacks != ["DELETE"],
        )


def _is_denied(session: Session, right: str, table: str, column: str) -> bool:
    driver = need("pymysql", EXTRA)
    try:
        with session.connection.cursor() as cursor:
            cursor.execute("EXPLAIN " + _TRIALS[right].format(table=table, column=column))
    except driver.MySQLError as error:
        return code_of(error) in _DENIED
    return False


def _may(session: Session, right: str, database: str) -> bool:
    """Whether a right holds for all of a database. What comes by a role that is not shown is taken for granted."""
    granted = [str(row[0]) for row in session.query("SHOW GRANTS")]
    for line in granted:
        match = re.match(r"GRANT (.*) ON (\S+)\.\* TO ", line)
        if match is None:
            continue
        rights = {part.strip() for part in match[1].upper().split(",")}
        if rights & {right, "ALL", "ALL PRIVILEGES"} and _pattern(match[2]).fullmatch(database):
            return True
    return any(" ON " not in line for line in granted)


def _pattern(place: str) -> re.Pattern[str]:
    """The databases that a grant names: `*`, or a name in which `%` and `_` stand for others unless a \\ is before."""
    if place == "*":
        return re.compile(".*", re.DOTALL)
    parts = re.findall(r"\\.|.", place.strip("`").replace("``", "`"), re.DOTALL)
    wild = {"%": ".*", "_": "."}
    return re.compile("".join(wild.get(part) or re.escape(part[-1]) for part in parts), re.DOTALL)


def _has_table(session: Session, database: str, name: str) -> bool:
    query = "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
    return bool(session.query(query, [database, name]))


def _user(session: Session) -> str:
    user, _, host = str(session.query("SELECT CURRENT_USER()")[0][0]).rpartition("@")
    return f"'{user}'@'{host}'"
