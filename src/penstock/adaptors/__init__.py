"""Adaptors: the systems that Penstock reads and writes. One module each; these make them.

    shop.source("db", a.sqlite(uri="sqlite://shop.db"), ns="orders|items")

Settings are checked here, when the pipeline file is read; nothing connects. Nothing in this package imports
PySpark or, before a task stages rows, PyArrow.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.adaptors.base import Adaptor
from penstock.adaptors.connector import Connector
from penstock.adaptors.delta import Delta
from penstock.adaptors.discard import Discard
from penstock.adaptors.elasticsearch import Elasticsearch
from penstock.adaptors.file import File
from penstock.adaptors.generate import Generate
from penstock.adaptors.http import Http
from penstock.adaptors.iceberg import Iceberg
from penstock.adaptors.immortal import Immortal
from penstock.adaptors.jdbc import Jdbc
from penstock.adaptors.kafka import Kafka
from penstock.adaptors.mongodb import MongoDb
from penstock.adaptors.mysql import MySql
from penstock.adaptors.nats import Nats
from penstock.adaptors.postgres import Postgres
from penstock.adaptors.rabbitmq import RabbitMq
from penstock.adaptors.redis import Redis
from penstock.adaptors.s3 import S3
from penstock.adaptors.sqlite import Sqlite
from penstock.adaptors.tcp import Tcp
from penstock.base.settings import load

ALL: Mapping[str, type[Adaptor]] = {
    kind.name: kind
    for kind in (
        Connector,
        Delta,
        Discard,
        Elasticsearch,
        File,
        Generate,
        Http,
        Iceberg,
        Immortal,
        Jdbc,
        Kafka,
        MongoDb,
        MySql,
        Nats,
        Postgres,
        RabbitMq,
        Redis,
        S3,
        Sqlite,
        Tcp,
    )
}
"""Every built-in adaptor by its name, for `about` and `init`."""


def connector(**settings: object) -> Connector:
    """Programs that speak the connector protocol, as source: `connector(listen="127.0.0.1:7110", instance="web")`.

    As a sink each batch is one transaction there: `connector(sink="localhost:7200", cookie="${COOKIE}")`.
    """
    return load("adaptor 'connector'", Connector, settings)


def delta(**settings: object) -> Delta:
    """Tables of Delta Lake, through Spark's connector, as source or sink: `delta(uri="s3a://lake/shop")`."""
    return load("adaptor 'delta'", Delta, settings)


def discard(**settings: object) -> Discard:
    """A sink that counts and keeps nothing: `discard()`."""
    return load("adaptor 'discard'", Discard, settings)


def elasticsearch(**settings: object) -> Elasticsearch:
    """The indices of Elasticsearch or OpenSearch, as source or sink: `elasticsearch(uri="https://search:9200")`."""
    return load("adaptor 'elasticsearch'", Elasticsearch, settings)


def file(**settings: object) -> File:
    """Files of JSON lines, CSV or Parquet, as source or sink: `file(uri="file://audit.jsonl")`."""
    return load("adaptor 'file'", File, settings)


def generate(**settings: object) -> Generate:
    """A source of numbered test data: `generate(count=1000, namespaces=["a", "b"])`."""
    return load("adaptor 'generate'", Generate, settings)


def http(**settings: object) -> Http:
    """A web service, as source or sink: `http(uri="https://api.example.org/events/{ns}", token="${TOKEN}")`.

    As a source it can also be posted to: `http(listen="0.0.0.0:8080", token="${TOKEN}")`.
    """
    return load("adaptor 'http'", Http, settings)


def iceberg(**settings: object) -> Iceberg:
    """Tables of Apache Iceberg, through Spark's connector, as source or sink: `iceberg(catalog="lake")`."""
    return load("adaptor 'iceberg'", Iceberg, settings)


def immortal(**settings: object) -> Immortal:
    """An immortal, as source or sink: `immortal(uri="127.0.0.1:8400", method="on_message")`."""
    return load("adaptor 'immortal'", Immortal, settings)


def jdbc(**settings: object) -> Jdbc:
    """The tables of any database with a JDBC driver, through Spark: `jdbc(uri="jdbc:oracle:thin:@db:1521/shop")`."""
    return load("adaptor 'jdbc'", Jdbc, settings)


def kafka(**settings: object) -> Kafka:
    """The topics of Apache Kafka, as source or sink: `kafka(uri="kafka://broker:9092", tail=True)`."""
    return load("adaptor 'kafka'", Kafka, settings)


def mongodb(**settings: object) -> MongoDb:
    """The collections of MongoDB, as source or sink: `mongodb(uri="mongodb://db/shop?replicaSet=rs0", tail=True)`."""
    return load("adaptor 'mongodb'", MongoDb, settings)


def mysql(**settings: object) -> MySql:
    """The tables of MySQL or MariaDB: `mysql(uri="mysql://penstock:${PASSWORD}@db/shop", tail=True)`."""
    return load("adaptor 'mysql'", MySql, settings)


def nats(**settings: object) -> Nats:
    """The streams of NATS JetStream, as source or sink: `nats(uri="nats://localhost:4222", tail=True)`."""
    return load("adaptor 'nats'", Nats, settings)


def postgres(**settings: object) -> Postgres:
    """The tables of a PostgreSQL database: `postgres(uri="postgresql://penstock:${PASSWORD}@db/shop", tail=True)`."""
    return load("adaptor 'postgres'", Postgres, settings)


def rabbitmq(**settings: object) -> RabbitMq:
    """The queues and exchanges of RabbitMQ: `rabbitmq(uri="amqp://localhost:5672/", queues=["orders"])`."""
    return load("adaptor 'rabbitmq'", RabbitMq, settings)


def redis(**settings: object) -> Redis:
    """The streams of Redis or Valkey, as source or sink: `redis(uri="redis://localhost:6379/0", tail=True)`."""
    return load("adaptor 'redis'", Redis, settings)


def s3(**settings: object) -> S3:
    """Files under a prefix of a bucket, as source or sink: `s3(uri="s3://lake/orders/", watch=True)`."""
    return load("adaptor 's3'", S3, settings)


def sqlite(**settings: object) -> Sqlite:
    """The tables of a SQLite database, as source: `sqlite(uri="sqlite://shop.db")`."""
    return load("adaptor 'sqlite'", Sqlite, settings)


def tcp(**settings: object) -> Tcp:
    """Lines of JSON over a plain TCP connection, as sink: `tcp(uri="tcp://localhost:9000")`."""
    return load("adaptor 'tcp'", Tcp, settings)


__all__ = [
    "ALL",
    "connector",
    "delta",
    "discard",
    "elasticsearch",
    "file",
    "generate",
    "http",
    "iceberg",
    "immortal",
    "jdbc",
    "kafka",
    "mongodb",
    "mysql",
    "nats",
    "postgres",
    "rabbitmq",
    "redis",
    "s3",
    "sqlite",
    "tcp",
]
