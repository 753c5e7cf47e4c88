"""Rows as the PostgreSQL sink is given them, and the lines for COPY that they become.

Most rows of a batch are alike: writes of the same fields, or deletes. A batch of one kind of writes goes through
`sink_columns`, as columns; what that leaves goes through a `Reader`, all at once. What is left then (rows that move,
truncates, rows with other fields or with values of an unusual form) is read one by one by `changes.read`, which every
relational sink shares and which says what is wrong with a row.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.adaptors.changes import (
    Change,
    Kind,
    NotTakenError,
    Row,
    Target,
    Unknown,
    UnknownFieldError,
    read,
)
from penstock.adaptors.postgres.sink_columns import AlikeReader, Columns
from penstock.adaptors.postgres.sink_table import Table
from penstock.adaptors.postgres.sink_text import NULL, Reader, escaped
from penstock.adaptors.postgres.sink_values import Column, text_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

METADATA = ("penstock_offset", "penstock_op", "penstock_ts")
"""The columns that `append` fills if asked to."""

_EPOCH = dt.datetime(1970, 1, 1)

NOT_WRITTEN = ("",)
"""The shape of rows that set no fields: deletes and truncates. A row that is written may have none, and be a row."""

LETTERS = {"insert": "i", "update": "u", "delete": "d", "command": "t"}


class Lines:
    """Some rows of a batch, whose columns become lists when they are asked for. `n` is their order."""

    def __init__(self, batch: pa.RecordBatch, n: npt.NDArray[np.int64], shift: int, several: bool) -> None:
        """`several` says whether some message has more rows than one."""
        self._batch = batch
        self._numbers = n
        self._shift = shift
        self.several = several

    @classmethod
    def of(cls, batch: pa.RecordBatch, shift: int) -> Lines:
        import numpy as np

        offsets = batch.column("offset").to_numpy()
        places = np.arange(len(offsets))
        begins = np.diff(offsets, prepend=-1) != 0
        among = places - np.maximum.accumulate(np.where(begins, places, 0))
        return cls(batch, (offsets << shift) + among, shift, not begins.all())

    def __len__(self) -> int:
        return len(self._numbers)

    @cached_property
    def n(self) -> list[int]:
        found: list[int] = self._numbers.tolist()
        return found

    @cached_property
    def op(self) -> list[str]:
        return self._column("op")

    @cached_property
    def origin(self) -> list[str]:
        return self._column("origin")

    @cached_property
    def key(self) -> list[str | None]:
        return self._column("key")

    @cached_property
    def old_key(self) -> list[str | None]:
        if "old_key" not in self._batch.schema.names:
            return [None] * len(self)
        return self._column("old_key")

    @cached_property
    def data(self) -> list[str]:
        return self._column("data")

    @cached_property
    def ts(self) -> list[int]:
        import pyarrow as pa

        found: list[int] = self._batch.column("ts").cast(pa.int64()).to_pylist()
        return found

    @property
    def texts(self) -> pa.Array:
        """The column `data`, as it is."""
        return self._batch.column("data")

    def numbers(self, places: Sequence[int]) -> npt.NDArray[np.int64]:
        """`n` of some rows."""
        return self._numbers if len(places) == len(self) else self._numbers[places]

    def _column(self, name: str) -> list[Any]:
        found: list[Any] = self._batch.column(name).to_pylist()
        return found

    @property
    def ops(self) -> set[str]:
        """The operations that occur."""
        import pyarrow.compute as pc

        return set(pc.unique(self._batch.column("op")).to_pylist())

    @property
    def some_move(self) -> bool:
        names = self._batch.schema.names
        return "old_key" in names and self._batch.column("old_key").null_count < len(self)

    def by_namespace(self) -> Iterator[tuple[str, Lines]]:
        import pyarrow.compute as pc

        column = self._batch.column("ns")
        names = pc.unique(column).to_pylist()
        if len(names) == 1:
            yield names[0], self
            return
        for ns in names:
            mask = pc.equal(column, ns)
            numbers = self._numbers[mask.to_numpy(zero_copy_only=False)]
            yield ns, Lines(self._batch.filter(mask), numbers, self._shift, self.several)

    def offset(self, place: int) -> int:
        return int(self._numbers[place]) >> self._shift

    def offsets_of(self, refused: Sequence[tuple[int, str]]) -> list[tuple[int, str, str]]:
        """Refusals by place as offset, namespace of the log, and reason."""
        return [(self.offset(place), self.origin[place], error) for place, error in refused]

    def raw(self) -> list[str]:
        """Lines for COPY with everything."""
        columns = [escaped(column) for column in (self.op, self.origin, self.key, self.old_key, self.data)]
        return ["\t".join(line) for line in zip(map(str, self.n), map(str, self.ts), *columns, strict=True)]


@dataclass(frozen=True, slots=True)
class Block:
    """Lines for one COPY: `n` and `columns` of the staging table, for rows that all have the operation `op`.

    `places` are those of the rows in the batch. Rows that were read as columns are no lines yet.
    """

    columns: tuple[str, ...]
    shape: tuple[str, ...]
    op: str
    places: Sequence[int]
    content: Sequence[str] | Columns

    @property
    def lines(self) -> Sequence[str]:
        return self.content.lines() if isinstance(self.content, Columns) else self.content


@dataclass(frozen=True, slots=True)
class Converted:
    """What became of some rows; refusals with offset, namespace of the log, and reason."""

    blocks: Sequence[Block]
    refused: Sequence[tuple[int, str, str]]


@dataclass
class Converter:
    """Makes lines of rows, for one table."""

    table: Table
    append: bool
    metadata: bool
    unknown: Unknown
    _by_name: Mapping[str, Column] = field(init=False)

    def __post_init__(self) -> None:
        self._by_name = {column.name: column for column in self.table.columns}
        own = METADATA if self._has_metadata else ()
        columns = [column for column in self.table.columns if column.name not in own]
        self._key = () if self.append else self.table.key
        self._writes = Reader(columns, self.unknown == "error", tuple(self.table.computed))
        self._deletes = Reader(self.table.key_columns, False)
        self._together = AlikeReader(columns)
        self._target = Target(
            str(self.table.name), frozenset(column.name for column in columns), self._key, self.table.computed,
            self.unknown,
        )  # fmt: skip

    @property
    def _has_metadata(self) -> bool:
        return self.append and self.metadata

    def convert(self, lines: Lines, *, grow: bool) -> Converted | None:
        """The lines of rows. None if the table has to grow first, and `grow` says that it will."""
        if self._has_metadata and (missing := [name for name in METADATA if name not in self._by_name]):
            if grow:
                return None
            error = f"table {self.table.name} has no column '{missing[0]}'"
            return Converted([], lines.offsets_of([(place, error) for place in range(len(lines))]))
        writes, deletes, others = self._sorted(lines)
        blocks: list[Block] = []
        if len(writes) == len(lines):
            writes = self._as_columns(lines, writes, blocks)
        others += self._alike(lines, writes, self._writes, blocks)
        others += self._alike(lines, deletes, self._deletes, blocks)
        more, refused, grows = self._one_by_one(lines, sorted(others))
        if grows and grow:
            return None
        return Converted([*blocks, *more], lines.offsets_of(refused))

    def _sorted(self, lines: Lines) -> tuple[list[int], list[int], list[int]]:
        """Places of writes and deletes that may be alike, and of all others."""
        written = {"insert", "update"} if self._key or self.append else {"insert"}
        if self._has_metadata:
            written.add("delete")
        deleted = {"delete"} if self._key else set[str]()
        if lines.ops <= written and not lines.some_move:
            return list(range(len(lines))), [], []
        writes, deletes, others = [], [], []
        for place, (op, old) in enumerate(zip(lines.op, lines.old_key, strict=True)):
            if op in written and (old is None or self.append):
                writes.append(place)
            elif op in deleted:
                deletes.append(place)
            else:
                others.append(place)
        return writes, deletes, others

    def _as_columns(self, lines: Lines, places: Sequence[int], blocks: list[Block]) -> list[int]:
        """One block of those rows that can be read as columns, if they are all written the same way; the others."""
        ops = lines.ops
        if not places or self._has_metadata or not (self.append or len(ops) == 1):
            return list(places)
        found = self._together.read(lines.texts)
        if found is None or any(
            name not in found.columns or found.columns[name].null_count for name in self._key
        ):
            return list(places)
        left = set(found.odd)
        taken = [place for place in places if place not in left] if left else list(places)
        numbers = tuple(f"c{self._by_name[name].number}" for name in found.columns)
        made = Columns(lines.numbers(taken), found.columns, found.sure)
        letter = "i" if self.append else LETTERS[ops.pop()]
        blocks.append(Block(numbers, tuple(sorted(found.columns)), letter, taken, made))
        return list(found.odd)

    def _alike(self, lines: Lines, places: Sequence[int], reader: Reader, blocks: list[Block]) -> list[int]:
        """One block of those rows that a reader takes as they are; the others."""
        if not places:
            return []
        found, odd = reader.read([lines.data[place] for place in places])
        if any(name not in found or NULL in found[name] for name in self._key):
            return list(places)
        if odd:
            left = set(odd)
            odd = [places[index] for index in odd]
            places = [place for index, place in enumerate(places) if index not in left]
        if places:
            blocks += self._blocks(lines, places, found)
        return odd

    def _blocks(self, lines: Lines, places: Sequence[int], found: Mapping[str, list[str]]) -> list[Block]:
        """Rows with these columns, in a block for each operation."""
        ops = lines.ops
        if self.append or len(ops) == 1:
            return [self._block(lines, places, found, "i" if self.append else LETTERS[ops.pop()])]
        blocks = []
        for op in sorted(ops):
            some = [index for index, place in enumerate(places) if lines.op[place] == op]
            if some:
                columns = {name: [texts[index] for index in some] for name, texts in found.items()}
                blocks.append(self._block(lines, [places[index] for index in some], columns, LETTERS[op]))
        return blocks

    def _block(
        self, lines: Lines, places: Sequence[int], found: Mapping[str, list[str]], letter: str
    ) -> Block:
        columns = dict(found)
        if self._has_metadata:
            columns |= {
                METADATA[0]: [str(lines.offset(place)) for place in places],
                METADATA[1]: [lines.op[place] for place in places],
                METADATA[2]: [_moment(lines.ts[place]) for place in places],
            }
        numbers = tuple(f"c{self._by_name[name].number}" for name in columns)
        everything = len(places) == len(lines)
        order = map(str, lines.n if everything else [lines.n[place] for place in places])
        made = list(map("\t".join, zip(order, *columns.values(), strict=True)))
        shape = tuple(sorted(columns)) if letter != "d" else NOT_WRITTEN
        return Block(numbers, shape, letter, places, made)

    def _one_by_one(
        self, lines: Lines, places: Sequence[int]
    ) -> tuple[list[Block], list[tuple[int, str]], bool]:
        """Blocks, refusals by place, and whether there were fields that the table has no columns for."""
        refused: list[tuple[int, str]] = []
        grows = False
        blocks: dict[tuple[str, tuple[str, ...]], Block] = {}
        for place in places:
            try:
                block = self._one(lines, place)
            except NotTakenError as error:
                grows = grows or isinstance(error, UnknownFieldError)
                refused.append((place, str(error)))
            else:
                if block is not None:
                    _join(blocks, block)
        return list(blocks.values()), refused, grows

    def _one(self, lines: Lines, place: int) -> Block | None:
        op = lines.op[place]
        if self.append:
            return self._appended(lines, place, op)
        row = Row(lines.n[place], op, lines.key[place], lines.old_key[place], lines.data[place])
        change = read(self._target, row, self._bind)
        if change is None:
            return None
        letter = {Kind.DELETE: "d", Kind.MOVE: "m", Kind.TRUNCATE: "t"}.get(change.kind, LETTERS[op])
        return self._line(lines.n[place], place, letter, change)

    def _appended(self, lines: Lines, place: int, op: str) -> Block | None:
        if op in ("noop", "skip"):
            return None
        if op not in ("insert", "update") and not self.metadata:
            raise NotTakenError(
                f"a row that is appended does not tell that this is a {op}: set metadata=True, or leave such "
                "messages out with the function opfilter"
            )
        found: Mapping[str, list[str]] = {}
        if op != "command":
            row = Row(lines.n[place], "insert", None, None, lines.data[place])
            change = read(self._target, row, self._bind)
            assert change is not None
            found = dict(zip(change.fields, ([text] for text in _texts(change.values)), strict=True))
        return self._block(lines, [place], found, "i")

    def _line(self, n: int, place: int, letter: str, change: Change) -> Block:
        names = change.fields if letter in "ium" else self.table.key if letter == "d" else ()
        values = change.values if letter in "ium" else change.key or ()
        columns = [f"c{self._by_name[name].number}" for name in names]
        if change.old is not None:
            columns += [f"o{column.number}" for column in self.table.key_columns]
            values = (*values, *change.old)
        line = "\t".join([str(n), *_texts(values)])
        shape = tuple(sorted(names)) if letter in "ium" else NOT_WRITTEN
        return Block(tuple(columns), shape, letter, [place], [line])

    def _bind(self, name: str, raw: bytes) -> str | None:
        return text_of(self._by_name[name], raw)


def _moment(ts: int) -> str:
    return f"{_EPOCH + dt.timedelta(microseconds=ts)}+00"


def _texts(values: Sequence[object]) -> list[str]:
    return escaped([None if value is None else str(value) for value in values])


def _join(blocks: dict[tuple[str, tuple[str, ...]], Block], block: Block) -> None:
    """Put a line to those that have the same columns."""
    known = blocks.get((block.op, block.columns))
    if known is None:
        blocks[block.op, block.columns] = replace(block, places=list(block.places), content=list(block.lines))
        return
    for there, added in ((known.places, block.places), (known.lines, block.lines)):
        assert isinstance(there, list)
        there.extend(added)
