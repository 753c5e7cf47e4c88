"""The Spark data source `penstock`: a commit log or any journal as a DataFrame, read and written, batch and stream.

    spark.readStream.format("penstock").option("dataDir", ".penstock").option("pipeline", "shop").load()
    frame.write.format("penstock").option("dataDir", ".penstock").option("journal", "orders").mode("append").save()

Spark finds it by itself (`pyspark_penstock`); where it does not, `spark.dataSource.register(PenstockSource)` tells it.
Options are in `options.py`, and as a table in `docs/spark.md`; what rows look like is in `formats.py`; what a read
covers is in `planning.py`; writing is in `writer.py`. This module is what Spark calls. It is imported by every process
that Spark starts for a query, so what only some of them need is imported where it is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.base import faults
from penstock.spark.formats import check_schema, default_schema, read_range
from penstock.spark.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.spark.endsearch import Limits
    from penstock.spark.planner import Place, Plan


class PenstockSource(DataSource):
    """See the module's text."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = SourceOptions.parse(dict(options))

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> str:
        return default_schema(self._parsed.content)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BatchReader(self._parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return _StreamReader(self._parsed, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.writer import BatchWriter

        return BatchWriter(self._parsed, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from penstock.spark.writer import StreamWriter

        return StreamWriter(self._parsed, schema, overwrite=overwrite)


class _BatchReader(DataSourceReader):
    """A batch read: from the start asked for to the end of the journal as it is now."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(options, schema)
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        from penstock.spark.planning import planner

        return planner(self._options, stream=False).batch()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._schema, partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Planning lives in one process for as long as the query does; reading in tasks."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(options, schema)
        self._options = options
        self._schema = schema
        self._target: Place | None = None

    @functools.cached_property
    def _planner(self) -> Plan:
        from penstock.spark.planning import planner

        return planner(self._options, stream=True)

    def initialOffset(self) -> Place:  # noqa: N802
        return self._planner.start()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._planner.heads()

    def latestOffset(self, start: Place, limit: ReadLimit) -> Place:  # noqa: N802
        """The end of the next batch. With nothing new it waits in the broker rather than in a loop."""
        with faults.step("plan"):
            heads = self._planner.more(start) if self._target is None else self._target
            return self._planner.next(start, heads, self._limits(limit))

    def partitions(self, start: Place, end: Place) -> Sequence[InputPartition]:
        return self._planner.ranges(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._schema, partition, stream=True)

    def commit(self, end: Place) -> None:
        """Nothing hangs on it: Spark's checkpoint, or a pipeline's offset log, says what was read."""

    def stop(self) -> None:
        """The connection is the process's, and other queries may use it."""

    def _limits(self, limit: ReadLimit) -> Limits:
        from penstock.spark.endsearch import Limits

        if isinstance(limit, ReadAllAvailable):
            return Limits(None, None)
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_messages
        return Limits(max_bytes, max_rows)
