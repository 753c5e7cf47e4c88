"""What the tests of `delta`, `iceberg` and `jdbc` share: subjects of the kit that look at tables through Spark."""

from __future__ import annotations

import datetime as dt
import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.lake import CATALOG, DELTA, ICEBERG, version_of

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor
from penstock.log.schema import Field, Kind, Schema
from penstock.testing.adaptors import Can, Row, SinkSubject, SourceSubject, TypedDelivery, TypedRow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NO_SERVER = "a directory of files, not a server"
NOBODY = "tables keep their versions whether somebody has read them or not"

UTC = dt.UTC
TYPES: Mapping[str, tuple[Field, str, object]] = {
    # field, text in the message, what the table then holds
    "big": (Field("big", Kind.INT), "9223372036854775807", 9223372036854775807),
    "float": (Field("float", Kind.FLOAT), "0.1", 0.1),
    "whole": (Field("whole", Kind.FLOAT), "1.0", 1.0),
    "infinite": (Field("infinite", Kind.FLOAT), '{"$numberDouble":"-Infinity"}', float("-inf")),
    "exact": (Field("exact", Kind.DECIMAL, native="numeric(10,2)"), "12.50", Decimal("12.50")),
    "long": (Field("long", Kind.DECIMAL), "0." + "1234567890" * 5, "0." + "1234567890" * 5),
    "yes": (Field("yes", Kind.BOOL), "true", True),
    "word": (Field("word", Kind.STRING), r'"a \"b\"\n☃ 𝄞"', 'a "b"\n☃ 𝄞'),
    "nothing": (Field("nothing", Kind.STRING), "null", None),
    "bytes": (Field("bytes", Kind.BINARY), '{"$binary":{"base64":"AP8=","subType":"00"}}', b"\x00\xff"),
    "day": (Field("day", Kind.DATE), '{"$localDate":"2026-11-16"}', dt.date(2026, 11, 16)),
    "hour": (Field("hour", Kind.TIME), '{"$localTime":"02:14:14.123456"}', "02:14:14.123456"),
    "local": (
        Field("local", Kind.LOCAL_TIMESTAMP),
        '{"$localTimestamp":"2026-11-16T02:14:14.123456"}',
        dt.datetime(2026, 11, 16, 2, 14, 14, 123456),
    ),
    "moment": (
        Field("moment", Kind.TIMESTAMP),
        '{"$date":"2026-11-16T02:14:14.123456Z"}',
        dt.datetime(2026, 11, 16, 2, 14, 14, 123456, UTC),
    ),
    "mark": (
        Field("mark", Kind.UUID),
        '{"$uuid":"1fc2f65b-ef76-4981-8290-2f6ea12912d6"}',
        "1fc2f65b-ef76-4981-8290-2f6ea12912d6",
    ),
    "tree": (Field("tree", Kind.MAP), '{"a":[1.50,null]}', '{"a":[1.50,null]}'),
    "some": (Field("some", Kind.LIST, items=Kind.INT), "[1,2]", [1, 2]),
    "any": (Field("any", Kind.ANY), '"text"', '"text"'),
}


class LakeTarget(SinkSubject):
    """Tables that are written, and read through Spark."""

    patience = 60.0

    def __init__(self, spark: SparkSession, place: Path) -> None:
        self.spark = spark
        self.place = place

    @abstractmethod
    def table(self, ns: str) -> DataFrame | None:
        """The rows of a table; None if it is not there."""

    def make(self, word: str) -> str:
        return word

    def contents(self, ns: str) -> Sequence[Row]:
        table = self.table(ns)
        return [] if table is None else rows_of(table)

    def bad(self, ns: str) -> bytes:
        return b'{"id":666,"text":5}'

    def extra(self, ns: str, id: int) -> str | None:
        table = self.table(ns)
        assert table is not None
        (found,) = table.where(f"id = {id}").select("extra").collect()
        return None if found[0] is None else str(found[0])

    def typed(self, word: str) -> TypedDelivery:
        fields = [Field("id", Kind.INT), *(field for field, *_ in TYPES.values())]
        data = '{"id":1,' + ",".join(f'"{name}":{text}' for name, (_, text, _) in TYPES.items()) + "}"
        expected = {name: held for name, (*_, held) in TYPES.items()}
        return TypedDelivery(
            word,
            Schema(tuple(fields), ("id",)),
            data.encode(),
            b'{"id":1}',
            lambda: self.found(word),
            expected,
        )

    def found(self, ns: str) -> Mapping[str, object]:
        table = self.table(ns)
        assert table is not None
        (row,) = table.toArrow().to_pylist()
        return dict(row)


class DeltaTarget(LakeTarget):
    name = "delta"
    server = version_of(DELTA)
    cannot = {Can.RESTART: NO_SERVER}  # noqa: RUF012

    def adaptor(self) -> Adaptor:
        return a.delta(uri=str(self.place))

    def table(self, ns: str) -> DataFrame | None:
        if not (self.place / ns / "_delta_log").exists():
            return None
        return self.spark.read.format("delta").load(str(self.place / ns))

    def misconfigured(self) -> Mapping[str, Adaptor]:
        (self.place.parent / "file").touch()
        return {
            "a file": a.delta(uri=str(self.place.parent / "file")),
            "no such store": a.delta(uri="nowhere://lake"),
        }


class IcebergTarget(LakeTarget):
    name = "iceberg"
    server = version_of(ICEBERG)
    cannot = {Can.RESTART: NO_SERVER}  # noqa: RUF012

    def adaptor(self) -> Adaptor:
        return a.iceberg(catalog=CATALOG, database=self.place.name)

    def table(self, ns: str) -> DataFrame | None:
        name = f"{CATALOG}.`{self.place.name}`.{ns}"
        if not self.spark.catalog.tableExists(name):
            return None
        self.spark.sql(f"REFRESH TABLE {name}")  # a session remembers a table for a while
        return self.spark.table(name)

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return {"no such catalog": a.iceberg(catalog="elsewhere")}


def rows_of(table: DataFrame) -> list[Row]:
    found = table.select("id", "text").toArrow().to_pylist()
    return [Row(row["id"], row["text"]) for row in found]


class LakeTables(SourceSubject):
    """Tables that are read, and written through Spark's SQL."""

    patience = 60.0
    cannot = {  # noqa: RUF012
        Can.RESTART: NO_SERVER,
        Can.ACKNOWLEDGES: NOBODY,
        Can.REKEYS: "a version tells rows that are gone and rows that are new: a delete and an insert",
        Can.TRUNCATE: "a version tells which rows are gone: a delete for each",
    }

    def __init__(self, spark: SparkSession, place: Path) -> None:
        self.spark = spark
        self.place = place
        self.made: list[str] = []

    @abstractmethod
    def sql_name(self, ns: str) -> str:
        """The table as statements name it."""

    @abstractmethod
    def create(self, ns: str, columns: str) -> None:
        """Make an empty table."""

    def make(self, word: str) -> str:
        self.create(word, "id BIGINT, text STRING")
        self.made.append(word)
        return word

    def insert(self, ns: str, rows: Sequence[Row]) -> None:
        self.append(ns, rows_frame(self.spark, rows))

    def append(self, ns: str, frame: DataFrame) -> None:
        frame.writeTo(self.sql_name(ns)).append()

    def contents(self, ns: str) -> Mapping[int, str]:
        return {row.id: row.text for row in rows_of(self.spark.table(self.sql_name(ns)))}

    def update(self, ns: str, row: Row) -> None:
        self.spark.sql(f"UPDATE {self.sql_name(ns)} SET text = '{row.text}' WHERE id = {row.id}")

    def delete(self, ns: str, id: int) -> None:
        self.spark.sql(f"DELETE FROM {self.sql_name(ns)} WHERE id = {id}")

    def add_field(self, ns: str) -> None:
        self.spark.sql(f"ALTER TABLE {self.sql_name(ns)} ADD COLUMNS (extra STRING)")

    def insert_extra(self, ns: str, row: Row, extra: str) -> None:
        self.spark.sql(f"INSERT INTO {self.sql_name(ns)} VALUES ({row.id}, '{row.text}', '{extra}')")

    def typed(self, word: str) -> TypedRow:
        columns = ", ".join(f"`{name}` {kind}" for name, (kind, *_) in READ.items())
        self.create(word, f"id BIGINT, {columns}")
        self.made.append(word)
        values = ", ".join(value for _, value, *_ in READ.values())
        numbers = iter(range(1, 100))

        def insert() -> None:
            self.spark.sql(f"INSERT INTO {self.sql_name(word)} SELECT {next(numbers)}, {values}")

        texts = {name: text for name, (_, _, text, _) in READ.items()}
        return TypedRow(word, insert, texts, {name: kind for name, (*_, kind) in READ.items()})

    def keys(self) -> dict[str, list[str]]:
        return {ns: ["id"] for ns in self.made}


READ: Mapping[str, tuple[str, str, str, Kind]] = {
    # column: its type, a value in SQL, the text that it must have, its kind
    "whole": ("INT", "7", "7", Kind.INT),
    "double": ("DOUBLE", "0.1D", "0.1", Kind.FLOAT),
    "exact": ("DECIMAL(10,2)", "12.50", "12.50", Kind.DECIMAL),
    "yes": ("BOOLEAN", "true", "true", Kind.BOOL),
    "word": ("STRING", "'a \"b\" ☃'", json.dumps('a "b" ☃', ensure_ascii=False), Kind.STRING),
    "nothing": ("STRING", "NULL", "null", Kind.STRING),
    "bytes": ("BINARY", "X'00FF'", '{"$binary":{"base64":"AP8=","subType":"00"}}', Kind.BINARY),
    "day": ("DATE", "DATE'2026-11-16'", '{"$localDate":"2026-11-16"}', Kind.DATE),
    "moment": (
        "TIMESTAMP", "TIMESTAMP'2026-11-16 02:14:14.123456Z'", '{"$date":"2026-11-16T02:14:14.123456Z"}',
        Kind.TIMESTAMP,
    ),
    "local": (
        "TIMESTAMP_NTZ", "TIMESTAMP_NTZ'2026-11-16 02:14:14'", '{"$localTimestamp":"2026-11-16T02:14:14"}',
        Kind.LOCAL_TIMESTAMP,
    ),
    "some": ("ARRAY<INT>", "array(1, 2)", "[1,2]", Kind.LIST),
}  # fmt: skip


class DeltaTables(LakeTables):
    name = "delta"
    server = version_of(DELTA)

    def adaptor(self, *, tail: bool) -> Adaptor:
        return a.delta(uri=str(self.place), tail=tail, poll_interval=0.1, keys=self.keys())

    def sql_name(self, ns: str) -> str:
        return f"delta.`{self.place / ns}`"

    def create(self, ns: str, columns: str) -> None:
        self.spark.sql(
            f"CREATE TABLE {self.sql_name(ns)} ({columns}) USING delta "
            "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        )

    def append(self, ns: str, frame: DataFrame) -> None:
        frame.write.format("delta").mode("append").save(str(self.place / ns))

    def misconfigured(self) -> Mapping[str, Adaptor]:
        (self.place.parent / "file").touch()
        return {
            "a file": a.delta(uri=str(self.place.parent / "file")),
            "no such store": a.delta(uri="nowhere://lake"),
        }


class IcebergTables(LakeTables):
    name = "iceberg"
    server = version_of(ICEBERG)

    def adaptor(self, *, tail: bool) -> Adaptor:
        place = self.place.name
        return a.iceberg(catalog=CATALOG, database=place, tail=tail, poll_interval=0.1, keys=self.keys())

    def sql_name(self, ns: str) -> str:
        return f"{CATALOG}.`{self.place.name}`.{ns}"

    def create(self, ns: str, columns: str) -> None:
        self.spark.sql(f"CREATE TABLE {self.sql_name(ns)} ({columns}) USING iceberg")

    def contents(self, ns: str) -> Mapping[int, str]:
        self.spark.sql(f"REFRESH TABLE {self.sql_name(ns)}")
        return super().contents(ns)

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return {"no such catalog": a.iceberg(catalog="elsewhere")}


def rows_frame(spark: SparkSession, rows: Iterable[Row]) -> DataFrame:
    """Rows in one partition, in their order."""
    import pyarrow as pa

    rows = list(rows)
    table = pa.table(
        {"id": pa.array([row.id for row in rows], pa.int64()), "text": [row.text for row in rows]}
    )
    return spark.createDataFrame(table).coalesce(1)
