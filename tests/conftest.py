"""What all tests share: one Spark session, one Spark cluster, and hypothesis without deadlines.

The JVMs that tests start, and those of the commands that tests start, compile for a quick start: most live for
seconds, and half of their time would go into code that runs once. Name options of your own in the environment
to test with others.
"""

from __future__ import annotations

import gc
import os
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.servers.http import HttpServer
    from tests.servers.kafka import KafkaServer
    from tests.servers.mariadb import MySqlServer
    from tests.servers.mongodb import MongoServer
    from tests.servers.nats import NatsServer
    from tests.servers.opensearch import OpenSearchServer
    from tests.servers.postgres import PostgresServer
    from tests.servers.rabbitmq import RabbitServer
    from tests.servers.redis import RedisServer
    from tests.spark.standalone import Standalone

for _options in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(_options, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Machines are noisy, and forty examples find what the first run of a rule gets wrong; PENSTOCK_EXAMPLES asks for more.
settings.register_profile(
    "penstock", deadline=None, max_examples=int(os.environ.get("PENSTOCK_EXAMPLES", "40"))
)
settings.load_profile("penstock")


_FIRST_HALF = ("test_runner.py", "test_hostile_spark.py", "test_examples.py")
"""Of the tests that share a session; about half of them by time."""

_LONGEST = (
    "spark 1",
    "spark 2",
    "crash/test_kill",
    "standalone master",
    "test_executors",
    "test_session",
    "test_",
)


_LONG_HERE = (
    "test_rabbitmq.py::TestRabbitMqSource::test_tailing_goes_on_when_the_server_is_back",
    "test_rabbitmq.py::TestRabbitMqSink::test_a_server_that_goes_away_is_waited_for",
    "test_mongodb_source.py::TestMongoSource::test_a_copy_goes_on_when_the_server_is_back",
    "test_kafka_sink.py::TestKafkaSink::test_a_server_that_goes_away_is_waited_for",
    "test_kafka_source.py::TestKafkaSource::test_a_copy_goes_on_when_the_server_is_back",
    "test_kafka_source.py::TestKafkaSource::test_tailing_goes_on_when_the_server_is_back",
    "test_rabbitmq.py::TestRabbitMqSource::test_a_copy_goes_on_when_the_server_is_back",
    "test_elasticsearch_source.py::TestSearchSource::test_a_copy_goes_on_when_the_server_is_back",
    "test_elasticsearch_sink.py::TestSearchSink::test_a_server_that_goes_away_is_waited_for",
    "test_mysql_source.py::TestMySqlSource::test_a_copy_goes_on_when_the_server_is_back",
    "test_mysql_source.py::TestMySqlSource::test_tailing_goes_on_when_the_server_is_back",
)
"""Tests of the kit whose servers take their time to start: for the long runs."""

_LONG_KIT = (
    "test_a_copy_goes_on_after_a_crash_at_any_batch",  # the one at every batch stays
    "test_tailing_goes_on_after_a_crash_at_any_batch",
    "test_a_copy_is_not_read_far_ahead_of_the_log",
    "test_changes_are_not_read_far_ahead_of_the_log",
    "test_changes_during_the_copy_are_neither_lost_nor_doubled[with crashes]",  # the one in one go stays
)
_WHOLE_KIT = ("test_postgres", "test_sqlite", "test_adaptor_kit")
"""Of these adaptors every `make test` runs the whole kit; of the others its longest tests are for the long runs."""


def _is_long(item: pytest.Item) -> bool:
    if item.nodeid.endswith(_LONG_HERE):
        return True
    names = (item.name.partition("[")[0], item.name.partition("@")[0])
    return any(name in _LONG_KIT for name in names) and not item.path.name.startswith(_WHOLE_KIT)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a Spark session share a process: two sessions, one for each of two cores.

    So do those that share the cluster; those with sessions of their own stay together by module. They come first,
    since a long group that begins late has the other processes wait for it; the others fill in. There are four
    processes (`-n 4`), since many tests wait for servers. All this before pytest-xdist looks at the groups.
    """
    for item in items:
        if _is_long(item):
            item.add_marker(pytest.mark.soak)
        fixtures = getattr(item, "fixturenames", ())
        if item.get_closest_marker("spark") is None and "spark" not in fixtures:
            continue
        group = item.nodeid.partition("::")[0]
        if "spark" in fixtures:
            group = "spark 1" if item.path.name in _FIRST_HALF else "spark 2"
        elif "standalone_master" in fixtures:
            group = "standalone master"
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: _rank(item.get_closest_marker("xdist_group")))


def pytest_collection_finish() -> None:
    """What was collected stays, and is not looked through for garbage.

    Ten thousand tests are half a million objects: a third of a second for each look, and each crash in the kit of the
    adaptors has one.
    """
    gc.collect()
    gc.freeze()


def _rank(group: pytest.Mark | None) -> int:
    """Groups of tests by how long they take, the longest first; then the single tests."""
    name = group.args[0] if group is not None else ""
    return next((i for i, part in enumerate(_LONGEST) if part in name), len(_LONGEST) + (not name))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session, started once for all tests that ask for one. Leave no query running in it."""
    from penstock.spark.session import session, stop

    settings = {"spark.tests.password": uuid.uuid4().hex}
    scratch = tmp_path_factory.mktemp("spark")
    spark = session(app="tests", cores=2, short_lived=True, scratch=scratch, settings=settings)
    yield spark
    stop(spark)


@pytest.fixture(scope="session")
def standalone_master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A Spark master with two workers, each with a core, started once for all tests that ask for it."""
    from tests.spark.standalone import standalone

    with standalone(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MySqlServer]:
    """A MariaDB server, started once for all tests that ask for it: mark them `xdist_group("mariadb")`."""
    from tests.servers.mariadb import MARIADB, running

    with running(MARIADB) as server:
        yield server


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[MySqlServer]:
    """A MySQL server, started once for all tests that ask for it: mark them `xdist_group("mysql")`."""
    from tests.servers.mariadb import MYSQL, running

    with running(MYSQL) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server, started once for all tests that ask for it: mark them `xdist_group("postgres")`."""
    from tests.servers.postgres import running

    with running() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A Kafka broker, started once for all tests that ask for it: mark them `xdist_group("kafka")`."""
    from tests.servers.kafka import running

    with running(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Valkey server, started once for all tests that ask for it: mark them `xdist_group("redis")`."""
    from tests.servers.redis import running

    with running(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def mongodb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MongoServer]:
    """A server that speaks MongoDB's protocol, started once for all tests that ask for it: `xdist_group("mongodb")`."""
    from tests.servers.cache import UnavailableError, missing
    from tests.servers.mongodb import running

    try:
        with running(tmp_path_factory.mktemp("mongodb")) as server:
            yield server
    except UnavailableError as error:
        missing("MongoDB", error)


@pytest.fixture(scope="session")
def opensearch_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSearchServer]:
    """An OpenSearch node, started once for all tests that ask for it: mark them `xdist_group("opensearch")`."""
    from tests.servers.cache import UnavailableError, missing
    from tests.servers.opensearch import running

    try:
        with running(tmp_path_factory.mktemp("opensearch")) as server:
            yield server
    except UnavailableError as error:
        missing("OpenSearch", error)


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A NATS server with JetStream, started once for all tests that ask for it: mark them `xdist_group("nats")`."""
    from tests.servers.nats import running

    with running(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[RabbitServer]:
    """A RabbitMQ server, started once for all tests that ask for it: mark them `xdist_group("rabbitmq")`."""
    from tests.servers.rabbitmq import running

    with running() as server:
        yield server


@pytest.fixture(scope="session")
def http_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """A web service, started once for all tests that ask for it: mark them `xdist_group("http")`."""
    from tests.servers.http import running

    with running(tmp_path_factory.mktemp("http")) as server:
        yield server
