"""The stager: messages become *events*, typed rows in Parquet files that Spark then reads.

An event says what happens to the row of one key, or adds a row where there are no keys:

    upsert      an insert or an update: the whole row
    delete      its key; of a row whose key changes, the old one, before the upsert under the new one
    truncate    nothing but its place

Beside its fields an event has its place in the log, by which the publisher orders it: the offset of its message, and
a number that grows inside the task. The columns are those that the source's schema asks for, and for a field that it
does not know, a kind that holds every value of the batch. What does not fit is refused, message by message.

A part is a directory. Each file has events of one namespace and one set of columns; what it is of stands in its
metadata (`About`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.adaptors.away import telling
from penstock.adaptors.base import Refusal, Schemas, Stage, Staged, Stager
from penstock.adaptors.changes import TRUNCATE, command_of
from penstock.adaptors.columns.rowcolumns import columns_of
from penstock.adaptors.growing import Seen
from penstock.adaptors.parts import whole_messages
from penstock.adaptors.staging import Tally
from penstock.log.schema import Field, KnownSchemas, Schema, Told

if TYPE_CHECKING:
    import pyarrow as pa

Mode = Literal["upsert", "append"]

OFFSET, ROW, KIND = "_penstock_offset", "_penstock_row", "_penstock_kind"
"""The columns that are not of the messages."""

METADATA = ("penstock_offset", "penstock_op", "penstock_ts")
"""The columns of the target in which `append` tells where a row comes from, if asked to."""

_ABOUT = b"penstock"
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class About(msgspec.Struct, frozen=True):
    """What the events of a file are of. `key` are the fields of the key; empty where rows are only added."""

    ns: str
    key: tuple[str, ...] = ()
    truncate: bool = False


@dataclass(frozen=True)
class Options:
    """How messages become events. `keys` are those of namespaces whose source names none, or another one."""

    mode: Mode = "upsert"
    metadata: bool = False
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)


class EventStager(Stager):
    """Writes the events of one task."""

    def __init__(self, options: Options, schemas: Schemas) -> None:
        self._options = options
        self._schemas = schemas

    def stage(self, stage: Stage, rows: Iterator[pa.RecordBatch]) -> Staged:
        tally = Tally(stage.skip_below)
        part = stage.directory / stage.name
        refused: list[Refusal] = []
        number = 0
        with telling(f"cannot write {part}"), _Files(part) as files:
            for batch in whole_messages(map(tally.fresh, rows)):
                taken, refusals = self._add(files, batch, number)
                number += 2 * batch.num_rows
                tally.add(taken)
                refused += refusals
        size = sum(path.stat().st_size for path in part.glob("*")) if part.exists() else 0
        return tally.staged(str(part) if size else "", size, refused)

    def _add(
        self, files: _Files, batch: pa.RecordBatch, number: int
    ) -> tuple[pa.RecordBatch, Sequence[Refusal]]:
        """Write the events of whole messages; the rows that were taken, and what was refused."""
        reasons, found = self._events(batch, number)
        if reasons:
            from penstock.adaptors.formats.linewriter import without

            # A message may have become several rows, of which one is refused: none of them is written then.
            taken, refusals = without(batch, reasons)
            again, found = self._events(taken, number)
            assert not again, "a row that was taken is refused"
        else:
            taken, refusals = batch, []
        for about, columns in found:
            files.write(about, columns)
        return taken, refusals

    def _events(
        self, batch: pa.RecordBatch, number: int
    ) -> tuple[dict[int, str], list[tuple[About, pa.RecordBatch]]]:
        """Why rows are refused, by their index in the batch; and the events of the others."""
        import pyarrow as pa

        from penstock.adaptors.formats.partition_stage import by_schema, by_value

        rows = batch.append_column(ROW, pa.array(range(batch.num_rows), pa.int64()))
        reasons: dict[int, str] = {}
        found: list[tuple[About, pa.RecordBatch]] = []
        for ns, of_ns in by_value(rows, "ns"):
            for origin, some in by_value(of_ns, "origin"):
                newest = self._schemas(origin)
                key = newest.key if newest is not None else ()
                for schema, of_schema in by_schema(some, self._schemas.told(origin)):
                    one = _Rows(self._options, ns, origin, schema, key, number)
                    found += one.events(of_schema)
                    reasons |= one.reasons
        return reasons, found


class _Rows:
    """Rows of one namespace, one origin and one schema. `reasons` says why some are refused.

    `key` is what the source now says: all rows of a batch are merged by one.
    """

    def __init__(
        self,
        options: Options,
        ns: str,
        origin: str,
        schema: Schema | None,
        key: tuple[str, ...],
        number: int,
    ) -> None:
        self._options = options
        self._ns, self._origin, self._schema, self._told_key = ns, origin, schema, key
        self._number = number
        self.reasons: dict[int, str] = {}

    def events(self, rows: pa.RecordBatch) -> list[tuple[About, pa.RecordBatch]]:
        key = self._key(rows) if self._options.mode == "upsert" else ()
        events = self._plain(rows) or self._each(rows)
        found = []
        if truncates := [event for event in events.other if event[0] == "truncate"]:
            found.append((About(self._ns, key, truncate=True), _places(truncates)))
        if len(events.texts):
            found.append((About(self._ns, key), self._typed(events, key)))
        return found

    def _key(self, rows: pa.RecordBatch) -> tuple[str, ...]:
        """The fields of the key: as the settings have it, the source, or the first message."""
        if self._ns in self._options.keys:
            return tuple(self._options.keys[self._ns])
        if self._told_key:
            return self._told_key
        texts = rows.column("key").drop_null()
        return tuple(_fields(texts[0].as_py())) if len(texts) else ()

    def _plain(self, rows: pa.RecordBatch) -> _Events | None:
        """Where all messages are inserts and updates that change no key, as is usual: without a look at each."""
        import pyarrow as pa
        import pyarrow.compute as pc

        written = pc.is_in(rows.column("op"), pa.array(["insert", "update"]))
        if not pc.all(written).as_py() or rows.column("old_key").null_count != rows.num_rows:
            return None
        place = pc.add(pc.multiply(rows.column(ROW), 2), self._number + 1)
        kinds = pa.repeat(pa.scalar("upsert"), rows.num_rows)
        return _Events(rows.column("data"), kinds, rows.column("offset"), place, rows.column(ROW), rows, [])

    def _each(self, rows: pa.RecordBatch) -> _Events:
        import pyarrow as pa

        events: list[tuple[str, int, int, str, int, int]] = []
        names = ("op", "offset", ROW, "key", "old_key", "data")
        columns = [rows.column(name).to_pylist() for name in names]
        for index, (op, offset, row, key, old_key, data) in enumerate(zip(*columns, strict=True)):
            place = self._number + 2 * row
            try:
                for step, (kind, text) in enumerate(self._event(op, key, old_key, data)):
                    events.append(
                        (kind, offset, place + 1 - (kind == "delete" and not step), text, row, index)
                    )
            except (ValueError, msgspec.DecodeError) as error:
                self.reasons[row] = str(error)
        typed = [event for event in events if event[0] != "truncate"]
        kinds, offsets, places, texts, origins, indices = zip(*typed, strict=True) if typed else [()] * 6
        return _Events(
            pa.array(texts, pa.string()), pa.array(kinds, pa.string()), pa.array(offsets, pa.int64()),
            pa.array(places, pa.int64()), pa.array(origins, pa.int64()),
            rows.take(pa.array(indices, pa.int64())), events,
        )  # fmt: skip

    def _event(self, op: str, key: str | None, old_key: str | None, data: str) -> list[tuple[str, str]]:
        """What a message comes to: kinds of events, and the fields of each as text."""
        if op in ("noop", "skip"):
            return []
        truncates = op == "command" and command_of(data) == TRUNCATE
        if op not in ("insert", "update", "delete") and not truncates:
            raise ValueError(
                "a command other than truncate" if op == "command" else f"'{op}' is no operation"
            )
        if self._options.mode == "append":
            if op not in ("insert", "update") and not self._options.metadata:
                raise ValueError(
                    f"mode='append' takes a {TRUNCATE if truncates else op} with metadata=True only"
                )
            return [("upsert", "{}" if truncates else data)]
        if truncates:
            return [("truncate", "{}")]
        if op == "delete":
            merged = {**(_fields(key) if key else {}), **_fields(data)}
            return [("delete", msgspec.json.encode(merged).decode())]
        before = [("delete", old_key)] if old_key is not None and old_key != key else []
        return [*before, ("upsert", data)]

    def _typed(self, events: _Events, key: tuple[str, ...]) -> pa.RecordBatch:
        """The events with their fields as columns; those that do not fit, or lack their key, are noted and left out."""
        import pyarrow as pa
        import pyarrow.compute as pc

        schema = self._known(events)
        found = columns_of(events.texts, schema)
        for index, reason in found.refused.items():
            self.reasons.setdefault(events.origins[index].as_py(), reason)
        columns = _for_spark(found.batch)
        self._check_key(events, columns, key)
        if self._options.mode == "append" and self._options.metadata:
            for name, of in zip(METADATA, ("offset", "op", "ts"), strict=True):
                columns = columns.append_column(name, events.rows.column(of))
        columns = columns.append_column(OFFSET, events.offsets)
        columns = columns.append_column(ROW, events.places)
        columns = columns.append_column(KIND, events.kinds)
        if not self.reasons:
            return columns
        gone = pa.array(list(self.reasons), pa.int64())
        return columns.filter(pc.invert(pc.is_in(events.origins, gone)))

    def _known(self, events: _Events) -> Schema:
        """The fields that these events have: of the kind that the source says, or one that holds all values."""
        known = {one.name for one in self._schema.fields} if self._schema is not None else set()
        present = _present(events.texts)
        if self._schema is not None and present <= known:
            fields = tuple(one for one in self._schema.fields if one.name in present)
        else:
            seen = Seen()
            for text in events.texts.to_pylist():
                seen.add(self._origin, 0, "insert", None, text)
            told = () if self._schema is None else (Told(0, self._schema),)
            fields = seen.schema(KnownSchemas({self._origin: told})).fields
        return Schema(tuple(self._told_apart(events, fields)))

    def _told_apart(self, events: _Events, fields: Sequence[Field]) -> Iterator[Field]:
        """Without those that Spark takes for others, since it does not look at the case of names."""
        first: dict[str, str] = {}
        for one in fields:
            name = first.setdefault(one.name.lower(), one.name)
            if name == one.name:
                yield one
            else:
                reason = f"the fields '{name}' and '{one.name}' differ in case alone"
                self._refuse_with(events, one.name, reason)

    def _refuse_with(self, events: _Events, name: str, reason: str) -> None:
        for row, text in zip(events.origins.to_pylist(), events.texts.to_pylist(), strict=True):
            if name in _fields(text):
                self.reasons.setdefault(row, reason)

    def _check_key(self, events: _Events, columns: pa.RecordBatch, key: tuple[str, ...]) -> None:
        import pyarrow.compute as pc

        if self._options.mode == "append":
            return
        if not key:
            reason = "the message has no key: name it with `keys`, or set mode='append'"
            self.reasons |= {row: self.reasons.get(row, reason) for row in events.origins.to_pylist()}
        for name in key:
            missing = columns.column(name).is_null() if name in columns.schema.names else None
            rows = events.origins if missing is None else events.origins.filter(missing)
            for row in pc.unique(rows).to_pylist():
                self.reasons.setdefault(row, f"the field '{name}' is missing or null, which is of the key")


@dataclass
class _Events:
    """Events as columns; `origins` are the indices of their rows, `rows` these rows, `other` those without fields."""

    texts: pa.Array
    kinds: pa.Array
    offsets: pa.Array
    places: pa.Array
    origins: pa.Array
    rows: pa.RecordBatch
    other: Sequence[tuple[str, int, int, str, int, int]]


class _Files:
    """The files of one part, one for each kind of events and set of columns; made when there is something for them."""

    def __init__(self, part: Path) -> None:
        self._part = part
        self._writers: dict[tuple[About, str], Any] = {}

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.close()

    def write(self, about: About, columns: pa.RecordBatch) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not columns.num_rows:
            return
        which = (about, str(columns.schema))
        if which not in self._writers:
            self._part.mkdir(parents=True, exist_ok=True)
            schema = columns.schema.with_metadata({_ABOUT: msgspec.json.encode(about)})
            path = self._part / f"{len(self._writers):05d}.parquet"
            # Spark reads no statistics of these files, and each is read once.
            self._writers[which] = pq.ParquetWriter(path, schema, compression="zstd", write_statistics=False)
        self._writers[which].write_table(pa.Table.from_batches([columns]))


def about(schema: pa.Schema) -> About:
    """What a file of a part is of, by its schema."""
    return msgspec.json.decode((schema.metadata or {})[_ABOUT], type=About)


def _places(events: Sequence[tuple[str, int, int, str, int, int]]) -> pa.RecordBatch:
    import pyarrow as pa

    _, offsets, places, *_ = zip(*events, strict=True)
    return pa.RecordBatch.from_pydict(
        {OFFSET: pa.array(offsets, pa.int64()), ROW: pa.array(places, pa.int64())}
    )


def _present(texts: pa.Array) -> set[str]:
    """The fields that any of these rows has."""
    names: set[str] = set()
    for text in texts.to_pylist():
        try:
            names.update(_fields(text))
        except msgspec.DecodeError:
            continue  # refused where it is read
    return names


def _for_spark(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same columns, in types that tables have: times of day and very long numbers as text."""
    import pyarrow as pa
    import pyarrow.types as pt

    columns = []
    for column in batch.columns:
        kind = column.type
        if pt.is_time(kind) or pt.is_null(kind) or pt.is_decimal256(kind):
            column = column.cast(pa.string())
        elif pt.is_uint64(kind):
            column = column.cast(pa.decimal128(20, 0))
        elif pt.is_large_string(kind):
            column = column.cast(pa.string())
        elif pt.is_large_binary(kind):
            column = column.cast(pa.binary())
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
