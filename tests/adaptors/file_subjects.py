"""Subjects of the conformance kit: files of each format in directories and under prefixes, read and written."""

from __future__ import annotations

import csv
import gzip
import os
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor, Publisher
from penstock.adaptors.file.sink import FilePublisher
from penstock.adaptors.formats.partition_sink import PartitionPublisher
from penstock.adaptors.s3.objects import Objects
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

Document = dict[str, object]

NO_CHANGES = MappingProxyType(
    {
        Can.UPDATES: "rows are added, nothing else",
        Can.DELETES: "rows are added, nothing else",
        Can.REKEYS: "rows are added, nothing else",
        Can.TRUNCATE: "rows are added, nothing else",
        Can.TRANSACTIONS: "rows are added, nothing else",
        Can.ACKNOWLEDGES: "nobody to tell",
        Can.RESTART: "no server",
    }
)


def as_lines(documents: Sequence[Document]) -> bytes:
    return b"".join(msgspec.json.encode(one) + b"\n" for one in documents)


def as_csv(documents: Sequence[Document]) -> bytes:
    rows: list[list[object]] = [list(documents[0]), *(list(one.values()) for one in documents)]
    return "".join(",".join(map(_quoted, row)) + "\n" for row in rows).encode()


def _quoted(value: object) -> str:
    return '"' + str(value).replace('"', '""') + '"'


def as_parquet(documents: Sequence[Document]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(documents)), sink, row_group_size=1000)
    content: bytes = sink.getvalue().to_pybytes()
    return content


WRITERS: Mapping[str, Callable[[Sequence[Document]], bytes]] = {
    "jsonl": as_lines,
    "jsonl.gz": lambda documents: gzip.compress(as_lines(documents), 1),
    "csv": as_csv,
    "parquet": as_parquet,
}


class LineFileSubject(SourceSubject):
    """One file of JSON lines, followed as it grows."""

    name = "file"
    server = "a file of JSON lines"
    cannot = MappingProxyType(
        {
            **NO_CHANGES,
            Can.NAMESPACES: "one file, one namespace",
            Can.ADDED: "one file, one namespace",
        }
    )
    key = ()

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "nothing.jsonl"

    def adaptor(self, *, tail: bool) -> Adaptor:
        return a.file(uri=f"file://{self._path}", tail=tail)

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return {"no such file": a.file(uri=f"file://{self._directory}/elsewhere.jsonl")}

    def make(self, word: str) -> str:
        self._path = self._directory / f"{word}.jsonl"
        self._path.touch()
        return word

    def insert(self, ns: str, rows: Sequence[Row]) -> None:
        with self._path.open("ab") as file:
            file.write(as_lines([row._asdict() for row in rows]))

    def contents(self, ns: str) -> Mapping[int, str]:
        rows = [msgspec.json.decode(line) for line in self._path.read_bytes().splitlines()]
        return {row["id"]: row["text"] for row in rows}

    def typed(self, word: str) -> TypedRow:
        self.make(word)
        expected = {
            "n": "1.50",
            "big": "123456789012345678901234567890",
            "none": "null",
            "list": '[1,{"a":2}]',
        }
        text = ",".join(f'"{name}":{value}' for name, value in expected.items())

        def insert() -> None:
            with self._path.open("a") as file:
                file.write(f"{{{text}}}\n")

        return TypedRow(word, insert, expected)

    def add_field(self, ns: str) -> None:
        """Nothing has to be done for it."""

    def insert_extra(self, ns: str, row: Row, extra: str) -> None:
        with self._path.open("ab") as file:
            file.write(as_lines([{**row._asdict(), "extra": extra}]))


class ManyFilesSubject(SourceSubject):
    """Files under one place, which is one namespace: each insert brings a file."""

    cannot = MappingProxyType(
        {
            **NO_CHANGES,
            Can.NAMESPACES: "one directory, one namespace",
            Can.ADDED: "one directory, one namespace",
        }
    )
    key = ()

    def __init__(self, form: str) -> None:
        self.form = form
        self.ns = ""
        self._rows = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the subject; not in memory, which is measured
        self._count = 0

    @abstractmethod
    def put(self, name: str, content: bytes) -> None:
        """Bring a file."""

    def make(self, word: str) -> str:
        self.ns = word
        self._rows.truncate(0)
        return word

    def insert(self, ns: str, rows: Sequence[Row]) -> None:
        self._bring([row._asdict() for row in rows])
        self._keep(rows)

    def contents(self, ns: str) -> Mapping[int, str]:
        self._rows.seek(0)
        return dict(msgspec.json.decode(line, type=tuple[int, str]) for line in self._rows)

    def row(self, message: Message) -> Row:
        document = msgspec.json.decode(message.data, type=dict[str, object])
        return Row(int(str(document["id"])), str(document.get("text", "")))

    def typed(self, word: str) -> TypedRow:
        self.make(word)
        document: Document = {"n": 2**53 + 1, "r": 0.1, "t": 'it"s', "b": True}
        expected = {"n": "9007199254740993", "r": "0.1", "t": '"it\\"s"', "b": "true"}
        kinds = {"n": Kind.INT, "r": Kind.FLOAT, "t": Kind.STRING, "b": Kind.BOOL}
        if self.form == "csv":
            expected = {"n": '"9007199254740993"', "r": '"0.1"', "t": '"it\\"s"', "b": '"True"'}
            kinds = dict.fromkeys(kinds, Kind.STRING)
        return TypedRow(
            word, lambda: self._bring([document]), expected, {} if "jsonl" in self.form else kinds
        )

    def add_field(self, ns: str) -> None:
        """The next file has it."""

    def insert_extra(self, ns: str, row: Row, extra: str) -> None:
        self._bring([{**row._asdict(), "extra": extra}])
        self._keep([row])

    def close(self) -> None:
        self._rows.close()

    def _keep(self, rows: Sequence[Row]) -> None:
        self._rows.seek(0, os.SEEK_END)
        self._rows.writelines(msgspec.json.encode(tuple(row)) + b"\n" for row in rows)
        self._rows.flush()

    def _bring(self, documents: Sequence[Document]) -> None:
        self._count += 1
        self.put(f"{self._count:06d}.{self.form}", WRITERS[self.form](documents))


class FolderSubject(ManyFilesSubject):
    """A directory that is watched."""

    name = "file"

    def __init__(self, directory: Path, form: str) -> None:
        super().__init__(form)
        self.server = f"a directory of .{form}"
        self._directory = directory

    def adaptor(self, *, tail: bool) -> Adaptor:
        return a.file(
            uri=f"file://{self._directory / self.ns}/", ns=self.ns, watch=tail, settle=0.0, poll_interval=0.02
        )

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return {"no such directory": a.file(uri=f"file://{self._directory}/elsewhere/", ns="x")}

    def make(self, word: str) -> str:
        (self._directory / word).mkdir()
        return super().make(word)

    def put(self, name: str, content: bytes) -> None:
        aside = self._directory / f"aside-{self.ns}"
        aside.write_bytes(content)
        os.rename(aside, self._directory / self.ns / name)


class S3Subject(ManyFilesSubject):
    """A prefix that is watched."""

    name = "s3"
    cannot = MappingProxyType(
        {**ManyFilesSubject.cannot, Can.RESTART: "the server of the tests forgets what it held"}
    )

    def __init__(self, url: Callable[[str], str], server: str, form: str) -> None:
        super().__init__(form)
        self.server = server
        self._url = url

    def adaptor(self, *, tail: bool) -> Adaptor:
        return a.s3(uri=self._url(f"{self.ns}/"), ns=self.ns, watch=tail, poll_interval=0.05)

    def misconfigured(self) -> Mapping[str, Adaptor]:
        nobody = "s3://b/p/?endpoint=http%3A%2F%2F127.0.0.1%3A9&region=x"
        return {"nobody listens": a.s3(uri=nobody, ns="x")}

    def put(self, name: str, content: bytes) -> None:
        Objects(self._url(f"{self.ns}/")).put(name, [content])


class CsvTarget(SinkSubject):
    """One file of CSV; its envelope says to which namespace each record belongs."""

    name = "file"
    server = "a file of CSV"
    holds = Holds.MESSAGES
    cannot = MappingProxyType(
        {
            Can.RESTART: "no server",
            Can.TRUNCATE: "a command has no record",
            Can.FIELDS: "the columns stay as they are; a new field is refused or ignored",
        }
    )

    def __init__(self, directory: Path) -> None:
        self._target = directory / "out.csv"

    def adaptor(self) -> Adaptor:
        return a.file(uri=f"file://{self._target}", envelope=True)

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return {"no such directory": a.file(uri=f"file://{self._target.parent / 'not' / 'there.csv'}")}

    def make(self, word: str) -> str:
        return word

    def contents(self, ns: str) -> Sequence[Row]:
        return [Row(int(one["id"]), one["text"]) for one in self._records() if one["_ns"] == ns]

    def bad(self, ns: str) -> bytes:
        return b'{"id":666,"text":'

    def typed(self, word: str) -> TypedDelivery:
        data = b'{"n":1.50,"big":123456789012345678901234567890,"t":"x","none":null,"day":{"$localDate":"2026-11-16"}}'
        expected = {
            "n": "1.50",
            "big": "123456789012345678901234567890",
            "t": "x",
            "none": "",
            "day": "2026-11-16",
        }
        schema = Schema(tuple(Field(name, Kind.ANY) for name in expected))
        return TypedDelivery(word, schema, data, None, lambda: dict(self._records()[0]), expected)

    def died(self, publisher: Publisher) -> None:
        assert isinstance(publisher, FilePublisher)
        if publisher._file is not None:
            os.close(publisher._file.fileno())
            publisher._file = None

    def _records(self) -> list[dict[str, str]]:
        if not self._target.exists():
            return []
        csv.field_size_limit(1 << 24)
        with self._target.open(newline="") as file:
            return list(csv.DictReader(file))


class PartitionsTarget(SinkSubject):
    """Files of Parquet by namespace; offsets in them tell the order."""

    holds = Holds.MESSAGES
    cannot = MappingProxyType({Can.RESTART: "no server", Can.TRUNCATE: "a command is no row"})

    @abstractmethod
    def tables(self) -> Sequence[tuple[str, pa.Table]]:
        """The files by their names, and what they hold."""

    def make(self, word: str) -> str:
        return word

    def contents(self, ns: str) -> Sequence[Row]:
        rows = sorted(self._rows(ns), key=lambda row: (str(row["generation"]), int(str(row["_offset"]))))
        return [Row(int(str(row["id"])), str(row["text"])) for row in rows]

    def bad(self, ns: str) -> bytes:
        return b'{"id":"no number","text":"666"}'

    def typed(self, word: str) -> TypedDelivery:
        data = (
            b'{"n":9223372036854775807,"d":1.50,"t":"x","none":null,"day":{"$localDate":"2026-11-16"},'
            b'"raw":{"$binary":{"base64":"AP8=","subType":"00"}},"list":[1,2],"map":{"a":1}}'
        )
        import datetime as dt
        from decimal import Decimal

        expected = {"n": 2**63 - 1, "d": Decimal("1.50"), "t": "x", "none": None, "day": dt.date(2026, 11, 16),
                    "raw": b"\x00\xff", "list": [1, 2], "map": '{"a":1}'}  # fmt: skip
        schema = Schema(
            (
                Field("n", Kind.INT), Field("d", Kind.DECIMAL, native="numeric(10,2)"), Field("t", Kind.STRING),
                Field("none", Kind.STRING), Field("day", Kind.DATE), Field("raw", Kind.BINARY),
                Field("list", Kind.LIST, items=Kind.INT), Field("map", Kind.MAP),
            )
        )  # fmt: skip
        return TypedDelivery(word, schema, data, None, lambda: self._rows(word)[0], expected)

    def extra(self, ns: str, id: int) -> str | None:
        (found,) = [row for row in self._rows(ns) if row["id"] == id]
        return str(found["extra"])

    def died(self, publisher: Publisher) -> None:
        assert isinstance(publisher, PartitionPublisher)
        publisher._target.close()

    def _rows(self, ns: str) -> list[dict[str, object]]:
        return [
            {**row, "generation": name.split("-")[2]}
            for name, table in self.tables()
            for row in table.to_pylist()
            if row["_ns"] == ns
        ]


class FolderTarget(PartitionsTarget):
    name = "file"
    server = "a directory of Parquet"

    def __init__(self, directory: Path) -> None:
        self._target = directory / "lake"

    def adaptor(self) -> Adaptor:
        return a.file(uri=f"file://{self._target}/", format="parquet", envelope=True)

    def misconfigured(self) -> Mapping[str, Adaptor]:
        self._target.parent.joinpath("file").touch()
        return {"not a directory": a.file(uri=f"file://{self._target.parent}/file/", format="parquet")}

    def tables(self) -> Sequence[tuple[str, pa.Table]]:
        found = self._target.glob("ns=*/*.parquet")
        return [(path.name, pq.read_table(path, partitioning=None)) for path in sorted(found)]


class S3PartitionsTarget(PartitionsTarget):
    name = "s3"
    cannot = MappingProxyType(
        {**PartitionsTarget.cannot, Can.RESTART: "the server of the tests forgets what it held"}
    )

    def __init__(self, url: str, server: str) -> None:
        self.server = server
        self._url = url

    def adaptor(self) -> Adaptor:
        return a.s3(uri=self._url, envelope=True)

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return {"nobody listens": a.s3(uri="s3://b/p/?endpoint=http%3A%2F%2F127.0.0.1%3A9&region=x")}

    def tables(self) -> Sequence[tuple[str, pa.Table]]:
        objects = Objects(self._url)
        names = sorted(entry.name for entry in objects.entries() if entry.name.endswith(".parquet"))
        return [(name, pq.read_table(pa.BufferReader(objects.bytes_of(name)))) for name in names]
