"""The half of the PostgreSQL sink that runs in tasks: rows into tables of its own, through COPY.

A staging table has the columns of the table that its rows are for, under names of its own:

    n        the message's offset, shifted by `SHIFT` bits, and the number of the row among those of the message:
             the order of the log, over all tasks and tables of a batch
    op       i insert, u update, d delete, m a row that moves to another key, t truncate
    shape    which fields the message has: its place in `StagedTable.shapes`
    c1 …     the columns by their number in the table; of a delete, those of the key alone
    o1 …     of a row that moves: the key that it had

Rows that the server cannot read are refused one by one. Those that it takes for sure and that are only added need not
be there yet: where the publisher can read what a task leaves, they are left in a file (`sink_file`). A table that is
not there yet and whose fields the source does not know, or that lacks columns that it is to get, gets its rows as they
came (`raw`): the publisher makes columns of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.adaptors.base import Refusal, Schemas, Stage, Staged, Stager
from penstock.adaptors.needs import need
from penstock.adaptors.parts import whole_messages
from penstock.adaptors.postgres.sink_columns import Columns
from penstock.adaptors.postgres.sink_create import create_with_others, known_schema
from penstock.adaptors.postgres.sink_file import RowFile, StagedFile
from penstock.adaptors.postgres.sink_rows import Block, Converted, Converter, Lines
from penstock.adaptors.postgres.sink_session import connect, meaning, quoted, telling
from penstock.adaptors.postgres.sink_table import Name, Table, name_of, tables_of
from penstock.adaptors.staging import Tally
from penstock.base.errors import RefusedError

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

SHIFT = 20
"""Bits of `n` for the rows of one message."""

Mode = Literal["upsert", "append"]

USUAL = ("i", 0)
"""The operation and the shape of most rows: their lines do not say it."""

RAW = ("n", "ts", "op", "origin", "key", "old_key", "data")
"""The columns of a raw staging table."""

_RAW_TYPES = "n bigint, ts bigint, op text, origin text, key text, old_key text, data text"


@dataclass(frozen=True)
class Options:
    """The settings of the sink, and its name."""

    uri: str = field(repr=False)
    name: str = ""
    mode: Mode = "upsert"
    schema: str = "public"
    schemas: tuple[tuple[str, str], ...] = ()
    own_schema: str = "penstock"
    create_tables: bool = False
    add_columns: bool = False
    unknown_fields: Literal["error", "ignore"] = "error"
    metadata: bool = False
    timeout: float = 10.0
    staged: frozenset[Name] = frozenset()
    """Tables that get other rows than new ones: theirs are staged at the server."""

    @property
    def prefix(self) -> str:
        """What the names of this sink's staging tables begin with; no other sink's do."""
        return f"stage_{hashlib.sha256(self.name.encode()).hexdigest()[:12]}_"

    def stage_name(self, stage: Stage) -> str:
        """The name of a staging table of one attempt, which tells the batch that it is for; see `begin_of`."""
        attempt = hashlib.sha256(f"{stage.directory}/{stage.name}".encode()).hexdigest()[:16]
        return f"{self.prefix}{stage.begin:x}_{attempt}"

    def aside_name(self, number: int) -> Name:
        """Of a staging table that the publisher makes, and that is gone with its transaction."""
        return Name(self.own_schema, f"{self.prefix}0_aside{number}")

    def begin_of(self, name: str) -> int:
        """The first message of the batch that a staging table is for; 0 if its name does not say."""
        begin, _, attempt = name.removeprefix(self.prefix).partition("_")
        return int(begin, 16) if attempt else 0

    def target(self, ns: str) -> Name:
        return name_of(ns, self.schema, dict(self.schemas))

    def converter(self, table: Table) -> Converter:
        return Converter(
            table, append=self.mode == "append", metadata=self.metadata, unknown=self.unknown_fields
        )


class StagedTable(msgspec.Struct, frozen=True):
    """What a task tells of one staging table. `numbers` are the columns it has, `ops` how many rows of each kind."""

    target: Name
    stage: str
    raw: bool
    rows: int
    numbers: tuple[int, ...] = ()
    shapes: tuple[tuple[str, ...], ...] = ()
    ops: dict[str, int] = {}


class Part(msgspec.Struct, frozen=True):
    """What a task tells of all that it has staged, for the batch that begins with this message."""

    begin: int
    tables: list[StagedTable]
    files: list[StagedFile]

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Part:
        """Several as one."""
        return cls(
            max((part.begin for part in parts), default=0),
            [table for part in parts for table in part.tables],
            [file for part in parts for file in part.files],
        )


class PostgresStager(Stager):
    """Copies the rows of a task into staging tables and files that no other attempt uses."""

    def __init__(self, options: Options, schemas: Schemas) -> None:
        self._options = options
        self._schemas = schemas

    def stage(self, stage: Stage, rows: Iterator[pa.RecordBatch]) -> Staged:
        tally = Tally(stage.skip_below)
        staging = _Staging(self._options, self._schemas, stage)
        refused: list[Refusal] = []
        try:
            with telling("cannot stage rows in PostgreSQL"):
                for batch, refusals in staging.add(whole_messages(map(tally.fresh, rows))):
                    tally.add(_without(batch, refusals))
                    refused += refusals
        finally:
            staging.close()
        part = staging.part(stage.begin)
        told = msgspec.json.encode(part).decode() if part.tables or part.files else ""
        return tally.staged(told, staging.bytes, refused)


Copying = Callable[[], list[tuple[int, str, str]]]
"""Copies rows of one table; tells which messages are refused: offset, namespace of the log, reason."""


class _Staging:
    """The tables and files of one task attempt. The server copies the rows of a batch while the next one is read."""

    def __init__(self, options: Options, schemas: Schemas, stage: Stage) -> None:
        self.bytes = 0
        self._options = options
        self._schemas = schemas
        self._name = options.stage_name(stage)
        self._connection: psycopg.Connection[Any] | None = None
        self._copier = ThreadPoolExecutor(1, "penstock copy")
        self._under_way: Future[list[Refusal]] | None = None
        self._converters: dict[Name, Converter | None] = {}
        self._typed: dict[Name, StageTable] = {}
        self._raw: dict[Name, RawTable] = {}
        self._beside = stage.directory / stage.name if stage.shared else None
        """What the names of files begin with; None if nobody else would find them."""
        self._files: dict[tuple[Name, tuple[str, ...]], RowFile] = {}

    def part(self, begin: int) -> Part:
        """What was staged."""
        found = [table.staged() for table in self._typed.values()]
        found += [table.staged() for table in self._raw.values()]
        files = [file.staged() for file in self._files.values()]
        return Part(begin, [table for table in found if table.rows], files)

    def add(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, list[Refusal]]]:
        """Stage batches of whole messages; each comes back with the messages of it that are refused."""
        before: pa.RecordBatch | None = None
        for batch in batches:
            lines = Lines.of(batch, SHIFT)
            work = [self._prepared(self._options.target(ns), some) for ns, some in lines.by_namespace()]
            if before is not None:
                yield before, self._settled()
            copying = [ready() for ready in work]
            self._under_way = self._copier.submit(self._copied, copying, several=lines.several)
            before = batch
        if before is not None:
            yield before, self._settled()

    def close(self) -> None:
        self._copier.shutdown()
        if self._connection is not None:
            self._connection.close()

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """The one session of the task. Not for two at once: what is under way is waited for."""
        if self._under_way is not None:
            self._under_way.exception()
        if self._connection is None:
            options = self._options
            self._connection = connect(options.uri, f"penstock {options.name}", options.timeout)
        return self._connection

    def _settled(self) -> list[Refusal]:
        assert self._under_way is not None
        return self._under_way.result()

    def _prepared(self, target: Name, lines: Lines) -> Callable[[], Copying]:
        """Make lines of rows, which needs no server; what is given back then finds, or makes, their staging table."""
        if target not in self._converters:
            table = tables_of(self.connection, [target]).get(target) or self._made(target, lines)
            self._converters[target] = self._options.converter(table) if table is not None else None
        converter = self._converters[target]
        if converter is not None and target not in self._raw:
            converted = converter.convert(lines, grow=self._options.add_columns)
            if converted is not None:
                return partial(self._into_typed, converter.table, lines, converted)
        return partial(self._into_raw, target, lines)

    def _made(self, target: Name, lines: Lines) -> Table | None:
        options = self._options
        if not options.create_tables:
            return None
        append = options.mode == "append"
        schema = known_schema(lines, self._schemas, append=append, metadata=options.metadata)
        if schema is None:
            return None
        create_with_others(self.connection, target, schema)
        return tables_of(self.connection, [target]).get(target)

    def _into_typed(self, table: Table, lines: Lines, converted: Converted) -> Copying:
        blocks = []
        writing = []
        for block in converted.blocks:
            if self._goes_straight(table, lines, block):
                assert isinstance(block.content, Columns)
                writing.append(partial(self._file(table, block.content).write, block.content))
            else:
                blocks.append(block)
        if blocks and table.name not in self._typed:
            self._typed[table.name] = StageTable.make(self.connection, self._stage(), table)
        stage = self._typed.get(table.name)

        def copied() -> list[tuple[int, str, str]]:
            for write in writing:
                write()
            refused = stage.copy(blocks) if stage is not None else []
            return [*converted.refused, *lines.offsets_of(refused)]

        return copied

    def _goes_straight(self, table: Table, lines: Lines, block: Block) -> bool:
        """Whether rows may wait in a file. Of a message with several, one of which is refused, none may be left."""
        if self._beside is None or lines.several or block.op != "i":
            return False
        if not (table.plain and table.straight) or table.name in self._options.staged:
            return False
        return isinstance(block.content, Columns) and block.content.sure

    def _file(self, table: Table, rows: Columns) -> RowFile:
        assert self._beside is not None
        key = table.name, tuple(rows.values)
        if key not in self._files:
            path = self._beside.with_name(f"{self._beside.name}.{len(self._files)}")
            self._files[key] = RowFile(path, table, key[1])
        return self._files[key]

    def _into_raw(self, target: Name, lines: Lines) -> Copying:
        if target not in self._raw:
            self._raw[target] = RawTable.make(self.connection, self._stage(), target)
        stage = self._raw[target]
        return lambda: stage.copy(lines)

    def _copied(self, copying: Sequence[Copying], *, several: bool) -> list[Refusal]:
        """Copy the rows of a batch. Of a refused message no row is left, also if it has some in other tables."""
        refused: dict[int, Refusal] = {}
        for copy in copying:
            for offset, origin, error in copy():
                refused.setdefault(offset, Refusal(offset, origin, error, ""))
        if refused and several:
            for table in self._typed.values():
                table.forget(list(refused))
            for raw in self._raw.values():
                raw.forget(list(refused))
        self.bytes = sum(table.bytes for table in self._typed.values())
        self.bytes += sum(table.bytes for table in self._raw.values())
        self.bytes += sum(file.bytes for file in self._files.values())
        return list(refused.values())

    def _stage(self) -> Name:
        return Name(self._options.own_schema, f"{self._name}_{len(self._typed) + len(self._raw)}")


def _without(batch: pa.RecordBatch, refused: Sequence[Refusal]) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    if not refused:
        return batch
    found = np.isin(batch.column("offset").to_numpy(), [refusal.offset for refusal in refused])
    return batch.filter(pa.array(~found))


@dataclass
class StageTable:
    """A staging table with the columns of its target."""

    connection: psycopg.Connection[Any]
    stage: Name
    table: Table
    rows: int = 0
    bytes: int = 0
    shapes: list[tuple[str, ...]] = field(default_factory=list)
    ops: dict[str, int] = field(default_factory=dict)

    @classmethod
    def make(
        cls, connection: psycopg.Connection[Any], stage: Name, table: Table, *, temporary: bool = False
    ) -> StageTable:
        """Of a temporary one, the transaction that makes it has the use, and nobody else."""
        columns = [f"c{column.number} {_typed(column)}" for column in table.columns]
        columns += [f"o{column.number} {_typed(column)}" for column in table.key_columns]
        fixed = "n bigint NOT NULL, op \"char\" NOT NULL DEFAULT 'i', shape int NOT NULL DEFAULT 0"
        body = f"({', '.join([fixed, *columns])})"
        if temporary:
            connection.execute(f"CREATE TEMPORARY TABLE {quoted(stage.table)} {body} ON COMMIT DROP")
        else:
            connection.execute(f"CREATE UNLOGGED TABLE {stage.sql} {body} WITH (autovacuum_enabled = false)")
        return cls(connection, Name("pg_temp", stage.table) if temporary else stage, table)

    def staged(self) -> StagedTable:
        numbers = tuple(column.number for column in self.table.columns)
        return StagedTable(
            self.table.name, self.stage.table, False, self.rows, numbers, tuple(self.shapes), self.ops
        )

    def copy(self, blocks: Sequence[Block]) -> list[tuple[int, str]]:
        """Copy rows; those that the server does not take, by their place in the batch, and why."""
        refused: list[tuple[int, str]] = []
        for block in blocks:
            if block.shape not in self.shapes:
                self.shapes.append(block.shape)
            shape = self.shapes.index(block.shape)
            columns, lines = ["n", *block.columns], block.lines
            if (block.op, shape) != USUAL:
                columns, lines = ["op", "shape", *columns], [f"{block.op}\t{shape}\t{line}" for line in lines]
            statement = f"COPY {self.stage.sql} ({', '.join(columns)}) FROM STDIN"
            wrong = list(_copied(self.connection, statement, lines, 0))
            refused += [(block.places[at], self._named(error)) for at, error in wrong]
            taken = len(lines) - len(wrong)
            self.rows += taken
            self.ops[block.op] = self.ops.get(block.op, 0) + taken
            self.bytes += sum(map(len, lines))
        return refused

    def forget(self, offsets: Sequence[int]) -> None:
        gone = self.connection.execute(
            f"DELETE FROM {self.stage.sql} WHERE n >> {SHIFT} = ANY(%s) RETURNING op::text", [list(offsets)]
        ).fetchall()
        self.rows -= len(gone)
        for (op,) in gone:
            self.ops[op] -= 1

    def _named(self, error: psycopg.Error) -> str:
        """What the server said, with the column's own name."""
        said = error.diag.message_primary or str(error)
        numbered = re.search(r"\b[co](\d+)\b", (error.diag.context or "").partition(self.stage.table)[2])
        names = {column.number: column.name for column in self.table.columns}
        column = names.get(int(numbered[1])) if numbered else None
        return (
            f"table {self.table.name}, column '{column}': {said}"
            if column
            else f"table {self.table.name}: {said}"
        )


@dataclass
class RawTable:
    """A staging table for rows as they came."""

    connection: psycopg.Connection[Any]
    stage: Name
    target: Name
    rows: int = 0
    bytes: int = 0

    @classmethod
    def make(cls, connection: psycopg.Connection[Any], stage: Name, target: Name) -> RawTable:
        connection.execute(
            f"CREATE UNLOGGED TABLE {stage.sql} ({_RAW_TYPES}) WITH (autovacuum_enabled = false)"
        )
        return cls(connection, stage, target)

    def staged(self) -> StagedTable:
        return StagedTable(self.target, self.stage.table, True, self.rows)

    def copy(self, lines: Lines) -> list[tuple[int, str, str]]:
        """Copy rows; as they are texts, and no more, none is refused."""
        content = "\n".join(lines.raw())
        with self.connection.cursor().copy(f"COPY {self.stage.sql} ({', '.join(RAW)}) FROM STDIN") as copy:
            copy.write(content)
        self.rows += len(lines)
        self.bytes += len(content)
        return []

    def forget(self, offsets: Sequence[int]) -> None:
        statement = f"DELETE FROM {self.stage.sql} WHERE n >> {SHIFT} = ANY(%s)"
        self.rows -= self.connection.execute(statement, [list(offsets)]).rowcount


def _typed(column: Any) -> str:
    return f"{column.stored or column.type}" + (f" COLLATE {column.collation}" if column.collation else "")


def _copied(
    connection: psycopg.Connection[Any], statement: str, lines: Sequence[str], begin: int
) -> Iterator[tuple[int, psycopg.Error]]:
    """Copy lines, of which the first is the one at `begin`; those that the server refuses are left out and told.

    It names the first one. What stands before it is copied again without it, then the rest in pieces.
    """
    driver = need("psycopg", "postgres")
    if not lines:
        return
    try:
        with connection.transaction(), connection.cursor().copy(statement) as copy:
            copy.write("\n".join(lines))
    except driver.Error as error:
        if not isinstance(meaning(error, ""), RefusedError):
            raise
        if len(lines) == 1:
            yield begin, error
            return
        cut = _line(error, len(lines))
        yield from _copied(connection, statement, lines[:cut], begin)
        yield from _copied(connection, statement, lines[cut : cut + 1], begin + cut)
        for at in range(cut + 1, len(lines), 512):
            yield from _copied(connection, statement, lines[at : at + 512], begin + at)


def _line(error: psycopg.Error, lines: int) -> int:
    """The place of the line that the server stopped at; the middle, if it does not say in words that we know."""
    found = re.search(r"COPY \S+ \S+ (\d+)", error.diag.context or "")
    at = int(found[1]) - 1 if found else -1
    return at if 0 <= at < lines else lines // 2
