"""Adaptors: the systems that Penstock reads and writes. One module each; these make them.

    shop.source("db", a.sqlite(uri="sqlite://shop.db"), ns="orders|items")

Settings are checked here, when the pipeline file is read; nothing connects. Nothing in this package imports
PySpark or, before a task stages rows, PyArrow; and the module of an adaptor is loaded when one is made: every process
of a run, and of Spark for it, needs one or two of them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.base.settings import load

if TYPE_CHECKING:
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

    ALL: Mapping[str, type[Adaptor]]
    """Every built-in adaptor by its name, for `about`, `init` and YAML."""

_KINDS = {
    "connector": "Connector",
    "delta": "Delta",
    "discard": "Discard",
    "elasticsearch": "Elasticsearch",
    "file": "File",
    "generate": "Generate",
    "http": "Http",
    "iceberg": "Iceberg",
    "immortal": "Immortal",
    "jdbc": "Jdbc",
    "kafka": "Kafka",
    "mongodb": "MongoDb",
    "mysql": "MySql",
    "nats": "Nats",
    "postgres": "Postgres",
    "rabbitmq": "RabbitMq",
    "redis": "Redis",
    "s3": "S3",
    "sqlite": "Sqlite",
    "tcp": "Tcp",
}


class _Package(ModuleType):
    """A package in which importing a module leaves the function of the same name where it is."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _KINDS and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[object, ...]:
        """By its name, as any module: what is sent to Spark's workers may speak of it."""
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    if name == "ALL":
        found = {kind.name: kind for kind in map(_kind, _KINDS)}
        globals()["ALL"] = found
        return found
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def _kind(module: str) -> Any:
    return getattr(importlib.import_module(f"{__name__}.{module}"), _KINDS[module])


def connector(**settings: object) -> Connector:
    """Programs that speak the connector protocol, as source: `connector(listen="127.0.0.1:7110", instance="web")`.

    As a sink each batch is one transaction there: `connector(sink="localhost:7200", cookie="${COOKIE}")`.
    """
    made: Connector = load("adaptor 'connector'", _kind("connector"), settings)
    return made


def delta(**settings: object) -> Delta:
    """Tables of Delta Lake, through Spark's connector, as source or sink: `delta(uri="s3a://lake/shop")`."""
    made: Delta = load("adaptor 'delta'", _kind("delta"), settings)
    return made


def discard(**settings: object) -> Discard:
    """A sink that counts and keeps nothing: `discard()`."""
    made: Discard = load("adaptor 'discard'", _kind("discard"), settings)
    return made


def elasticsearch(**settings: object) -> Elasticsearch:
    """The indices of Elasticsearch or OpenSearch, as source or sink: `elasticsearch(uri="https://search:9200")`."""
    made: Elasticsearch = load("adaptor 'elasticsearch'", _kind("elasticsearch"), settings)
    return made


def file(**settings: object) -> File:
    """Files of JSON lines, CSV or Parquet, as source or sink: `file(uri="file://audit.jsonl")`."""
    made: File = load("adaptor 'file'", _kind("file"), settings)
    return made


def generate(**settings: object) -> Generate:
    """A source of numbered test data: `generate(count=1000, namespaces=["a", "b"])`."""
    made: Generate = load("adaptor 'generate'", _kind("generate"), settings)
    return made


def http(**settings: object) -> Http:
    """A web service, as source or sink: `http(uri="https://api.example.org/events/{ns}", token="${TOKEN}")`.

    As a source it can also be posted to: `http(listen="0.0.0.0:8080", token="${TOKEN}")`.
    """
    made: Http = load("adaptor 'http'", _kind("http"), settings)
    return made


def iceberg(**settings: object) -> Iceberg:
    """Tables of Apache Iceberg, through Spark's connector, as source or sink: `iceberg(catalog="lake")`."""
    made: Iceberg = load("adaptor 'iceberg'", _kind("iceberg"), settings)
    return made


def immortal(**settings: object) -> Immortal:
    """An immortal, as source or sink: `immortal(uri="127.0.0.1:8400", method="on_message")`."""
    made: Immortal = load("adaptor 'immortal'", _kind("immortal"), settings)
    return made


def jdbc(**settings: object) -> Jdbc:
    """The tables of any database with a JDBC driver, through Spark: `jdbc(uri="jdbc:oracle:thin:@db:1521/shop")`."""
    made: Jdbc = load("adaptor 'jdbc'", _kind("jdbc"), settings)
    return made


def kafka(**settings: object) -> Kafka:
    """The topics of Apache Kafka, as source or sink: `kafka(uri="kafka://broker:9092", tail=True)`."""
    made: Kafka = load("adaptor 'kafka'", _kind("kafka"), settings)
    return made


def mongodb(**settings: object) -> MongoDb:
    """The collections of MongoDB, as source or sink: `mongodb(uri="mongodb://db/shop?replicaSet=rs0", tail=True)`."""
    made: MongoDb = load("adaptor 'mongodb'", _kind("mongodb"), settings)
    return made


def mysql(**settings: object) -> MySql:
    """The tables of MySQL or MariaDB: `mysql(uri="mysql://penstock:${PASSWORD}@db/shop", tail=True)`."""
    made: MySql = load("adaptor 'mysql'", _kind("mysql"), settings)
    return made


def nats(**settings: object) -> Nats:
    """The streams of NATS JetStream, as source or sink: `nats(uri="nats://localhost:4222", tail=True)`."""
    made: Nats = load("adaptor 'nats'", _kind("nats"), settings)
    return made


def postgres(**settings: object) -> Postgres:
    """The tables of a PostgreSQL database: `postgres(uri="postgresql://penstock:${PASSWORD}@db/shop", tail=True)`."""
    made: Postgres = load("adaptor 'postgres'", _kind("postgres"), settings)
    return made


def rabbitmq(**settings: object) -> RabbitMq:
    """The queues and exchanges of RabbitMQ: `rabbitmq(uri="amqp://localhost:5672/", queues=["orders"])`."""
    made: RabbitMq = load("adaptor 'rabbitmq'", _kind("rabbitmq"), settings)
    return made


def redis(**settings: object) -> Redis:
    """The streams of Redis or Valkey, as source or sink: `redis(uri="redis://localhost:6379/0", tail=True)`."""
    made: Redis = load("adaptor 'redis'", _kind("redis"), settings)
    return made


def s3(**settings: object) -> S3:
    """Files under a prefix of a bucket, as source or sink: `s3(uri="s3://lake/orders/", watch=True)`."""
    made: S3 = load("adaptor 's3'", _kind("s3"), settings)
    return made


def sqlite(**settings: object) -> Sqlite:
    """The tables of a SQLite database, as source: `sqlite(uri="sqlite://shop.db")`."""
    made: Sqlite = load("adaptor 'sqlite'", _kind("sqlite"), settings)
    return made


def tcp(**settings: object) -> Tcp:
    """Lines of JSON over a plain TCP connection, as sink: `tcp(uri="tcp://localhost:9000")`."""
    made: Tcp = load("adaptor 'tcp'", _kind("tcp"), settings)
    return made


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
