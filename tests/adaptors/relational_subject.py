"""What the relational databases have in common for the conformance kit: rows of a table with a number and a text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from tests.servers.process import ProcessServer

from penstock.log.schema import Kind
from penstock.testing.adaptors.subject import Row, SourceSubject, TypedRow

Types = Mapping[str, tuple[str, str, str, Kind]]
"""By column: its type, a value as SQL has it, the text that it must have, and its kind."""


class RelationalSubject(SourceSubject):
    """A database of a server. Parameters of statements are written `%s`, as the drivers of both have it."""

    extra_column = "extra text"

    def __init__(self, server: ProcessServer, version: str, database: str, uri: str) -> None:
        self.server = version
        self._process, self._database = server, database
        self.uri = uri

    @abstractmethod
    def execute(self, statement: str, *parameters: object) -> None:
        """Run a statement in a transaction of its own."""

    @abstractmethod
    def query(self, statement: str) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def quoted(self, name: str) -> str:
        """The name of a column."""

    def contents(self, ns: str) -> Mapping[int, str]:
        return {row[0]: row[1] for row in self.query(f"SELECT id, text FROM {ns}")}

    def update(self, ns: str, row: Row) -> None:
        self.execute(f"UPDATE {ns} SET text = %s WHERE id = %s", row.text, row.id)

    def delete(self, ns: str, id: int) -> None:
        self.execute(f"DELETE FROM {ns} WHERE id = %s", id)

    def rekey(self, ns: str, id: int, new: int) -> None:
        self.execute(f"UPDATE {ns} SET id = %s WHERE id = %s", new, id)

    def truncate(self, ns: str) -> None:
        self.execute(f"TRUNCATE {ns}")

    def add_field(self, ns: str) -> None:
        self.execute(f"ALTER TABLE {ns} ADD COLUMN {self.extra_column}")

    def insert_extra(self, ns: str, row: Row, extra: str) -> None:
        self.execute(f"INSERT INTO {ns} (id, text, extra) VALUES (%s, %s, %s)", row.id, row.text, extra)

    def typed_table(self, ns: str, id: str, types: Types) -> TypedRow:
        """A table with a column of each type beside the key, which is declared as `id` and numbers itself."""
        columns = ", ".join(f"{self.quoted(name)} {about[0]}" for name, about in types.items())
        values = ", ".join(about[1] for about in types.values())
        self.execute(f"CREATE TABLE {ns} (id {id} PRIMARY KEY, {columns})")
        return TypedRow(
            ns,
            lambda: self.execute(f"INSERT INTO {ns} VALUES (DEFAULT, {values})"),
            {name: about[2] for name, about in types.items()},
            {name: about[3] for name, about in types.items()},
        )

    def stop_server(self) -> None:
        self._process.kill()

    def start_server(self) -> None:
        self._process.start()


def inserted(ns: str, rows: Sequence[Row]) -> tuple[str, list[tuple[int, str]]]:
    """The statement that puts rows there, and its parameters."""
    return f"INSERT INTO {ns} (id, text) VALUES (%s, %s)", [(row.id, row.text) for row in rows]
