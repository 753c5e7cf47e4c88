"""Subjects of the conformance kit that need no server: `generate`, `sqlite` as a source, `file` as a sink."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

import msgspec

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor, Publisher
from penstock.adaptors.file.sink import FilePublisher
from penstock.adaptors.generate import Texts
from penstock.log.message import Message
from penstock.log.schema import Field, Kind, Schema
from penstock.testing.adaptors import (
    Can,
    Holds,
    Row,
    SinkSubject,
    SourceSubject,
    TypedDelivery,
    TypedRow,
)


class GenerateSubject(SourceSubject):
    """The rows are those that `generate` makes; to insert is to ask for more of them."""

    name = "generate"
    cannot = MappingProxyType(
        {
            Can.NAMESPACES: "its namespaces take turns",
            Can.TAIL: "there is nothing to follow",
            Can.ADDED: "there is nothing to follow",
            Can.UPDATES: "only inserts",
            Can.DELETES: "only inserts",
            Can.REKEYS: "only inserts",
            Can.TRUNCATE: "only inserts",
            Can.TYPES: "one kind of document",
            Can.FIELDS: "one kind of document",
            Can.CLEAN: "there is nothing to follow",
            Can.TRANSACTIONS: "there is nothing to follow",
            Can.ACKNOWLEDGES: "nobody to tell",
            Can.RESTART: "no server",
            Can.CONNECTS: "connects to nothing",
            Can.HUGE: "makes up its texts",
            Can.OVERSIZE: "refuses such a size in its settings",
        }
    )
    key = ()

    def __init__(self) -> None:
        self._ns = "generated"
        self._count = 0

    def adaptor(self, *, tail: bool) -> Adaptor:
        return a.generate(count=self._count, namespaces=[self._ns], size=1200)

    def make(self, word: str) -> str:
        self._ns, self._count = word, 0
        return word

    def insert(self, ns: str, rows: Sequence[Row]) -> None:
        self._count += len(rows)

    def contents(self, ns: str) -> Mapping[int, str]:
        texts = Texts(0, 1200)
        documents = [
            msgspec.json.decode(texts[number], type=dict[str, object]) for number in range(self._count)
        ]
        return {number: str(document["text"]) for number, document in enumerate(documents)}

    def row(self, message: Message) -> Row:
        document = msgspec.json.decode(message.data, type=dict[str, object])
        return Row(int(str(document["seq"])), str(document["text"]))


class SqliteSubject(SourceSubject):
    """A database file; every namespace is a table."""

    name = "sqlite"
    server = f"SQLite {sqlite3.sqlite_version}"
    cannot = MappingProxyType(
        {
            Can.UPDATES: "it sees rows that are added with larger keys, and nothing else",
            Can.DELETES: "it sees rows that are added with larger keys, and nothing else",
            Can.REKEYS: "it sees rows that are added with larger keys, and nothing else",
            Can.TRUNCATE: "it sees rows that are added with larger keys, and nothing else",
            Can.TRANSACTIONS: "it sees rows, and not who wrote them together",
            Can.ACKNOWLEDGES: "nobody to tell",
            Can.RESTART: "no server",
        }
    )
    patience = 10.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._typed = 0
        with closing(self._connected()) as connection:
            connection.execute("PRAGMA journal_mode = WAL")

    def adaptor(self, *, tail: bool) -> Adaptor:
        return a.sqlite(uri=f"sqlite://{self._path}", tail=tail, poll_interval=0.05)

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return {"no such file": a.sqlite(uri=f"sqlite://{self._path.with_name('elsewhere.db')}")}

    def make(self, word: str) -> str:
        self._do(f'CREATE TABLE "{word}" (id INTEGER PRIMARY KEY, text TEXT)')
        return word

    def insert(self, ns: str, rows: Sequence[Row]) -> None:
        with closing(self._connected()) as connection, connection:
            connection.executemany(f'INSERT INTO "{ns}" (id, text) VALUES (?, ?)', rows)

    def contents(self, ns: str) -> Mapping[int, str]:
        with closing(self._connected()) as connection:
            return dict(connection.execute(f'SELECT id, text FROM "{ns}"'))

    def typed(self, word: str) -> TypedRow:
        columns = "id INTEGER PRIMARY KEY, n INTEGER, r REAL, t TEXT, b BLOB, empty TEXT"
        self._do(f'CREATE TABLE "{word}" ({columns})')
        values = "9223372036854775807, 0.1, 'it''s', x'00ff', NULL"
        expected = {
            "n": "9223372036854775807",
            "r": "0.1",
            "t": '"it\'s"',
            "b": '{"$binary":{"base64":"AP8=","subType":"00"}}',
            "empty": "null",
        }

        def insert() -> None:
            self._do(f'INSERT INTO "{word}" (n, r, t, b, empty) VALUES ({values})')

        return TypedRow(word, insert, expected, {"n": Kind.INT, "r": Kind.FLOAT, "t": Kind.STRING})

    def add_field(self, ns: str) -> None:
        self._do(f'ALTER TABLE "{ns}" ADD COLUMN extra TEXT')

    def insert_extra(self, ns: str, row: Row, extra: str) -> None:
        self._do(f'INSERT INTO "{ns}" (id, text, extra) VALUES (?, ?, ?)', *row, extra)

    def _do(self, statement: str, *values: object) -> None:
        with closing(self._connected()) as connection, connection:
            connection.execute(statement, values)

    def _connected(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30)


class FileTarget(SinkSubject):
    """One file of lines; its envelope says to which namespace each belongs."""

    name = "file"
    holds = Holds.MESSAGES
    cannot = MappingProxyType({Can.RESTART: "no server", Can.TRUNCATE: "a command is a line like any other"})

    def __init__(self, directory: Path) -> None:
        self._target = directory / "out.jsonl"

    def adaptor(self) -> Adaptor:
        return a.file(uri=f"file://{self._target}", envelope=True)

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return {"no such directory": a.file(uri=f"file://{self._target.parent / 'not' / 'there.jsonl'}")}

    def make(self, word: str) -> str:
        return word

    def contents(self, ns: str) -> Sequence[Row]:
        return [Row(int(str(one["id"])), str(one.get("text", ""))) for one in self._documents(ns)]

    def bad(self, ns: str) -> bytes:
        return b'{"id":666,\n"text":'

    def typed(self, word: str) -> TypedDelivery:
        data = b'{"n":1.50,"big":123456789012345678901234567890,"t":"x","none":null,"list":[1,{"a":2}]}'
        expected = {"n": "1.50", "big": "123456789012345678901234567890", "t": '"x"', "none": "null"}
        schema = Schema(tuple(Field(name, Kind.ANY) for name in expected))

        def read() -> Mapping[str, object]:
            (line,) = self._target.read_bytes().splitlines()
            found = msgspec.json.decode(
                msgspec.json.decode(line, type=dict[str, msgspec.Raw])["data"], type=dict[str, msgspec.Raw]
            )
            return {name: bytes(raw).decode() for name, raw in found.items()}

        return TypedDelivery(word, schema, data, None, read, expected)

    def extra(self, ns: str, id: int) -> str | None:
        (found,) = [one for one in self._documents(ns) if one["id"] == id]
        return str(found["extra"])

    def died(self, publisher: Publisher) -> None:
        assert isinstance(publisher, FilePublisher)
        if publisher._file is not None:
            os.close(publisher._file.fileno())
            publisher._file = None

    def _documents(self, ns: str) -> list[dict[str, object]]:
        if not self._target.exists():
            return []
        lines = [msgspec.json.decode(line) for line in self._target.read_bytes().splitlines()]
        return [line["data"] for line in lines if line["ns"] == ns]
