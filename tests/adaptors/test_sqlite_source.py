"""The SQLite source: every row once in the order of its key, whatever the key is made of."""

from __future__ import annotations

import datetime as dt
import json
import math
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from unittest.mock import ANY
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.log.value_strategies import identical

from penstock import adaptors as a
from penstock.adaptors.base import Batch
from penstock.adaptors.sqlite.table import RowError, tables_of
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.log import values as values_module
from penstock.log.message import Message, MessageOffset, Mode, Op, Position, Resume
from penstock.log.schema import Field, Kind
from penstock.log.values import Value

sqlite_module = import_module("penstock.adaptors.sqlite")  # the package gives its name to the function

SCHEMA = '''
    CREATE TABLE by_id (id INTEGER PRIMARY KEY, v);
    CREATE TABLE no_key (a, b);
    CREATE TABLE text_key (k TEXT PRIMARY KEY, rowid, v);
    CREATE TABLE pair (a TEXT, b INT, v, PRIMARY KEY (a, b)) WITHOUT ROWID;
    CREATE TABLE odd (b INT, a TEXT COLLATE NOCASE, v, PRIMARY KEY (a COLLATE BINARY, b DESC)) WITHOUT ROWID;
    CREATE TABLE folded (a TEXT PRIMARY KEY COLLATE NOCASE, v) WITHOUT ROWID;
    CREATE TABLE blobs (k BLOB PRIMARY KEY, r REAL) WITHOUT ROWID;
    CREATE TABLE "weird "" name" ("select" INT, "a ""b""" TEXT);
    CREATE TABLE sqlitex (x);
    CREATE TABLE made (n INT, twice INT GENERATED ALWAYS AS (n * 2));
    CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT);
    CREATE VIEW looks AS SELECT 1 AS one;
    CREATE VIRTUAL TABLE searched USING fts5(body);
'''
TABLES = ["blobs", "by_id", "counted", "folded", "made", "no_key", "odd", "pair", "sqlitex", "text_key"]
TABLES.append('weird " name')


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop?.db"


@pytest.fixture
def database(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(SCHEMA)
    yield connection
    connection.close()


def insert(
    connection: sqlite3.Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
    listed = ", ".join(columns)
    marks = ", ".join("?" for _ in columns)
    connection.executemany(f'INSERT INTO "{table}" ({listed}) VALUES ({marks})', rows)
    connection.commit()


def read(
    path: Path,
    *tables: str,
    resume: Mapping[str, Resume] | None = None,
    stop: threading.Event | None = None,
    **settings: object,
) -> Iterator[Batch]:
    source = a.sqlite(uri=f"sqlite://{path}", **settings).source()
    return source.read(lambda ns: not tables or ns in tables, resume or {}, stop or threading.Event())


def messages(batches: Sequence[Batch]) -> list[Message]:
    return [message for batch in batches for message in batch.messages]


def documents(batches: Sequence[Batch]) -> list[object]:
    return [values_module.decode_document(message.data) for message in messages(batches)]


def through_json(position: Position) -> Position:
    """As the log gives it back."""
    found = json.loads(json.dumps(position))
    assert isinstance(found, dict)
    return found


def resumed(table: str, position: Position, mode: Mode = Mode.COPY) -> dict[str, Resume]:
    return {table: Resume(mode, through_json(position), MessageOffset(0))}


def test_tables_are_namespaces_and_nothing_else_is(path: Path, database: sqlite3.Connection) -> None:
    insert(database, "counted", ["id"], [(1,)])
    assert a.sqlite(uri=f"sqlite://{path}").source().namespaces() == TABLES


def test_every_table_is_copied_and_completed(path: Path, database: sqlite3.Connection) -> None:
    insert(database, "by_id", ["id", "v"], [(2, "two"), (1, None)])
    batches = list(read(path))
    assert [ns for batch in batches for ns in batch.completed] == TABLES
    found = messages(batches)
    assert [(m.ns, m.data, m.key, m.op, m.mode) for m in found] == [
        ("by_id", b'{"id":1,"v":null}', b'{"id":1}', Op.INSERT, Mode.COPY),
        ("by_id", b'{"id":2,"v":"two"}', b'{"id":2}', Op.INSERT, Mode.COPY),
    ]
    assert found[0].ts > 1_700_000_000_000_000
    by_table = {ns: position for batch in batches for ns, position in batch.positions.items()}
    assert by_table["by_id"] == {"after": [2]}
    assert by_table["no_key"] == {"after": []}


def test_values_become_json_as_they_are(path: Path, database: sqlite3.Connection) -> None:
    numbers = [2**63 - 1, -(2**63), 9007199254740993, 1.0, 0.1, 1e300, -0.0]
    values = [*numbers, "é\x00\n\U0001f600", "", None, b"\x00\xff", b"", math.inf, -math.inf]
    insert(database, "no_key", ["a", "b"], [(value, n) for n, value in enumerate(values)])
    found = messages(list(read(path, "no_key")))
    texts = [message.data.decode()[5:].rpartition(',"b"')[0] for message in found]
    assert texts[:3] == ["9223372036854775807", "-9223372036854775808", "9007199254740993"]
    assert texts[3] == "1.0"
    assert texts[6] == "-0.0"
    assert texts[10] == '{"$binary":{"base64":"AP8=","subType":"00"}}'
    assert texts[12:] == ['{"$numberDouble":"Infinity"}', '{"$numberDouble":"-Infinity"}']
    assert [json.loads(text) for text in texts[:10]] == values[:10]
    assert [values_module.decode(text) for text in texts] == values
    assert {message.key for message in found} == {None}


def test_names_need_no_care(path: Path, database: sqlite3.Connection) -> None:
    insert(database, 'weird "" name', ['"select"', '"a ""b"""'], [(1, "x")])
    insert(database, "made", ["n"], [(21,)])
    insert(database, "text_key", ["k", "rowid", "v"], [("x", 99, 1)])
    found = messages(list(read(path)))
    assert [(m.ns, json.loads(m.data), m.key) for m in found] == [
        ("made", {"n": 21, "twice": 42}, None),
        ("text_key", {"k": "x", "rowid": 99, "v": 1}, b'{"k":"x"}'),
        ('weird " name', {"select": 1, 'a "b"': "x"}, None),
    ]


KEYS: dict[str, tuple[list[str], list[tuple[object, ...]]]] = {
    "by_id": (["id", "v"], [(-5, "a"), (0, "b"), (7, "c"), (2**40, "d")]),
    "no_key": (["a", "b"], [(1, 1), (1, 1), (None, None), ("x", b"y")]),
    "text_key": (["k", "v"], [("b", 1), ("a", 2), ("C", 3), (None, 4), (None, 5)]),
    "pair": (
        ["a", "b", "v"],
        [("x", 1, 0), ("x", 2, 0), ("x", 10, 0), ("y", 1, 0), ("", 5, 0), ("z", "text", 0), ("z", b"b", 0)],
    ),
    "odd": (["a", "b", "v"], [("a", 1, 0), ("A", 1, 0), ("a", 2, 0), ("A", 2, 0), ("b", 1, 0), ("B", 0, 0)]),
    "folded": (["a", "v"], [("b", 1), ("A", 2), ("c", 3), ("B2", 4), ("a1", 5)]),
    "blobs": (
        ["k", "r"],
        [
            (b"", 0.5),
            (b"\x00", 1.0),
            (b"\xff", -1.5),
            (b"\x00\x00", None),
            ("text", 2.0),
            (1, 3.0),
            (1.5, 4.0),
        ],
    ),
}


@pytest.mark.parametrize("table", KEYS)
def test_a_resumed_copy_goes_on_exactly_after_any_row(
    path: Path, database: sqlite3.Connection, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, rows = KEYS[table]
    insert(database, table, columns, rows)
    monkeypatch.setattr(sqlite_module, "MOST_ROWS", 1)
    batches = list(read(path, table))
    whole = documents(batches)
    assert len(whole) == len(rows)
    assert [list(batch.completed) for batch in batches] == [[]] * len(rows) + [[table]]
    for taken in range(1, len(batches)):
        rest = list(read(path, table, resume=resumed(table, batches[taken - 1].positions[table])))
        assert documents(batches[:taken]) + documents(rest) == whole
        assert list(rest[-1].completed) == [table]


@pytest.mark.parametrize("table", KEYS)
def test_going_on_uses_the_index(path: Path, database: sqlite3.Connection, table: str) -> None:
    found = next(one for one in tables_of(database) if one.name == table)
    query = found._query(True)
    plan = database.execute(f"EXPLAIN QUERY PLAN {query}", [1] * query.count("?")).fetchall()
    assert plan[0][3].startswith("SEARCH")
    sorts = [row for row in plan if "TEMP B-TREE" in row[3]]
    assert len(sorts) == (1 if table == "odd" else 0)


values = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8"), max_size=8), st.binary(max_size=8),
)  # fmt: skip


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(values, values), max_size=8), st.integers(1, 3), st.data())
def test_any_values_under_any_key_are_read_once(
    tmp_path: Path, rows: list[tuple[object, object]], most: int, data: st.DataObject
) -> None:
    path = tmp_path / "any.db"
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (a, b, n INT, PRIMARY KEY (a, b)) WITHOUT ROWID")
    stored = 0
    for first, second in rows:
        if first is not None and second is not None:
            row = (first, second, stored)
            stored += connection.execute("INSERT OR IGNORE INTO t VALUES (?, ?, ?)", row).rowcount
    connection.commit()
    expected = connection.execute("SELECT a, b, n FROM t ORDER BY a, b").fetchall()
    connection.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_module, "MOST_ROWS", most)
        batches = list(read(path))
        taken = data.draw(st.integers(0, len(batches) - 1))
        resume = resumed("t", batches[taken - 1].positions["t"]) if taken else {}
        rest = list(read(path, resume=resume))
    for found in (documents(batches), documents(batches[:taken]) + documents(rest)):
        assert found == [{"a": x, "b": y, "n": n} for x, y, n in expected]


def test_later_runs_see_larger_keys_and_nothing_else(path: Path, database: sqlite3.Connection) -> None:
    insert(database, "by_id", ["id", "v"], [(1, "a"), (5, "b")])
    position = list(read(path, "by_id"))[-1].positions["by_id"]
    done = resumed("by_id", position, Mode.COMPLETE)
    assert list(read(path, "by_id", resume=done)) == []
    insert(database, "by_id", ["id", "v"], [(3, "between"), (6, "new")])
    database.execute("UPDATE by_id SET v = 'changed' WHERE id = 1")
    database.commit()
    batches = list(read(path, "by_id", resume=done))
    assert [(m.data, m.mode) for m in messages(batches)] == [(b'{"id":6,"v":"new"}', Mode.SYNC)]
    assert not any(batch.completed for batch in batches)


TYPED = """
    CREATE TABLE typed (
        id INTEGER PRIMARY KEY, n BIGINT NOT NULL, r DOUBLE PRECISION, d DECIMAL(10, 2), t VARCHAR(20), b BLOB,
        ok BOOLEAN, day DATE, clock TIME, at DATETIME, moment TIMESTAMP WITH TIME ZONE, u UUID, whatever
    )
"""
DECLARED = [
    ("ok", 1, True), ("ok", 0, False), ("ok", 2, 2), ("ok", "yes", "yes"),
    ("day", "2026-11-16", dt.date(2026, 11, 16)), ("day", "16.11.2026", "16.11.2026"), ("day", 20261116, 20261116),
    ("day", "2026-02-30", "2026-02-30"), ("day", "2026-11-16 00:00:00", "2026-11-16 00:00:00"),
    ("clock", "02:14:14", dt.time(2, 14, 14)), ("clock", "02:14", "02:14"),
    ("at", "2026-11-16 02:14:14", dt.datetime(2026, 11, 16, 2, 14, 14)),
    ("at", "2026-11-16T02:14:14.25", dt.datetime(2026, 11, 16, 2, 14, 14, 250000)),
    ("at", "2026-11-16T02:14:14Z", dt.datetime(2026, 11, 16, 2, 14, 14, tzinfo=dt.UTC)),
    ("at", "2026-11-16 02:14:14.123456789", "2026-11-16 02:14:14.123456789"),
    ("at", 1763259254, 1763259254), ("at", None, None), ("at", 2461360.5, 2461360.5),
    ("moment", "2026-11-16 02:14:14+00:00", dt.datetime(2026, 11, 16, 2, 14, 14, tzinfo=dt.UTC)),
    ("u", "1fc2f65b-ef76-4981-8290-2f6ea12912d6", UUID("1fc2f65b-ef76-4981-8290-2f6ea12912d6")),
    ("u", "1FC2F65B", "1FC2F65B"), ("u", b"0123456789abcdef", b"0123456789abcdef"),
    ("d", "12.50", 12.5), ("d", 9007199254740993, 9007199254740993), ("r", 3, 3.0), ("t", 5, "5"),
    ("whatever", "2026-11-16", "2026-11-16"), ("b", b"\x00", b"\x00"), ("day", b"\x00", b"\x00"),
    ("at", math.inf, math.inf),
]  # fmt: skip


@pytest.mark.parametrize("column, stored, value", DECLARED, ids=lambda one: str(one))
def test_a_declaration_makes_a_type_only_where_the_content_agrees(
    path: Path, database: sqlite3.Connection, column: str, stored: object, value: Value
) -> None:
    database.execute(TYPED)
    insert(database, "typed", ["id", "n", column], [(1, 1, stored)])
    (document,) = documents(list(read(path, "typed")))
    assert isinstance(document, dict)
    assert identical(value, document[column])


def test_a_typed_key_is_written_as_in_the_row(path: Path, database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE days (day DATE, b BLOB, PRIMARY KEY (day, b)) WITHOUT ROWID")
    insert(database, "days", ["day", "b"], [("2026-11-16", b"x"), ("2026-11-17", b"x")])
    batches = list(read(path, "days"))
    (first, second) = messages(batches)
    assert (
        first.key
        == first.data
        == (b'{"day":{"$localDate":"2026-11-16"},"b":{"$binary":{"base64":"eA==","subType":"00"}}}')
    )
    place: Position = {"after": ["2026-11-16", {"$binary": {"base64": "eA==", "subType": "00"}}]}
    assert messages(list(read(path, "days", resume=resumed("days", place)))) == [
        Message("days", second.data, Op.INSERT, ANY, Mode.COPY, second.key)
    ]
    older: Position = {"after": ["2026-11-16", {"$binary": "eA==", "$type": "00"}]}
    assert len(messages(list(read(path, "days", resume=resumed("days", older))))) == 1


def test_the_schema_goes_before_the_first_row_and_every_change(
    path: Path, database: sqlite3.Connection
) -> None:
    database.execute(TYPED)
    stop = threading.Event()
    batches = read(path, "typed", stop=stop, tail=True, poll_interval=0.01)
    schema = next(batches).schemas["typed"]
    kinds = "INT INT FLOAT DECIMAL STRING BINARY BOOL DATE TIME LOCAL_TIMESTAMP TIMESTAMP UUID ANY"
    assert " ".join(field.kind.name for field in schema.fields) == kinds
    assert [field.name for field in schema.fields if not field.nullable] == ["id", "n"]
    assert (schema.fields[3].native, schema.key) == ("DECIMAL(10, 2)", ("id",))
    insert(database, "typed", ["id", "n"], [(1, 1)])
    assert next(batches).schemas == {}
    database.execute("ALTER TABLE typed ADD COLUMN more REAL")
    insert(database, "typed", ["id", "n", "more"], [(2, 1, 1.0)])
    changed = next(batches)
    assert len(changed.messages) == 1
    assert changed.schemas["typed"].fields == (*schema.fields, Field("more", Kind.FLOAT, native="REAL"))
    stop.set()
    assert list(batches) == []
    # A later run tells it again, in front of its first rows: it cannot know what the log holds.
    done = resumed("typed", changed.positions["typed"], Mode.COMPLETE)
    assert list(read(path, "typed", resume=done)) == []
    insert(database, "typed", ["id", "n"], [(3, 1)])
    assert [batch.schemas for batch in read(path, "typed", resume=done)] == [changed.schemas]


def test_a_key_that_may_be_null_is_told_so(database: sqlite3.Connection) -> None:
    nullable = {t.name: [f.nullable for f in t.schema.fields] for t in tables_of(database)}
    assert nullable["by_id"] == [False, True]
    assert nullable["text_key"] == [True, True, True]
    assert nullable["pair"] == [False, False, True]


def backfill(
    where: str | None, *, after: Sequence[object] = (), before: Position | None = None
) -> dict[str, Resume]:
    position: Position = {"after": list(after)} if after else {}
    return {"by_id": Resume(Mode.COPY, position, MessageOffset(5), None, where, before)}


def ids(batches: Sequence[Batch]) -> list[tuple[int, str]]:
    return [(json.loads(m.data)["id"], m.mode.word) for m in messages(batches)]


def test_a_backfill_copies_the_rows_that_meet_its_condition_and_goes_on_from_where_it_was(
    path: Path, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(database, "by_id", ["id", "v"], [(n, n % 2) for n in range(1, 11)])
    monkeypatch.setattr(sqlite_module, "MOST_ROWS", 2)
    wanted = backfill("v = 1 -- the odd ones", before={"after": [8]})
    stop = threading.Event()
    batches = read(path, "by_id", resume=wanted, stop=stop, tail=True, poll_interval=0.01)
    copied = [next(batches) for _ in range(3)]
    assert ids(copied) == [(1, "copy"), (3, "copy"), (5, "copy"), (7, "copy"), (9, "copy")]
    assert [list(batch.completed) for batch in copied] == [[], [], ["by_id"]]
    assert copied[-1].positions == {"by_id": {"after": [8]}}
    insert(database, "by_id", ["id"], [(11,)])
    assert ids([next(batches), next(batches)]) == [(9, "sync"), (10, "sync"), (11, "sync")]
    stop.set()
    later = backfill("v = 1", after=[5], before={"after": [8]})
    assert ids(list(read(path, "by_id", resume=later))) == [(7, "copy"), (9, "copy")]


def test_after_a_backfill_that_knows_no_earlier_position_nothing_is_passed_over(
    path: Path, database: sqlite3.Connection
) -> None:
    insert(database, "by_id", ["id", "v"], [(1, 1), (2, 0)])
    assert list(read(path, "by_id", resume=backfill("v = 1")))[-1].positions == {"by_id": {"after": []}}


CONDITIONS = [
    "", "v =", "nosuch = 1", "v = 1; DELETE FROM by_id", "1) OR (1", "v = 1 ORDER BY id", "v = 1 LIMIT 1",
    "v = ?", "v = ?1", "v = :x", "count(*) > 1", "v = 1 UNION SELECT 1", "v = 1 /* open", "v = 1)", "1 = 1\x00",
    "writefile('x', 'y')", "load_extension('x')", "json_extract('{', '$')", "id IN (DELETE FROM by_id RETURNING id)",
]  # fmt: skip


@pytest.mark.parametrize("where", CONDITIONS)
def test_what_is_no_condition_is_refused_before_a_row_is_read_and_cannot_write(
    path: Path, database: sqlite3.Connection, where: str
) -> None:
    insert(database, "by_id", ["id", "v"], [(1, 1), (2, 1)])
    insert(database, "blobs", ["k"], [(b"a table that comes first",)])
    found: list[Batch] = []
    with pytest.raises(UsageError, match="the condition of the backfill of 'by_id' is not one") as error:
        found.extend(read(path, resume=backfill(where)))
    assert repr(where) in error.value.message
    assert "json" in where or "load" in where or not found
    assert database.execute("SELECT count(*) FROM by_id").fetchone() == (2,)


def test_conditions_of_tables_that_are_not_read_do_not_matter(
    path: Path, database: sqlite3.Connection
) -> None:
    assert list(read(path, "no_key", resume=backfill("no sql")))


def test_a_database_that_somebody_holds_is_away_and_not_wrong(
    path: Path, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("PRAGMA journal_mode = DELETE")
    monkeypatch.setattr(sqlite_module, "BUSY", 0.01)
    database.execute("BEGIN EXCLUSIVE")
    with pytest.raises(AwayError, match="database is locked"):
        list(read(path, "by_id"))
    database.execute("ROLLBACK")
    assert list(read(path, "by_id"))


def test_tables_that_are_complete_are_followed_while_another_is_still_copied(
    path: Path, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "MOST_ROWS", 1)
    insert(database, "by_id", ["id", "v"], [(n, n) for n in range(1, 5)])
    insert(database, "no_key", ["a"], [(n,) for n in range(1, 5)])
    resume = {
        "by_id": Resume(Mode.COPY, {"after": [1]}, MessageOffset(0)),
        "no_key": Resume(Mode.COMPLETE, {"after": [1]}, MessageOffset(1)),
    }
    stop = threading.Event()
    batches = read(path, "by_id", "no_key", resume=resume, stop=stop, tail=True, poll_interval=1e-9)
    found = [next(batches) for _ in range(4)]
    insert(database, "by_id", ["id", "v"], [(5, 5)])
    insert(database, "no_key", ["a"], [(5,), (6,)])
    found += [next(batches) for _ in range(6)]
    stop.set()
    assert list(batches) == []
    assert [(m.ns, next(iter(json.loads(m.data).values())), m.mode.word) for m in messages(found)] == [
        ("no_key", 2, "sync"), ("no_key", 3, "sync"), ("no_key", 4, "sync"),
        ("by_id", 2, "copy"), ("no_key", 5, "sync"), ("no_key", 6, "sync"), ("by_id", 3, "copy"), ("by_id", 4, "copy"),
        ("by_id", 5, "sync"),
    ]  # fmt: skip
    assert [list(batch.completed) for batch in found] == [[]] * 8 + [["by_id"], []]


def test_a_copy_shows_one_moment(
    path: Path, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "MOST_ROWS", 1)
    insert(database, "by_id", ["id"], [(1,), (2,)])
    insert(database, "no_key", ["a"], [(1,)])
    batches = read(path, "by_id", "no_key")
    first = next(batches)
    insert(database, "by_id", ["id"], [(3,)])
    insert(database, "no_key", ["a"], [(2,)])
    assert len(messages([first, *batches])) == 3


def test_a_followed_database_is_read_as_it_grows(path: Path, database: sqlite3.Connection) -> None:
    insert(database, "by_id", ["id"], [(1,)])
    stop = threading.Event()
    batches = read(path, "by_id", "later", stop=stop, tail=True, poll_interval=0.01)
    assert documents([next(batches)]) == [{"id": 1, "v": None}]
    insert(database, "no_key", ["a"], [(1,)])
    insert(database, "by_id", ["id", "v"], [(2, "x")])
    grown = next(batches)
    assert [(m.data, m.mode) for m in grown.messages] == [(b'{"id":2,"v":"x"}', Mode.SYNC)]
    assert not grown.completed
    database.execute("CREATE TABLE later (x)")
    insert(database, "later", ["x"], [(1,)])
    new = [next(batches)]
    if not new[0].messages:  # looked between the two commits
        new.append(next(batches))
    assert list(new[0].completed) == ["later"]
    assert documents(new) == [{"x": 1}]
    stop.set()
    assert list(batches) == []


def test_rows_before_a_bad_one_are_read_and_the_bad_one_is_named(
    path: Path, database: sqlite3.Connection
) -> None:
    insert(database, "by_id", ["id", "v"], [(1, "good"), (2, None), (3, "after")])
    database.execute("UPDATE by_id SET v = CAST(X'61FF' AS TEXT) WHERE id = 2")
    database.commit()
    batches: list[Batch] = []
    with pytest.raises(RowError) as error:
        batches.extend(read(path, "by_id"))
    assert documents(batches) == [{"id": 1, "v": "good"}]
    assert batches[-1].positions["by_id"] == {"after": [1]}
    assert error.value.message.startswith("table 'by_id', the row after key [1]: Could not decode to UTF-8")


def test_a_table_made_anew_with_another_key_is_refused(path: Path, database: sqlite3.Connection) -> None:
    with pytest.raises(UsageError, match="table 'pair' has another key"):
        list(read(path, "pair", resume=resumed("pair", {"after": [1]})))


def test_a_table_without_a_name_for_its_rows_is_refused(path: Path, database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE hidden (rowid, _rowid_, OID)")
    with pytest.raises(UsageError, match="table 'hidden' has columns rowid, _rowid_ and oid"):
        a.sqlite(uri=f"sqlite://{path}").source().namespaces()


def test_what_is_no_database_is_a_usage_error(tmp_path: Path) -> None:
    missing, text = tmp_path / "missing.db", tmp_path / "text.db"
    text.write_text("this is not a database, however long it is made " * 100)
    for path in (missing, text, tmp_path):
        with pytest.raises(UsageError, match="cannot read the database"):
            a.sqlite(uri=f"sqlite://{path}").source().namespaces()
    assert not missing.exists()


def test_an_error_of_sqlite_names_the_database(path: Path, database: sqlite3.Connection) -> None:
    database.create_collation("mine", lambda x, y: (x > y) - (x < y))
    database.execute("CREATE TABLE other (a TEXT COLLATE mine PRIMARY KEY) WITHOUT ROWID")
    with pytest.raises(PenstockError, match=r"cannot read the database .*shop\?\.db: no such collation"):
        list(read(path, "other"))


def test_reading_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "plain.db"
    connection = sqlite3.connect(path)
    connection.executescript("CREATE TABLE t (x); INSERT INTO t VALUES (1);")
    connection.close()
    before = path.read_bytes()
    path.chmod(0o400)
    assert documents(list(read(path))) == [{"x": 1}]
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["plain.db"]


def test_stopping_ends_the_read_between_batches(
    path: Path, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "MOST_ROWS", 1)
    insert(database, "by_id", ["id"], [(1,), (2,), (3,)])
    stop = threading.Event()
    batches = read(path, "by_id", "no_key", stop=stop)
    next(batches)
    stop.set()
    assert list(batches) == []


def test_large_rows_make_batches_of_about_a_megabyte(path: Path, database: sqlite3.Connection) -> None:
    insert(database, "by_id", ["id", "v"], [(n, "x" * 400_000) for n in range(7)])
    assert [len(batch.messages) for batch in read(path, "by_id")] == [3, 3, 1]


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"uri": "shop.db"}, "setting 'uri': expected sqlite://PATH, got 'shop.db'"),
        ({"uri": "sqlite://x", "poll_interval": 0}, "setting 'poll_interval': expected more than 0"),
        ({"uri": "sqlite://x", "interval": 1}, "unknown setting 'interval'"),
    ],
)
def test_bad_settings_are_refused_at_load(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(UsageError) as error:
        a.sqlite(**settings)
    assert complaint in error.value.message
