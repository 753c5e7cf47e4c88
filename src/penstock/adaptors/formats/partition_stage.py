"""Rows into files by partition, in the way of Hive: `ns=orders/date=2026-11-16/…`.

Tasks write whole files, in a directory of the task attempt that looks as the target will. Rows of one partition and
one namespace stand in their order. A Parquet file has the columns of its namespace's schema (`rowcolumns`); where the
log knows no schema it has one column `data`, the text of the document. Fields that are partitions are in the name of
the directory and not in the file, as readers of such directories expect. A field `ns` or `date` is in the file also if
rows are parted by these words, which stand for something else.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.adaptors.away import telling
from penstock.adaptors.base import Refusal, Schemas, Stage, Staged, Stager
from penstock.adaptors.columns.rowcolumns import columns_of
from penstock.adaptors.formats.contents import Codec
from penstock.adaptors.formats.linewriter import lines_of, without
from penstock.adaptors.formats.partfile import PartFile
from penstock.adaptors.parts import whole_messages
from penstock.adaptors.staging import Tally
from penstock.log.schema import Schema, Told

if TYPE_CHECKING:
    import pyarrow as pa

FileForm = Literal["jsonl", "parquet"]

MOST_HELD = 64 * 1024 * 1024
"""Bytes of columns that a task holds before it writes them."""
DICTIONARY = 256 * 1024
"""Bytes of distinct values above which a column has no dictionary: to build a larger one, and then to do without it as
keys do, takes longer than all the rest of the file."""
MOST_OPEN = 64
"""Files that a task has open."""
LONGEST_NAME = 255
"""Bytes that the name of a directory may have."""
NOWHERE = "__HIVE_DEFAULT_PARTITION__"
RAW = "raw.arrow"
"""Rows of namespaces that the sink has not met and the log says nothing of; the publisher asks it again."""

_UNSAFE = frozenset("\"#%'*/:=?\\\x7f{}[]^<>|") | {chr(code) for code in range(0x20)}
_META = ("_op", "_ts", "_ns", "_offset")
_WORDS = ("ns", "date")
"""In `partition_by`: what is no field."""


@dataclass(frozen=True)
class Layout:
    """How rows become files."""

    form: FileForm = "parquet"
    codec: Codec = "none"
    partition_by: Sequence[str] = ("ns",)
    envelope: bool = False

    @property
    def ending(self) -> str:
        packed = {"none": "", "gzip": ".gz", "zstd": ".zst"}[self.codec]
        return ".parquet" if self.form == "parquet" else f".jsonl{packed}"


class PartitionStager(Stager):
    """Writes the rows of one task.

    `met` are the namespaces that the sink knows, with all fields that they have had; None for those without a schema.
    `schemas` is what the log says.
    """

    def __init__(self, layout: Layout, met: Mapping[str, Schema | None], schemas: Schemas) -> None:
        self._layout = layout
        self._met = met
        self._schemas = schemas

    def stage(self, stage: Stage, rows: Iterator[pa.RecordBatch]) -> Staged:
        tally = Tally(stage.skip_below)
        part = stage.directory / stage.name
        with telling(f"cannot write {part}"):
            part.mkdir(parents=True, exist_ok=False)
            with Files(part, self._layout) as files:
                refused: list[Refusal] = []
                for batch in whole_messages(map(tally.fresh, rows)):
                    refused += self._add(tally, files, batch)
            size = sum(path.stat().st_size for path in part.rglob("*") if path.is_file())
        if not size:
            part.rmdir()
        return tally.staged(str(part) if size else "", size, refused)

    def _add(self, tally: Tally, files: Files, batch: pa.RecordBatch) -> list[Refusal]:
        refused: list[Refusal] = []
        for origin, rows in by_value(batch, "origin"):
            for told, some in by_schema(rows, self._schemas.told(origin)):
                schema = united(self._met.get(origin), told)
                if schema is None and self._layout.form == "parquet" and origin not in self._met:
                    files.keep_raw(some)
                    tally.add(some)
                    continue
                taken, refusals = files.add(some, schema)
                tally.add(taken)
                refused += refusals
        return refused


def united(before: Schema | None, now: Schema | None) -> Schema | None:
    """All fields of both; rows from before a change are written as well."""
    if before is None or now is None:
        return now or before
    names = {field.name for field in now.fields}
    gone = tuple(field for field in before.fields if field.name not in names)
    return Schema(now.fields + gone, now.key)


def by_value(batch: pa.RecordBatch, column: str | int) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each value of a column, each in their order."""
    import pyarrow.compute as pc

    values = batch.column(column)
    distinct = pc.unique(values).to_pylist()
    if len(distinct) == 1:
        yield distinct[0], batch
        return
    for value in distinct:
        yield value, batch.filter(pc.equal(values, value) if value is not None else pc.is_null(values))


def by_schema(batch: pa.RecordBatch, told: Sequence[Told]) -> Iterator[tuple[Schema | None, pa.RecordBatch]]:
    """The rows of one namespace by the schema that held when they were logged, each in their order."""
    import numpy as np
    import pyarrow as pa

    held = np.searchsorted([one.since for one in told], batch.column("offset").to_numpy(), side="right")
    for number in np.unique(held):
        schema = told[number - 1].schema if number else None
        yield schema, batch if (held == number).all() else batch.filter(pa.array(held == number))


@dataclass
class _Open:
    """One file being written, and columns that are not in it yet."""

    path: Path
    held: list[pa.RecordBatch] = field(default_factory=list)
    writer: Any = None


class Files:
    """The files of one task attempt."""

    def __init__(self, top: Path, layout: Layout) -> None:
        self._top = top
        self._layout = layout
        self._open: dict[tuple[str, str], _Open] = {}
        self._held = 0
        self._count = 0
        self._raw: Any = None

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._open):
            self._close(key)
        if self._raw is not None:
            self._raw.close()

    def keep_raw(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        if self._raw is None:
            self._raw = pa.ipc.new_file(str(self._top / RAW), batch.schema)
        self._raw.write_batch(batch)

    def add(self, batch: pa.RecordBatch, schema: Schema | None) -> tuple[pa.RecordBatch, Sequence[Refusal]]:
        """Write rows of one namespace; what was taken, and what was refused."""
        return self._partitioned(batch, schema if self._layout.form == "parquet" else None)

    def _partitioned(
        self, batch: pa.RecordBatch, schema: Schema | None
    ) -> tuple[pa.RecordBatch, Sequence[Refusal]]:
        import pyarrow as pa
        import pyarrow.compute as pc

        given = batch
        if self._layout.form == "parquet":  # what empties a table is no row
            rows = pc.not_equal(batch.column("op"), "command")
            batch = batch if pc.all(rows).as_py() is not False else batch.filter(rows)
        columns, refused, batch = self._columns(batch, schema)
        paths = self._paths(batch, columns)
        if reasons := _without_directory(paths):
            columns, more, batch = _left(columns, batch, reasons)
            refused, paths = [*refused, *more], self._paths(batch, columns)
        label = "" if schema is None else str(hash(columns.schema))
        drop = self._told_by_directory(columns) if schema is not None else []
        rows = columns.append_column("", paths)  # told by its place: a field may have any name
        for path, some in by_value(rows, columns.num_columns):
            some = some.select(range(columns.num_columns))
            self._write((path, label), some.drop_columns(drop) if drop else some)
        if not refused:
            return given, ()
        gone = pa.array([one.offset for one in refused], pa.int64())
        return given.filter(pc.invert(pc.is_in(given.column("offset"), gone))), refused

    def _columns(
        self, batch: pa.RecordBatch, schema: Schema | None
    ) -> tuple[pa.RecordBatch, Sequence[Refusal], pa.RecordBatch]:
        """The rows as they are written, what cannot be, and the rows that can."""
        if self._layout.form == "jsonl" or schema is None:
            return batch, (), batch
        found = columns_of(batch.column("data"), schema)
        columns = found.batch
        if self._layout.envelope:
            for name, of in zip(_META, ("op", "ts", "ns", "offset"), strict=True):
                columns = columns.append_column(name, batch.column(of))
        return _left(columns, batch, found.refused) if found.refused else (columns, (), batch)

    def _told_by_directory(self, columns: pa.RecordBatch) -> list[str]:
        """The columns that are left out of files; none if that were all of them, since a row needs one."""
        names = columns.schema.names
        told = [one for one in names if one in self._layout.partition_by and one not in _WORDS]
        return told if len(told) < len(names) else []

    def _paths(self, batch: pa.RecordBatch, columns: pa.RecordBatch) -> pa.Array:
        """The directory of each row."""
        import pyarrow as pa
        import pyarrow.compute as pc

        pieces: list[Any] = []
        for word in self._layout.partition_by:
            if word == "ns":
                values = batch.column("ns")
            elif word == "date":
                values = batch.column("ts").cast(pa.timestamp("us")).cast(pa.date32()).cast(pa.string())
            else:
                values = _field(batch, columns, word)
            encoded = values.cast(pa.string()).dictionary_encode()
            field = _escaped(word)
            names = pa.array(
                [f"{field}={_escaped(one)}" for one in encoded.dictionary.to_pylist()], pa.string()
            )
            pieces.append(pc.fill_null(names.take(encoded.indices), f"{field}={NOWHERE}"))
        if not pieces:
            return pa.repeat(pa.scalar(""), batch.num_rows)
        return pc.binary_join_element_wise(*pieces, "/")

    def _write(self, key: tuple[str, str], rows: pa.RecordBatch) -> None:
        found = self._open.get(key)
        if found is None:
            if len(self._open) >= MOST_OPEN:
                self._close(next(iter(self._open)))
            directory = self._top / key[0]
            directory.mkdir(parents=True, exist_ok=True)
            found = self._open[key] = _Open(directory / f"{self._count:05d}{self._layout.ending}")
            self._count += 1
        found.held.append(rows)
        self._held += rows.nbytes
        if self._held > MOST_HELD:
            for one in self._open.values():
                self._flush(one)

    def _flush(self, file: _Open) -> None:
        if not file.held:
            return
        rows, file.held = file.held, []
        self._held -= sum(batch.nbytes for batch in rows)
        if self._layout.form == "jsonl":
            self._flush_lines(file, rows)
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.Table.from_batches([_plain(batch, self._layout) for batch in rows])
        if file.writer is None:
            codec = "snappy" if self._layout.codec == "none" else self._layout.codec
            file.writer = pq.ParquetWriter(
                file.path, table.schema, compression=codec, dictionary_pagesize_limit=DICTIONARY
            )
        file.writer.write_table(table)

    def _flush_lines(self, file: _Open, rows: Sequence[pa.RecordBatch]) -> None:
        if file.writer is None:
            file.writer = PartFile(file.path, self._layout.codec)
        for batch in rows:
            lines, _, _ = lines_of(batch, envelope=self._layout.envelope)
            file.writer.write(lines)

    def _close(self, key: tuple[str, str]) -> None:
        file = self._open.pop(key)
        self._flush(file)
        if file.writer is not None:
            file.writer.__exit__(None, None, None)


def _left(
    columns: pa.RecordBatch, batch: pa.RecordBatch, reasons: Mapping[int, str]
) -> tuple[pa.RecordBatch, Sequence[Refusal], pa.RecordBatch]:
    """Columns and rows without the messages that have one of these rows, and what is said of those."""
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets = batch.column("offset")
    gone = pc.is_in(offsets, offsets.take(pa.array(list(reasons), pa.int64())))
    left, refused = without(batch, dict(reasons))
    return columns.filter(pc.invert(gone)), refused, left


def _without_directory(paths: pa.Array) -> dict[int, str]:
    """Why rows have no place, by their index: the name of a directory can only be so long."""
    import numpy as np
    import pyarrow.compute as pc

    if (pc.max(pc.binary_length(paths)).as_py() or 0) <= LONGEST_NAME:
        return {}
    reasons: dict[int, str] = {}
    for path in pc.unique(paths).to_pylist():
        longest = max(path.split("/"), key=lambda part: len(part.encode()))
        if (size := len(longest.encode())) > LONGEST_NAME:
            field = longest.partition("=")[0]
            reason = f"field '{field}' is too long for a partition: a name of {size} bytes, {LONGEST_NAME} is the most"
            reasons |= dict.fromkeys(map(int, np.flatnonzero(pc.equal(paths, path))), reason)
    return reasons


def _plain(batch: pa.RecordBatch, layout: Layout) -> pa.RecordBatch:
    """Of a namespace without a schema: the document as text, and what tells of it if asked for."""
    import pyarrow as pa

    if "origin" not in batch.schema.names or "data" not in batch.schema.names:
        return batch
    names, columns = ["data"], [batch.column("data")]
    if layout.envelope:
        names += _META
        columns += [batch.column(of) for of in ("op", "ts", "ns", "offset")]
    return pa.RecordBatch.from_arrays(columns, names=names)


def _field(batch: pa.RecordBatch, columns: pa.RecordBatch, name: str) -> pa.Array:
    """The values of a field by which rows are parted."""
    import pyarrow as pa

    if columns is not batch and name in columns.schema.names:
        values = columns.column(name)
        if not pa.types.is_large_binary(values.type):
            return values
        shown = [None if one is None else base64.b64encode(one).decode() for one in values.to_pylist()]
        return pa.array(shown, pa.string())
    texts: list[str | None] = []
    for text in batch.column("data").to_pylist():
        try:
            value = msgspec.json.decode(text, type=dict[str, msgspec.Raw]).get(name)
        except (msgspec.DecodeError, RecursionError):
            value = None
        raw = b"null" if value is None else bytes(value)
        is_text = raw.startswith(b'"')
        texts.append(
            msgspec.json.decode(raw, type=str) if is_text else None if raw == b"null" else raw.decode()
        )
    return pa.array(texts, pa.string())


def _escaped(value: str) -> str:
    """A value as a part of the name of a directory."""
    return "".join(f"%{ord(one):02X}" if one in _UNSAFE else one for one in value) or NOWHERE
