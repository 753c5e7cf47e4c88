"""MySQL and MariaDB as the conformance kit needs them, as sink."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal

import msgspec
from tests.servers.mariadb import PASSWORD, MySqlServer

from penstock import adaptors
from penstock.adaptors.base import Adaptor, Publisher
from penstock.log.schema import Field, Kind, Schema
from penstock.log.values import Value, encode_document
from penstock.testing.adaptors.subject import Row, SinkSubject, TypedDelivery

TYPES: Mapping[str, tuple[str, Kind, Value, object]] = {
    "tiny": ("tinyint", Kind.INT, -128, -128),
    "yes": ("boolean", Kind.BOOL, True, 1),
    "unsigned": ("bigint unsigned", Kind.DECIMAL, 18446744073709551615, 18446744073709551615),
    "bit": ("bit(10)", Kind.INT, 513, b"\x02\x01"),
    "double": ("double", Kind.FLOAT, 0.1, 0.1),
    "price": ("decimal(12,2)", Kind.DECIMAL, Decimal("1.50"), Decimal("1.50")),
    "day": ("date", Kind.DATE, dt.date(2026, 11, 16), dt.date(2026, 11, 16)),
    "no_day": ("date", Kind.DATE, "0000-00-00", None),
    "clock": ("time(6)", Kind.TIME, dt.time(2, 14, 14, 5), dt.timedelta(seconds=8054, microseconds=5)),
    "long": ("time", Kind.TIME, "-838:59:59", -dt.timedelta(hours=838, minutes=59, seconds=59)),
    "local": ("datetime(6)", Kind.LOCAL_TIMESTAMP, dt.datetime(2026, 11, 16, 2, 14, 14, 5),
              dt.datetime(2026, 11, 16, 2, 14, 14, 5)),
    "moment": ("timestamp(6) NULL", Kind.TIMESTAMP, dt.datetime(2026, 11, 16, 2, 14, 14, 5, tzinfo=dt.UTC),
               dt.datetime(2026, 11, 16, 2, 14, 14, 5)),
    "words": ("text", Kind.STRING, '"a\\b\n☃ 😀 %s', '"a\\b\n☃ 😀 %s'),
    "latin": ("varchar(20) CHARACTER SET latin1", Kind.STRING, "é€", "é€"),
    "nothing": ("text", Kind.STRING, None, None),
    "empty": ("text", Kind.STRING, "", ""),
    "raw": ("varbinary(10)", Kind.BINARY, b"\x00\xff'\\", b"\x00\xff'\\"),
    "mood": ("enum('so so','it''s')", Kind.STRING, "it's", "it's"),
    "several": ("set('x','y','z')", Kind.STRING, "x,z", "x,z"),
    "place": ("geometry", Kind.BINARY, bytes.fromhex("0101000000000000000000f03f0000000000000040"),
              bytes.fromhex("000000000101000000000000000000f03f0000000000000040")),
    "document": ("json", Kind.ANY, {"$date": "x", "a": [1, None]}, {"$date": "x", "a": [1, None]}),
}  # fmt: skip
"""By column: its type, the kind and the value in the message, and what a query must then give."""


class MySqlTarget(SinkSubject):
    """A database of the server. Tables are made by the subject, all but the last kind by their types."""

    name = "mysql"
    secret = PASSWORD

    def __init__(self, server: MySqlServer, database: str) -> None:
        self.server = server.version
        self._server, self._database = server, database
        if not server.query(f"SHOW DATABASES LIKE '{database}'"):
            server.database(database)
        server.execute("DROP TABLE IF EXISTS penstock_positions", database=database)

    def adaptor(self) -> Adaptor:
        return adaptors.mysql(uri=self._server.uri(self._database), add_columns=True)

    def make(self, word: str) -> str:
        self._server.execute(
            f"DROP TABLE IF EXISTS {word}",
            f"CREATE TABLE {word} (id bigint PRIMARY KEY, text longtext)",
            database=self._database,
        )
        return f"shop.{word}"

    def contents(self, ns: str) -> Sequence[Row]:
        table = ns.partition(".")[2]
        if not self._server.query(f"SHOW TABLES LIKE '{table}'", database=self._database):
            return []
        return [
            Row(*row) for row in self._server.query(f"SELECT id, text FROM {table}", database=self._database)
        ]

    def bad(self, ns: str) -> bytes:
        return b'{"id":666,"text":{"$binary":{"base64":"AP8=","subType":"00"}}}'

    def typed(self, word: str) -> TypedDelivery:
        columns = ", ".join(f"`{name}` {about[0]}" for name, about in TYPES.items())
        table = f"{word}_types"
        self._server.execute(
            f"DROP TABLE IF EXISTS {table}",
            f"CREATE TABLE {table} (id int PRIMARY KEY, {columns})",
            database=self._database,
        )
        fields = [Field("id", Kind.INT), *(Field(name, about[1]) for name, about in TYPES.items())]
        data = encode_document({"id": 1, **{name: about[2] for name, about in TYPES.items()}})
        return TypedDelivery(
            f"shop.{table}",
            Schema(tuple(fields), ("id",)),
            data,
            b'{"id":1}',
            lambda: self._typed_row(table),
            {name: about[3] for name, about in TYPES.items()},
        )

    def _typed_row(self, table: str) -> Mapping[str, object]:
        names = list(TYPES)
        listed = ", ".join(f"`{name}`" for name in names)
        ((*row,),) = self._server.query(f"SELECT {listed} FROM {table}", database=self._database)
        found = dict(zip(names, row, strict=True))
        found["document"] = msgspec.json.decode(found["document"])
        found["no_day"] = None if str(found["no_day"]) in ("None", "0000-00-00") else found["no_day"]
        return found

    def extra(self, ns: str, id: int) -> str | None:
        table = ns.partition(".")[2]
        rows = self._server.query(f"SELECT extra FROM {table} WHERE id = {id}", database=self._database)
        return None if not rows or rows[0][0] is None else str(rows[0][0])

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return {
            "wrong password": adaptors.mysql(uri=self._server.uri(self._database, password=f"not{PASSWORD}")),
            "no such database": adaptors.mysql(uri=self._server.uri("nowhere")),
            "nobody listens": adaptors.mysql(uri=f"mysql://owner:{PASSWORD}@127.0.0.1:1/x", timeout=2.0),
        }

    def stop_server(self) -> None:
        self._server.kill()

    def start_server(self) -> None:
        self._server.start()

    def died(self, publisher: Publisher) -> None:
        publisher.close()
