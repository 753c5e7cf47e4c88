"""The SQLite source sees updates by a column that says when a row changed."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import adaptors as a
from penstock.log.message import Message, Op
from penstock.testing.adaptors.model import Log, Reading, read_all


class Table:
    """A table `t` with a column `changed`, its log, and looks at it, each by a source of its own."""

    def __init__(self, path: Path, made: str = "(id INTEGER PRIMARY KEY, x, changed)") -> None:
        self.path = path
        self.log = Log()
        self.execute(f"CREATE TABLE t {made}")

    def execute(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            for statement in statements:
                connection.execute(statement)

    def look(self) -> list[tuple[str, int, object]]:
        """What a look finds: operation, key and `x` of each message."""
        begin = len(self.log.messages)
        read_all(a.sqlite(uri=f"sqlite://{self.path}", updated_at="changed"), self.log, ["t"], 10)
        return [_seen(message) for message in self.log.messages[begin:]]

    def rows(self) -> dict[int, object]:
        with closing(sqlite3.connect(self.path)) as connection:
            return dict(connection.execute("SELECT id, x FROM t"))


def _seen(message: Message) -> tuple[str, int, object]:
    document = msgspec.json.decode(message.data)
    return message.op.word, document["id"], document["x"]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "shop.db")


def test_rows_with_a_newer_value_are_updates_in_the_order_of_their_values(table: Table) -> None:
    table.execute("INSERT INTO t VALUES (1, 'a', 10), (2, 'b', 11), (3, 'c', NULL)")
    assert [op for op, *_ in table.look()] == ["insert"] * 3
    assert table.look() == []
    table.execute(
        "UPDATE t SET x = 'B', changed = 13 WHERE id = 2", "UPDATE t SET x = 'A', changed = 12 WHERE id = 1"
    )
    table.execute("INSERT INTO t VALUES (4, 'd', 14)", "UPDATE t SET x = 'C', changed = 15 WHERE id = 3")
    assert table.look() == [("update", 1, "A"), ("update", 2, "B"), ("update", 3, "C"), ("insert", 4, "d")]
    assert table.look() == [], "a row that was inserted is not an update as well"


def test_a_row_that_changes_within_the_newest_value_is_not_lost(table: Table) -> None:
    """A clock of seconds: both rows changed in second 11, one of them after it was looked at."""
    table.execute("INSERT INTO t VALUES (1, 'a', 10), (2, 'b', 11), (3, 'c', 11)")
    table.look()
    table.execute("UPDATE t SET x = 'A', changed = 11 WHERE id = 1")
    assert ("update", 1, "A") in table.look()
    table.execute("UPDATE t SET x = 'C' WHERE id = 3")
    assert ("update", 3, "C") in table.look()
    assert table.look() == []


def test_an_update_during_a_copy_that_was_interrupted_is_seen_after_it(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["penstock.adaptors.sqlite"], "MOST_ROWS", 2)
    table.execute(*(f"INSERT INTO t VALUES ({i}, 'x', 10)" for i in range(6)))
    adaptor = a.sqlite(uri=f"sqlite://{table.path}", updated_at="changed")
    with Reading(adaptor, table.log, lambda ns: True) as reading:
        reading.step(5)
    assert 0 < len(table.log.messages) < 6
    table.execute("UPDATE t SET x = 'y', changed = 11 WHERE id = 0")
    table.look()
    assert ("update", 0, "y") in table.look()


def test_a_table_without_the_column_is_followed_as_ever(tmp_path: Path) -> None:
    table = Table(tmp_path / "shop.db", "(id INTEGER PRIMARY KEY, x)")
    table.execute("INSERT INTO t VALUES (1, 'a')")
    table.look()
    table.execute("UPDATE t SET x = 'A'", "INSERT INTO t VALUES (2, 'b')")
    assert table.look() == [("insert", 2, "b")]


def test_a_pipeline_that_gets_the_setting_later_sees_updates_from_then_on(table: Table) -> None:
    table.execute("INSERT INTO t VALUES (1, 'a', 10)")
    read_all(a.sqlite(uri=f"sqlite://{table.path}"), table.log, ["t"], 10)
    assert table.look() == []
    table.execute("UPDATE t SET x = 'A', changed = 12")
    assert table.look() == [("update", 1, "A")]


def test_a_followed_table_gives_updates_as_they_come(table: Table) -> None:
    table.execute("INSERT INTO t VALUES (1, 'a', 'then')")
    adaptor = a.sqlite(uri=f"sqlite://{table.path}", updated_at="changed", tail=True, poll_interval=0.01)
    with Reading(adaptor, table.log, lambda ns: True) as reading:
        assert reading.until(lambda: "t" in table.log.completed, 10)
        table.execute("UPDATE t SET x = 'A', changed = 'then that'")
        assert reading.until(lambda: len(table.log.messages) == 2, 10)
    assert _seen(table.log.messages[1]) == ("update", 1, "A")


_numbers = iter(range(1_000_000))

step = st.tuples(st.sampled_from(["insert", "update", "look"]), st.integers(0, 3), st.integers(0, 1))


@settings(max_examples=40)
@given(st.lists(step, max_size=25))
def test_after_any_changes_the_messages_come_to_the_rows(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[tuple[str, int, int]]
) -> None:
    """The column never goes back; rows share its values."""
    table = Table(tmp_path_factory.mktemp("updates") / f"{next(_numbers)}.db")
    clock, ids = 0, 0
    for number, (what, which, tick) in enumerate(steps):
        clock += tick
        if what == "insert":
            ids += 1
            table.execute(f"INSERT INTO t VALUES ({ids}, {number}, {clock})")
        elif what == "update":
            table.execute(f"UPDATE t SET x = {number}, changed = {clock} WHERE id = {which}")
        else:
            table.look()
    table.look()
    rows: dict[int, object] = {}
    for message in table.log.messages:
        op, id, x = _seen(message)
        assert (op == "insert") == (id not in rows)
        assert message.op in (Op.INSERT, Op.UPDATE)
        rows[id] = x
    assert rows == table.rows()
    assert table.look() == []
