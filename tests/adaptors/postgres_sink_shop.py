"""A schema for one test of the PostgreSQL sink, and messages for it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import psycopg
from tests.adaptors.postgres_target import PostgresTarget, Writer, sent

from penstock.adaptors.base import Staged
from penstock.adaptors.postgres.sink_stage import Part
from penstock.log.message import Message, Op

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, total numeric, note text DEFAULT 'none')"


class Shop:
    """A schema of its own, and a sink that writes to it. Tasks may leave files in `directory`, if there is one."""

    def __init__(self, target: PostgresTarget, directory: Path | None = None) -> None:
        self.target = target
        self.directory = directory
        self.schema = f"shop{target.own_schema}"
        self.writers: list[Writer] = []
        target.execute(f"CREATE SCHEMA {self.schema}")

    def tables(self, *statements: str) -> None:
        for statement in statements:
            self.target.execute(f"SET search_path = {self.schema}; {statement}")

    def writer(self, name: str = "shop.db", **settings: object) -> Writer:
        settings = {"schemas": {"shop": self.schema}, "schema": self.schema, **settings}
        self.writers.append(Writer(self.target, name, self.directory, **settings))
        return self.writers[-1]

    def rows(self, what: str) -> list[tuple[object, ...]]:
        """The rows of `SELECT what`, in the schema."""
        with psycopg.connect(
            self.target.uri, autocommit=True, options=f"-c search_path={self.schema}"
        ) as connection:
            connection.execute("SET datestyle = ISO; SET timezone = UTC")
            return connection.execute(f"SELECT {what}").fetchall()

    def staged(self, part: Staged) -> bool:
        """Whether the staging tables of a part are there."""
        names = [table.stage for table in told(part).tables]
        wanted = ", ".join(f"to_regclass('{self.target.own_schema}.{name}')" for name in names)
        ((*found,),) = self.rows(wanted)
        assert len(set(map(bool, found))) == 1
        return bool(found[0])


def told(part: Staged) -> Part:
    """What a task told of what it staged."""
    return msgspec.json.decode(part.part, type=Part)


def order(id: int, op: Op = Op.INSERT, /, **fields: object) -> Message:
    return sent("shop.orders", msgspec.json.encode({"id": id, **fields}).decode(), op)
