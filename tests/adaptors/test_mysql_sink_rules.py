"""The MySQL sink: keys, foreign keys and types of the target hold, message by message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.adaptors.mysql_target import MySqlTarget
from tests.servers.mariadb import MySqlServer

from penstock import adaptors
from penstock.adaptors.base import Adaptor, Finding, Sink
from penstock.base.errors import RefusedError, UsageError
from penstock.log.message import Message, Mode, Op
from penstock.log.schema import Field, Kind, Schema
from penstock.testing.adaptors.delivery import Delivery, truncate

pytestmark = pytest.mark.xdist_group("mariadb")


class _Target(MySqlTarget):
    """As in the kit, with settings of its own."""

    settings: dict[str, object] = {}  # noqa: RUF012

    def adaptor(self) -> Adaptor:
        return adaptors.mysql(uri=self._server.uri("rules"), **self.settings)


@pytest.fixture
def target(mariadb_server: MySqlServer) -> _Target:
    mariadb_server.execute("DROP DATABASE IF EXISTS rules", "CREATE DATABASE rules CHARACTER SET utf8mb4")
    return _Target(mariadb_server, "rules")


@pytest.fixture
def delivery(target: _Target, tmp_path: Path) -> Iterator[Delivery]:
    delivery = Delivery(target, tmp_path)
    yield delivery
    delivery.close()


def row(ns: str, op: Op = Op.INSERT, was: object = None, /, **fields: object) -> Message:
    key = {name: fields[name] for name in ("id", "k") if name in fields}
    old = None if was is None else msgspec.json.encode(dict.fromkeys(key, was))
    return Message(ns, msgspec.json.encode(fields), op, 0, Mode.SYNC, msgspec.json.encode(key), old)


def deliver(delivery: Delivery, *messages: Message) -> list[str]:
    """In one batch; tells what was refused."""
    if delivery.end == 0:
        delivery.open()
    delivery.add(*messages)
    return [refusal.error for refusal in sorted(delivery.deliver(), key=lambda refusal: refusal.offset)]


def rows(server: MySqlServer, table: str) -> list[tuple[object, ...]]:
    return sorted(server.query(f"SELECT * FROM rules.{table}"), key=repr)


def test_a_value_that_must_be_unique_never_overwrites_another_row(
    mariadb_server: MySqlServer, delivery: Delivery
) -> None:
    mariadb_server.execute("CREATE TABLE rules.t (id int PRIMARY KEY, mail varchar(20) UNIQUE)")
    assert deliver(delivery, row("t", id=1, mail="a"), row("t", id=2, mail="b")) == []
    with pytest.raises(RefusedError, match="Duplicate"):
        deliver(delivery, row("t", id=3, mail="a"))
    assert rows(mariadb_server, "t") == [(1, "a"), (2, "b")]
    delivery.messages.pop()
    delivery.reopen()
    assert deliver(delivery, row("t", Op.UPDATE, id=1, mail="c"), row("t", id=3, mail="a")) == []
    assert rows(mariadb_server, "t") == [(1, "c"), (2, "b"), (3, "a")]


def test_foreign_keys_hold_and_the_order_of_the_log_satisfies_them(
    mariadb_server: MySqlServer, delivery: Delivery
) -> None:
    mariadb_server.execute(
        "CREATE TABLE rules.parent (id int PRIMARY KEY)",
        "CREATE TABLE rules.child (id int PRIMARY KEY, parent int, FOREIGN KEY (parent) REFERENCES rules.parent (id))",
    )
    assert deliver(delivery, row("parent", id=1), row("child", id=1, parent=1), row("parent", id=2)) == []
    assert deliver(delivery, row("child", Op.DELETE, id=1), row("parent", Op.DELETE, id=1)) == []
    with pytest.raises(RefusedError, match="foreign key"):
        deliver(delivery, row("child", id=2, parent=99))
    assert rows(mariadb_server, "parent") == [(2,)]
    assert rows(mariadb_server, "child") == []


def test_a_key_that_changes_takes_its_row_along(mariadb_server: MySqlServer, delivery: Delivery) -> None:
    mariadb_server.execute(
        "CREATE TABLE rules.t (k varchar(9) COLLATE utf8mb4_general_ci PRIMARY KEY, v int, own int DEFAULT 7)"
    )
    deliver(delivery, row("t", k="a", v=1), row("t", k="b", v=2), row("t", k="c", v=3))
    mariadb_server.execute("UPDATE rules.t SET own = v")
    moves = [
        row("t", Op.UPDATE, "a", k="x", v=1),  # to a free place
        row("t", Op.UPDATE, "b", k="B", v=20),  # the same to the server
        row("t", Op.UPDATE, "c", k="x", v=30),  # to a place that is taken
        row("t", Op.UPDATE, "gone", k="n", v=4),  # from nowhere
    ]
    assert deliver(delivery, *moves) == []
    assert rows(mariadb_server, "t") == [("B", 20, 2), ("n", 4, 7), ("x", 30, 3)]


def test_emptying_a_table_is_part_of_the_transaction(mariadb_server: MySqlServer, delivery: Delivery) -> None:
    mariadb_server.execute("CREATE TABLE rules.t (id int PRIMARY KEY, v int NOT NULL)")
    deliver(delivery, row("t", id=1, v=1))
    with pytest.raises(RefusedError):
        deliver(delivery, truncate("t"), row("t", id=2))
    assert rows(mariadb_server, "t") == [(1, 1)]
    delivery.messages.pop()
    delivery.reopen()
    assert deliver(delivery, row("t", id=2, v=2)) == []
    assert rows(mariadb_server, "t") == [(2, 2)]


def test_messages_that_a_column_cannot_take_are_refused_one_by_one(
    mariadb_server: MySqlServer, delivery: Delivery
) -> None:
    mariadb_server.execute("CREATE TABLE rules.t (id tinyint PRIMARY KEY, v varchar(3))")
    refused = deliver(
        delivery, row("t", id=1, v="ok"), row("t", id=300, v="x"), row("t", id=2, v="long"), row("t", id=3, w=1),
        row("t", Op.DELETE, k=1),
    )  # fmt: skip
    assert [error.partition(":")[0] for error in refused][:2] == ["the field 'id'", "the field 'v'"]
    assert "no column 'w'" in refused[2]
    assert "'id' is missing" in refused[3]
    assert rows(mariadb_server, "t") == [(1, "ok")]


def test_tables_are_made_for_the_fields_that_messages_have(
    mariadb_server: MySqlServer, target: _Target, delivery: Delivery
) -> None:
    target.settings = {"create_tables": True}
    fields = (
        Field("k", Kind.STRING, native="varchar(9)"), Field("n", Kind.DECIMAL, native="bigint unsigned"),
        Field("price", Kind.DECIMAL, native="decimal(12,2)"), Field("at", Kind.TIMESTAMP), Field("raw", Kind.BINARY),
        Field("doc", Kind.ANY),
    )  # fmt: skip
    delivery.schemas["shop.made"] = Schema(fields, ("k",))
    values = {"n": 2**64 - 1, "price": 1.5, "at": {"$date": "2100-01-01T00:00:00Z"}, "doc": {"a": 1}}
    assert (
        deliver(
            delivery,
            row("shop.made", k="a", **values),
            row("shop.made", k="A ", **values),
            row("shop.made", k="a ", **values),
        )
        == []
    )
    found = mariadb_server.query("SELECT k, n, price, at, doc FROM rules.made")
    assert {one[0] for one in found} == {"a", "A ", "a "}, "keys are told apart to the last letter"
    assert (
        str(found[0][1:4]) == "(18446744073709551615, Decimal('1.50'), datetime.datetime(2100, 1, 1, 0, 0))"
    )
    assert msgspec.json.decode(found[0][4]) == {"a": 1}


def test_tables_that_cannot_be_written_exactly_once_are_refused(
    mariadb_server: MySqlServer, delivery: Delivery
) -> None:
    mariadb_server.execute(
        "CREATE TABLE rules.old (id int PRIMARY KEY) ENGINE = MyISAM",
        "CREATE TABLE rules.t (id int PRIMARY KEY)",
    )
    with pytest.raises(UsageError, match="MyISAM"):
        deliver(delivery, row("old", id=1))
    delivery.messages.clear()
    delivery.reopen()
    with pytest.raises(UsageError, match="both the table"):
        deliver(delivery, row("a.t", id=1), row("b.t", id=2))
    assert rows(mariadb_server, "t") == []


def inspected(sink: Sink, *namespaces: str) -> list[Finding]:
    """But for what is said of the server: one for tests need not survive a loss of power."""
    return [finding for finding in sink.inspect(namespaces) if "loss of power" not in finding.what]


def test_inspect_looks_at_the_tables_of_the_namespaces_that_will_come(
    target: _Target, mariadb_server: MySqlServer
) -> None:
    mariadb_server.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE TABLE old (id int) ENGINE = MyISAM",
        "CREATE OR REPLACE USER poor IDENTIFIED BY 'poor-password'",
        "GRANT SELECT ON rules.orders TO poor",
        "GRANT ALL ON rules.old TO poor",
        "GRANT ALL ON `rule\\_`.* TO poor",
        database="rules",
    )
    poor = mariadb_server.uri("rules", "poor", "poor-password")
    sink = adaptors.mysql(uri=poor).sink()
    found = inspected(sink, "shop.orders", "shop.items", "shop.old", "orders")
    assert [(finding.what.partition(",")[0], finding.fatal) for finding in found] == [
        ("there is no table rules.penstock_positions", True),
        ("no right INSERT", True),
        ("there is no table rules.items", True),
        ("table rules.old is of the engine MyISAM", True),
        ("table rules.old has no key: it takes inserts", False),
        ("namespaces 'orders' and 'shop.orders' are both the table rules.orders", True),
    ]
    mended = [
        fix
        for finding in found
        if (fix := finding.fix or "").startswith(("GRANT", "ALTER")) and "…" not in fix
    ]
    mariadb_server.execute(*mended, database="rules")
    assert [finding.what for finding in inspected(sink, "shop.orders")] == []
    making = adaptors.mysql(uri=poor, create_tables=True).sink()
    assert inspected(making, "shop.orders", "shop.items") == []


def test_inspect_asks_for_the_right_to_make_a_table_only_where_one_is_missing(
    target: _Target, mariadb_server: MySqlServer
) -> None:
    mariadb_server.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE OR REPLACE USER poor IDENTIFIED BY 'poor-password'",
        "GRANT SELECT, INSERT, UPDATE ON rules.* TO poor",
        database="rules",
    )
    sink = adaptors.mysql(uri=mariadb_server.uri("rules", "poor", "poor-password"), create_tables=True).sink()
    own, table, deletes = inspected(sink, "items", "orders")
    assert own.fatal
    assert table.fix == "GRANT CREATE ON `rules`.* TO 'poor'@'%'"
    assert (deletes.fix, deletes.fatal) == ("GRANT DELETE ON `rules`.`orders` TO 'poor'@'%'", False)


def test_inspect_names_a_database_that_is_not_there(target: _Target, mariadb_server: MySqlServer) -> None:
    sink = adaptors.mysql(uri=mariadb_server.uri()).sink()
    named, missing = inspected(sink, "nowhere.orders", "orders")
    assert (named.what, named.fatal) == ("there is no database nowhere, or the user may not see it", True)
    assert "names no database" in missing.what


def test_a_json_column_takes_every_value_whatever_its_type(
    mariadb_server: MySqlServer, target: _Target, delivery: Delivery
) -> None:
    target.settings = {"create_tables": True}
    values = [5, True, 1.5, "word", "5 apples", {"a": [1]}, [None], '{"b": 1.0}', None]
    assert deliver(delivery, *(row("t", id=i, v=value) for i, value in enumerate(values))) == []
    found = mariadb_server.query("SELECT v FROM rules.t ORDER BY id")
    texts = ["5", "true", "1.5", '"word"', '"5 apples"', '{"a":[1]}', "[null]", '{"b": 1.0}', None]
    assert [one for (one,) in found] == texts


def test_a_null_or_a_year_that_would_become_another_value_is_refused(
    mariadb_server: MySqlServer, delivery: Delivery
) -> None:
    # Where a timestamp without a default is told so: null is the time of now.
    before = mariadb_server.query("SELECT @@global.explicit_defaults_for_timestamp")[0][0]
    mariadb_server.execute("SET GLOBAL explicit_defaults_for_timestamp = OFF")
    try:
        mariadb_server.execute("CREATE TABLE rules.t (id int PRIMARY KEY, at timestamp, y year)")
        refused = deliver(
            delivery,
            row("t", id=1, at=None),
            row("t", id=2, y=5),
            row("t", id=3, y=0),
            row("t", id=4, y=1901),
        )
    finally:
        mariadb_server.execute(f"SET GLOBAL explicit_defaults_for_timestamp = {before}")
    assert [error.split(" where ")[0] for error in refused] == ["the field 'at': null", "the field 'y': 5"]
    assert mariadb_server.query("SELECT id, y FROM rules.t ORDER BY id") == [(3, 0), (4, 1901)]


def test_inspect_says_which_keys_do_not_tell_texts_apart(
    target: _Target, mariadb_server: MySqlServer
) -> None:
    mariadb_server.execute(
        "CREATE TABLE rules.t (k varchar(9) COLLATE utf8mb4_general_ci PRIMARY KEY)",
        "CREATE TABLE rules.u (k varchar(9) COLLATE utf8mb4_bin PRIMARY KEY, w text)",
    )
    findings = [one for one in target.adaptor().sink().inspect(["s.t", "s.u"]) if "apart" in one.what]
    assert [one.fatal for one in findings] == [False]
    assert "rules.t" in findings[0].what
    assert "k (utf8mb4_general_ci)" in findings[0].what
