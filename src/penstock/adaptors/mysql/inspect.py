"""What `plan` tells about a MySQL server: its tables, and what keeps them from being copied and followed.

Each finding comes with the statement that mends it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from penstock.adaptors.base import Finding, Found, Inspection
from penstock.adaptors.mysql.connection import Session, quoted
from penstock.adaptors.mysql.ranges import KeyOrder
from penstock.adaptors.mysql.table import Table, tables_of, versioned_tables
from penstock.base.errors import UsageError

_WANTED = (
    (
        "log_bin",
        "ON",
        "the server keeps no binlog",
        "log_bin = ON and server_id = 1 in its configuration, then restart it",
    ),
    ("binlog_format", "ROW", "the binlog has statements instead of rows", "SET GLOBAL binlog_format = ROW"),
    ("binlog_row_image", "FULL", "the binlog does not have whole rows", "SET GLOBAL binlog_row_image = FULL"),
)
"""Variables that have to have a value, what it means if they do not, and what mends that."""


def inspect(session: Session, accept: Callable[[str], bool], *, tail: bool) -> Inspection:
    tables = tables_of(session, session.server.database)
    accepted = [table for table in tables if accept(table.ns)]
    findings = [*_grants(session, accepted, tail=tail), *(_keys(accepted, tail=tail))]
    findings += [finding for table in accepted if (finding := unreadable(table, tail=tail))]
    findings += [
        Finding(
            f"table {database}.{name} keeps its history (SYSTEM VERSIONING): it is not read",
            f"ALTER TABLE {quoted(database, name)} DROP SYSTEM VERSIONING",
        )
        for database, name in versioned_tables(session, session.server.database)
        if accept(f"{database}.{name}")
    ]
    if tail:
        findings += _log(session)
    return Inspection([Found(table.ns, table.rows, table.structure.key) for table in tables], findings)


def unreadable(table: Table, *, tail: bool) -> Finding | None:
    """Why a table cannot be read as it is, if it cannot."""
    if "." in table.database:
        return Finding(
            f"the database of {table.ns} is called '{table.database}': with a dot in it, nobody can tell where in the "
            "name of a namespace the database ends",
            "leave it out with the source's namespace pattern",
            fatal=True,
        )
    if tail and table.old_times:
        return Finding(
            f"table {table.ns} keeps parts of seconds as MariaDB 5.3 did ({', '.join(table.old_times)}), of which the "
            "binlog does not tell how many digits they have",
            f"ALTER TABLE {quoted(table.database, table.name)} FORCE, with mysql56_temporal_format = ON",
            fatal=True,
        )
    return None


def check_table(table: Table, *, tail: bool) -> None:
    """Refuse to read what cannot be read as it is."""
    if finding := unreadable(table, tail=tail):
        raise UsageError(finding.what, hint=finding.fix)


def check_log(session: Session) -> None:
    """Refuse to follow a server that cannot be followed."""
    for finding in _log(session):
        if finding.fatal:
            raise UsageError(
                f"the server {session.server} cannot be followed: {finding.what}", hint=finding.fix
            )


def _log(session: Session) -> list[Finding]:
    found = []
    for name, wanted, what, fix in _WANTED:
        value = session.variable(name)
        if value is not None and value.upper() != wanted:
            found.append(Finding(f"{what}: {name} is {value}", fix, fatal=True))
            if name == "log_bin":
                return found
    options = session.variable("binlog_row_value_options")
    if options:
        found.append(
            Finding(
                f"the binlog has parts of JSON documents: binlog_row_value_options is {options}",
                "SET GLOBAL binlog_row_value_options = ''",
                fatal=True,
            )
        )
    metadata = session.variable("binlog_row_metadata")
    if metadata is None or metadata.upper() != "FULL":
        shown = metadata or "not there"
        found.append(
            Finding(
                f"the binlog does not tell the names of columns: binlog_row_metadata is {shown}. Columns that change "
                "twice while nobody reads cannot be followed",
                "SET GLOBAL binlog_row_metadata = FULL" if metadata else None,
            )
        )
    if not session.maria and session.variable("gtid_mode") != "ON":
        found.append(
            Finding(
                "the server gives no GTIDs: the place in the binlog is a file and a position, and does not outlast a "
                "change to another server",
                "gtid_mode = ON and enforce_gtid_consistency = ON in its configuration",
            )
        )
    return found


def _keys(tables: Sequence[Table], *, tail: bool) -> list[Finding]:
    found = []
    for table in tables:
        name = quoted(table.database, table.name)
        if not table.structure.key:
            found.append(
                Finding(
                    f"table {table.ns} has no key: its updates and deletes do not say which row, and a copy that is "
                    "interrupted begins anew",
                    f"ALTER TABLE {name} ADD COLUMN id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY",
                )
            )
        elif not KeyOrder(table).sorted:
            found.append(
                Finding(f"the key of table {table.ns} has no order: a copy that is interrupted begins anew")
            )
        if not table.transactional:
            found.append(
                Finding(
                    f"table {table.ns} is of the engine {table.engine}: nobody can write to it while it is copied",
                    f"ALTER TABLE {name} ENGINE = InnoDB",
                )
            )
    return found


def _grants(session: Session, tables: Sequence[Table], *, tail: bool) -> list[Finding]:
    """What the user may not do, and should; a user whose rights come from roles may be told more than is true."""
    user, _, host = str(session.query("SELECT CURRENT_USER()")[0][0]).rpartition("@")
    who = f"'{user}'@'{host}'"
    granted = [str(row[0]) for row in session.query("SHOW GRANTS")]
    found = []
    if tail:
        follow = ("REPLICATION SLAVE", "REPLICATION REPLICA")
        if not _has(granted, follow, "*"):
            found.append(
                Finding(
                    "the user may not follow the binlog",
                    f"GRANT REPLICATION SLAVE ON *.* TO {who}",
                    fatal=True,
                )
            )
        look = ("REPLICATION CLIENT", "BINLOG MONITOR", "SUPER")
        if not _has(granted, look, "*"):
            found.append(
                Finding(
                    "the user may not ask for the binlog's end",
                    f"GRANT REPLICATION CLIENT ON *.* TO {who}",
                    fatal=True,
                )
            )
    for database in sorted({table.database for table in tables}):
        locked = any(
            not (session.maria and table.transactional) for table in tables if table.database == database
        )
        if locked and not _has(granted, ("LOCK TABLES",), database):
            found.append(
                Finding(
                    f"the user may not lock tables of {database} for the moment in which a copy begins",
                    f"GRANT LOCK TABLES ON {quoted(database)}.* TO {who}",
                    fatal=True,
                )
            )
    return found


def _has(granted: Sequence[str], wanted: Sequence[str], database: str) -> bool:
    for line in granted:
        match = re.match(r"GRANT (.*?) ON (\S+)\.\S+ TO", line)
        if match is None:
            continue
        rights, place = match[1].upper(), match[2].replace("`", "").replace("\\", "")
        if place in ("*", database) and (
            "ALL PRIVILEGES" in rights or any(right in rights for right in wanted)
        ):
            return True
    return False
