"""`jdbc` against PostgreSQL, through its driver and the Spark of the tests: the kit's battery, and what is its own."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.adaptors.jdbc_subjects import JdbcTables, JdbcTarget, add_driver
from tests.crash.crashing import Loop
from tests.servers.cache import UnavailableError, missing

from penstock import adaptors as a
from penstock.adaptors.jdbc.connection import DRIVERS
from penstock.base.errors import UsageError
from penstock.log.message import Op
from penstock.testing.adaptors import Row, SinkConformance, SourceConformance
from penstock.testing.adaptors.delivery import Delivery, message
from penstock.testing.adaptors.model import messages_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def driver(spark: SparkSession) -> None:
    """The session of the tests, with the driver."""
    try:
        add_driver(spark)
    except UnavailableError as error:
        missing("JDBC driver", error)


@pytest.mark.soak
class TestJdbcSink(SinkConformance):
    @pytest.fixture
    def subject(self, spark: SparkSession, driver: None, postgres_server: PostgresServer) -> JdbcTarget:
        return JdbcTarget(postgres_server)


@pytest.mark.soak
class TestJdbcSource(SourceConformance):
    @pytest.fixture
    def subject(self, spark: SparkSession, driver: None, postgres_server: PostgresServer) -> JdbcTables:
        return JdbcTables(postgres_server)


@pytest.mark.soak
def test_a_batch_that_comes_again_after_a_crash_counts_once(
    spark: SparkSession, driver: None, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    target = JdbcTarget(postgres_server)
    delivery = Delivery(target, tmp_path)
    delivery.add(*(message("orders", i, f"row {i}") for i in range(5)))
    delivery.open()
    delivery.publish(delivery.stage())
    held = delivery.reopen()
    assert held is not None
    assert held.watermark == 5
    delivery.add(message("orders", 2, "", Op.DELETE), message("orders", 13, "row 3", Op.UPDATE, was=3))
    assert delivery.deliver() == []
    delivery.close()
    assert sorted(target.contents("orders")) == [
        Row(0, "row 0"), Row(1, "row 1"), Row(4, "row 4"), Row(13, "row 3"),
    ]  # fmt: skip
    assert target.leftovers() == []


def test_a_copy_goes_on_behind_the_range_that_was_logged_last(
    spark: SparkSession, driver: None, postgres_server: PostgresServer
) -> None:
    tables = JdbcTables(postgres_server)
    ns = tables.make("rows")
    tables.insert(ns, [Row(i, f"row {i}") for i in range(250)])
    source = tables.adaptor(tail=False).source()
    batches = list(source.read(lambda name: name == ns, {}, threading.Event()))
    ids = [tables.row(one).id for batch in batches for one in messages_of(batch)]
    assert sorted(ids) == list(range(250))
    assert [batch.positions[ns].get("next") for batch in batches] == [100, 250, None]
    assert batches[-1].completed == [ns]


def test_a_driver_that_spark_does_not_have_is_named_with_its_package(spark: SparkSession) -> None:
    (finding,) = a.jdbc(uri="jdbc:h2:mem:shop").sink().inspect()
    assert finding.fatal
    assert DRIVERS["h2"].coordinate in (finding.fix or "")


def test_a_uri_without_a_known_driver_wants_one() -> None:
    with pytest.raises(UsageError, match="name the class of the driver"):
        a.jdbc(uri="jdbc:unheard:of")


def test_the_password_does_not_show() -> None:
    adaptor = a.jdbc(uri="jdbc:h2:mem:shop", user="me", password="hunter-222")
    assert "hunter-222" not in f"{adaptor!r} {adaptor.database!r}"


PIPELINE = """
from penstock import Pipeline, adaptors as a

crash = Pipeline("crash", batch_messages=1_000, partitions=2)
source = crash.source("numbers", a.generate(count={{count}}, rate={{rate}}, namespaces=["a", "b"]))
source.save("all", a.jdbc(uri="{uri}", user="{user}", password="{password}", mode="append", metadata=True,
                          spark={{{{"spark.jars": "{jars}"}}}}))
"""


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_each_message_arrives_once_in_a_pipeline_that_is_killed(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    from tests.servers.lake import jars_of

    target = JdbcTarget(postgres_server)
    jars = jars_of(DRIVERS["postgresql"].coordinate)
    loop = Loop(tmp_path, 2_000, rate=4_000, pipeline=PIPELINE.format(**target.settings, jars=jars))
    for step, turn in (("jdbc stage", 2), ("jdbc commit", 2), ("publish", 2), ("offset commit", 2)):
        assert loop.kill_at(step, turn).killed, loop.log_of()
    assert loop.finish().exit_code == 0, loop.log_of()
    rows = [row for ns in "ab" for row in target.query(f"SELECT penstock_offset, seq FROM {ns}")]
    assert sorted(rows) == [(i, i) for i in range(loop.count)]
    assert target.leftovers() == []
