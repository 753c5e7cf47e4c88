"""The tables of a database as the server's catalog tells them: columns, keys, and how to ask for their rows.

A table's *key* is what names its rows in the stream of changes: the columns of the replica identity index if one was
chosen, else those of the primary key. Columns that the server computes are left out, since the stream does not have
them. A partitioned table is one table; its partitions are not listed. A table that others inherit from has its own rows
alone: theirs are in the stream under their own names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.adaptors.columns import textarrays as ta
from penstock.adaptors.columns.textarrays import Piece
from penstock.adaptors.postgres.connection import Connection, literal, quoted
from penstock.adaptors.postgres.types import Type, UnreadableError
from penstock.base.errors import UsageError
from penstock.log.schema import Field, Kind, Schema

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Column:
    """`declared` is the type as SQL has it, `printed` whether a cast to text is not what the server prints."""

    name: str
    type: Type
    declared: str
    nullable: bool = True
    printed: bool = False
    collation: str = ""

    @property
    def expression(self) -> str:
        """SQL for a value: its text, or a number that has the same digits."""
        name = quoted(self.name)
        if self.type.kind is Kind.INT:  # the server writes text in several times the time that it takes here
            return f"{name}::int8"
        if self.type == Type("bytea"):
            return f"translate(encode({name}, 'base64'), E'\\n', '')"
        if self.type.base == "money" and not self.type.array:
            return f"{name}::numeric::text"
        if self.type in (Type("text"), Type("varchar")):
            return name
        return self.output(name)

    def output(self, value: str) -> str:
        """SQL for the text of a value of this column's type, as the stream would print it."""
        # A cast may be a function of its own, which prints otherwise: inet with its mask, char without its blanks.
        return f"CASE WHEN {value} IS NOT NULL THEN concat({value}) END" if self.printed else f"{value}::text"

    @property
    def copied(self) -> Type:
        """What `expression` gives."""
        if self.type == Type("bytea"):
            return Type("base64")
        return Type("numeric") if self.type.base == "money" and not self.type.array else self.type


@dataclass(frozen=True, slots=True)
class Table:
    """A table to read. `rows` and `bytes` are estimates, None if the server never looked."""

    schema_name: str
    name: str
    columns: Sequence[Column]
    key: Sequence[str]
    oid: int = 0
    partitioned: bool = False
    identity: str = "d"
    has_primary_key: bool = True
    unlogged: bool = False
    generated: Sequence[str] = ()
    rows: int | None = None
    bytes: int = 0
    owned: bool = True
    readable: bool = True
    usable: bool = True
    owner: str = ""
    inherited: bool = False
    filtered: bool = False
    """Whether a policy hides some of its rows from who reads."""

    @property
    def ns(self) -> str:
        return f"{self.schema_name}.{self.name}"

    @property
    def sql(self) -> str:
        return quoted(self.schema_name, self.name)

    @property
    def own(self) -> str:
        """SQL for the table itself, without those that inherit from it."""
        return f"ONLY {self.sql}" if self.inherited else self.sql

    @property
    def schema(self) -> Schema:
        fields = (
            Field(
                column.name,
                column.type.kind,
                column.nullable,
                column.declared,
                column.type.item_kind if column.type.array else None,
            )
            for column in self.columns
        )
        return Schema(tuple(fields), tuple(self.key))

    @property
    def keyed(self) -> Sequence[Column]:
        by_name = {column.name: column for column in self.columns}
        return [by_name[name] for name in self.key]

    @property
    def has_identity(self) -> bool:
        """Whether updates and deletes can be followed; otherwise the server would refuse them once published."""
        return self.identity in "fi" or (self.identity == "d" and self.has_primary_key)

    @property
    def can_be_published(self) -> bool:
        return self.has_identity and self.owned and not self.unlogged

    def limited(self, names: Iterable[str]) -> Table:
        """With these columns only."""
        kept = set(names)
        return replace(self, columns=[column for column in self.columns if column.name in kept])


def texts_of(names: Sequence[str], types: Sequence[Type], printed: Sequence[pa.Array], rows: int) -> pa.Array:
    """The text of objects with these fields, from columns as the server prints them."""
    if not names:
        return ta.joined([b"{}"], rows)
    pieces: list[Piece] = []
    for index, (name, type, column) in enumerate(zip(names, types, printed, strict=True)):
        pieces.append((b"," if index else b"{") + msgspec.json.encode(name) + b":")
        try:
            pieces += type.texts(column)
        except UnreadableError as error:
            raise UnreadableError(f"column '{name}': {error.message}", hint=error.hint) from None
    return ta.joined([*pieces, b"}"], rows)


_TABLES = """
SELECT c.oid, n.nspname, c.relname, c.relkind = 'p', c.relreplident::text, c.relpersistence = 'u',
       pg_has_role(c.relowner, 'USAGE'), has_table_privilege(c.oid, 'SELECT'), has_schema_privilege(n.oid, 'USAGE'),
       pg_get_userbyid(c.relowner), (
           SELECT coalesce(sum(greatest(l.reltuples, 0)) FILTER (WHERE l.reltuples >= 0), -1)
             FROM pg_class l WHERE l.relkind = 'r' AND l.oid IN (
                 SELECT c.oid UNION ALL SELECT relid FROM pg_partition_tree(c.oid) WHERE isleaf)
       ), (
           SELECT coalesce(sum(pg_table_size(l.oid)), 0)
             FROM pg_class l WHERE l.relkind = 'r' AND l.oid IN (
                 SELECT c.oid UNION ALL SELECT relid FROM pg_partition_tree(c.oid) WHERE isleaf)
       ), c.relkind = 'r' AND c.relhassubclass, row_security_active(c.oid)
"""

_OURS = """
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
   AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'
   AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                    AND d.deptype = 'e')
 ORDER BY n.nspname, c.relname
"""
"""Tables that are neither the system's own, nor partitions, nor parts of extensions."""

_COLUMNS = """
WITH RECURSIVE bases AS (
    SELECT t.oid, t.oid AS base FROM pg_type t WHERE t.typtype <> 'd'
    UNION ALL
    SELECT t.oid, b.base FROM pg_type t JOIN bases b ON t.typbasetype = b.oid WHERE t.typtype = 'd'
)
SELECT a.attrelid, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attgenerated::text <> '',
       b.typname, b.typelem <> 0 AND b.typlen = -1 AND b.typcategory = 'A' AND b.typdelim = ',', e.typname,
       EXISTS (SELECT FROM pg_cast k WHERE k.castsource IN (b.oid, a.atttypid) AND k.casttarget = 'text'::regtype
                AND k.castmethod = 'f'),
       CASE WHEN a.attcollation <> 0 AND a.attcollation <> b.typcollation
            THEN (SELECT quote_ident(n.nspname) || '.' || quote_ident(l.collname) FROM pg_collation l
                    JOIN pg_namespace n ON n.oid = l.collnamespace WHERE l.oid = a.attcollation) ELSE '' END
  FROM pg_attribute a
  JOIN bases ON bases.oid = a.atttypid
  JOIN pg_type b ON b.oid = bases.base
  LEFT JOIN bases item ON item.oid = b.typelem
  LEFT JOIN pg_type e ON e.oid = item.base
 WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attrelid, a.attnum
"""

_KEYS = """
SELECT i.indrelid, i.indisprimary, i.indisreplident,
       ARRAY(SELECT a.attname::text FROM unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY AS k(num, place)
              JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.num ORDER BY k.place)
  FROM pg_index i WHERE i.indrelid = ANY(%s::oid[]) AND (i.indisprimary OR i.indisreplident)
"""


def oids_of(connection: Connection) -> dict[str, int]:
    """The numbers of all tables, by name: a cheap look at what there is."""
    found = connection.execute(f"SELECT n.nspname, c.relname, c.oid{_OURS}").fetchall()
    return {f"{schema}.{name}": oid for schema, name, oid in found}


def tables_of(connection: Connection) -> list[Table]:
    """All tables that are not the system's own, by name."""
    digits = money_digits(connection)
    about = connection.execute(_TABLES + _OURS).fetchall()
    oids = [row[0] for row in about]
    columns: dict[int, list[Column]] = {oid: [] for oid in oids}
    generated: dict[int, list[str]] = {oid: [] for oid in oids}
    for row in connection.execute(_COLUMNS, [oids]).fetchall():
        if row[4]:
            generated[row[0]].append(row[1])
        else:
            columns[row[0]].append(_column(row, digits))
    primary: dict[int, list[str]] = {}
    chosen: dict[int, list[str]] = {}
    for oid, is_primary, is_identity, names in connection.execute(_KEYS, [oids]).fetchall():
        if not set(names).isdisjoint(generated[oid]):
            continue  # the stream does not have them: no row could be told by such a key
        if is_primary:
            primary[oid] = names
        if is_identity:
            chosen[oid] = names
    return [
        Table(
            schema_name=row[1], name=row[2], columns=columns[row[0]],
            key=(chosen.get(row[0]) if row[4] == "i" else None) or primary.get(row[0], []),
            oid=row[0], partitioned=row[3], identity="n" if row[4] == "i" and row[0] not in chosen else row[4],
            has_primary_key=row[0] in primary, unlogged=row[5], generated=generated[row[0]],
            rows=None if row[10] < 0 else int(row[10]), bytes=int(row[11]),
            owned=row[6], readable=row[7], usable=row[8], owner=row[9], inherited=row[12], filtered=row[13],
        )
        for row in about
    ]  # fmt: skip


def accepted_of(connection: Connection, accept: Callable[[str], bool]) -> list[Table]:
    """The tables whose namespaces are accepted. No two of them may have the same."""
    found: dict[str, Table] = {}
    for table in tables_of(connection):
        if not accept(table.ns):
            continue
        if table.ns in found:
            raise UsageError(
                f"{found[table.ns].sql} and {table.sql} are both '{table.ns}': nobody could tell their rows apart",
                hint="rename one of them, or leave both out with the source's namespace pattern",
            )
        found[table.ns] = table
    return list(found.values())


def _column(row: Sequence[Any], digits: int) -> Column:
    _, name, declared, required, _, base, is_array, item, printed, collation = row
    type = Type(item if is_array else base, array=is_array, digits=digits)
    return Column(name, type, declared, not required, printed and base != "bool", collation)


def money_digits(connection: Connection) -> int:
    """How many digits money has behind the point, which is a matter of the database's locale."""
    found = connection.execute("SELECT scale(0::money::numeric)").fetchone()
    return int(found[0]) if found else 2


_TYPES = """
WITH RECURSIVE bases AS (
    SELECT t.oid, t.oid AS base FROM pg_type t WHERE t.typtype <> 'd'
    UNION ALL
    SELECT t.oid, b.base FROM pg_type t JOIN bases b ON t.typbasetype = b.oid WHERE t.typtype = 'd'
)
SELECT bases.oid, b.typname, b.typelem <> 0 AND b.typlen = -1 AND b.typcategory = 'A' AND b.typdelim = ',', e.typname
  FROM bases JOIN pg_type b ON b.oid = bases.base
  LEFT JOIN bases item ON item.oid = b.typelem LEFT JOIN pg_type e ON e.oid = item.base
 WHERE bases.oid = ANY(%s::oid[])
"""


def types_of(connection: Connection, oids: Sequence[int]) -> dict[int, Type]:
    """What the server's types with these numbers are; one that is gone by now is text."""
    digits = money_digits(connection)
    found = {oid: Type("text") for oid in oids}
    for oid, base, is_array, item in connection.execute(_TYPES, [list(oids)]).fetchall():
        found[oid] = Type(item if is_array else base, array=is_array, digits=digits)
    return found


def declared_of(connection: Connection, types: Sequence[tuple[int, int]]) -> list[str]:
    """The names of types with their modifiers, as SQL has them."""
    if not types:
        return []
    asked = ", ".join(f"({index}, {oid}::oid, {modifier})" for index, (oid, modifier) in enumerate(types))
    rows = connection.execute(
        f"SELECT format_type(o, m) FROM (VALUES {asked}) v(i, o, m) ORDER BY i"
    ).fetchall()
    return [row[0] or "text" for row in rows]


def key_tuple(columns: Sequence[Column], key: Sequence[str]) -> str:
    """A key as SQL has it, to be compared with `(a, b)`."""
    return ", ".join(
        f"{literal(text)}::{column.declared}" + (f" COLLATE {column.collation}" if column.collation else "")
        for text, column in zip(key, columns, strict=True)
    )
