"""The SQLite sink: the kit's battery, and what is its own."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor, Publisher, Refusal, SinkPosition, Stage
from penstock.adaptors.sqlite.sink import SqlitePublisher
from penstock.base.errors import AwayError, PenstockError, RefusedError, UsageError
from penstock.log.message import Message, Op
from penstock.log.schema import Field, Kind, Schema, Told
from penstock.testing.adaptors import SINK, Can, Row, SinkConformance, SinkSubject, TypedDelivery
from penstock.testing.adaptors.delivery import GivenSchemas, batch_of

_numbers = itertools.count()

TYPES = {
    # field: kind, text in the message, what SQLite then holds
    "big": (Kind.INT, "9223372036854775807", 9223372036854775807),
    "float": (Kind.FLOAT, "0.1", 0.1),
    "whole": (Kind.FLOAT, "1.0", 1.0),
    "infinite": (Kind.FLOAT, '{"$numberDouble":"-Infinity"}', float("-inf")),
    "exact": (Kind.DECIMAL, "12.50", "12.50"),
    "long": (Kind.DECIMAL, "0." + "1234567890" * 5, "0." + "1234567890" * 5),
    "huge": (Kind.DECIMAL, "1180591620717411303424", "1180591620717411303424"),
    "yes": (Kind.BOOL, "true", 1),
    "word": (Kind.STRING, r'"a \"b\"\n☃ 𝄞\u0000"', 'a "b"\n☃ 𝄞\0'),
    "digits": (Kind.STRING, '"007"', "007"),
    "nothing": (Kind.STRING, "null", None),
    "bytes": (Kind.BINARY, '{"$binary":{"base64":"AP8=","subType":"00"}}', b"\x00\xff"),
    "day": (Kind.DATE, '{"$localDate":"2026-11-16"}', "2026-11-16"),
    "hour": (Kind.TIME, '{"$localTime":"02:14:14.123456"}', "02:14:14.123456"),
    "local": (Kind.LOCAL_TIMESTAMP, '{"$localTimestamp":"2026-11-16T02:14:14.123456"}', "2026-11-16 02:14:14.123456"),
    "moment": (Kind.TIMESTAMP, '{"$date":"2026-11-16T02:14:14.123456Z"}', "2026-11-16 02:14:14.123456Z"),
    "zoned": (Kind.TIMESTAMP, '{"$date":"2026-11-16T02:14:14+01:00"}', "2026-11-16 02:14:14+01:00"),
    "mark": (Kind.UUID, '{"$uuid":"1fc2f65b-ef76-4981-8290-2f6ea12912d6"}', "1fc2f65b-ef76-4981-8290-2f6ea12912d6"),
    "tree": (Kind.MAP, '{"a":[1.50,null]}', '{"a":[1.50,null]}'),
    "some": (Kind.LIST, "[1,2]", "[1,2]"),
    "any": (Kind.ANY, '"text"', "text"),
}  # fmt: skip


class SqliteTarget(SinkSubject):
    """A file for each test."""

    name = "sqlite"
    server = f"SQLite {sqlite3.sqlite_version}"
    can = SINK - {Can.RESTART}
    cannot: Mapping[Can, str] = {Can.RESTART: "SQLite is a file, not a server"}

    def __init__(self, path: Path, **settings: object) -> None:
        self.path = path
        self._settings = {"add_columns": True, **settings}

    def adaptor(self) -> Adaptor:
        return a.sqlite(uri=f"sqlite://{self.path}", **self._settings)

    def make(self, word: str) -> str:
        return word

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(statement).fetchall()

    def execute(self, *statements: str) -> None:
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    def contents(self, ns: str) -> Sequence[Row]:
        if not self.query(f"SELECT 1 FROM sqlite_schema WHERE name = '{ns}'"):
            return []
        return [Row(*row) for row in self.query(f"SELECT id, text FROM {ns}")]

    def bad(self, ns: str) -> bytes:
        return b'{"id":{"$numberDouble":"NaN"},"text":"x"}'

    def extra(self, ns: str, id: int) -> str | None:
        ((found,),) = self.query(f"SELECT extra FROM {ns} WHERE id = {id}")
        return found if found is None else str(found)

    def typed(self, word: str) -> TypedDelivery:
        fields = [Field("id", Kind.INT), *(Field(name, kind) for name, (kind, *_) in TYPES.items())]
        data = '{"id":1,' + ",".join(f'"{name}":{text}' for name, (_, text, _) in TYPES.items()) + "}"
        return TypedDelivery(
            word, Schema(tuple(fields), ("id",)), data.encode(), b'{"id":1}', lambda: self._found(word),
            {name: held for name, (*_, held) in TYPES.items()},
        )  # fmt: skip

    def _found(self, word: str) -> Mapping[str, object]:
        names = ", ".join(f'"{name}"' for name in TYPES)
        (row,) = self.query(f"SELECT {names} FROM {word}")
        return dict(zip(TYPES, row, strict=True))

    def misconfigured(self) -> Mapping[str, Adaptor]:
        (self.path.parent / "text.db").write_text("no database, whatever its name says")
        return {
            "no such directory": a.sqlite(uri=f"sqlite://{self.path.parent}/no/where.db"),
            "a directory": a.sqlite(uri=f"sqlite://{self.path.parent}"),
            "not a database": a.sqlite(uri=f"sqlite://{self.path.parent}/text.db"),
        }

    def died(self, publisher: Publisher) -> None:
        assert isinstance(publisher, SqlitePublisher)
        publisher.close()


class TestSqliteSink(SinkConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> SqliteTarget:
        return SqliteTarget(tmp_path / "target.db")


class Writer:
    """A sink driven by hand: each call of `write` is a batch."""

    def __init__(self, target: SqliteTarget, scratch: Path, **settings: object) -> None:
        self.end = 0
        self.schemas: dict[str, Schema | Sequence[Told]] = {}
        self._scratch = scratch
        self.sink = a.sqlite(uri=f"sqlite://{target.path}", **settings).sink()
        self.sink.use(GivenSchemas(self.schemas), "shop.db")
        self.publisher = self.sink.publisher()
        self.publisher.open(SinkPosition("log", 0, 0))

    def write(self, *messages: Message) -> list[Refusal]:
        stage = Stage(self._scratch, f"part{next(_numbers)}", 0)
        staged = self.sink.stager().stage(stage, iter([batch_of(messages, self.end)]))
        self.end += len(messages)
        self.publisher.publish([staged] if staged.part else [], SinkPosition("log", 0, self.end))
        return list(staged.refused)


@pytest.fixture
def target(tmp_path: Path) -> SqliteTarget:
    return SqliteTarget(tmp_path / "shop.db")


@pytest.fixture
def writer(target: SqliteTarget, tmp_path: Path) -> Iterator[Writer]:
    writer = Writer(target, tmp_path)
    yield writer
    writer.publisher.close()


def sent(ns: str, op: Op = Op.INSERT, /, **fields: object) -> Message:
    return Message(ns, msgspec.json.encode(fields), op)


def test_a_sink_that_lags_makes_a_table_as_one_that_kept_up_has_it(
    target: SqliteTarget, writer: Writer
) -> None:
    """By the schema that held for its first rows: in the column of a later float, 1.50 was 1.5."""
    late = [Schema((Field("id", Kind.INT), Field("x", kind)), ("id",)) for kind in (Kind.DECIMAL, Kind.FLOAT)]
    writer.schemas["late"] = [Told(at, schema) for at, schema in enumerate(late)]
    writer.write(Message("late", b'{"id":1,"x":1.50}', key=b'{"id":1}'))
    writer.write(Message("late", b'{"id":2,"x":7.5}', key=b'{"id":2}'))
    with contextlib.closing(sqlite3.connect(target.path)) as connection:
        assert connection.execute("SELECT x FROM late ORDER BY id").fetchall() == [("1.50",), ("7.5",)]


def test_foreign_keys_hold_at_the_end_of_a_batch(target: SqliteTarget, writer: Writer) -> None:
    target.execute(
        "CREATE TABLE parent (id INTEGER PRIMARY KEY)",
        "CREATE TABLE child (id INTEGER PRIMARY KEY, parent INTEGER NOT NULL REFERENCES parent)",
    )
    writer.write(sent("child", id=1, parent=1), sent("parent", id=1))
    assert target.query("SELECT * FROM child") == [(1, 1)]
    with pytest.raises(RefusedError, match="FOREIGN KEY"):
        writer.write(sent("parent", Op.DELETE, id=1))
    assert target.query("SELECT * FROM parent") == [(1,)]


def test_a_row_whose_key_is_only_written_differently_stays_and_so_do_those_that_refer_to_it(
    target: SqliteTarget, writer: Writer
) -> None:
    target.execute(
        "CREATE TABLE words (word TEXT COLLATE NOCASE PRIMARY KEY NOT NULL, n INTEGER, extra TEXT)",
        "CREATE TABLE uses (id INTEGER PRIMARY KEY, word TEXT COLLATE NOCASE "
        "REFERENCES words ON DELETE CASCADE ON UPDATE CASCADE)",
        "INSERT INTO words VALUES ('pump', 1, 'kept')",
        "INSERT INTO uses VALUES (1, 'pump')",
    )
    moved = Message(
        "words", b'{"word":"Pump","n":2}', Op.UPDATE, key=b'{"word":"Pump"}', old_key=b'{"word":"pump"}'
    )
    writer.write(moved)
    assert target.query("SELECT * FROM words") == [("Pump", 2, "kept")]
    assert target.query("SELECT id FROM uses") == [(1,)]


def test_a_constraint_refuses_the_batch_and_nothing_of_it_is_visible(
    target: SqliteTarget, writer: Writer
) -> None:
    target.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL CHECK (total >= 0))")
    with pytest.raises(RefusedError, match="CHECK"):
        writer.write(sent("orders", id=1, total=1), sent("orders", id=2, total=-1))
    assert target.query("SELECT * FROM orders") == []
    assert target.query("SELECT watermark FROM penstock_positions") == [(0,)]


def test_a_missing_field_leaves_its_column_alone_and_an_unknown_one_is_refused(
    target: SqliteTarget, writer: Writer
) -> None:
    target.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, a TEXT DEFAULT 'none', b TEXT)")
    refused = writer.write(
        sent("orders", id=1, a="x", b="y"),
        sent("orders", Op.UPDATE, id=1, b="z"),
        sent("orders", id=2, c="?"),
    )
    assert [(one.offset, "no column 'c'" in one.error) for one in refused] == [(2, True)]
    assert target.query("SELECT * FROM orders") == [(1, "x", "z")]


@pytest.mark.parametrize(
    "declared, text, said",
    [
        ("REAL", "0.1000000000000000055511151231257827", "more digits"),
        ("INTEGER", "9223372036854775808.5", "more digits"),
        ("NUMERIC", "1e400", "more digits"),
        ("REAL", '{"$numberDouble":"NaN"}', "NaN"),
        ("INTEGER", '"007"', "would become a number"),
        ("DECIMAL(10,2)", '"1e3"', "would become a number"),
    ],
)
def test_what_sqlite_would_change_is_refused(
    target: SqliteTarget, writer: Writer, declared: str, text: str, said: str
) -> None:
    target.execute(f"CREATE TABLE orders (id INTEGER PRIMARY KEY, x {declared})")
    refused = writer.write(Message("orders", f'{{"id":1,"x":{text}}}'.encode()), sent("orders", id=2, x=None))
    assert [(one.offset, said in one.error) for one in refused] == [(0, True)]
    assert target.query("SELECT * FROM orders") == [(2, None)]


def test_tables_are_made_from_the_schema_and_grow_if_asked_to(target: SqliteTarget, tmp_path: Path) -> None:
    writer = Writer(target, tmp_path, add_columns=True)
    writer.schemas["public.orders"] = Schema((Field("id", Kind.INT), Field("total", Kind.DECIMAL)), ("id",))
    writer.write(sent("public.orders", id=1, total=1), sent("public.orders", id=1, total=2))
    writer.write(sent("public.orders", id=2, total=3, note="new"))
    assert target.query('SELECT * FROM "public.orders"') == [(1, "2", None), (2, "3", "new")]
    writer.publisher.close()
    strict = Writer(target, tmp_path, create_tables=False)
    with pytest.raises(UsageError, match="no table 'other'"):
        strict.write(sent("other", id=1))
    strict.publisher.close()


def test_what_the_sink_wrote_the_source_reads_as_it_was(target: SqliteTarget, writer: Writer) -> None:
    typed = target.typed("kinds")
    writer.schemas["kinds"] = typed.schema
    writer.write(Message("kinds", typed.data))
    source = a.sqlite(uri=f"sqlite://{target.path}").source()
    assert source.namespaces() == ["kinds"], "the table of positions is no namespace"
    (batch,) = source.read(lambda ns: True, {}, threading.Event())
    found = msgspec.json.decode(batch.messages[0].data, type=dict[str, msgspec.Raw])
    as_text = {"exact", "long", "huge", "tree", "some"}
    assert [
        name
        for name, (_, text, _) in TYPES.items()
        if name not in as_text and bytes(found[name]) != _plain(text)
    ] == []


def _plain(text: str) -> bytes:
    """A text as msgspec writes it."""
    return msgspec.json.encode(msgspec.json.decode(text))


def test_a_table_without_a_key_refuses_what_has_to_find_a_row(target: SqliteTarget, writer: Writer) -> None:
    target.execute("CREATE TABLE orders (id INTEGER)")
    refused = writer.write(
        sent("orders", id=1), sent("orders", Op.UPDATE, id=1), sent("orders", Op.DELETE, id=1)
    )
    assert [one.offset for one in refused] == [1, 2]
    assert target.query("SELECT * FROM orders") == [(1,)]
    assert [finding.what for finding in writer.sink.inspect()] == [
        "table orders has no primary key: it takes inserts, and refuses updates and deletes"
    ]


def test_inspect_names_the_tables_that_are_missing(target: SqliteTarget) -> None:
    target.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)", "CREATE TABLE other (id INTEGER)")
    sink = a.sqlite(uri=f"sqlite://{target.path}", create_tables=False).sink()
    (finding,) = sink.inspect(["orders", "items"])
    assert (finding.what, finding.fatal) == ("there is no table 'items'", True)
    assert 'CREATE TABLE "items"' in (finding.fix or "")
    assert a.sqlite(uri=f"sqlite://{target.path}").sink().inspect(["orders", "items"]) == []


@pytest.mark.parametrize("before", [False, True])
def test_namespaces_that_differ_in_case_alone_are_not_one_table(
    target: SqliteTarget, tmp_path: Path, before: bool
) -> None:
    """The rows of one took the place of those of the other; also if they come in different runs."""
    if before:  # as an earlier version made it
        target.execute(
            "CREATE TABLE penstock_positions (sink TEXT PRIMARY KEY NOT NULL, log TEXT NOT NULL, "
            "generation INTEGER NOT NULL, watermark INTEGER NOT NULL, opened INTEGER NOT NULL DEFAULT 0)",
            "INSERT INTO penstock_positions VALUES ('shop.db', 'log', 0, 0, 0)",
        )
    target.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, of TEXT)")
    first = Writer(target, tmp_path)
    first.write(sent("Orders", id=1, of="mine"), sent("Ö", id=1), sent("ö", id=1))
    first.publisher.close()
    second = Writer(target, tmp_path)
    second.end = 3
    with pytest.raises(
        UsageError, match="table of namespace 'orders' has the rows of 'Orders', which differs in case"
    ):
        second.write(sent("orders", id=1, of="yours"))
    second.publisher.close()
    assert target.query("SELECT * FROM orders") == [(1, "mine")]
    (finding,) = second.sink.inspect(["orders", "Orders"])
    assert (finding.fatal, finding.fix) == (True, "give one of them another name with the function `remap`")


def test_whose_a_table_is_is_remembered_though_the_first_batch_for_it_was_refused(
    target: SqliteTarget, tmp_path: Path
) -> None:
    target.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY CHECK (id > 0))")
    first = Writer(target, tmp_path)
    with pytest.raises(RefusedError, match="CHECK"):
        first.write(sent("Orders", id=-1))
    first.write(sent("Orders", id=1))
    first.publisher.close()
    second = Writer(target, tmp_path)
    second.end = first.end
    with pytest.raises(UsageError, match="has the rows of 'Orders'"):
        second.write(sent("orders", id=1))
    second.publisher.close()


def test_two_runs_on_one_file_do_not_both_write(target: SqliteTarget, writer: Writer) -> None:
    writer.write(sent("orders", id=1))
    second = writer.sink.publisher()
    assert second.open(SinkPosition("log", 0, 1)) == SinkPosition("log", 0, 1)
    second.publish([], SinkPosition("log", 0, 5))
    second.close()
    with pytest.raises(PenstockError, match="not where this run left it"):
        writer.write(sent("orders", id=2))
    assert target.query("SELECT id FROM orders") == [(1,)]


def test_a_newer_generation_is_refused_and_an_older_one_counts_for_nothing(writer: Writer) -> None:
    writer.write(sent("orders", id=1))
    writer.publisher.close()
    again = writer.sink.publisher()
    assert again.open(SinkPosition("log", 3, 0)) == SinkPosition("log", 3, 0)
    again.close()
    with pytest.raises(UsageError, match="generation 3"):
        writer.sink.publisher().open(SinkPosition("log", 2, 1))


def test_a_database_that_somebody_holds_is_away(
    target: SqliteTarget, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.publisher._connection.execute("PRAGMA busy_timeout = 50")  # type: ignore[attr-defined]
    with contextlib.closing(sqlite3.connect(target.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(AwayError, match="locked"):
            writer.publisher.publish([], SinkPosition("log", 0, 1))


def test_commits_are_made_durable_beyond_the_removal_of_the_journal(writer: Writer) -> None:
    connection = writer.publisher._connection  # type: ignore[attr-defined]
    assert connection.execute("PRAGMA synchronous").fetchone() == (3,), "EXTRA"
    assert connection.execute("PRAGMA foreign_keys").fetchone() == (1,)
