"""A broker with journals, and the data source's readers on it as Spark would drive them, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.datasource import DataSourceReader

from penstock.journal import labels
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.fragment import Codec
from penstock.journal.protocol import JournalSpec
from penstock.spark.source import PenstockSource

NOW = 1_700_000_000_123_456

KINDS = {
    "BIGINT": st.LongType(),
    "INT": st.IntegerType(),
    "STRING": st.StringType(),
    "BINARY": st.BinaryType(),
    "DOUBLE": st.DoubleType(),
    "DATE": st.DateType(),
    "TIMESTAMP": st.TimestampType(),
    "BOOLEAN": st.BooleanType(),
}


def schema_of(text: str) -> st.StructType:
    pairs = (column.split(" ") for column in text.split(", "))
    return st.StructType([st.StructField(name, KINDS[kind]) for name, kind in pairs])


def rows_of(reader: DataSourceReader) -> list[tuple[Any, ...]]:
    """All rows of a batch read."""
    found: list[tuple[Any, ...]] = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            assert isinstance(batch, pa.RecordBatch)
            found += [tuple(row.values()) for row in batch.to_pylist()]
    return found


@dataclass
class Place:
    path: Path
    client: Client

    def create(self, name: str, length: int = 1 << 20) -> None:
        spec = JournalSpec(name=name, replication=1, labels=labels.label_set({"app": "test"}))
        spec.fragment.length = length
        spec.fragment.compression_codec = Codec.NONE.to_proto()
        spec.fragment.stores.append("file:///")
        spec.fragment.refresh_interval.FromSeconds(300)
        assert self.client.create(spec)

    def source(self, **options: object) -> PenstockSource:
        return PenstockSource({"dataDir": str(self.path), **{name: str(v) for name, v in options.items()}})

    def read(self, schema: str | None = None, **options: object) -> list[tuple[Any, ...]]:
        source = self.source(**options)
        return rows_of(source.reader(schema_of(schema or source.schema())))

    def trim(self, name: str, offset: int) -> None:
        self.client.roll(name)
        self.client.trim(name, offset)


class Stream:
    """A stream reader as Spark drives it: each batch begins where the one before ended."""

    def __init__(self, place: Place, schema: str | None = None, **options: object) -> None:
        source = place.source(wait=0.05, **options)
        self.reader = source.streamReader(schema_of(schema or source.schema()))
        self.position = self.reader.initialOffset()

    def batch(self) -> list[tuple[Any, ...]]:
        end = self.reader.latestOffset(self.position, self.reader.getDefaultReadLimit())
        found: list[tuple[Any, ...]] = []
        for partition in self.reader.partitions(self.position, end) if end != self.position else ():
            for batch in self.reader.read(partition):
                assert isinstance(batch, pa.RecordBatch)
                found += [tuple(row.values()) for row in batch.to_pylist()]
        self.position = end
        return found


@contextmanager
def opened(path: Path) -> Iterator[Place]:
    with EmbeddedBroker(path) as broker, Client(broker.address) as client:
        yield Place(path, client)
