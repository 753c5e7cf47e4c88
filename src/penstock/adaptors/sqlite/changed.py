"""Updates of a SQLite table, seen by a column that says when a row changed.

A row that was read before is an update once its value in the column is larger than the *mark*: the largest value of the
table when it was last looked at. Several rows may share that value, and a clock of seconds may give it to another row
after the look. So the mark has a digest of the rows that share it: if they are no longer the same, all of them are
sent again. That is the rule for ties: none is lost, and some may be sent twice, as updates that change nothing.

The mark moves with the last batch of a look. After a crash in its midst the updates of that look are sent again.
Values are compared as SQLite compares them: numbers, or texts such as `2026-11-16 02:14:14` that sort by time. A row
whose value is null is not seen to change, and neither is a delete.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.adaptors.sqlite.table import Row, Table, quoted
from penstock.adaptors.sqlite.types import Stored


@dataclass(frozen=True, slots=True)
class Mark:
    """How far the changes of a table were seen; `value` is None for a table in which no row had one."""

    value: Stored = None
    ties: str = ""


def mark_of(table: Table, connection: sqlite3.Connection, column: str) -> Mark:
    """Where the table stands now, all of its rows having been read or about to be."""
    (value,) = connection.execute(f"SELECT max({quoted(column)}) FROM {quoted(table.name)}").fetchone()
    return Mark(value, _digest(table, connection, column, value, None) if value is not None else "")


def changed(
    table: Table, connection: sqlite3.Connection, column: str, mark: Mark, until: Sequence[Stored]
) -> Iterator[Row]:
    """The rows up to the key `until` that changed since the mark, in the order in which they did."""
    name = quoted(column)
    if mark.value is None:
        condition, values = f"{name} IS NOT NULL", list[Stored]()
    elif _digest(table, connection, column, mark.value, until) == mark.ties:
        condition, values = f"{name} > ?", [mark.value]
    else:
        condition, values = f"{name} >= ?", [mark.value]
    yield from table.rows_up_to(connection, until, condition, values, first=name)


def _digest(
    table: Table, connection: sqlite3.Connection, column: str, value: Stored, until: Sequence[Stored] | None
) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for _, data, _ in table.rows_up_to(connection, until, f"{quoted(column)} = ?", [value]):
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()
