"""The order of a table's key: to go on behind a row, and to say on which side of it another one is.

A row is named by the text of its key, `{"id":17}`. A copy goes through a table in the order of the key, and what was
copied at one moment is a *stretch*: the rows up to a key. Which stretch a row belongs to that changes later is
computed here for whole numbers and bytes, and asked of the server for the rest, since only it knows how its
collations sort.

Keys of floats, bits, enums and sets are not gone through by ranges: they are not compared as they are sorted, or not
to the last digit.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from decimal import Decimal

import msgspec

from penstock.adaptors.mysql.connection import Session, quoted
from penstock.adaptors.mysql.table import Table
from penstock.adaptors.mysql.types import INTEGERS, Column
from penstock.base.errors import UsageError

Literal = int | str | bytes
"""A value of a key as the driver takes it."""

_read = msgspec.json.Decoder(dict[str, object], float_hook=Decimal).decode

_SORTED = frozenset(
    {
        *INTEGERS, "decimal", "char", "varchar", "tinytext", "text", "mediumtext", "longtext", "binary", "varbinary",
        "date", "datetime", "timestamp", "time", "uuid", "inet4", "inet6",
    }
)  # fmt: skip
_BYTES = frozenset({"binary", "varbinary"})
_CASTS = {
    "date": "DATE", "datetime": "DATETIME(6)", "timestamp": "DATETIME(6)",
    "time": "TIME(6)", "uuid": "UUID", "inet4": "INET4", "inet6": "INET6",
}  # fmt: skip
_MOST = 200
"""Keys that the server is asked about at once."""


class KeyOrder:
    """The key of one table."""

    def __init__(self, table: Table) -> None:
        by_name = {column.name: column for column in table.structure.columns}
        self.columns = [by_name[name] for name in table.structure.key]
        self._collations = table.collations
        self._names = [quoted(column.name) for column in self.columns]

    @property
    def sorted(self) -> bool:
        """Whether a copy can go through the table by it, and be picked up again."""
        return bool(self.columns) and all(column.type in _SORTED for column in self.columns)

    @property
    def by(self) -> str:
        return ", ".join(self._names)

    def behind(self, key: bytes | str) -> tuple[str, list[Literal]]:
        """The condition that rows behind this one meet, and its values."""
        values = self.literals(key)
        # The first term says the same over again: by it the server finds the place in the index.
        names = [name.replace("%", "%%") for name in self._names]
        terms, given = [f"{names[0]} >= %s"], [values[0]]
        ways = []
        for last in range(len(values)):
            equal = [f"{name} = %s" for name in names[:last]]
            ways.append(" AND ".join([*equal, f"{names[last]} > %s"]))
            given += values[: last + 1]
        terms.append("(" + " OR ".join(f"({way})" for way in ways) + ")")
        return " AND ".join(terms), given

    def literals(self, key: bytes | str) -> list[Literal]:
        fields = _read(key)
        if set(fields) != {column.name for column in self.columns}:
            raise UsageError(
                f"the table has the key {self.by} and was copied by another one",
                hint="copy it anew with `penstock backfill NS`",
            )
        return [_literal(fields[column.name]) for column in self.columns]

    def upto(self, session: Session, keys: Sequence[bytes], bound: str) -> list[bool]:
        """Of each key, whether it is at or before the bound."""
        limit = self.literals(bound)
        found = [self.literals(key) for key in keys]
        if all(column.type in INTEGERS or column.type in _BYTES for column in self.columns):
            return [tuple(one) <= tuple(limit) for one in found]
        answers: list[bool] = []
        for start in range(0, len(found), _MOST):
            asked = found[start : start + _MOST]
            terms, values = [], []
            for one in asked:
                term, given = self._compared(one, limit)
                terms.append(term)
                values += given
            (row,) = session.query(f"SELECT {', '.join(terms)}", values)
            answers += [bool(answer) for answer in row]
        return answers

    def _compared(self, one: Sequence[Literal], limit: Sequence[Literal]) -> tuple[str, list[Literal]]:
        """SQL for `one <= limit`, part by part."""
        ways, given = [], []
        for last, column in enumerate(self.columns):
            terms = [f"{self._cast(c)} = {self._cast(c)}" for c in self.columns[:last]]
            sign = "<=" if last == len(self.columns) - 1 else "<"
            ways.append(" AND ".join([*terms, f"{self._cast(column)} {sign} {self._cast(column)}"]))
            for index in range(last + 1):
                given += [one[index], limit[index]]
        return "(" + " OR ".join(f"({way})" for way in ways) + ")", given

    def _cast(self, column: Column) -> str:
        if column.charset is not None:
            return f"(CONVERT(%s USING {column.charset}) COLLATE {self._collations[column.name]})"
        if column.type == "decimal":
            return f"CAST(%s AS {column.native.removesuffix(' unsigned')})"
        return f"CAST(%s AS {_CASTS[column.type]})" if column.type in _CASTS else "%s"


def _literal(value: object) -> Literal:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        ((form, content),) = value.items()
        if form == "$binary":
            return base64.b64decode(content["base64"])
        return (
            str(content).removesuffix("Z").replace("T", " ")
            if form in ("$date", "$localTimestamp")
            else str(content)
        )
    if isinstance(value, (int, str)):
        return value
    raise UsageError(f"{value!r} is not the value of a key")
