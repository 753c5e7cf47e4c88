"""A PostgreSQL database that tests write to: what the kit has to know about it, and a sink driven by hand."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
from tests.servers.postgres import PASSWORD, PostgresServer

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor, Publisher, Refusal, SinkPosition, Stage, Staged
from penstock.adaptors.postgres.sink import PostgresPublisher
from penstock.log.message import Message, Op
from penstock.log.schema import Field, Kind, Schema
from penstock.testing.adaptors import SINK, Can, Row, SinkSubject, TypedDelivery
from penstock.testing.adaptors.delivery import GivenSchemas, batch_of

DATABASE = "written"
_numbers = itertools.count()

LITERAL = '{"$oid": "507f1f77bcf86cd799439011"}'

TYPES = {
    # field: (type at the target, kind, text in the message, what the target prints)
    "small": ("smallint", Kind.INT, "-32768", "-32768"),
    "big": ("bigint", Kind.INT, "9223372036854775807", "9223372036854775807"),
    "exact": ("numeric", Kind.DECIMAL, "12.50", "12.50"),
    "long": ("numeric", Kind.DECIMAL, "0." + "1234567890" * 5, "0." + "1234567890" * 5),
    "huge": ("numeric", Kind.DECIMAL, "1180591620717411303424", "1180591620717411303424"),
    "nan": ("numeric", Kind.DECIMAL, '{"$numberDecimal":"NaN"}', "NaN"),
    "float": ("double precision", Kind.FLOAT, "0.1", "0.1"),
    "infinite": ("double precision", Kind.FLOAT, '{"$numberDouble":"-Infinity"}', "-Infinity"),
    "real": ("real", Kind.FLOAT, "1e10", "1e+10"),
    "yes": ("boolean", Kind.BOOL, "true", "true"),
    "word": ("varchar(20)", Kind.STRING, r'"a \"b\"\n\\N\t☃ 𝄞"', 'a "b"\n\\N\t☃ 𝄞'),
    "nothing": ("text", Kind.STRING, "null", None),
    "null": ("text", Kind.STRING, '"null"', "null"),
    "empty": ("text", Kind.STRING, '""', ""),
    "bytes": ("bytea", Kind.BINARY, '{"$binary":{"base64":"AP9c","subType":"00"}}', "\\x00ff5c"),
    "day": ("date", Kind.DATE, '{"$localDate":"2026-11-16"}', "2026-11-16"),
    "hour": ("time", Kind.TIME, '{"$localTime":"02:14:14.123456"}', "02:14:14.123456"),
    "zoned": ("timetz", Kind.TIME, '{"$time":"02:14:14+01:00"}', "02:14:14+01"),
    "local": (
        "timestamp",
        Kind.LOCAL_TIMESTAMP,
        '{"$localTimestamp":"2026-11-16T02:14:14.123456"}',
        "2026-11-16 02:14:14.123456",
    ),
    "moment": (
        "timestamptz",
        Kind.TIMESTAMP,
        '{"$date":"2026-11-16T02:14:14.123456+01:00"}',
        "2026-11-16 01:14:14.123456+00",
    ),
    "mark": (
        "uuid",
        Kind.UUID,
        '{"$uuid":"1fc2f65b-ef76-4981-8290-2f6ea12912d6"}',
        "1fc2f65b-ef76-4981-8290-2f6ea12912d6",
    ),
    "tree": ("jsonb", Kind.MAP, r'{"a":[1.50,null,"\n"],"":{}}', '{"": {}, "a": [1.50, null, "\\n"]}'),
    "asis": ("json", Kind.MAP, '{"b":1,"a":1.0,"b":2}', '{"b":1,"a":1.0,"b":2}'),
    "literal": (
        "jsonb",
        Kind.MAP,
        '{"$literal":{"$oid":"507f1f77bcf86cd799439011"}}',
        '{"$oid": "507f1f77bcf86cd799439011"}',
    ),
    "ints": ("integer[]", Kind.LIST, "[1,null,3]", "{1,NULL,3}"),
    "none": ("integer[]", Kind.LIST, "[]", "{}"),
    "words": ("text[]", Kind.LIST, r'["a,b","","NULL","q\"\\"]', r'{"a,b","","NULL","q\"\\"}'),
    "grid": ("numeric[]", Kind.LIST, "[[1.50,2],[3,4]]", "{{1.50,2},{3,4}}"),
    "moments": (
        "timestamptz[]",
        Kind.LIST,
        '[{"$date":"2026-11-16T02:14:14Z"}]',
        '{"2026-11-16 02:14:14+00"}',
    ),
    "address": ("inet", Kind.STRING, '"10.0.0.1/8"', "10.0.0.1/8"),
    "span": ("interval", Kind.STRING, '"1 day 02:03:04.5"', "1 day 02:03:04.5"),
    "range": ("int4range", Kind.STRING, '"[1,5)"', "[1,5)"),
    "bits": ("bit(3)", Kind.STRING, '"101"', "101"),
}
"""A field of each type."""


class PostgresTarget(SinkSubject):
    """Tables and a schema for positions of its own for each test, in one database."""

    name = "postgres"
    can = SINK
    cannot: Mapping[Can, str] = {}
    secret = PASSWORD

    def __init__(self, server: PostgresServer, **settings: object) -> None:
        self.server = server.version
        self._process = server
        self.own_schema = f"own{next(_numbers)}"
        self._settings = {
            "create_tables": True,
            "add_columns": True,
            "own_schema": self.own_schema,
            **settings,
        }
        self.database = DATABASE
        self.uri = server.uri(DATABASE)
        if not server.query(f"SELECT FROM pg_database WHERE datname = '{DATABASE}'"):
            server.database(DATABASE)

    def adaptor(self) -> Adaptor:
        return a.postgres(uri=self.uri, **self._settings)

    def make(self, word: str) -> str:
        return f"public.{word}"

    def contents(self, ns: str) -> Sequence[Row]:
        schema, table = ns.split(".")
        if self.query(f"SELECT to_regclass('{schema}.{table}')") == [(None,)]:
            return []
        return [Row(*row) for row in self.query(f'SELECT id, text FROM "{schema}"."{table}"')]

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        return self._process.query(statement, self.database)

    def execute(self, *statements: str) -> None:
        self._process.execute(*statements, database=self.database)

    def bad(self, ns: str) -> bytes:
        return rb'{"id":666,"text":"\u0000"}'

    def extra(self, ns: str, id: int) -> str | None:
        ((found,),) = self.query(f"SELECT extra FROM {ns} WHERE id = {id}")
        return found if found is None else str(found)

    def typed(self, word: str) -> TypedDelivery:
        columns = ", ".join(f'"{name}" {type}' for name, (type, *_) in TYPES.items())
        self.execute(f"CREATE TABLE public.{word} (id int PRIMARY KEY, {columns})")
        fields = [Field("id", Kind.INT), *(Field(name, kind) for name, (_, kind, *_) in TYPES.items())]
        data = '{"id":1,' + ",".join(f'"{name}":{text}' for name, (_, _, text, _) in TYPES.items()) + "}"
        return TypedDelivery(
            f"public.{word}", Schema(tuple(fields), ("id",)), data.encode(), b'{"id":1}',
            lambda: self._printed(word), {name: shown for name, (*_, shown) in TYPES.items()},
        )  # fmt: skip

    def _printed(self, table: str) -> Mapping[str, object]:
        names = ", ".join(f'"{name}"::text' for name in TYPES)
        with psycopg.connect(self.uri, options="-c datestyle=ISO -c timezone=UTC -c intervalstyle=postgres "
                             "-c bytea_output=hex -c extra_float_digits=1") as connection:  # fmt: skip
            row = connection.execute(f"SELECT {names} FROM {table}").fetchone()
        assert row is not None
        return dict(zip(TYPES, row, strict=True))

    def leftovers(self) -> Sequence[str]:
        found = self.query(
            "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
            f"WHERE relname LIKE 'grown%' OR (relname LIKE 'stage%' AND nspname = '{self.own_schema}')"
        )
        return [name for (name,) in found]

    def misconfigured(self) -> Mapping[str, Adaptor]:
        port = self._process.port
        return {
            "wrong password": a.postgres(
                uri=f"postgresql://nobody:{PASSWORD}@127.0.0.1:{port}/{self.database}"
            ),
            "no such database": a.postgres(uri=self._process.uri("nowhere")),
            "nobody listens": a.postgres(uri=f"postgresql://owner:{PASSWORD}@127.0.0.1:1/x", timeout=1.0),
        }

    def stop_server(self) -> None:
        self._process.kill()

    def start_server(self) -> None:
        self._process.start()

    def died(self, publisher: Publisher) -> None:
        assert isinstance(publisher, PostgresPublisher)
        publisher.close()


class Writer:
    """A sink driven by hand: each call of `write` is a batch, staged in two parts and published.

    With a `directory`, what tasks leave there is there for the publisher, too.
    """

    def __init__(
        self, target: PostgresTarget, name: str = "shop.db", directory: Path | None = None, **settings: object
    ) -> None:
        self.target = target
        self._directory = directory
        self.end = 0
        self.schemas: dict[str, Schema] = {}
        self.sink = a.postgres(**{"uri": target.uri, "own_schema": target.own_schema, **settings}).sink()
        self.sink.use(GivenSchemas(self.schemas), name)
        self.publisher = self.sink.publisher()
        self.at = self.publisher.open(SinkPosition("log", 0, 0))

    def stage(self, *messages: Message, parts: int = 2, ahead: int = 0) -> list[Staged]:
        """A batch that begins where the last one ended, or so many messages behind that."""
        size = -(-len(messages) // parts)
        staged = []
        for begin in range(0, len(messages), max(size, 1)):
            batch = batch_of(messages[begin : begin + size], self.end + ahead + begin)
            stage = Stage(
                self._directory or Path("/nowhere"), f"part{next(_numbers)}", 0, begin=self.end + ahead,
                shared=self._directory is not None,
            )  # fmt: skip
            staged.append(self.sink.stager().stage(stage, iter([batch])))
        return staged

    def write(self, *messages: Message, parts: int = 2) -> list[Refusal]:
        staged = self.stage(*messages, parts=parts)
        self.end += len(messages)
        self.publisher.publish([part for part in staged if part.part], SinkPosition("log", 0, self.end))
        return [refusal for part in staged for refusal in part.refused]

    def reopen(self) -> None:
        """As the runner does after any failure."""
        self.publisher.close()
        self.publisher = self.sink.publisher()
        self.publisher.open(SinkPosition("log", 0, self.end))

    def close(self) -> None:
        self.publisher.close()


def sent(ns: str, data: str, op: Op = Op.INSERT, key: str | None = None, old: str | None = None) -> Message:
    """A message about a row; its key is the field `id` if not given."""
    return Message(ns, data.encode(), op, 1_750_000_000_000_000, key=key.encode() if key else None,
                   old_key=old.encode() if old else None)  # fmt: skip
