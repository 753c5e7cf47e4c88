"""Tables that are not there yet, or lack columns: made by the publisher, inside the transaction that fills them.

Rows for such a table were staged as they came (`RawTable`). What columns it gets, `penstock.adaptors.growing` says.
A table that the source knows all about is there already (`sink_create`).
What the server then does not take is refused with its offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from penstock.adaptors.base import Schemas
from penstock.adaptors.postgres.sink_create import create, schema_of
from penstock.adaptors.postgres.sink_rows import Lines
from penstock.adaptors.postgres.sink_stage import RAW, SHIFT, Options, StageTable
from penstock.adaptors.postgres.sink_table import (
    Name,
    Table,
    add_statement,
    create_statement,
    tables_of,
)
from penstock.base.errors import RefusedError, UsageError
from penstock.log.schema import Schema

if TYPE_CHECKING:
    import psycopg

AT_ONCE = 5_000
"""Rows that are read back from the server at a time."""


class Grower:
    """Makes tables, and columns of rows that were staged as they came."""

    def __init__(self, connection: psycopg.Connection[Any], options: Options, schemas: Schemas) -> None:
        self._connection = connection
        self._options = options
        self._schemas = schemas

    def convert(self, target: Name, raws: Sequence[Name], number: int) -> tuple[Table, StageTable]:
        """The table as it now is, and its rows in a temporary staging table."""
        options = self._options
        append = options.mode == "append"
        schema = schema_of(self._read(raws), self._schemas, append=append, metadata=options.metadata)
        table = tables_of(self._connection, [target]).get(target)
        if table is None:
            self._create(target, schema)
        else:
            self._add(table, schema)
        table = tables_of(self._connection, [target])[target]
        stage = StageTable.make(self._connection, Name("pg_temp", f"grown_{number}"), table, temporary=True)
        self._fill(raws, stage)
        return table, stage

    def _create(self, target: Name, schema: Schema) -> None:
        if not self._options.create_tables:
            statement = create_statement(self._connection, target, schema)
            raise UsageError(
                f"table {target} does not exist", hint=f"set create_tables=True, or make it: {statement}"
            )
        create(self._connection, target, schema)

    def _add(self, table: Table, schema: Schema) -> None:
        known = table.names | table.computed
        added = [field for field in schema.fields if field.name not in known]
        if added and self._options.add_columns:
            self._connection.execute(add_statement(self._connection, table.name, added))

    def _fill(self, raws: Sequence[Name], stage: StageTable) -> None:
        converter = self._options.converter(stage.table)
        for lines in self._read(raws):
            converted = converter.convert(lines, grow=False)
            assert converted is not None
            refused = [*converted.refused, *lines.offsets_of(stage.copy(converted.blocks))]
            if refused:
                offset, origin, error = min(refused)
                raise RefusedError(f"message {offset} of namespace '{origin}': {error}")

    def _read(self, raws: Sequence[Name]) -> Iterator[Lines]:
        import numpy as np
        import pyarrow as pa

        for raw in raws:
            with self._connection.cursor("raw") as cursor:
                cursor.execute(f"SELECT {', '.join(RAW)} FROM {raw.sql} ORDER BY n")
                while rows := cursor.fetchmany(AT_ONCE):
                    columns = list(map(list, zip(*rows, strict=True)))
                    numbers = np.array(columns[0], np.int64)
                    batch = pa.record_batch([pa.array(column) for column in columns[1:]], names=list(RAW[1:]))
                    yield Lines(batch, numbers, SHIFT, several=False)
