"""The MySQL source: what is lost elsewhere and not here, in the copy and behind it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from tests.adaptors.mysql_reading import Tables
from tests.servers.mariadb import MySqlServer

from penstock import adaptors
from penstock.adaptors.base import Batch
from penstock.adaptors.mysql import copy as mysql_copy
from penstock.adaptors.mysql import follower as mysql_follower
from penstock.base.errors import UsageError
from penstock.log.message import MessageOffset, Mode, Op, Resume
from penstock.testing.adaptors.model import Reading, messages_of

pytestmark = pytest.mark.xdist_group("mariadb")


@pytest.fixture
def tables(mariadb_server: MySqlServer) -> Tables:
    return Tables(mariadb_server, "changes")


@pytest.fixture
def settings(mariadb_server: MySqlServer) -> Any:
    """Sets global variables for one test."""
    before: dict[str, str] = {}

    def change(**variables: str) -> None:
        for name, value in variables.items():
            before.setdefault(name, str(mariadb_server.query(f"SELECT @@global.{name}")[0][0]))
            mariadb_server.execute(
                f"SET GLOBAL {name} = '{value}'" if not value.isdigit() else f"SET GLOBAL {name} = {value}"
            )

    yield change
    change(**dict(before))


def until_error(reading: Reading) -> UsageError:
    with pytest.raises(UsageError) as caught:
        reading.until(lambda: False, 20)
    return caught.value


def test_an_update_of_many_rows_gives_each_row_once_as_it_is_after(tables: Tables) -> None:
    tables.run("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    with tables.reading("t") as reading:
        tables.until(reading, lambda: len(tables.of("t")) == 3)
        tables.run("UPDATE t SET v = v + 10")
        tables.until(reading, lambda: len(tables.of("t")) == 6)
    assert [(m.op, m.key) for m in tables.of("t")[3:]] == [(Op.UPDATE, b'{"id":%d}' % i) for i in (1, 2, 3)]
    assert [row["v"] for row in tables.rows("t")[3:]] == [11, 12, 13]


def test_a_source_has_a_server_id_of_its_own(tables: Tables) -> None:
    tables.run("CREATE TABLE t (id int PRIMARY KEY)")
    own = int(tables.server.query("SELECT @@server_id")[0][0])
    with tables.reading("t", server_id=own) as reading:
        assert "server id" in until_error(reading).message
    with tables.reading("t") as reading:
        tables.until(reading, lambda: bool(tables.completed))
        tables.run("INSERT INTO t VALUES (1)")
        tables.until(reading, lambda: len(tables.of("t")) == 1)


def test_a_delete_has_the_row_as_it_was(tables: Tables) -> None:
    tables.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'was here')")
    with tables.reading("t") as reading:
        tables.until(reading, lambda: len(tables.of("t")) == 1)
        tables.run("DELETE FROM t")
        tables.until(reading, lambda: len(tables.of("t")) == 2)
    assert tables.of("t")[1].op is Op.DELETE
    assert tables.rows("t")[1] == {"id": 1, "v": "was here"}


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL", "NO_LOG"])
def test_columns_are_those_of_the_time_of_the_change(
    tables: Tables, settings: Callable[..., None], metadata: str
) -> None:
    settings(binlog_row_metadata=metadata)
    tables.run("CREATE TABLE t (id int PRIMARY KEY, a int unsigned, b varchar(9) CHARACTER SET latin1)")
    tables.run("INSERT INTO t VALUES (1, 4000000000, 'é')")
    tables.copy("t")
    tables.run(
        "INSERT INTO t VALUES (2, 4000000000, 'é')",
        "ALTER TABLE t RENAME COLUMN a TO z, ADD COLUMN c int FIRST",
    )
    tables.run("INSERT INTO t VALUES (7, 3, 5, 'ü')")
    with tables.reading("t") as reading:
        tables.until(reading, lambda: len(tables.of("t")) == 3)
    assert tables.rows("t")[1:] == [{"id": 2, "a": 4000000000, "b": "é"}, {"c": 7, "id": 3, "z": 5, "b": "ü"}]
    schema = tables.log.schema(tables.ns("t"))
    assert schema is not None
    assert [field.name for field in schema.fields] == ["c", "id", "z", "b"]


def test_columns_that_changed_twice_and_were_not_logged_stop_the_source(
    tables: Tables, settings: Callable[..., None]
) -> None:
    settings(binlog_row_metadata="NO_LOG")
    tables.run("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    tables.copy("t")
    tables.run(
        "ALTER TABLE t RENAME COLUMN a TO x",
        "INSERT INTO t VALUES (1, 1, 1)",
        "ALTER TABLE t RENAME COLUMN b TO a",
    )
    with tables.reading("t") as reading:
        error = until_error(reading)
    assert "backfill changes.t" in str(error.hint)
    assert tables.of("t") == []


def test_a_purged_binlog_stops_the_source_and_asks_for_a_backfill(tables: Tables) -> None:
    tables.run("CREATE TABLE t (id int PRIMARY KEY)")
    tables.copy("t")
    tables.run(
        "INSERT INTO t VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (2)", "FLUSH BINARY LOGS"
    )
    tables.purge()
    with tables.reading("t") as reading:
        error = until_error(reading)
    assert "backfill" in str(error.hint)
    assert tables.of("t") == []


def test_rows_changed_by_a_statement_in_the_log_stop_the_source(tables: Tables) -> None:
    tables.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int)")
    with tables.reading("t") as reading:
        tables.until(reading, lambda: bool(tables.completed))
        tables.run("SET SESSION binlog_format = STATEMENT", "INSERT INTO other VALUES (1)")
        tables.run("INSERT INTO t VALUES (1)")
        tables.until(reading, lambda: len(tables.of("t")) == 1)
        tables.run("SET SESSION binlog_format = STATEMENT", "INSERT INTO t VALUES (2)")
        assert "binlog_format = ROW" in str(until_error(reading).hint)


def test_rows_with_columns_missing_stop_the_source(tables: Tables) -> None:
    tables.run("CREATE TABLE t (id int PRIMARY KEY, a int, b int)", "INSERT INTO t VALUES (1, 1, 1)")
    with tables.reading("t") as reading:
        tables.until(reading, lambda: len(tables.of("t")) == 1)
        tables.run("SET SESSION binlog_row_image = MINIMAL", "UPDATE t SET a = 2")
        assert "binlog_row_image = FULL" in str(until_error(reading).hint)


@pytest.mark.soak
def test_a_huge_transaction_comes_in_parts_and_goes_on_in_the_midst(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_follower, "MOST_MESSAGES", 10)
    tables.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    tables.copy("t", "u")
    listed = [", ".join(f"({i})" for i in range(n, n + 7)) for n in range(0, 70, 7)]
    inserts = [f"INSERT INTO {table} VALUES {rows}" for rows in listed for table in ("t", "u")]
    tables.run("BEGIN", *inserts, "COMMIT", "INSERT INTO t VALUES (1000)")
    more = []
    while len(tables.log.messages) < 141:
        with tables.reading("t", "u") as reading:
            batch = reading.step(20)
            assert batch is not None
            more.append(batch.more)
    assert [row["id"] for row in tables.rows("t")] == [*range(70), 1000]
    assert [row["id"] for row in tables.rows("u")] == list(range(70))
    assert any(more)
    assert not more[-1]


def test_a_copy_that_goes_on_later_has_each_change_once_whatever_the_key(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that sort otherwise than their letters do; changes before and behind the place where the copy stopped."""
    monkeypatch.setattr(mysql_copy, "MOST_ROWS", 2)
    tables.run("CREATE TABLE t (k varchar(9) COLLATE utf8mb4_unicode_ci, n int, v int, PRIMARY KEY (k, n))")
    tables.run(
        "INSERT INTO t VALUES ('a', 1, 0), ('B', 1, 0), ('b', 2, 0), ('Ç', 1, 0), ('d', 1, 0), ('E', 1, 0)"
    )
    with tables.reading("t") as reading:
        for _ in range(2):
            reading.step(20)
    assert [(row["k"], row["n"]) for row in tables.rows("t")] == [("a", 1), ("B", 1), ("b", 2), ("Ç", 1)]
    tables.run(
        "UPDATE t SET v = 1 WHERE k IN ('B', 'd')",
        "DELETE FROM t WHERE k = 'ç'",
        "INSERT INTO t VALUES ('c', 0, 5)",
    )
    tables.run(
        "UPDATE t SET k = 'z' WHERE k = 'a'",
        "UPDATE t SET k = 'A' WHERE k = 'E'",
        "INSERT INTO t VALUES ('F', 1, 6)",
    )
    with tables.reading("t") as reading:
        tables.until(reading, lambda: len(tables.of("t")) >= 13)
        tables.run("INSERT INTO t VALUES ('last', 1, 1)")
        tables.until(reading, lambda: tables.rows("t")[-1]["k"] == "last")
    behind = [(m.op, r.get("k")) for m, r in zip(tables.of("t"), tables.rows("t"), strict=True)][4:]
    assert behind == [
        (Op.INSERT, "d"), (Op.INSERT, "F"), (Op.INSERT, "z"),  # the rest of the copy
        (Op.UPDATE, "B"), (Op.UPDATE, "b"), (Op.DELETE, "Ç"), (Op.INSERT, "c"),  # of what was copied before
        (Op.DELETE, "a"),  # its new place was copied with it
        (Op.INSERT, "A"),  # its old place was copied without it
        (Op.INSERT, "last"),
    ]  # fmt: skip


def test_a_table_without_a_key_that_was_copied_in_part_begins_anew(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_copy, "MOST_ROWS", 2)
    tables.run("CREATE TABLE t (v int)", "INSERT INTO t VALUES (1), (2), (3)")
    with tables.reading("t") as reading:
        reading.step(20)
    tables.copy("t")
    assert [m.data for m in tables.of("t")][2:] == [
        b'{"command":"truncate"}',
        b'{"v":1}',
        b'{"v":2}',
        b'{"v":3}',
    ]


def test_a_table_that_takes_the_name_of_another_is_copied_anew(tables: Tables) -> None:
    tables.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with tables.reading("t") as reading:
        tables.until(reading, lambda: len(tables.of("t")) == 1)
        tables.run("CREATE TABLE new (id int PRIMARY KEY, v int)", "INSERT INTO new VALUES (5, 5), (6, 6)")
        tables.run("RENAME TABLE t TO old, new TO t", "INSERT INTO t VALUES (7, 7)")
        tables.until(reading, lambda: set(tables.state("t")) == {5, 6, 7})
        tables.until(reading, lambda: tables.log.mode(tables.ns("t")) is not Mode.COPY)
        tables.run("DROP TABLE t")
        tables.until(reading, lambda: not tables.state("t"))


@pytest.mark.parametrize("row_format", ["compressed events", "myisam"])
def test_other_ways_to_keep_and_log_rows(
    tables: Tables, settings: Callable[..., None], row_format: str
) -> None:
    engine = "MyISAM" if row_format == "myisam" else "InnoDB"
    if row_format == "compressed events":
        settings(log_bin_compress="1", log_bin_compress_min_len="10")
    tables.run(
        f"CREATE TABLE t (id int PRIMARY KEY, v text) ENGINE = {engine}", "INSERT INTO t VALUES (1, 'x')"
    )
    with tables.reading("t") as reading:
        tables.until(reading, lambda: len(tables.of("t")) == 1)
        tables.run(
            "INSERT INTO t VALUES (2, REPEAT('é', 1000)), (3, '')", "UPDATE t SET v = REPEAT('z', 500)"
        )
        tables.until(reading, lambda: len(tables.of("t")) == 6)
    assert {key: row["v"] for key, row in tables.state("t").items()} == {
        1: "z" * 500,
        2: "z" * 500,
        3: "z" * 500,
    }


def test_plan_names_each_thing_that_is_missing_with_what_mends_it(
    tables: Tables, settings: Callable[..., None]
) -> None:
    tables.run("CREATE TABLE no_key (v int)", "CREATE TABLE t (id int PRIMARY KEY) ENGINE = MyISAM")
    tables.run(
        "CREATE OR REPLACE USER 'guest'@'%' IDENTIFIED BY 'guest-secret'",
        "GRANT SELECT ON changes.* TO 'guest'@'%'",
    )
    settings(binlog_row_metadata="NO_LOG", binlog_row_image="MINIMAL", binlog_format="MIXED")
    uri = tables.server.uri("changes", "guest", "guest-secret")
    found = adaptors.mysql(uri=uri, tail=True).source().inspect(lambda ns: True)
    assert {one.ns: list(one.key) for one in found.namespaces} == {"changes.no_key": [], "changes.t": ["id"]}
    assert {one.fix for one in found.findings} >= {
        "GRANT REPLICATION SLAVE ON *.* TO 'guest'@'%'",
        "GRANT REPLICATION CLIENT ON *.* TO 'guest'@'%'",
        "GRANT LOCK TABLES ON `changes`.* TO 'guest'@'%'",
        "SET GLOBAL binlog_format = ROW",
        "SET GLOBAL binlog_row_image = FULL",
        "SET GLOBAL binlog_row_metadata = FULL",
        "ALTER TABLE `changes`.`t` ENGINE = InnoDB",
        "ALTER TABLE `changes`.`no_key` ADD COLUMN id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY",
    }
    owner = (
        adaptors.mysql(uri=tables.server.uri("changes"), tail=True)
        .source()
        .inspect(lambda ns: ns == "changes.t")
    )
    assert not [one.fix for one in owner.findings if one.fix and one.fix.startswith("GRANT")]


def test_a_namespace_without_changes_comes_along_with_the_others(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a binlog may go that nobody needs."""
    monkeypatch.setattr(mysql_follower, "TELL_EVERY", 0.1)
    tables.run("CREATE TABLE quiet (id int PRIMARY KEY)", "CREATE TABLE t (id int PRIMARY KEY)")
    with tables.reading("quiet", "t") as reading:
        tables.until(reading, lambda: len(tables.completed) == 2)
        tables.run("INSERT INTO t VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (2)")
        newest = tables.server.query("SHOW BINARY LOGS")[-1][0]
        quiet = tables.ns("quiet")
        tables.until(reading, lambda: newest in str(tables.log.resume()[quiet].position))
    tables.purge()
    tables.run("INSERT INTO quiet VALUES (7)")
    with tables.reading("quiet", "t") as reading:
        tables.until(reading, lambda: len(tables.of("quiet")) == 1)


def test_a_backfill_of_some_rows_goes_on_where_the_namespace_was(tables: Tables) -> None:
    tables.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a'), (2, '100%'), (3, 'c')"
    )
    tables.copy("t")
    tables.run("INSERT INTO t VALUES (4, 'behind')")
    ns = tables.ns("t")
    before = tables.log.resume()[ns].position
    source = adaptors.mysql(uri=tables.server.uri(), tail=True).source()

    def read(where: str) -> Iterator[Batch]:
        wanted = Resume(Mode.COPY, {}, MessageOffset(-1), None, where, before)
        return source.read(lambda one: one == ns, {ns: wanted}, threading.Event())

    found: list[bytes] = []
    with closing(read("v LIKE '100%' -- a comment")) as batches:  # type: ignore[type-var]
        for batch in batches:
            found += [message.data for message in messages_of(batch)]
            if len(found) == 2:
                break
    assert found == [b'{"id":2,"v":"100%"}', b'{"id":4,"v":"behind"}']
    for wrong in ("v = ", "1 = 1) OR (1 = 1", "1 = 1 INTO OUTFILE 'x'", "no_such = 1"):
        with pytest.raises(UsageError, match="condition of the backfill"):
            list(read(wrong))
