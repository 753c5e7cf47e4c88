"""What only MySQL itself does: compressed transactions, binary JSON in part, a binlog without GTIDs, XA its own way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.adaptors.mysql_reading import Tables
from tests.servers.mariadb import MySqlServer

from penstock.base.errors import UsageError

pytestmark = [pytest.mark.soak, pytest.mark.xdist_group("mysql")]


@pytest.fixture
def tables(mysql_server: MySqlServer) -> Tables:
    return Tables(mysql_server, "changes")


@pytest.fixture
def without_gtids(mysql_server: MySqlServer) -> Iterator[None]:
    steps = ["ON", "ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF"]
    mysql_server.execute(*(f"SET GLOBAL gtid_mode = {step}" for step in steps[1:]))
    yield
    mysql_server.execute(*(f"SET GLOBAL gtid_mode = {step}" for step in steps[-2::-1]))


def test_a_table_is_copied_and_followed_with_json_and_compressed_transactions(tables: Tables) -> None:
    tables.run("CREATE TABLE t (id int PRIMARY KEY, j json)", """INSERT INTO t VALUES (1, '{"a": 1.50}')""")
    with tables.reading("t") as reading:
        tables.until(reading, lambda: len(tables.of("t")) == 1)
        tables.run(
            "SET SESSION binlog_transaction_compression = ON", "BEGIN",
            "INSERT INTO t VALUES (2, JSON_ARRAY(REPEAT('x', 2000), 1))", "UPDATE t SET id = 3 WHERE id = 1", "COMMIT",
        )  # fmt: skip
        tables.until(reading, lambda: len(tables.of("t")) == 3)
    assert tables.state("t") == {2: {"id": 2, "j": ["x" * 2000, 1]}, 3: {"id": 3, "j": {"a": 1.5}}}
    assert tables.of("t")[2].old_key == b'{"id":1}'


def test_without_gtids_the_place_is_a_file_and_a_position(tables: Tables, without_gtids: None) -> None:
    tables.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    tables.copy("t")
    tables.run("INSERT INTO t VALUES (2)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (3)")
    with tables.reading("t") as reading:
        tables.until(reading, lambda: len(tables.of("t")) == 3)
    tables.run("INSERT INTO t VALUES (4)")
    with tables.reading("t") as reading:
        tables.until(reading, lambda: len(tables.of("t")) == 4)
    assert [row["id"] for row in tables.rows("t")] == [1, 2, 3, 4]
    at = tables.log.resume()[tables.ns("t")].position["at"]
    assert isinstance(at, dict)
    assert "gtids" not in at
    file = str(at["file"])
    tables.server.execute("RESET BINARY LOGS AND GTIDS")
    while str(tables.server.query("SHOW BINARY LOG STATUS")[0][0]) <= file:
        tables.run(
            *(f"INSERT INTO t VALUES ({i})" for i in range(5, 60)), "DELETE FROM t", "FLUSH BINARY LOGS"
        )
    # The place is within a file of the same name: between two events of that, or in the midst of one.
    with tables.reading("t") as reading, pytest.raises(UsageError, match=r"another one|bogus data"):
        reading.until(lambda: False, 20)


def test_updates_with_parts_of_documents_stop_the_source(tables: Tables) -> None:
    tables.run(
        "CREATE TABLE t (id int PRIMARY KEY, j json)", """INSERT INTO t VALUES (1, '{"a": "xxxxxxxxxx"}')"""
    )
    with tables.reading("t") as reading:
        tables.until(reading, lambda: len(tables.of("t")) == 1)
        tables.run(
            "SET SESSION binlog_row_value_options = PARTIAL_JSON", "UPDATE t SET j = JSON_SET(j, '$.a', 'y')"
        )
        with pytest.raises(UsageError, match="parts of JSON"):
            reading.until(lambda: False, 20)


def test_an_xa_transaction_of_one_phase_is_followed_and_one_that_is_prepared_stops_the_source(
    tables: Tables,
) -> None:
    tables.run("CREATE TABLE t (id int PRIMARY KEY)")
    with tables.reading("t") as reading:
        tables.until(reading, lambda: bool(tables.completed))
        tables.run("XA START 'x'", "INSERT INTO t VALUES (1)", "XA END 'x'", "XA COMMIT 'x' ONE PHASE")
        tables.run("INSERT INTO t VALUES (2)")
        tables.until(reading, lambda: len(tables.of("t")) >= 2)
        assert [row["id"] for row in tables.rows("t")] == [1, 2]
        tables.run(
            "XA START 'y'", "INSERT INTO t VALUES (3)", "XA END 'y'", "XA PREPARE 'y'", "XA COMMIT 'y'"
        )
        with pytest.raises(UsageError, match="prepared by XA"):
            reading.until(lambda: False, 20)
