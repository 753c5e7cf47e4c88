"""The tables that the PostgreSQL sink writes: what the catalog says of them, and the statements that make them.

A namespace `shop.orders` is the table `orders` of the schema `shop`, or of the one that the settings say instead; a
namespace without a dot is in the setting's default. A table's key is its primary key, or else a unique index whose
columns are never null: the target decides by which columns rows are found, not the source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.adaptors.postgres.sink_session import literal, quoted
from penstock.adaptors.postgres.sink_values import Column
from penstock.log.schema import Field, Kind, Schema

if TYPE_CHECKING:
    import psycopg


class Name(NamedTuple):
    """Of a table."""

    schema: str
    table: str

    @property
    def sql(self) -> str:
        return quoted(self.schema, self.table)

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


def name_of(ns: str, default: str, schemas: Mapping[str, str]) -> Name:
    """The table of a namespace."""
    schema, dot, table = ns.partition(".")
    if not dot or not schema or not table:
        return Name(schemas.get("", default), ns)
    return Name(schemas.get(schema, schema), table)


@dataclass(frozen=True, slots=True)
class Table:
    """What the catalog says of a table."""

    name: Name
    oid: int
    kind: str
    """`r` is a table, `p` a partitioned one; nothing else can be written."""
    columns: Sequence[Column]
    computed: frozenset[str]
    key: tuple[str, ...]
    deferrable_key: bool
    plain: bool
    """Whether nothing but the rows that are left can tell in which order changes came: no trigger, rule or cascade."""
    parents: frozenset[int]
    """The tables that its foreign keys refer to."""
    children: frozenset[int]
    """Those whose foreign keys refer to it."""
    straight: bool = False
    """Whether several COPYs can add rows to it, as one INSERT does: no policy looks at each of them, none refers to
    another that may follow later, and any text can be kept."""

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    @property
    def key_columns(self) -> list[Column]:
        return [self.column(name) for name in self.key]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(column.name for column in self.columns)


class _Found(msgspec.Struct):
    """A column as the query tells it."""

    name: str
    number: int
    type: str
    base: str
    stored: str
    mod: int
    element: str | None
    identity: str
    generated: str
    collation: str | None


_QUERY = """
SELECT w.schema, w.name, c.oid::bigint, c.relkind::text,
  (SELECT coalesce(json_agg(json_build_object(
      'name', a.attname, 'number', a.attnum, 'type', format_type(a.atttypid, a.atttypmod),
      'base', b.base, 'stored', b.stored, 'mod', b.mod, 'element', b.element,
      'identity', a.attidentity, 'generated', a.attgenerated,
      'collation', CASE WHEN a.attcollation <> t.typcollation AND a.attcollation <> 0
                        THEN format('%%I.%%I', cn.nspname, co.collname) END) ORDER BY a.attnum), '[]')
   FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
   LEFT JOIN pg_collation co ON co.oid = a.attcollation LEFT JOIN pg_namespace cn ON cn.oid = co.collnamespace
   CROSS JOIN LATERAL (
     WITH RECURSIVE below(type, mod) AS (
       SELECT a.atttypid, a.atttypmod
       UNION ALL SELECT d.typbasetype, d.typtypmod FROM below JOIN pg_type d ON d.oid = below.type
       WHERE d.typtype = 'd')
     SELECT CASE WHEN y.typnamespace = 'pg_catalog'::regnamespace THEN y.typname::text
                 ELSE format_type(y.oid, NULL) END AS base,
            format_type(below.type, below.mod) AS stored, below.mod,
            CASE WHEN e.typnamespace = 'pg_catalog'::regnamespace THEN e.typname::text
                 ELSE format_type(e.oid, NULL) END AS element
     FROM below JOIN pg_type y ON y.oid = below.type
     LEFT JOIN pg_type e ON e.oid = y.typelem AND y.typcategory = 'A' WHERE y.typtype <> 'd') b
   WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)::text,
  (SELECT json_build_array(NOT i.indimmediate,
      (SELECT json_agg(a.attname ORDER BY k.place) FROM unnest(i.indkey::int[]) WITH ORDINALITY k(number, place)
       JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number WHERE k.place <= i.indnkeyatts))
   FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid
     AND i.indpred IS NULL AND i.indexprs IS NULL
     AND (i.indisprimary OR NOT EXISTS (
       SELECT FROM unnest(i.indkey::int[]) WITH ORDINALITY k(number, place) JOIN pg_attribute a
         ON a.attrelid = c.oid AND a.attnum = k.number WHERE k.place <= i.indnkeyatts AND NOT a.attnotnull))
   ORDER BY i.indisprimary DESC, i.indisreplident DESC, i.indnkeyatts, i.indexrelid LIMIT 1)::text,
  NOT EXISTS (SELECT FROM pg_trigger g WHERE NOT g.tgisinternal AND g.tgenabled <> 'D'
    AND (g.tgrelid = c.oid OR g.tgrelid IN (SELECT relid FROM pg_partition_tree(c.oid))))
  AND NOT EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid AND r.ev_type <> '1' AND r.ev_enabled <> 'D')
  AND NOT EXISTS (SELECT FROM pg_constraint f WHERE f.confrelid = c.oid AND f.contype = 'f'
    AND (f.confdeltype NOT IN ('a', 'r') OR f.confupdtype NOT IN ('a', 'r'))),
  ARRAY(SELECT f.confrelid::bigint FROM pg_constraint f WHERE f.conrelid = c.oid AND f.contype = 'f'),
  ARRAY(SELECT f.conrelid::bigint FROM pg_constraint f WHERE f.confrelid = c.oid AND f.contype = 'f'),
  c.relkind IN ('r', 'p') AND NOT row_security_active(c.oid) AND getdatabaseencoding() = 'UTF8'
  AND NOT EXISTS (SELECT FROM pg_constraint f WHERE f.conrelid = c.oid AND f.confrelid = c.oid AND f.contype = 'f')
FROM unnest(%s::text[], %s::text[]) w(schema, name)
JOIN pg_namespace n ON n.nspname = w.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
"""


def tables_of(connection: psycopg.Connection[Any], names: Iterable[Name]) -> dict[Name, Table]:
    """Those of the tables that are there."""
    wanted = list(names)
    rows = connection.execute(
        _QUERY, [[name.schema for name in wanted], [name.table for name in wanted]]
    ).fetchall()
    return {Name(row[0], row[1]): _table(row) for row in rows}


def _table(row: Sequence[Any]) -> Table:
    schema, name, oid, kind, columns, key, plain, parents, children, straight = row
    found = msgspec.json.decode(columns, type=list[_Found])
    deferrable, names = msgspec.json.decode(key, type=tuple[bool, tuple[str, ...]]) if key else (False, ())
    return Table(
        Name(schema, name), oid, kind,
        [_column(one) for one in found if not one.generated],
        frozenset(one.name for one in found if one.generated),
        names, deferrable, plain, frozenset(parents), frozenset(children), straight,
    )  # fmt: skip


def _column(found: _Found) -> Column:
    return Column(
        found.name, found.number, found.type, found.base, found.mod, found.element or "", found.identity == "a",
        found.collation or "", found.stored,
    )  # fmt: skip


_TYPES: Mapping[Kind, str] = {
    Kind.BOOL: "boolean", Kind.INT: "bigint", Kind.FLOAT: "double precision", Kind.DECIMAL: "numeric",
    Kind.STRING: "text", Kind.BINARY: "bytea", Kind.DATE: "date", Kind.TIME: "time",
    Kind.TIMESTAMP: "timestamp with time zone", Kind.LOCAL_TIMESTAMP: "timestamp without time zone",
    Kind.UUID: "uuid", Kind.OBJECT_ID: "text",
}  # fmt: skip
"""What holds every value of a kind; for all others `jsonb`."""

_ARRAY = re.compile(r"[a-z][a-z0-9 _]*(?:\(\d+(?:,\d+)?\))?\[\]")


def type_for(connection: psycopg.Connection[Any], field: Field) -> str:
    """The type of a column that is made for a field. None keeps less than the field may hold.

    The type's name at the source counts only where it says more than the kind and no source means something else by it:
    lengths and widths do not (SQLite's `varchar(20)` holds any text, its `integer` 64 bits).
    """
    native = field.native
    if field.kind is Kind.LIST and _ARRAY.fullmatch(native) and _category(connection, native) == "A":
        return _unlimited(native)
    if field.kind is Kind.TIME and native == "time with time zone":
        return native
    if native == "json" and field.kind not in _TYPES:
        return "json"
    if field.kind is Kind.STRING and re.fullmatch(r"[a-z][a-z0-9 _]*", native):
        category = _category(connection, native)
        # T: interval, I: addresses, G: geometry, R: ranges, V: bit strings, U: of the server's own, such as tsvector
        if category in ("T", "I", "G", "R", "V", "U") and native not in ("time", "date", "bytea", "uuid"):
            return native
    return _TYPES.get(field.kind, "jsonb")


def _unlimited(array: str) -> str:
    return re.sub(r"\(.*\)", "", array)


def _category(connection: psycopg.Connection[Any], native: str) -> str:
    row = connection.execute(
        "SELECT t.typcategory::text FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace "
        "WHERE t.oid = to_regtype(%s) AND n.nspname = 'pg_catalog' AND t.typtype IN ('b', 'r')",
        [native],
    ).fetchone()
    return row[0] if row else ""


def create_statement(connection: psycopg.Connection[Any], name: Name, schema: Schema) -> str:
    """The table for a schema."""
    lines = [f"{quoted(field.name)} {type_for(connection, field)}" for field in schema.fields]
    if schema.key:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, schema.key))})")
    return f"CREATE TABLE {name.sql} ({', '.join(lines)})"


def add_statement(connection: psycopg.Connection[Any], name: Name, fields: Sequence[Field]) -> str:
    """The columns that a table lacks."""
    added = [f"ADD COLUMN {quoted(field.name)} {type_for(connection, field)}" for field in fields]
    return f"ALTER TABLE {name.sql} {', '.join(added)}"


def has_schema(connection: psycopg.Connection[Any], schema: str) -> bool:
    return connection.execute(f"SELECT to_regnamespace({literal(quoted(schema))})").fetchone() != (None,)
