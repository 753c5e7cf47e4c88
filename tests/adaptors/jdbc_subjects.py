"""What the tests of `jdbc` share: PostgreSQL through its JDBC driver, looked at past Spark."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import psycopg
from tests.adaptors.lake_subjects import READ, TYPES
from tests.servers.postgres import PASSWORD, USER

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor
from penstock.adaptors.jdbc.connection import DRIVERS
from penstock.log.schema import Field, Kind, Schema
from penstock.testing.adaptors import Can, Row, SinkSubject, SourceSubject, TypedDelivery, TypedRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.servers.postgres import PostgresServer

_numbers = itertools.count()
COPIES = "it copies, and follows nothing"
LATER = (
    Can.TAIL, Can.ADDED, Can.UPDATES, Can.DELETES, Can.REKEYS, Can.TRUNCATE, Can.CLEAN, Can.TRANSACTIONS,
    Can.ACKNOWLEDGES, Can.FIELDS,
)  # fmt: skip
"""What comes behind a copy."""


def add_driver(spark: SparkSession) -> None:
    """Give the driver of PostgreSQL to a session that runs: to this JVM, and to the tasks."""
    from tests.servers.lake import jars_of

    for jar in jars_of(DRIVERS["postgresql"].coordinate).split(","):
        jvm = spark._jvm
        assert jvm is not None
        jvm.java.lang.Thread.currentThread().getContextClassLoader().addURL(jvm.java.net.URL(f"file:{jar}"))
        spark.sparkContext._jsc.sc().addJar(jar)


class _Database:
    """A new database of the server."""

    secret = PASSWORD
    patience = 30.0

    def __init__(self, postgres: PostgresServer, **settings: object) -> None:
        self._postgres = postgres
        self.server = f"{postgres.version}, {DRIVERS['postgresql'].coordinate.partition(':')[2]}"
        self.database = f"jdbc{next(_numbers)}"
        postgres.database(self.database)
        uri = f"jdbc:postgresql://127.0.0.1:{postgres.port}/{self.database}"
        self.settings: dict[str, object] = {"uri": uri, "user": USER, "password": PASSWORD, **settings}

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """As psycopg reads it, which knows times in ISO style alone."""
        options = "-c datestyle=ISO -c timezone=UTC"
        with psycopg.connect(self._postgres.uri(self.database), options=options) as connection:
            return connection.execute(statement).fetchall()

    def execute(self, *statements: str) -> None:
        self._postgres.execute(*statements, database=self.database)

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return {
            "wrong password": a.jdbc(**{**self.settings, "password": "quite-another-word"}),
            "nobody listens": a.jdbc(**{**self.settings, "uri": "jdbc:postgresql://127.0.0.1:9/shop"}),
            "no such database": a.jdbc(**{**self.settings, "uri": f"{self.settings['uri']}x"}),
            "no such driver": a.jdbc(**self.settings, driver="com.example.Driver"),
        }

    def leftovers(self) -> Sequence[str]:
        found = self.query(
            "SELECT relname FROM pg_class WHERE relname LIKE 'penstock_stage%' AND relkind = 'r'"
        )
        return [name for (name,) in found]

    def stop_server(self) -> None:
        self._postgres.kill()

    def start_server(self) -> None:
        self._postgres.start()


class JdbcTarget(_Database, SinkSubject):
    """A database that is written."""

    name = "jdbc"

    def adaptor(self) -> Adaptor:
        return a.jdbc(**self.settings)

    def make(self, word: str) -> str:
        return word

    def contents(self, ns: str) -> Sequence[Row]:
        if not self.query(f"SELECT 1 FROM pg_class WHERE relname = '{ns}'"):
            return []
        return [Row(*row) for row in self.query(f'SELECT id, text FROM "{ns}"')]

    def bad(self, ns: str) -> bytes:
        return b'{"id":666,"text":5}'

    def extra(self, ns: str, id: int) -> str | None:
        ((found,),) = self.query(f'SELECT extra FROM "{ns}" WHERE id = {id}')
        return None if found is None else str(found)

    def typed(self, word: str) -> TypedDelivery:
        fields = [Field("id", Kind.INT), *(field for field, *_ in TYPES.values())]
        data = '{"id":1,' + ",".join(f'"{name}":{text}' for name, (_, text, _) in TYPES.items()) + "}"
        expected = {name: held for name, (*_, held) in TYPES.items()}
        schema = Schema(tuple(fields), ("id",))
        return TypedDelivery(word, schema, data.encode(), b'{"id":1}', lambda: self._found(word), expected)

    def _found(self, word: str) -> Mapping[str, object]:
        names = ", ".join(f'"{name}"' for name in TYPES)
        (row,) = self.query(f'SELECT {names} FROM "{word}"')
        return dict(zip(TYPES, row, strict=True))


class JdbcTables(_Database, SourceSubject):
    """A database that is read."""

    name = "jdbc"
    cannot: Mapping[Can, str] = MappingProxyType(dict.fromkeys(LATER, COPIES))

    def adaptor(self, *, tail: bool) -> Adaptor:
        return a.jdbc(**self.settings, range_rows=500)

    def make(self, word: str) -> str:
        self.execute(f'CREATE TABLE "{word}" (id BIGINT PRIMARY KEY, text TEXT)')
        return f"public.{word}"

    def insert(self, ns: str, rows: Sequence[Row]) -> None:
        statement = f'COPY "{ns.partition(".")[2]}" (id, text) FROM STDIN'
        with (
            psycopg.connect(self._postgres.uri(self.database)) as connection,
            connection.cursor() as cursor,
            cursor.copy(statement) as copy,
        ):
            for row in rows:
                copy.write_row(row)

    def contents(self, ns: str) -> Mapping[int, str]:
        return dict(self.query(f'SELECT id, text FROM "{ns.partition(".")[2]}"'))

    def typed(self, word: str) -> TypedRow:
        kinds = {
            "DOUBLE": "double precision",
            "STRING": "text",
            "BINARY": "bytea",
            "TIMESTAMP": "timestamptz",
        }
        kinds |= {"TIMESTAMP_NTZ": "timestamp", "ARRAY<INT>": "int[]"}
        values = {
            "bytes": "'\\x00FF'",
            "double": "0.1",
            "local": "TIMESTAMP '2026-11-16 02:14:14'",
            "some": "ARRAY[1,2]",
        }
        values["moment"] = "TIMESTAMPTZ '2026-11-16 02:14:14.123456Z'"
        columns = ", ".join(f'"{name}" {kinds.get(kind, kind)}' for name, (kind, *_) in READ.items())
        self.execute(f'CREATE TABLE "{word}" (id SERIAL PRIMARY KEY, {columns})')
        given = ", ".join(values.get(name, value) for name, (_, value, *_) in READ.items())
        names = ", ".join(f'"{name}"' for name in READ)
        return TypedRow(
            f"public.{word}",
            lambda: self.execute(f'INSERT INTO "{word}" ({names}) VALUES ({given})'),
            {name: text for name, (_, _, text, _) in READ.items()},
            {name: kind for name, (*_, kind) in READ.items()},
        )
