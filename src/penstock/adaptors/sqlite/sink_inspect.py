"""What stands in the way of writing a SQLite database, for `plan`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from penstock.adaptors.base import Finding
from penstock.adaptors.sqlite.sink import OTHER_TABLE, Options, connect, folded, shared, table_of, telling
from penstock.adaptors.sqlite.table import POSITIONS, quoted


def findings(options: Options, namespaces: Sequence[str] | None) -> Sequence[Finding]:
    """Of a database that is there: whether it is one, and may be written; tables that are missing or have no key."""
    path = options.path
    found = list(_shared(namespaces or ()))
    if not path.exists():
        return found if options.create_tables else [Finding(f"{path} is not there", fatal=True)]
    with telling(path), closing(connect(path, write=False)) as connection:
        query = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        names = [name for (name,) in connection.execute(query)] if namespaces is None else namespaces
        tables = {name: table_of(connection, name) for name in names if name != POSITIONS}
    found += _not_writable(path)
    for name, table in tables.items():
        if table is None and not options.create_tables:
            fix = f"set create_tables=True, or make it: CREATE TABLE {quoted(name)} (…)"
            found.append(Finding(f"there is no table '{name}'", fix, fatal=True))
        elif table is not None and not table.target.key:
            what = f"table {name} has no primary key: it takes inserts, and refuses updates and deletes"
            found.append(Finding(what))
    return found


def _shared(namespaces: Sequence[str]) -> Iterator[Finding]:
    """Namespaces that would be one table."""
    owners: dict[str, str] = {}
    for ns in namespaces:
        if (owner := owners.setdefault(folded(ns), ns)) != ns:
            yield Finding(shared(ns, owner), OTHER_TABLE, fatal=True)


def _not_writable(path: Path) -> Iterator[Finding]:
    """The file, and its directory: beside the file SQLite keeps a journal while it writes."""
    for place in (path, path.parent):
        if not os.access(place, os.W_OK):
            yield Finding(f"{place} cannot be written by this user", f"chmod u+w {place}", fatal=True)
