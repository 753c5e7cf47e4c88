"""The tables of a server: as its information schema shows them now, and as a table map of the binlog shows them then.

Both become a `Structure`, with types in one spelling, so that the two can be compared and take each other's place. A
table's key is its primary key; without one, the first unique key of columns that are never null.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.adaptors.mysql.charsets import Charsets
from penstock.adaptors.mysql.connection import Session
from penstock.adaptors.mysql.tablemap import (
    BIT,
    ENUM,
    NEWDECIMAL,
    SET,
    STRING,
    VARCHAR,
    Metadata,
    TableMap,
    read_metadata,
)
from penstock.adaptors.mysql.types import GEOMETRIES, UNLOGGED, Column, Structure, enum_of

SYSTEM = ("mysql", "information_schema", "performance_schema", "sys")
"""Databases that are the server's own."""

_COLUMNS = """
    SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME, IS_NULLABLE,
           COALESCE(NUMERIC_PRECISION, 0), COALESCE(NUMERIC_SCALE, 0), COALESCE(DATETIME_PRECISION, 0),
           COALESCE(CHARACTER_MAXIMUM_LENGTH, 0), COLLATION_NAME
    FROM information_schema.COLUMNS WHERE {} ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION
"""
_KEYS = """
    SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, COLUMN_NAME, NULLABLE, SUB_PART
    FROM information_schema.STATISTICS WHERE NON_UNIQUE = 0 AND {}
    ORDER BY TABLE_SCHEMA, TABLE_NAME, INDEX_NAME <> 'PRIMARY', INDEX_NAME, SEQ_IN_INDEX
"""
_TABLES = """
    SELECT TABLE_SCHEMA, TABLE_NAME, ENGINE, TABLE_ROWS FROM information_schema.TABLES
    WHERE TABLE_TYPE = 'BASE TABLE' AND {} ORDER BY TABLE_SCHEMA, TABLE_NAME
"""
_VERSIONED = """
    SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES
    WHERE TABLE_TYPE = 'SYSTEM VERSIONED' AND {} ORDER BY TABLE_SCHEMA, TABLE_NAME
"""


@dataclass(frozen=True)
class Table:
    """A table as it is now. `collations` are those of its texts, by column.

    `old_times` are the columns with parts of a second in the format of MariaDB 5.3.
    """

    database: str
    name: str
    engine: str
    rows: int | None
    structure: Structure
    collations: Mapping[str, str]
    old_times: tuple[str, ...] = ()

    @property
    def ns(self) -> str:
        return f"{self.database}.{self.name}"

    @property
    def transactional(self) -> bool:
        """Whether a snapshot shows it as it was at one moment."""
        return self.engine.lower() == "innodb"


def tables_of(session: Session, database: str = "", table: str = "") -> list[Table]:
    """All tables, those of a database, or the one."""
    condition, values = _condition(database, table)
    columns: dict[tuple[str, str], list[Sequence[object]]] = {}
    for row in session.query(_COLUMNS.format(condition), values):
        columns.setdefault((str(row[0]), str(row[1])), []).append(row)
    keys = _keys(session.query(_KEYS.format(condition), values))
    found = []
    for schema, name, engine, rows in session.query(_TABLES.format(condition), values):
        place = (str(schema), str(name))
        told = columns.get(place, [])
        key, primary = keys.get(place, ((), True))
        shown = tuple(map(_column, told))
        found.append(
            Table(
                *place, str(engine or ""), None if rows is None else int(rows), Structure(shown, key, primary),
                {str(row[2]): str(row[11]) for row in told if row[11] is not None},
                tuple(str(row[2]) for row in told if "mariadb-5.3" in str(row[4]) and int(str(row[9]))),
            )
        )  # fmt: skip
    return found


def versioned_tables(session: Session, database: str) -> list[tuple[str, str]]:
    """MariaDB's tables that keep their history: what stands of them in the binlog is not what their rows are now."""
    condition, values = _condition(database, "")
    rows = session.query(_VERSIONED.format(condition), values)
    return [(str(schema), str(name)) for schema, name in rows]


def _condition(database: str, table: str) -> tuple[str, list[object]]:
    if table:
        return "TABLE_SCHEMA = %s AND TABLE_NAME = %s", [database, table]
    if database:
        return "TABLE_SCHEMA = %s", [database]
    return f"TABLE_SCHEMA NOT IN ({', '.join('%s' for _ in SYSTEM)})", list(SYSTEM)


def _keys(rows: Iterable[Sequence[object]]) -> dict[tuple[str, str], tuple[tuple[str, ...], bool]]:
    indexes: dict[tuple[str, str], dict[str, list[Sequence[object]]]] = {}
    for row in rows:
        indexes.setdefault((str(row[0]), str(row[1])), {}).setdefault(str(row[2]), []).append(row)
    found = {}
    for place, named in indexes.items():
        for name, parts in named.items():
            primary = name == "PRIMARY"
            usable = all(part[3] is not None and part[4] != "YES" and part[5] is None for part in parts)
            if primary or usable:
                found[place] = (tuple(str(part[3]) for part in parts), primary)
                break
    return found


def _column(row: Sequence[object]) -> Column:
    """A column; those that are computed have their values in the binlog too."""
    name, type, full = str(row[2]), str(row[3]).lower(), str(row[4])
    charset = None if row[5] is None else str(row[5])
    native = _native(type, full, int(str(row[7])), int(str(row[8])), int(str(row[9])), int(str(row[10])))
    return Column(name, native, None if type == "json" else charset, row[6] == "YES")


_PLAIN = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "float", "double"})
_SIZED = frozenset({"char", "varchar", "binary", "varbinary"})


def _native(type: str, full: str, precision: int, scale: int, digits: int, length: int) -> str:
    unsigned = " unsigned" if "unsigned" in full.lower() else ""
    if type in _PLAIN:
        return type + unsigned
    if type == "decimal":
        return f"decimal({precision},{scale}){unsigned}"
    if type in _SIZED:
        return f"{type}({length})"
    if type in ("time", "datetime", "timestamp"):
        return f"{type}({digits})" if digits else type
    if type == "bit":
        return f"bit({precision})"
    if type in ("enum", "set"):
        return enum_of(type, [word.replace("''", "'") for word in re.findall(r"'((?:[^']|'')*)'", full)])
    return "geometrycollection" if type == "geomcollection" else type


_INTEGERS = {1: "tinyint", 2: "smallint", 9: "mediumint", 3: "int", 8: "bigint", 4: "float", 5: "double"}
_TIMES = {18: "datetime", 17: "timestamp", 19: "time", 12: "datetime", 7: "timestamp", 11: "time"}
_OLD_TIMES = (7, 11, 12)
_PLAINLY = {10: "date", 14: "date", 13: "year", 245: "json", 242: "vector"}
_LENGTHS = {1: "tiny", 2: "", 3: "medium", 4: "long"}
_BIGINT, _HASH = 8, re.compile(r"DB_ROW_HASH_\d+")
_CHARACTER = frozenset({STRING, VARCHAR, 253, 252, 249, 250, 251})


def logged_structure(table: TableMap, charsets: Charsets, known: Structure | None) -> Structure | None:
    """The structure that a table map tells by itself; None if its metadata is not full.

    Of `known`, which was the table's last one, come only types that no metadata tells.
    """
    told = read_metadata(table)
    if len(told.names) != len(table.columns):
        return None
    shown = len(table.columns) - hidden_columns(table, charsets)
    collations = _collations(table, told, charsets)
    sets, enums, geometries = iter(told.sets), iter(told.enums), iter(told.geometries)
    columns = []
    for index, layout in enumerate(table.columns[:shown]):
        collation = collations[index]
        charset = charsets.of_collation(collation) if collation is not None else None
        if layout.type in (ENUM, SET):
            words = next(enums if layout.type == ENUM else sets)
            # Words are logged in the character set of the column.
            decode = charsets.decoder(charset or "utf8mb4")
            native = enum_of("enum" if layout.type == ENUM else "set", [decode(word) for word in words])
        elif layout.type == 255:
            charset, native = None, GEOMETRIES[next(geometries, 0) % len(GEOMETRIES)]
        else:
            charset = None if charset == "binary" else charset
            native = _logged_native(layout.type, layout.meta, told.unsigned[index], charset, charsets)
        columns.append(Column(told.names[index], native, charset, layout.nullable))
    key = tuple(told.names[index] for index in told.key)
    return _with_known(Structure(tuple(columns), key), known)


def hidden_columns(table: TableMap, charsets: Charsets) -> int:
    """How many columns at the end nobody sees but the binlog.

    MariaDB keeps a hash of each unique key that is too long for an index, in a column of its own.
    """
    names = read_metadata(table).names if charsets.maria else []
    count = 0
    for name, layout in zip(reversed(names), reversed(table.columns), strict=False):
        if layout.type != _BIGINT or not _HASH.fullmatch(name):
            break
        count += 1
    return count


def may_be_other(found: Structure, known: Structure | None, table: TableMap, charsets: Charsets) -> bool:
    """Whether a table of MariaDB may have other columns than the binlog tells: where it tells less than it should.

    A column that `known` does not have can be of a type that stands there as plain bytes, and one with a time in the
    old format can have parts of a second.
    """
    before = {column.name for column in known.columns} if known is not None else set()
    plain = any(c.native in ("binary(4)", "binary(16)") and c.name not in before for c in found.columns)
    return charsets.maria and (plain or any(layout.type in _OLD_TIMES for layout in table.columns))


def _with_known(found: Structure, known: Structure | None) -> Structure:
    if known is None or known.is_told_by_log:
        return found
    odd = {column.name: column for column in known.columns if column.type in UNLOGGED}
    columns = tuple(odd.get(c.name, c) if c.type == "binary" else c for c in found.columns)
    names = {column.name for column in columns}
    if not found.key and known.key and not known.primary and names.issuperset(known.key):
        return Structure(columns, known.key, primary=False)
    return Structure(columns, found.key, found.primary)


def _collations(table: TableMap, told: Metadata, charsets: Charsets) -> list[int | None]:
    """The collation of each column that has one; MariaDB counts geometries among these."""
    found: list[int | None] = []
    characters = enums = 0
    for layout in table.columns:
        if layout.type in (ENUM, SET):
            found.append(told.enum_collations.get(enums, told.enum_collation))
            enums += 1
        elif layout.type in _CHARACTER or (layout.type == 255 and charsets.maria):
            found.append(told.collations.get(characters, told.collation))
            characters += 1
        else:
            found.append(None)
    return found


def _logged_native(type: int, meta: int, unsigned: bool, charset: str | None, charsets: Charsets) -> str:
    if type in _INTEGERS:
        return _INTEGERS[type] + " unsigned" * unsigned
    if type == NEWDECIMAL:
        return f"decimal({meta >> 8},{meta & 0xFF})" + " unsigned" * unsigned
    if type in _TIMES:
        return f"{_TIMES[type]}({meta})" if meta else _TIMES[type]
    if type == BIT:
        return f"bit({meta})"
    if type in (STRING, VARCHAR, 253):
        word = "char" if type == STRING else "varchar"
        if charset is None:
            return f"{word.replace('char', 'binary')}({meta})"
        return f"{word}({meta // charsets.width(charset)})"
    if type in (252, 249, 250, 251):
        size = {249: 1, 250: 3, 251: 4}.get(type, meta)
        return _LENGTHS[size] + ("text" if charset else "blob")
    return _PLAINLY.get(type, f"type {type}")


def fits(table: TableMap, structure: Structure, hidden: int = 0) -> bool:
    """Whether row images of this layout can be of a table with these columns, and `hidden` ones behind them."""
    return len(table.columns) - hidden == len(structure.columns) and all(
        column.type in _families(layout.type)
        for layout, column in zip(table.columns, structure.columns, strict=False)
    )


def _families(type: int) -> Sequence[str]:
    if type in _INTEGERS:
        return (_INTEGERS[type],)
    if type in _TIMES:
        return (_TIMES[type],)
    if type in _PLAINLY:
        return (_PLAINLY[type],)
    if type in (252, 249, 250, 251):
        return [size + kind for size in _LENGTHS.values() for kind in ("text", "blob")]
    return {
        NEWDECIMAL: ("decimal",), BIT: ("bit",), ENUM: ("enum",), SET: ("set",), 255: GEOMETRIES,
        STRING: ("char", "binary", *UNLOGGED), VARCHAR: ("varchar", "varbinary"), 253: ("varchar", "varbinary"),
    }.get(type, ())  # fmt: skip
