"""One table of a SQLite database: its key, the query that goes on after a key, and its rows as JSON.

    kind of table                      key, by which rows are read in order
    WITHOUT ROWID                      the columns of the primary key, with the collation of its index
    any other                          the rowid, which an INTEGER PRIMARY KEY is another name for

The key is compared as a row value, `(a, b) > (?, ?)`, by the collation that makes it unique: no row is read
twice and none is passed over, however many share the first column.
"""

from __future__ import annotations

import base64
import math
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from penstock.base.errors import PenstockError, UsageError

Value = None | int | float | str | bytes
JsonScalar = None | int | float | str | dict[str, str]

Row = tuple[tuple[Value, ...], bytes, bytes | None]
"""A row as found, beginning with the values of the table's key; its data; the JSON of its primary key."""


_PLAIN = frozenset({int, str, type(None)})
"""Types of which every value is JSON already."""

_ESCAPED = re.compile(r'[\x00-\x1f"\\]')
"""Characters in a name with which msgspec cannot write it as an attribute."""


class RowError(PenstockError):
    """A row that cannot be expressed as JSON."""


class _NotJsonError(ValueError):
    """A value that JSON has no form for."""


@dataclass(frozen=True)
class Table:
    """What is needed to read a table. `order` are the SQL terms of its key."""

    name: str
    columns: Sequence[str]
    primary_key: Sequence[str]
    order: Sequence[str]

    def rows(self, connection: sqlite3.Connection, after: Sequence[Value]) -> Iterator[Row]:
        """The rows behind the key `after`, or all of them if that is empty, in the order of the key."""
        if after and len(after) != len(self.order):
            raise UsageError(
                f"table '{self.name}' has another key than when it was read before",
                hint="a table that was made anew cannot be followed; read it into another pipeline",
            )
        width = len(self.order)
        places = [width + self.columns.index(name) for name in self.primary_key]
        row_text, key_text = _writer_of(self.columns), _writer_of(self.primary_key)
        found: tuple[Value, ...] = tuple(after)
        try:
            for found in connection.execute(self._query(bool(after)), [*after[:1], *after]):
                key = key_text([found[place] for place in places]) if places else None
                yield found, row_text(found[width:]), key
        except _NotJsonError as error:
            raise self._row_error(f"with key {self.shown(found)}", error) from None
        except sqlite3.OperationalError as error:
            if "decode to UTF-8" not in str(error):
                raise
            raise self._row_error(f"after key {self.shown(found)}", error) from None

    def key_of(self, found: Sequence[Value]) -> Sequence[Value]:
        """The key of a row, to go on after."""
        return found[: len(self.order)]

    def shown(self, found: Sequence[Value]) -> str:
        return "[" + ", ".join(map(repr, self.key_of(found))) + "]"

    def _row_error(self, which: str, error: Exception) -> RowError:
        return RowError(
            f"table '{self.name}', the row {which}: {error}",
            hint="mend the row, or leave the table out with the source's namespace pattern",
        )

    def _query(self, going_on: bool) -> str:
        order = ", ".join(self.order)
        columns = ", ".join(map(quoted, self.columns))
        where = ""
        if going_on:
            # The first term says the same over again: by it SQLite finds the place in the index.
            places = ", ".join("?" for _ in self.order)
            where = f"WHERE {self.order[0]} >= ? AND ({order}) > ({places}) "
        return f"SELECT {order}, {columns} FROM {quoted(self.name)} {where}ORDER BY {order}"


def tables_of(connection: sqlite3.Connection) -> list[Table]:
    """The ordinary tables of the database, by name; no views, no virtual tables and what belongs to these."""
    found = connection.execute(
        "SELECT name, wr FROM pragma_table_list WHERE schema = 'main' AND type = 'table' "
        r"AND name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY name"
    ).fetchall()
    return [_table(connection, name, without_rowid=bool(wr)) for name, wr in found]


def _table(connection: sqlite3.Connection, name: str, *, without_rowid: bool) -> Table:
    about = connection.execute(
        "SELECT name, pk FROM pragma_table_xinfo(?) WHERE hidden <> 1 ORDER BY cid", [name]
    ).fetchall()
    columns = [column for column, _ in about]
    primary_key = [column for column, _ in sorted((c for c in about if c[1]), key=lambda c: c[1])]
    if without_rowid:
        order = [
            f"{quoted(column)} COLLATE {quoted(collation)}"
            for column, collation in connection.execute(
                "SELECT name, coll FROM pragma_index_xinfo(?) WHERE key ORDER BY seqno", [name]
            )
        ]
    else:
        order = [_rowid(name, columns)]
    return Table(name, columns, primary_key, order)


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


def _writer_of(names: Sequence[str]) -> Callable[[Sequence[Value]], bytes]:
    """Makes JSON objects with these names."""
    make, encode = _maker_of(names), msgspec.json.encode

    def write(values: Sequence[Value]) -> bytes:
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


def _need_care(values: Sequence[Value]) -> bool:
    return bytes in map(type, values) or math.inf in values or -math.inf in values


def to_json(value: Value) -> JsonScalar:
    """A value as JSON has it."""
    if isinstance(value, bytes):
        return {"$binary": base64.b64encode(value).decode(), "$type": "00"}
    if isinstance(value, float) and not math.isfinite(value):
        raise _NotJsonError(f"{value} is a number that JSON has no form for")
    return value


def from_json(value: object) -> Value:
    """What `to_json` made it from."""
    if isinstance(value, dict):
        return base64.b64decode(value["$binary"])
    if value is None or isinstance(value, (int, float, str)):
        return value
    raise UsageError(f"{value!r} is not the key of a row")
