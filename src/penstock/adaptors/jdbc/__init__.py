"""`jdbc`: the tables of any database that has a JDBC driver, read and written by Spark.

For PostgreSQL, MySQL and SQLite there are adaptors of their own, which follow changes and keep constraints; this one is
for the rest. What the source promises is told in `penstock.adaptors.jdbc.source`, what the sink promises in
`penstock.adaptors.jdbc.sink`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from penstock.adaptors.base import Sink, Source
from penstock.adaptors.jdbc.connection import DRIVERS, Database
from penstock.adaptors.lake.adaptor import LakeAdaptor
from penstock.base.secrets import mask
from penstock.base.settings import setting

_URI = re.compile(r"jdbc:([a-z0-9]+):.+", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, repr=False)
class Jdbc(LakeAdaptor):
    """A database that Spark reaches by JDBC."""

    name: ClassVar[str] = "jdbc"
    description: ClassVar[str] = (
        "Any database with a JDBC driver, through Spark. Source: copies tables by ranges of their keys. Sink: replaces "
        "rows by their keys, or appends them, each exactly once."
    )
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True

    uri: str = setting("the database, as its driver takes it", example="jdbc:postgresql://db.example/shop")
    user: str = setting("the user", default="")
    password: str = setting("the password", default="", secret=True)
    driver: str = setting("the class of the driver; if not given, the usual one for the uri", default="")
    schema: str = setting(
        "the schema of tables whose namespace names none; as a source, the only one that is read", default=""
    )
    range_rows: int = setting("source: about how many rows are copied in one go", default=10_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        found = _URI.fullmatch(self.uri)
        if found is None:
            raise ValueError("setting 'uri': expected jdbc:KIND:…, such as jdbc:postgresql://HOST/DATABASE")
        if not self.driver and found[1].lower() not in DRIVERS:
            raise ValueError(f"setting 'driver': name the class of the driver for jdbc:{found[1]}")
        if self.range_rows < 1:
            raise ValueError(f"setting 'range_rows': expected at least 1, got {self.range_rows}")

    def __repr__(self) -> str:
        return f"Jdbc({mask(self.uri)!r})"

    @property
    def database(self) -> Database:
        kind = self.uri.split(":")[1].lower()
        known = DRIVERS.get(kind)
        driver = self.driver or (known.driver if known else "")
        coordinate = known.coordinate if known and driver == known.driver else ""
        return Database(self.uri, self.user, self.password, driver, self.schema, coordinate)

    def source(self) -> Source:
        from penstock.adaptors.jdbc.source import JdbcSource

        return JdbcSource(self.database, self.keys, self.range_rows)

    def sink(self) -> Sink:
        from penstock.adaptors.jdbc.sink import JdbcSink, Writing

        growing = (self.create_tables, self.add_columns, self.unknown_fields)
        return JdbcSink(Writing(self.database, self.options, *growing))
