"""MySQL and MariaDB as the conformance kit needs them, as source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from tests.adaptors.relational_subject import RelationalSubject, Types, inserted
from tests.servers.mariadb import MARIADB, PASSWORD, MySqlServer

from penstock import adaptors
from penstock.adaptors.base import Adaptor
from penstock.log.schema import Kind
from penstock.testing.adaptors.subject import Can, Row, TypedRow

_POINT = "ST_GeomFromText('POINT(1 2)'{})"
_WKB = "AQEAAAAAAAAAAADwPwAAAAAAAABA"

TYPES: Types = {
    "tiny": ("tinyint", "-128", "-128", Kind.INT),
    "yes": ("boolean", "true", "1", Kind.INT),
    "year": ("year", "2026", "2026", Kind.INT),
    "no_year": ("year", "0", "0", Kind.INT),
    "medium": ("mediumint unsigned", "16777215", "16777215", Kind.INT),
    "filled": ("int(8) zerofill", "42", "42", Kind.INT),
    "big": ("bigint", "-9223372036854775808", "-9223372036854775808", Kind.INT),
    "unsigned": ("bigint unsigned", "18446744073709551615", "18446744073709551615", Kind.DECIMAL),
    "bit": ("bit(10)", "b'1000000001'", "513", Kind.INT),
    "bits": ("bit(64)", "b'1'", "1", Kind.DECIMAL),
    "single": ("float", "1.1", "1.100000023841858", Kind.FLOAT),
    "double": ("double", "0.1", "0.1", Kind.FLOAT),
    "large": ("double", "1e300", "1e300", Kind.FLOAT),
    "price": ("decimal(12,2)", "1.50", "1.50", Kind.DECIMAL),
    "digits": ("decimal(65,30)", "-12345678901234567890.000000000000000000000000000001",
               "-12345678901234567890.000000000000000000000000000001", Kind.DECIMAL),
    "nine": ("decimal(9,9)", "0.123456789", "0.123456789", Kind.DECIMAL),
    "whole": ("decimal(20,0)", "-12345678901234567890", "-12345678901234567890", Kind.DECIMAL),
    "day": ("date", "'2026-11-16'", '{"$localDate":"2026-11-16"}', Kind.DATE),
    "no_day": ("date", "'0000-00-00'", '"0000-00-00"', Kind.DATE),
    "half_a_day": ("date", "'2026-02-00'", '"2026-02-00"', Kind.DATE),
    "clock": ("time", "'02:14:14'", '{"$localTime":"02:14:14"}', Kind.TIME),
    "exact_clock": ("time(6)", "'02:14:14.123456'", '{"$localTime":"02:14:14.123456"}', Kind.TIME),
    "long": ("time", "'838:59:59'", '"838:59:59"', Kind.TIME),
    "negative": ("time(3)", "'-01:02:03.5'", '"-01:02:03.500000"', Kind.TIME),
    "local": ("datetime", "'2026-11-16 02:14:14'", '{"$localTimestamp":"2026-11-16T02:14:14"}', Kind.LOCAL_TIMESTAMP),
    "exact": ("datetime(6)", "'9999-12-31 23:59:59.999999'", '{"$localTimestamp":"9999-12-31T23:59:59.999999"}',
              Kind.LOCAL_TIMESTAMP),
    "tenth": ("datetime(1)", "'2026-11-16 02:14:14.5'", '{"$localTimestamp":"2026-11-16T02:14:14.500000"}',
              Kind.LOCAL_TIMESTAMP),
    "no_time": ("datetime", "'0000-00-00 00:00:00'", '"0000-00-00 00:00:00"', Kind.LOCAL_TIMESTAMP),
    "moment": ("timestamp(6) NULL", "'2026-11-16 02:14:14.123456'", '{"$date":"2026-11-16T02:14:14.123456Z"}',
               Kind.TIMESTAMP),
    "no_moment": ("timestamp NULL", "'0000-00-00 00:00:00'", '"0000-00-00 00:00:00"', Kind.TIMESTAMP),
    "words": ("text", "'\"a\\\\b\\nc ☃ 😀'", '"\\"a\\\\b\\nc ☃ 😀"', Kind.STRING),
    "null_word": ("varchar(10)", "'null'", '"null"', Kind.STRING),
    "nothing": ("varchar(10)", "NULL", "null", Kind.STRING),
    "empty": ("varchar(500)", "''", '""', Kind.STRING),
    "padded": ("char(5)", "'ab'", '"ab"', Kind.STRING),
    "latin": ("varchar(20) CHARACTER SET latin1", "'é€ÿ'", '"é€ÿ"', Kind.STRING),
    "latin_char": ("char(200) CHARACTER SET latin1", "'ü'", '"ü"', Kind.STRING),
    "cyrillic": ("text CHARACTER SET cp1251", "'Жук'", '"Жук"', Kind.STRING),
    "wide": ("varchar(20) CHARACTER SET utf16", "'é😀'", '"é😀"', Kind.STRING),
    "kanji": ("varchar(20) CHARACTER SET sjis", "'日本'", '"日本"', Kind.STRING),
    "raw": ("varbinary(10)", "x'00ff00'", '{"$binary":{"base64":"AP8A","subType":"00"}}', Kind.BINARY),
    "fixed": ("binary(4)", "x'0100'", '{"$binary":{"base64":"AQAAAA==","subType":"00"}}', Kind.BINARY),
    "blob": ("mediumblob", "x'deadbeef'", '{"$binary":{"base64":"3q2+7w==","subType":"00"}}', Kind.BINARY),
    "no_bytes": ("blob", "''", '{"$binary":{"base64":"","subType":"00"}}', Kind.BINARY),
    "mood": ("enum('so so','it''s','ü')", "'it''s'", '"it\'s"', Kind.STRING),
    "latin_mood": ("enum('ä','b') CHARACTER SET latin1", "'ä'", '"ä"', Kind.STRING),
    "no_mood": ("enum('a')", "''", '""', Kind.STRING),
    "several": ("set('x','y','z')", "'x,z'", '"x,z"', Kind.STRING),
    "none_of_them": ("set('x','y')", "''", '""', Kind.STRING),
    "place": ("geometry", _POINT.format(""), f'{{"$binary":{{"base64":"{_WKB}","subType":"00"}}}}', Kind.BINARY),
    "place_on_earth": ("point", _POINT.format(", 3857"),
                       '{"$binary":{"base64":"AQEAACARDwAAAAAAAAAA8D8AAAAAAAAAQA==","subType":"00"}}', Kind.BINARY),
    "twice": ("int AS (tiny * 2) STORED", "DEFAULT", "-256", Kind.INT),
    "when_read": ("int AS (tiny * 3) VIRTUAL", "DEFAULT", "-384", Kind.INT),
    'Ünïcode "100 %"': ("int", "1", "1", Kind.INT),
}  # fmt: skip

MARIADB_TYPES: Types = {
    "document": ("json", "'{\"b\": 1.0}'", '"{\\"b\\": 1.0}"', Kind.STRING),
    "uuid": ("uuid", "'6CCD780C-BABA-1026-9564-5B8C656024DB'", '{"$uuid":"6ccd780c-baba-1026-9564-5b8c656024db"}',
             Kind.UUID),
    "random_uuid": ("uuid", "'f0000000-0000-4000-8000-000000000000'",
                    '{"$uuid":"f0000000-0000-4000-8000-000000000000"}', Kind.UUID),
    "host": ("inet6", "'2001:db8::ff00:42:8329'", '"2001:db8::ff00:42:8329"', Kind.STRING),
    "old_host": ("inet4", "'192.168.0.1'", '"192.168.0.1"', Kind.STRING),
}  # fmt: skip

MYSQL_TYPES: Types = {
    "document": ("json", "'{\"b\": 1.0, \"aa\":  [1,-5,70000,3000000000,18446744073709551615,1e30,null,true,\"é\"]}'",
                 '{"b":1.0,"aa":[1,-5,70000,3000000000,18446744073709551615,1e30,null,true,"é"]}', Kind.ANY),
    "list": ("json", "'[]'", "[]", Kind.ANY),
    "word": ("json", "'\"x\"'", '"x"', Kind.ANY),
    "looks_typed": ("json", "'{\"$oid\":\"0123456789abcdef01234567\"}'",
                    '{"$literal":{"$oid":"0123456789abcdef01234567"}}', Kind.ANY),
    "computed": ("json", "JSON_OBJECT('n', CAST(1.50 AS DECIMAL(5,2)), 'd', CAST('2026-11-16' AS DATE), "
                 "'t', CAST('2026-11-16 02:14:14.5' AS DATETIME(6)), 'l', CAST('-01:02:03' AS TIME(6)), "
                 "'raw', CAST('x' AS BINARY))",
                 '{"d":"2026-11-16","l":"-01:02:03.000000","n":1.5,"t":"2026-11-16 02:14:14.500000",'
                 '"raw":"base64:type15:eA=="}', Kind.ANY),
}  # fmt: skip


class MySqlSubject(RelationalSubject):
    """A database of the server."""

    name = "mysql"
    secret = PASSWORD
    cannot = {Can.ACKNOWLEDGES: "a server keeps its binlog for as long as it is set to, read or not"}  # noqa: RUF012
    extra_column = "extra text FIRST"

    def __init__(self, server: MySqlServer, database: str) -> None:
        super().__init__(server, server.version, database, server.uri(database))
        self._server = server
        if not server.query(f"SHOW DATABASES LIKE '{database}'"):
            server.database(database)

    def adaptor(self, *, tail: bool) -> Adaptor:
        return adaptors.mysql(uri=self.uri, tail=tail)

    def make(self, word: str) -> str:
        self.execute(f"CREATE TABLE {word} (id int PRIMARY KEY, text longtext)")
        return f"{self._database}.{word}"

    def insert(self, ns: str, rows: Sequence[Row]) -> None:
        with closing(self._server.connect()) as connection, connection.cursor() as cursor:
            connection.begin()
            cursor.executemany(*inserted(ns, rows))
            connection.commit()

    def typed(self, word: str) -> TypedRow:
        types = {**TYPES, **(MARIADB_TYPES if self._server.flavour is MARIADB else MYSQL_TYPES)}
        return self.typed_table(f"{self._database}.{word}_types", "int AUTO_INCREMENT", types)

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return {
            "wrong password": adaptors.mysql(uri=self._server.uri(self._database, password=f"not{PASSWORD}")),
            "nobody listens": adaptors.mysql(
                uri=f"mysql://owner:{PASSWORD}@127.0.0.1:1/{self._database}", timeout=2.0
            ),
        }

    def quoted(self, name: str) -> str:
        return f"`{name}`"

    def execute(self, statement: str, *parameters: object) -> None:
        with closing(self._server.connect(self._database)) as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00', sql_mode = ''")
            cursor.execute(statement, parameters or None)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        return self._server.query(statement)
