"""PostgreSQL as the conformance kit needs it, and small helpers for the tests of its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from tests.adaptors.relational_subject import RelationalSubject, Types, inserted
from tests.servers.postgres import PASSWORD, PostgresServer

from penstock import adaptors
from penstock.adaptors.base import Adaptor
from penstock.log.schema import Kind
from penstock.testing.adaptors.subject import Row, TypedRow

TYPES: Types = {
    "small": ("smallint", "-32768", "-32768", Kind.INT),
    "big": ("bigint", "9223372036854775807", "9223372036854775807", Kind.INT),
    "single": ("real", "7", "7.0", Kind.FLOAT),
    "double": ("double precision", "0.1", "0.1", Kind.FLOAT),
    "not_a_number": ("double precision", "'NaN'", '{"$numberDouble":"NaN"}', Kind.FLOAT),
    "endless": ("double precision", "'-Infinity'", '{"$numberDouble":"-Infinity"}', Kind.FLOAT),
    "price": ("numeric(12,2)", "1.50", "1.50", Kind.DECIMAL),
    "digits": ("numeric", "123456789012345678901234567890.000000000001",
               "123456789012345678901234567890.000000000001", Kind.DECIMAL),
    "no_number": ("numeric", "'NaN'", '{"$numberDecimal":"NaN"}', Kind.DECIMAL),
    "huge": ("numeric", "'-Infinity'", '{"$numberDecimal":"-Infinity"}', Kind.DECIMAL),
    "cash": ("money", "-1234567.89", "-1234567.89", Kind.DECIMAL),
    "yes": ("boolean", "true", "true", Kind.BOOL),
    "no": ("boolean", "false", "false", Kind.BOOL),
    "words": ("text", "E'\"a\\\\b\\nc\\t☃\\u0001'", '"\\"a\\\\b\\nc\\t☃\\u0001"', Kind.STRING),
    "null_word": ("text", "'null'", '"null"', Kind.STRING),
    "nothing": ("text", "NULL", "null", Kind.STRING),
    "empty": ("varchar(10)", "''", '""', Kind.STRING),
    "padded": ("char(5)", "'ab'", '"ab   "', Kind.STRING),
    "letter": ('"char"', "'x'", '"x"', Kind.STRING),
    "raw": ("bytea", "'\\xdeadbeef'", '{"$binary":{"base64":"3q2+7w==","subType":"00"}}', Kind.BINARY),
    "no_bytes": ("bytea", "''", '{"$binary":{"base64":"","subType":"00"}}', Kind.BINARY),
    "day": ("date", "'2026-11-16'", '{"$localDate":"2026-11-16"}', Kind.DATE),
    "ides": ("date", "'0044-03-15 BC'", '"0044-03-15 BC"', Kind.DATE),
    "no_day": ("date", "'infinity'", '"infinity"', Kind.DATE),
    "clock": ("time", "'02:14:14.123456'", '{"$localTime":"02:14:14.123456"}', Kind.TIME),
    "midnight": ("time", "'24:00:00'", '"24:00:00"', Kind.TIME),
    "zoned_clock": ("timetz", "'02:14:14+05:30'", '{"$time":"02:14:14+05:30"}', Kind.TIME),
    "local": ("timestamp", "'2026-11-16 02:14:14.5'", '{"$localTimestamp":"2026-11-16T02:14:14.5"}',
              Kind.LOCAL_TIMESTAMP),
    "long_ago": ("timestamp", "'0044-03-15 12:00 BC'", '"0044-03-15 12:00:00 BC"', Kind.LOCAL_TIMESTAMP),
    "moment": ("timestamptz", "'2026-11-16 02:14:14.123456+01'", '{"$date":"2026-11-16T01:14:14.123456Z"}',
               Kind.TIMESTAMP),
    "never": ("timestamptz", "'infinity'", '"infinity"', Kind.TIMESTAMP),
    "far": ("timestamptz", "'12345-01-01 00:00+00'", '"12345-01-01 00:00:00+00"', Kind.TIMESTAMP),
    "span": ("interval", "'1 year 2 mons 3 days 04:05:06.5'", '"P1Y2M3DT4H5M6.5S"', Kind.STRING),
    "id_of": ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", '{"$uuid":"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}',
              Kind.UUID),
    "document": ("json", "'{\"b\": 1.0, \"a\":  [1,null,\"x\"]}'", '{"b": 1.0, "a":  [1,null,"x"]}', Kind.ANY),
    "list": ("json", "'[1, 2]'", "[1, 2]", Kind.ANY),
    "binary_document": ("jsonb", "'{\"b\":1.0,\"a\":1e2}'", '{"a": 100, "b": 1.0}', Kind.ANY),
    "looks_typed": ("jsonb", "'{\"$oid\":\"0123456789abcdef01234567\"}'",
                    '{"$literal":{"$oid":"0123456789abcdef01234567"}}', Kind.ANY),
    "lines": ("json", "E'{\\n\"a\":1}'", '{ "a":1}', Kind.ANY),
    "numbers": ("int[]", "'{1,NULL,3}'", "[1,null,3]", Kind.LIST),
    "none_of_them": ("int[]", "'{}'", "[]", Kind.LIST),
    "nested": ("int[]", "'{{1,2},{3,4}}'", "[[1,2],[3,4]]", Kind.LIST),
    "from_zero": ("int[]", "'[0:1]={1,2}'", "[1,2]", Kind.LIST),
    "texts": ("text[]", "ARRAY['a,b', 'c\"d', 'e\\f', '{}', 'NULL', NULL, '', 'x\ny']",
              '["a,b","c\\"d","e\\\\f","{}","NULL",null,"","x\\ny"]', Kind.LIST),
    "dates": ("date[]", "'{2026-11-16,infinity}'", '[{"$localDate":"2026-11-16"},"infinity"]', Kind.LIST),
    "flags": ("bool[]", "'{t,f,NULL}'", "[true,false,null]", Kind.LIST),
    "blobs": ("bytea[]", "ARRAY['\\x00ff'::bytea]", '[{"$binary":{"base64":"AP8=","subType":"00"}}]', Kind.LIST),
    "sums": ("money[]", "ARRAY[1234.5::money]", "[1234.50]", Kind.LIST),
    "documents": ("jsonb[]", "ARRAY['{\"a\": 1}'::jsonb]", '[{"a": 1}]', Kind.LIST),
    "host": ("inet", "'192.168.1.5'", '"192.168.1.5"', Kind.STRING),
    "net": ("cidr", "'10.0.0.0/8'", '"10.0.0.0/8"', Kind.STRING),
    "hosts": ("inet[]", "'{192.168.1.5,10.0.0.0/8}'", '["192.168.1.5","10.0.0.0/8"]', Kind.LIST),
    "bits": ("bit varying(8)", "B'1010'", '"1010"', Kind.STRING),
    "range": ("int4range", "'[1,5)'", '"[1,5)"', Kind.STRING),
    "lexemes": ("tsvector", "'fat cat'", "\"'cat' 'fat'\"", Kind.STRING),
    "point": ("point", "'(1,2)'", '"(1,2)"', Kind.STRING),
    "mood": ("kit_mood", "'so so'", '"so so"', Kind.STRING),
    "positive": ("kit_positive", "5", "5", Kind.INT),
    "code": ("kit_code", "'ab'", '"ab  "', Kind.STRING),
    "pair": ("kit_pair", "ROW(1, 'a b')", '"(1,\\"a b\\")"', Kind.STRING),
    "pairs": ("kit_pair[]", "ARRAY[ROW(1, 'a')::public.kit_pair]", '["(1,a)"]', Kind.LIST),
    "Ünïcode \"name\"": ("text", "'x'", '"x"', Kind.STRING),
    "oid_of": ("oid", "4294967295", "4294967295", Kind.INT),
}  # fmt: skip

SETUP = (
    "CREATE TYPE kit_mood AS ENUM ('so so', 'well')",
    "CREATE DOMAIN kit_positive AS int CHECK (value > 0)",
    "CREATE DOMAIN kit_code AS char(4)",
    "CREATE TYPE kit_pair AS (a int, b text)",
)


def quoted(name: str) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split(".", 1))


class PostgresSubject(RelationalSubject):
    """A database of the server."""

    name = "postgres"
    secret = PASSWORD

    def __init__(self, server: PostgresServer, database: str) -> None:
        super().__init__(server, server.version, database, server.uri(database))
        self._server = server
        self._written = "0/0"
        if not self.query("SELECT 1 FROM pg_type WHERE typname = 'kit_mood'"):
            server.execute(*SETUP, database=database)

    def adaptor(self, *, tail: bool) -> Adaptor:
        return adaptors.postgres(uri=self.uri, tail=tail, range_bytes=1024 * 1024)

    def make(self, word: str) -> str:
        self.execute(f"CREATE TABLE public.{word} (id int PRIMARY KEY, text text)")
        return f"public.{word}"

    def insert(self, ns: str, rows: Sequence[Row]) -> None:
        with psycopg.connect(self.uri) as connection:
            connection.cursor().executemany(*inserted(ns, rows))
            found = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            self._written = found[0] if found else "0/0"

    def typed(self, word: str) -> TypedRow:
        return self.typed_table(f"public.{word}_{id(self)}", "serial", TYPES)

    def held_back(self) -> int:
        """Bytes from what is acknowledged to just before the end of the last transaction that `insert` made."""
        found = self.query(
            f"SELECT pg_wal_lsn_diff('{self._written}', confirmed_flush_lsn) FROM pg_replication_slots "
            "WHERE slot_name = 'penstock_kit_source'"
        )
        return max(0, int(found[0][0])) if found else 0

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return {
            "wrong password": adaptors.postgres(uri=self._server.uri(self._database, password=f"no-{PASSWORD}")),
            "no such database": adaptors.postgres(uri=self._server.uri("nowhere")),
            "nobody listens": adaptors.postgres(
                uri=f"postgresql://owner:{PASSWORD}@127.0.0.1:1/{self._database}", timeout=2.0
            ),
        }  # fmt: skip

    def leftovers(self) -> Sequence[str]:
        slots = self.query("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
        publications = self.query("SELECT pubname FROM pg_publication")
        return [row[0] for row in slots + publications]

    def quoted(self, name: str) -> str:
        return quoted(name)

    def execute(self, statement: str, *parameters: object) -> None:
        with psycopg.connect(self.uri, autocommit=True) as connection:
            connection.execute(statement, parameters or None)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        return self._server.query(statement, database=self._database)
