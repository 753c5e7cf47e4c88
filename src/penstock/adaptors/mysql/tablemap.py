"""Which table the row events that follow are about: the table map event of a binlog.

    table id u48 | flags u16 | len u8 | db | 0 | len u8 | table | 0 | columns varint | a type u8 for each | varint |
    what the types need | nullable bits | optional metadata: (kind u8 | varint | value) …

What types need is two bytes, one or none for each column. The optional metadata has names, keys and what enums are
made of only with `binlog_row_metadata=FULL`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.adaptors.mysql.binlog import Event, varint

STRING, ENUM, SET, VARCHAR, BIT, NEWDECIMAL = 254, 247, 248, 15, 16, 246
_TWO = frozenset({VARCHAR, BIT, NEWDECIMAL, 253, ENUM, SET, 141})
_ONE = frozenset({4, 5, 252, 255, 245, 242, 17, 18, 19, 140, 249, 250, 251})
_NUMERIC = frozenset({1, 2, 9, 3, 8, NEWDECIMAL, 4, 5, 13})
"""Columns with a bit for their sign; a year is one of them."""


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """How values of a column stand in row images: the type's number, and what that needs to know."""

    type: int
    meta: int
    nullable: bool


@dataclass(frozen=True, slots=True)
class Metadata:
    """What the server adds about columns: all of it with `binlog_row_metadata=FULL`, else some or nothing.

    `collations` and `enum_collations` are by the count of the column among those that have any.
    """

    unsigned: list[bool] = field(default_factory=list)
    collation: int | None = None
    collations: dict[int, int] = field(default_factory=dict)
    enum_collation: int | None = None
    enum_collations: dict[int, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    sets: list[list[bytes]] = field(default_factory=list)
    enums: list[list[bytes]] = field(default_factory=list)
    geometries: list[int] = field(default_factory=list)
    key: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TableMap:
    """Which table the next row events with `id` are about."""

    id: int
    database: str
    table: str
    columns: tuple[ColumnLayout, ...]
    extra: bytes
    """The optional metadata, unread: tables that nobody follows have it too."""

    @property
    def ns(self) -> str:
        return f"{self.database}.{self.table}"


def read_table_map(event: Event) -> TableMap:
    body = event.body
    table = int.from_bytes(body[:6], "little")
    place = 8
    database = body[place + 1 : place + 1 + body[place]]
    place += 2 + len(database)
    name = body[place + 1 : place + 1 + body[place]]
    place += 2 + len(name)
    width, place = varint(body, place)
    types = body[place : place + width]
    place += width
    length, place = varint(body, place)
    metas = body[place : place + length]
    place += length
    nullable = body[place : place + (width + 7) // 8]
    columns, at = [], 0
    for index, type in enumerate(types):
        type, meta, at = _layout(type, metas, at)
        columns.append(ColumnLayout(type, meta, bool(nullable[index // 8] >> index % 8 & 1)))
    extra = body[place + len(nullable) :]
    return TableMap(table, database.decode(), name.decode(), tuple(columns), extra)


def _layout(type: int, metas: bytes, at: int) -> tuple[int, int, int]:
    """The real type of a column, its meta as one number, and where the next one's begins."""
    if type == STRING:
        first, second = metas[at], metas[at + 1]
        if first & 0x30 != 0x30:  # two bits of the length stand in the type
            return first | 0x30, second | (first & 0x30 ^ 0x30) << 4, at + 2
        return first, second, at + 2
    if type in (NEWDECIMAL, ENUM, SET):
        return type, metas[at] << 8 | metas[at + 1], at + 2
    if type == BIT:
        return type, metas[at] + 8 * metas[at + 1], at + 2
    if type in _TWO:
        return type, metas[at] | metas[at + 1] << 8, at + 2
    if type in _ONE:
        return type, metas[at], at + 1
    return type, 0, at


def read_metadata(table: TableMap) -> Metadata:
    """What the server tells about the columns of a table beyond their layout."""
    parts: dict[int, bytes] = {}
    place, extra = 0, table.extra
    while place < len(extra):
        length, start = varint(extra, place + 1)
        parts[extra[place]] = extra[start : start + length]
        place = start + length
    bits = iter([byte >> 7 - i & 1 for byte in parts.get(1, b"") for i in range(8)])
    collation, collations = _collations(parts.get(2), parts.get(3))
    enum_collation, enum_collations = _collations(parts.get(10), parts.get(11))
    return Metadata(
        unsigned=[column.type in _NUMERIC and bool(next(bits, 0)) for column in table.columns],
        collation=collation,
        collations=collations,
        enum_collation=enum_collation,
        enum_collations=enum_collations,
        names=[text.decode() for text in _texts(parts.get(4, b""))],
        sets=_lists(parts.get(5, b"")),
        enums=_lists(parts.get(6, b"")),
        geometries=_varints(parts.get(7, b"")),
        key=_varints(parts[8]) if 8 in parts else _varints(parts.get(9, b""))[::2],
    )


def _collations(most: bytes | None, each: bytes | None) -> tuple[int | None, dict[int, int]]:
    """Of character columns by their count: the collation of most and of those with another, or one for each."""
    if each is not None:
        return None, dict(enumerate(_varints(each)))
    numbers = _varints(most or b"")
    return (numbers[0] if numbers else None), dict(zip(numbers[1::2], numbers[2::2], strict=False))


def _varints(data: bytes) -> list[int]:
    found, place = [], 0
    while place < len(data):
        number, place = varint(data, place)
        found.append(number)
    return found


def _texts(data: bytes) -> list[bytes]:
    found, place = [], 0
    while place < len(data):
        length, place = varint(data, place)
        found.append(data[place : place + length])
        place += length
    return found


def _lists(data: bytes) -> list[list[bytes]]:
    found, place = [], 0
    while place < len(data):
        count, place = varint(data, place)
        texts = []
        for _ in range(count):
            length, place = varint(data, place)
            texts.append(data[place : place + length])
            place += length
        found.append(texts)
    return found
