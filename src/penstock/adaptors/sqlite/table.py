"""One table of a SQLite database: its key, its schema, the query that goes on after a key, and its rows as JSON.

    kind of table                      key, by which rows are read in order
    WITHOUT ROWID                      the columns of the primary key, with the collation of its index
    any other                          the rowid, which an INTEGER PRIMARY KEY is another name for

The key is compared as a row value, `(a, b) > (?, ?)`, by the collation that makes it unique: no row is read
twice and none is passed over, however many share the first column.
"""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from penstock.adaptors.sqlite.types import Stored, kind_of, reader_of
from penstock.base.errors import PenstockError, UsageError
from penstock.log.schema import Field, Schema
from penstock.log.values import to_json

Row = tuple[tuple[Stored, ...], bytes, bytes | None]
"""A row as found, beginning with the values of the table's key; its data; the JSON of its primary key."""

_PLAIN = frozenset({int, str, type(None)})
"""Types of which every value is JSON already."""

_ESCAPED = re.compile(r'[\x00-\x1f"\\]')
"""Characters in a name with which msgspec cannot write it as an attribute."""


POSITIONS = "penstock_positions"
"""The table in which the sink keeps its positions; it is no namespace."""


class RowError(PenstockError):
    """A row that cannot be read as what it is."""


@dataclass(frozen=True)
class Table:
    """What is needed to read a table. `order` are the SQL terms of its key."""

    name: str
    schema: Schema
    order: Sequence[str]

    def rows(
        self, connection: sqlite3.Connection, after: Sequence[Stored], where: str | None = None
    ) -> Iterator[Row]:
        """The rows behind the key `after`, or all of them if that is empty, in the order of the key.

        `where` is a condition of SQL that rows have to meet; `check` it first.
        """
        if after and len(after) != len(self.order):
            raise UsageError(
                f"table '{self.name}' has another key than when it was read before",
                hint="a table that was made anew cannot be followed; read it into another pipeline",
            )
        query = self._query(bool(after), where)
        yield from self._read(connection, query, [*after[:1], *after], tuple(after), where)

    def rows_up_to(
        self, connection: sqlite3.Connection, until: Sequence[Stored] | None, condition: str, values: Sequence[Stored],
        first: str | None = None,
    ) -> Iterator[Row]:  # fmt: skip
        """The rows that meet a condition of ours, up to the key `until` or all; sorted by `first`, then by key."""
        if until is not None and not until:
            return
        order = ", ".join(self.order)
        terms = [condition]
        if until is not None:
            terms.append(f"({order}) <= ({', '.join('?' for _ in until)})")
        columns = ", ".join(quoted(field.name) for field in self.schema.fields)
        by = f"{first}, {order}" if first else order
        query = (
            f"SELECT {order}, {columns} FROM {quoted(self.name)} WHERE {' AND '.join(terms)} ORDER BY {by}"
        )
        yield from self._read(connection, query, [*values, *(until or ())], ())

    def _read(
        self, connection: sqlite3.Connection, query: str, values: Sequence[Stored], after: tuple[Stored, ...],
        where: str | None = None,
    ) -> Iterator[Row]:  # fmt: skip
        width, columns = len(self.order), [field.name for field in self.schema.fields]
        places = [width + columns.index(name) for name in self.schema.key]
        row_text = _writer_of(self.schema.fields)
        key_text = _writer_of([self.schema.fields[place - width] for place in places])
        found: tuple[Stored, ...] = after
        try:
            for found in connection.execute(query, values):
                key = key_text([found[place] for place in places]) if places else None
                yield found, row_text(found[width:]), key
        except sqlite3.OperationalError as error:
            if "decode to UTF-8" in str(error):
                raise self._row_error(found, error) from None
            if where is not None and error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
                raise self._condition_error(where, error) from None
            raise

    def estimate(self, connection: sqlite3.Connection) -> int | None:
        """About how many rows there are, from the lowest and the highest rowid; None where there is none."""
        if len(self.order) > 1:
            return None
        term, table = self.order[0], quoted(self.name)
        ends = connection.execute(
            f"SELECT (SELECT min({term}) FROM {table}), (SELECT max({term}) FROM {table})"
        )
        low, high = ends.fetchone()
        if low is None:
            return 0
        return high - low + 1 if isinstance(low, int) and isinstance(high, int) else None

    def check(self, connection: sqlite3.Connection, where: str) -> None:
        """Refuse what is no condition on this table: by itself, and among the other terms of the query.

        Only what stands both ways is one expression; anything else could reach the terms around it.
        """
        for query in (f"SELECT 1 FROM {quoted(self.name)} WHERE {where}", self._query(False, where)):
            try:
                connection.execute(f"EXPLAIN {query}").fetchall()
            except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
                raise self._condition_error(where, error) from None

    def key_of(self, found: Sequence[Stored]) -> Sequence[Stored]:
        """The key of a row, to go on after."""
        return found[: len(self.order)]

    def shown(self, found: Sequence[Stored]) -> str:
        return "[" + ", ".join(map(repr, self.key_of(found))) + "]"

    def _row_error(self, before: Sequence[Stored], error: Exception) -> RowError:
        return RowError(
            f"table '{self.name}', the row after key {self.shown(before)}: {error}",
            hint="mend the row, or leave the table out with the source's namespace pattern",
        )

    def _condition_error(self, where: str, error: Exception) -> UsageError:
        return UsageError(
            f"the condition of the backfill of '{self.name}' is not one: {where!r}: {error}",
            hint="give what stands behind WHERE in SQL, such as \"total > 100 AND day >= '2026-01-01'\"",
        )

    def _query(self, going_on: bool, where: str | None = None) -> str:
        order = ", ".join(self.order)
        columns = ", ".join(quoted(field.name) for field in self.schema.fields)
        terms = []
        if going_on:
            # The first term says the same over again: by it SQLite finds the place in the index.
            places = ", ".join("?" for _ in self.order)
            terms += [f"{self.order[0]} >= ?", f"({order}) > ({places})"]
        if where is not None:
            terms.append(f"({where}\n)")  # on a line of its own, since it may end in a comment
        condition = f"WHERE {' AND '.join(terms)} " if terms else ""
        return f"SELECT {order}, {columns} FROM {quoted(self.name)} {condition}ORDER BY {order}"


def tables_of(connection: sqlite3.Connection) -> list[Table]:
    """The ordinary tables of the database, by name; no views, no virtual tables and what belongs to these."""
    found = connection.execute(
        "SELECT name, wr FROM pragma_table_list WHERE schema = 'main' AND type = 'table' "
        r"AND name NOT LIKE 'sqlite\_%' ESCAPE '\' AND name <> ? ORDER BY name",
        [POSITIONS],
    ).fetchall()
    return [_table(connection, name, without_rowid=bool(wr)) for name, wr in found]


def _table(connection: sqlite3.Connection, name: str, *, without_rowid: bool) -> Table:
    about = connection.execute(
        'SELECT name, type, "notnull", pk FROM pragma_table_xinfo(?) WHERE hidden <> 1 ORDER BY cid', [name]
    ).fetchall()
    key = [column for column, *_ in sorted((c for c in about if c[3]), key=lambda c: c[3])]
    indexed = connection.execute("SELECT 1 FROM pragma_index_list(?) WHERE origin = 'pk'", [name]).fetchone()
    # A primary key without an index is another name for the rowid, which is never null.
    key_is_set = without_rowid or not indexed
    fields = [
        Field(column, kind_of(declared), nullable=not (required or (pk and key_is_set)), native=declared)
        for column, declared, required, pk in about
    ]
    if without_rowid:
        order = [
            f"{quoted(column)} COLLATE {quoted(collation)}"
            for column, collation in connection.execute(
                "SELECT name, coll FROM pragma_index_xinfo(?) WHERE key ORDER BY seqno", [name]
            )
        ]
    else:
        order = [_rowid(name, [field.name for field in fields])]
    return Table(name, Schema(tuple(fields), tuple(key)), order)


def _rowid(table: str, columns: Sequence[str]) -> str:
    """A name for the rowid that no column has taken."""
    taken = {column.lower() for column in columns}
    for name in ("rowid", "_rowid_", "oid"):
        if name not in taken:
            return name
    raise UsageError(
        f"table '{table}' has columns rowid, _rowid_ and oid, so that its rows have no name left"
    )


def quoted(name: str) -> str:
    """A name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def _writer_of(fields: Sequence[Field]) -> Callable[[Sequence[Stored]], bytes]:
    """Makes JSON objects with these fields."""
    make, encode = _maker_of([field.name for field in fields]), msgspec.json.encode
    readers = [reader_of(field.kind) for field in fields]
    if any(readers):
        by_column = [reader or to_json for reader in readers]
        return lambda values: encode(make(*[read(one) for read, one in zip(by_column, values, strict=True)]))

    def write(values: Sequence[Stored]) -> bytes:
        if _PLAIN.issuperset(map(type, values)) or not _need_care(values):
            return encode(make(*values))
        return encode(make(*map(to_json, values)))

    return write


def _maker_of(names: Sequence[str]) -> Callable[..., object]:
    """Makes something of values that is encoded as an object with these names."""
    if any(map(_ESCAPED.search, names)):
        return lambda *values: dict(zip(names, values, strict=True))
    # A struct of its own is several times as fast as a dict for each row.
    attributes = {f"column_{index}": name for index, name in enumerate(names)}
    return msgspec.defstruct(
        "Row", [(attribute, object) for attribute in attributes], rename=attributes, gc=False
    )


def _need_care(values: Sequence[Stored]) -> bool:
    return bytes in map(type, values) or math.inf in values or -math.inf in values
