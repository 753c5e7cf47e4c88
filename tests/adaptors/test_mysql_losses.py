"""The MySQL source: names, character sets and structures in which rows would get lost, or become others."""

from __future__ import annotations

import pymysql
import pytest
from tests.adaptors.mysql_reading import Tables
from tests.servers.mariadb import PASSWORD, USER, MySqlServer

from penstock import adaptors
from penstock.adaptors.mysql import copy as mysql_copy
from penstock.adaptors.mysql import follower as mysql_follower
from penstock.base.errors import UsageError
from penstock.log.message import Op

pytestmark = pytest.mark.xdist_group("mariadb")


@pytest.fixture
def tables(mariadb_server: MySqlServer) -> Tables:
    return Tables(mariadb_server, "losses")


def test_emptying_a_table_with_an_odd_name_leaves_the_others_alone(tables: Tables) -> None:
    tables.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE `t#1` (id int PRIMARY KEY)")
    with tables.reading("t", "t#1") as reading:
        tables.until(reading, lambda: len(tables.completed) == 2)
        tables.run("INSERT INTO t VALUES (1)", "INSERT INTO `t#1` VALUES (1)", "TRUNCATE TABLE `t#1`")
        tables.run("INSERT INTO `t#1` VALUES (2)", "INSERT INTO t VALUES (2)")
        tables.until(reading, lambda: len(tables.rows("t")) >= 2)
    assert [message.op for message in tables.of("t")] == [Op.INSERT, Op.INSERT]
    assert [message.op for message in tables.of("t#1")] == [Op.INSERT, Op.COMMAND, Op.INSERT]


def test_a_statement_is_read_in_the_character_set_of_its_client(tables: Tables) -> None:
    tables.run("CREATE TABLE größe (id int PRIMARY KEY)", "INSERT INTO größe VALUES (1)")
    with tables.reading("größe") as reading:
        tables.until(reading, lambda: len(tables.of("größe")) == 1)
        with (
            pymysql.connect(
                host="127.0.0.1", port=tables.server.port, user=USER, password=PASSWORD, charset="latin1",
                database=tables.database,
            ) as client,
            client.cursor() as cursor,
        ):  # fmt: skip
            cursor.execute("TRUNCATE TABLE größe")
        tables.run("INSERT INTO größe VALUES (2)")
        tables.until(reading, lambda: 2 in tables.state("größe"))
    assert tables.state("größe") == {2: {"id": 2}}


@pytest.mark.parametrize("statement", ["TRUNCATE TABLE t", "CREATE OR REPLACE TABLE t (id int PRIMARY KEY)"])
def test_a_table_that_is_emptied_in_the_midst_of_its_copy_keeps_what_came_then(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    monkeypatch.setattr(mysql_copy, "MOST_ROWS", 5)
    tables.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT seq FROM seq_1_to_20")
    with tables.reading("t") as reading:
        tables.until(reading, lambda: len(tables.of("t")) >= 5)
    assert not tables.completed
    tables.run(statement, "INSERT INTO t SELECT seq FROM seq_101_to_110")
    with tables.reading("t") as reading:
        tables.until(reading, lambda: bool(tables.completed))
        tables.run("INSERT INTO t VALUES (200)")
        tables.until(reading, lambda: 200 in tables.state("t"))
    assert sorted(tables.state("t")) == [*range(101, 111), 200]


def test_the_largest_decimals_are_told_apart_as_keys(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mysql_copy, "MOST_ROWS", 2)
    front = "9" * 63
    tables.run("CREATE TABLE t (k decimal(65,0) PRIMARY KEY, v int)")
    tables.run("INSERT INTO t VALUES " + ", ".join(f"({front}{i}, 0)" for i in range(10, 14)))
    with tables.reading("t") as reading:
        reading.step(20)
    assert len(tables.of("t")) == 2
    tables.run("UPDATE t SET v = 1")
    with tables.reading("t") as reading:
        tables.until(reading, lambda: bool(tables.completed))
        tables.run("DELETE FROM t")
        tables.until(reading, lambda: tables.of("t")[-1].op is Op.DELETE)
    assert [row["v"] for row in tables.rows("t")][:6] == [0, 0, 1, 1, 1, 1]
    assert [message.op for message in tables.of("t")][4:] == [Op.UPDATE] * 2 + [Op.DELETE] * 4


def test_a_table_that_is_dropped_in_the_midst_of_its_copy_leaves_no_rows_behind(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_copy, "MOST_ROWS", 5)
    tables.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT seq FROM seq_1_to_20")
    with tables.reading("t") as reading:
        tables.until(reading, lambda: len(tables.of("t")) >= 5)
    tables.run("DROP TABLE t")
    with tables.reading("t") as reading:
        tables.until(reading, lambda: not tables.state("t"))
        tables.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (100)")
        tables.until(reading, lambda: bool(tables.completed))
    assert sorted(tables.state("t")) == [100]


def test_a_database_with_a_dot_in_its_name_is_refused_and_not_passed_over(tables: Tables) -> None:
    tables.run("CREATE DATABASE `los.ses`", "CREATE TABLE `los.ses`.t (id int PRIMARY KEY)")
    try:
        tables.database = "los.ses"
        with tables.reading("t") as reading, pytest.raises(UsageError, match="dot"):
            reading.until(lambda: False, 20)
        inspection = adaptors.mysql(uri=tables.server.uri()).source().inspect(lambda ns: ns == "los.ses.t")
        assert [(finding.fatal, "dot" in finding.what) for finding in inspection.findings] == [(True, True)]
    finally:
        tables.run("DROP DATABASE `los.ses`")


def test_a_table_is_emptied_before_it_is_copied_anew_however_busy_the_binlog_is(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_follower, "TURN", -1.0)  # others have their turn after every event
    tables.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with tables.reading("t") as reading:
        tables.until(reading, lambda: len(tables.of("t")) == 1)
        tables.run("CREATE TABLE new LIKE t", "INSERT INTO new VALUES (2), (3)")
        tables.run("RENAME TABLE t TO old, new TO t", "INSERT INTO t VALUES (4)")
        tables.until(reading, lambda: 4 in tables.state("t"))
        tables.run("INSERT INTO t VALUES (5)")
        tables.until(reading, lambda: 5 in tables.state("t"))
    assert sorted(tables.state("t")) == [2, 3, 4, 5]


def test_a_long_unique_key_adds_no_column_to_rows(tables: Tables) -> None:
    tables.run("CREATE TABLE t (id int PRIMARY KEY, word text UNIQUE, other blob UNIQUE)")
    with tables.reading("t") as reading:
        tables.until(reading, lambda: bool(tables.completed))
        tables.run(
            "INSERT INTO t VALUES (1, 'a', 'b'), (2, NULL, NULL)", "UPDATE t SET word = 'c' WHERE id = 1"
        )
        tables.run("DELETE FROM t WHERE id = 2")
        tables.until(reading, lambda: len(tables.of("t")) == 4)
    b = {"$binary": {"base64": "Yg==", "subType": "00"}}
    assert tables.rows("t") == [
        {"id": 1, "word": "a", "other": b},
        {"id": 2, "word": None, "other": None},
        {"id": 1, "word": "c", "other": b},
        {"id": 2, "word": None, "other": None},
    ]
    schema = tables.log.schema(tables.ns("t"))
    assert schema is not None
    assert [field.name for field in schema.fields] == ["id", "word", "other"]


def test_a_type_that_the_binlog_does_not_tell_is_not_guessed(tables: Tables) -> None:
    tables.run("CREATE TABLE t (id int PRIMARY KEY)")
    tables.copy("t")
    tables.run(
        "ALTER TABLE t ADD COLUMN u uuid",
        "INSERT INTO t VALUES (1, '6ccd780c-baba-1026-9564-5b8c656024db')",
        "ALTER TABLE t ADD COLUMN n int",
    )
    with tables.reading("t") as reading, pytest.raises(UsageError, match="more than once") as caught:
        reading.until(lambda: False, 20)
    assert tables.of("t") == []
    assert caught.value.hint == "copy it anew with `penstock backfill losses.t`"


def test_a_statement_that_changes_rows_of_a_table_with_an_odd_name_stops_the_source(tables: Tables) -> None:
    tables.run("CREATE TABLE `t-1` (id int PRIMARY KEY)")
    with tables.reading("t-1") as reading:
        tables.until(reading, lambda: bool(tables.completed))
        tables.run("SET SESSION binlog_format = STATEMENT", "INSERT INTO `t-1` VALUES (1)")
        with pytest.raises(UsageError, match="logged as text"):
            reading.until(lambda: False, 20)


def test_plan_names_a_table_with_a_history_which_is_not_read(tables: Tables) -> None:
    tables.run(
        "CREATE TABLE t (id int PRIMARY KEY) WITH SYSTEM VERSIONING", "CREATE TABLE u (id int PRIMARY KEY)"
    )
    inspection = adaptors.mysql(uri=tables.server.uri("losses")).source().inspect(lambda ns: ns != "losses.x")
    assert [found.ns for found in inspection.namespaces] == ["losses.u"]
    (finding,) = inspection.findings
    assert finding.what == "table losses.t keeps its history (SYSTEM VERSIONING): it is not read"
    assert finding.fix == "ALTER TABLE `losses`.`t` DROP SYSTEM VERSIONING"


@pytest.mark.parametrize("when", ["before", "after"])
def test_times_in_a_format_that_the_binlog_does_not_tell_are_refused(tables: Tables, when: str) -> None:
    """Read as what they seem to be they take other columns along, and make rows that nobody wrote."""
    tables.run("CREATE TABLE t (id int PRIMARY KEY, at datetime, n int)")
    if when == "after":
        tables.copy("t")
    tables.run("SET GLOBAL mysql56_temporal_format = OFF")
    try:
        tables.run(
            "ALTER TABLE t MODIFY at datetime(3)", "INSERT INTO t VALUES (1, '2026-11-16 02:14:14.5', 7)"
        )
    finally:
        tables.run("SET GLOBAL mysql56_temporal_format = ON")
    with tables.reading("t") as reading, pytest.raises(UsageError, match="as MariaDB 5") as caught:
        reading.until(lambda: False, 20)
    assert str(caught.value.hint).startswith("ALTER TABLE `losses`.`t` FORCE")
    assert tables.of("t") == []
    with tables.reading("t", tail=False) as reading:
        reading.to_the_end(20)
    assert when == "after" or tables.rows("t")[0]["at"] == {"$localTimestamp": "2026-11-16T02:14:14.500000"}
    if when == "after":  # what was written in the meantime stays as it was
        tables.run("ALTER TABLE t FORCE")
        with tables.reading("t") as reading, pytest.raises(UsageError, match="more than once"):
            reading.until(lambda: False, 20)
        assert tables.of("t") == []


_KEPT = {
    "sjis": "815f5c93fa", "cp932": "8740fa5c", "ujis": "a1c0b0a1f5a18fb0a1", "eucjpms": "ada1a1c1a1dd8fa2af",
    "big5": "a15aa440", "gbk": "a1e4b0a1", "euckr": "b0a1", "gb2312": "b0a1", "ucs2": "65e50061",
}  # fmt: skip
"""By character set: letters that others of its name read as something else, or not at all."""


def test_a_text_is_the_same_in_the_copy_and_behind_it_whatever_its_character_set(tables: Tables) -> None:
    columns = ", ".join(f"{name} varchar(9) CHARACTER SET {name}" for name in _KEPT)
    values = ", ".join(f"CONVERT(x'{text}' USING {name})" for name, text in _KEPT.items())
    tables.run(f"CREATE TABLE t (id int PRIMARY KEY, {columns})", f"INSERT INTO t VALUES (1, {values})")
    assert tables.server.query("SELECT HEX(eucjpms) FROM losses.t")[0][0].lower() == _KEPT["eucjpms"]
    with tables.reading("t") as reading:
        tables.until(reading, lambda: len(tables.of("t")) == 1)
        tables.run(f"INSERT INTO t VALUES (2, {values})")
        tables.until(reading, lambda: len(tables.of("t")) == 2)
    copied, followed = tables.rows("t")
    assert followed == {**copied, "id": 2}
    assert (followed["sjis"], followed["gbk"]) == ("\\\\日", "′啊")
    assert str(followed["eucjpms"]).startswith("①～－")
