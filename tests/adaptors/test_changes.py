"""What relational sinks share: from messages to changes, and to few statements that leave the same rows."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.adaptors.postgres_target import PostgresTarget, Writer
from tests.servers.postgres import PostgresServer

from penstock import adaptors as a
from penstock.adaptors.base import SinkPosition, Stage
from penstock.adaptors.changes import (
    Bind,
    Change,
    Kind,
    NotTakenError,
    Row,
    Rows,
    Target,
    apply,
    collapse,
    read,
    runs,
)
from penstock.adaptors.growing import Seen
from penstock.adaptors.mysql.sink_values import bound
from penstock.adaptors.mysql.types import Column
from penstock.adaptors.postgres.sink_values import Column as PostgresColumn
from penstock.adaptors.postgres.sink_values import text_of
from penstock.adaptors.sqlite.sink_values import stored
from penstock.log.message import Message, Op
from penstock.log.schema import Field, KnownSchemas, Schema, Told
from penstock.log.schema import Kind as FieldKind
from penstock.testing.adaptors.delivery import batch_of

TABLE = Target("t", frozenset({"id", "a", "b"}), ("id",))


def bind(name: str, raw: bytes) -> Hashable:
    value = msgspec.json.decode(raw)
    assert value is None or isinstance(value, Hashable)
    return value


def row(op: str, data: str, key: str | None = None, old: str | None = None) -> Row:
    return Row(7, op, key, old, data)


# Reading


def test_inserts_and_updates_are_written_under_their_key() -> None:
    for op in ("insert", "update"):
        change = read(TABLE, row(op, '{"id":1,"a":2}'), bind)
        assert change == Change("t", Kind.UPSERT, 7, (1,), ("id", "a"), (1, 2))


def test_an_update_with_another_key_before_moves_its_row() -> None:
    change = read(TABLE, row("update", '{"id":1,"a":2}', old='{"id":9}'), bind)
    assert change == Change("t", Kind.MOVE, 7, (1,), ("id", "a"), (1, 2), (9,))
    same = read(TABLE, row("update", '{"id":1,"a":2}', old='{"id":1}'), bind)
    assert same is not None
    assert same.kind is Kind.UPSERT


def test_an_update_of_which_a_function_has_changed_the_key_deletes_no_other_row() -> None:
    """Row 2 was number 1 and is number 5 by a function that adds to numbers; row 1 is that of number 0."""
    moved = Row(7, "update", '{"id":5}', '{"id":1}', '{"id":6,"a":2}')
    with pytest.raises(NotTakenError, match="a function has given it another one"):
        read(TABLE, moved, bind)
    both = Row(7, "update", '{"id":6}', '{"id":2}', '{"id":6,"a":2}')
    change = read(TABLE, both, bind)
    assert change is not None
    assert (change.kind, change.key, change.old) == (Kind.MOVE, (6,), (2,))
    usual = read(TABLE, Row(7, "update", '{"id":5}', None, '{"id":6,"a":2}'), bind)
    assert usual is not None
    assert (usual.kind, usual.key) == (Kind.UPSERT, (6,))


def test_a_delete_takes_its_key_from_the_row_or_else_from_the_key() -> None:
    for one in (row("delete", '{"id":1,"a":2}'), row("delete", '{"a":2}', key='{"id":1}')):
        assert read(TABLE, one, bind) == Change("t", Kind.DELETE, 7, (1,))


@pytest.mark.parametrize(
    ("bind", "text"),
    [
        (lambda name, raw: stored("REAL", raw), "1" + "0" * 400),
        (lambda name, raw: bound(Column("a", "double"), raw), "1" + "0" * 400),
        (
            lambda name, raw: bound(Column("a", "datetime"), raw),
            '{"$date":"0001-01-01T00:00:00+14:00"}',
        ),
        (
            lambda name, raw: text_of(PostgresColumn("a", 1, "boolean", "bool"), raw),
            '{"$numberDecimal":"sNaN"}',
        ),
    ],
    ids=["sqlite", "mysql number", "mysql moment", "postgres"],
)
def test_what_cannot_be_reckoned_with_is_refused_like_any_wrong_value(bind: Bind, text: str) -> None:
    with pytest.raises(NotTakenError, match="the field 'a'"):
        read(Target("t", frozenset({"a"}), ()), row("insert", f'{{"a":{text}}}'), bind)


def test_what_is_nested_too_deeply_to_be_read_is_refused() -> None:
    text = '{"id":1,"a":' + "[" * 2000 + "]" * 2000 + "}"
    with pytest.raises(NotTakenError, match="not the text of an object"):
        read(TABLE, row("insert", text), bind)
    seen = Seen()
    seen.add("t", 0, "insert", None, text)
    assert not seen.fields


def test_a_table_is_made_by_the_schemas_that_held_for_its_rows() -> None:
    """Not by one that was told behind them: it holds other values, or fewer of their digits."""
    kinds = (FieldKind.DECIMAL, FieldKind.FLOAT, FieldKind.STRING)
    told = [Told(at, Schema((Field("x", kind),), ("x",))) for at, kind in zip((0, 5, 9), kinds, strict=True)]
    for offsets, kind in (
        ((0, 4), FieldKind.DECIMAL),
        ((5,), FieldKind.FLOAT),
        ((4, 5), FieldKind.DECIMAL),
        ((8, 9), FieldKind.ANY),
        ((12,), FieldKind.STRING),
    ):
        seen = Seen()
        for offset in offsets:
            seen.add("t", offset, "insert", None, '{"x":1.50}')
        assert seen.schema(KnownSchemas({"t": told})) == Schema((Field("x", kind),), ("x",)), offsets


def test_a_command_truncates_and_a_noop_does_nothing() -> None:
    assert read(TABLE, row("command", '{"command":"truncate"}'), bind) == Change("t", Kind.TRUNCATE, 7)
    assert read(TABLE, row("noop", "{}"), bind) is None


@pytest.mark.parametrize(
    "given, said",
    [
        (row("insert", '{"a":1}'), "the field 'id' is missing"),
        (row("insert", '{"id":null}'), "the field 'id' is null"),
        (row("delete", "{}"), "the field 'id' is missing"),
        (row("update", '{"id":1}', old='{"x":1}'), "the field 'id' is missing"),
        (row("insert", '{"id":1,"c":1}'), "no column 'c'"),
        (row("insert", "[1]"), "not the text of an object"),
        (row("insert", '{"id":'), "not the text of an object"),
        (row("command", '{"command":"drop"}'), "a command other than truncate"),
        (row("command", "7"), "a command other than truncate"),
        (row("unknown", "{}"), "'unknown' is not known"),
    ],
)
def test_what_cannot_be_applied_says_why(given: Row, said: str) -> None:
    with pytest.raises(NotTakenError, match=said):
        read(TABLE, given, bind)


def test_a_table_without_a_key_only_takes_inserts() -> None:
    keyless = Target("t", frozenset({"id"}), ())
    assert read(keyless, row("insert", '{"id":1}'), bind) == Change("t", Kind.UPSERT, 7, None, ("id",), (1,))
    for op in ("update", "delete"):
        with pytest.raises(NotTakenError, match="no primary key"):
            read(keyless, row(op, '{"id":1}'), bind)


def test_computed_columns_are_passed_over_and_unknown_fields_if_asked_to() -> None:
    table = Target("t", frozenset({"id"}), ("id",), frozenset({"sum"}), "ignore")
    change = read(table, row("insert", '{"id":1,"sum":2,"else":3}'), bind)
    assert change is not None
    assert change.fields == ("id",)


# Planning: any sequence of changes over few keys


FIELDS = st.sampled_from([("id", "a", "b")] * 6 + [("id", "a"), ("id", "b"), ("id",)])


KINDS = [*[Kind.UPSERT] * 5, *[Kind.DELETE] * 3, Kind.TRUNCATE]


@st.composite
def changes(draw: st.DrawFn, *, tables: int = 2, whole: bool = False) -> list[Change]:
    made = []
    for offset in range(draw(st.integers(0, 14))):
        table, key = f"t{draw(st.integers(0, tables - 1))}", draw(st.integers(0, 3))
        kind = draw(st.sampled_from(KINDS if whole else [*KINDS, Kind.MOVE, Kind.MOVE]))
        fields = ("id", "a", "b") if whole else draw(FIELDS)
        old = draw(st.integers(0, 3))
        if kind is Kind.TRUNCATE:
            made.append(Change(table, kind, offset))
        elif kind is Kind.DELETE or (kind is Kind.MOVE and old == key):
            made.append(Change(table, Kind.DELETE, offset, (key,)))
        else:
            values = {"id": key, "a": offset, "b": draw(st.integers(0, 9))}
            was = (old,) if kind is Kind.MOVE else None
            made.append(
                Change(table, kind, offset, (key,), fields, tuple(values[name] for name in fields), was)
            )
    return made


def one_by_one(before: dict[str, Rows], made: Iterable[Change]) -> dict[str, Rows]:
    state = {name: {key: dict(one) for key, one in rows.items()} for name, rows in before.items()}
    for change in made:
        apply(state.setdefault(change.table, {}), change)
    return {name: rows for name, rows in state.items() if rows}


def before() -> dict[str, Rows]:
    """Rows that are there, with a column that no message sets."""
    return {
        f"t{t}": {(k,): {"id": k, "a": -1, "b": -1, "kept": f"{t} {k}"} for k in (0, 2)} for t in range(2)
    }


@given(changes(), st.booleans(), st.integers(1, 5))
def test_runs_are_the_changes_in_their_order(made: list[Change], distinct: bool, most: int) -> None:
    found = list(runs(made, distinct=distinct, most=most))
    assert [change for run in found for change in run.changes] == made
    for run in found:
        assert len(run.changes) <= most
        assert {(c.table, c.kind, c.fields) for c in run.changes} == {(run.table, run.kind, run.fields)}
        if run.kind in (Kind.MOVE, Kind.TRUNCATE):
            assert len(run.changes) == 1
        if distinct and run.kind is not Kind.TRUNCATE:
            assert len({change.key for change in run.changes}) == len(run.changes)


@given(changes(), st.booleans())
def test_runs_are_no_shorter_than_they_have_to_be(made: list[Change], distinct: bool) -> None:
    for one, two in itertools.pairwise(runs(made, distinct=distinct)):
        first, second = one.changes[0], two.changes[0]
        alike = (first.table, first.kind, first.fields) == (second.table, second.kind, second.fields)
        repeats = distinct and second.key in {change.key for change in one.changes}
        assert not alike or repeats or one.kind in (Kind.MOVE, Kind.TRUNCATE)


@given(changes() | changes(whole=True))
def test_a_collapse_leaves_the_rows_of_the_order(made: list[Change]) -> None:
    plan = collapse(made)
    if plan is None:
        return
    planned = [Change(name, Kind.TRUNCATE, -1) for name in plan.truncates]
    planned += [change for some in plan.deletes.values() for change in some]
    planned += [change for some in plan.upserts.values() for change in some]
    assert one_by_one(before(), planned) == one_by_one(before(), made)
    for some in plan.upserts.values():
        assert len({change.key for change in some}) == len(some), "a key is written once"


@given(changes(whole=True))
def test_whole_rows_that_stay_under_their_keys_can_always_be_collapsed(made: list[Change]) -> None:
    assert collapse(made) is not None


def test_keys_that_the_target_takes_for_one_are_one_when_collapsed() -> None:
    made = [
        Change("t", Kind.UPSERT, 0, ("A",), ("id",), ("A",)),
        Change("t", Kind.DELETE, 1, ("a",)),
    ]
    plan = collapse(made, same=lambda key: str(key[0]).lower())
    assert plan is not None
    assert plan.upserts == {}


# The same through real databases


def messages_of(made: Iterable[Change], ns: dict[str, str]) -> list[Message]:
    found = []
    for change in made:
        key = msgspec.json.encode({"id": change.key[0]}) if change.key else None
        if change.kind is Kind.TRUNCATE:
            found.append(Message(ns[change.table], b'{"command":"truncate"}', Op.COMMAND))
        elif change.kind is Kind.DELETE:
            found.append(Message(ns[change.table], key or b"", Op.DELETE, key=key))
        else:
            data = msgspec.json.encode(dict(zip(change.fields, change.values, strict=True)))
            old = msgspec.json.encode({"id": change.old[0]}) if change.old else None
            found.append(Message(ns[change.table], data, Op.UPDATE, key=key, old_key=old))
    return found


def as_rows(state: dict[str, Rows], table: str) -> list[tuple[object, ...]]:
    return sorted(
        (one["id"], one.get("a"), one.get("b"), one.get("kept", "new"))
        for one in state.get(table, {}).values()
    )


_examples = settings(
    max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
CREATE = "(id int PRIMARY KEY, a int, b int, kept text DEFAULT 'new')"


@pytest.fixture
def writer(postgres_server: PostgresServer) -> Iterator[Writer]:
    target = PostgresTarget(postgres_server)
    target.execute(*(f"CREATE TABLE {target.own_schema}_t{t} {CREATE}" for t in range(2)))
    writer = Writer(target)
    yield writer
    writer.close()


@pytest.mark.xdist_group("postgres")
@_examples
@given(changes() | changes(whole=True), st.integers(1, 3))
def test_the_rows_in_postgres_are_those_of_the_order(writer: Writer, made: list[Change], parts: int) -> None:
    tables = {f"t{t}": f"{writer.target.own_schema}_t{t}" for t in range(2)}
    for name, rows in before().items():
        values = ", ".join(f"({one['id']}, -1, -1, '{one['kept']}')" for one in rows.values())
        writer.target.execute(f"TRUNCATE {tables[name]}; INSERT INTO {tables[name]} VALUES {values}")
    assert writer.write(*messages_of(made, tables), parts=parts) == []
    after = one_by_one(before(), made)
    for name, table in tables.items():
        assert sorted(writer.target.query(f"SELECT * FROM {table}")) == as_rows(after, name)


@_examples
@given(changes() | changes(whole=True))
def test_the_rows_in_sqlite_are_those_of_the_order(tmp_path: Path, made: list[Change]) -> None:
    path = tmp_path / "target.db"
    path.unlink(missing_ok=True)
    tables = {f"t{t}": f"t{t}" for t in range(2)}
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for name, rows in before().items():
            connection.execute(f"CREATE TABLE {name} {CREATE}")
            connection.executemany(
                f"INSERT INTO {name} VALUES (?, -1, -1, ?)",
                [(one["id"], one["kept"]) for one in rows.values()],
            )
        connection.commit()
        sink = a.sqlite(uri=f"sqlite://{path}").sink()
        sink.use(KnownSchemas({}), "shop.db")
        publisher = sink.publisher()
        publisher.open(SinkPosition("log", 0, 0))
        found = messages_of(made, tables)
        stage = Stage(tmp_path, f"part{id(made)}", 0)
        staged = sink.stager().stage(stage, iter([batch_of(found, 0)] if found else []))
        publisher.publish([staged] if staged.part else [], SinkPosition("log", 0, len(found)))
        publisher.close()
        if staged.part:
            Path(staged.part).unlink()
        after = one_by_one(before(), made)
        for name in tables:
            assert sorted(connection.execute(f"SELECT * FROM {name}")) == as_rows(after, name)
