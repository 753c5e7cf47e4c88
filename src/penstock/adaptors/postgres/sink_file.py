"""Rows that go straight into their table: left in a file by a task, copied by the publisher within its transaction.

Staged at the server, a row is written there twice: into a table of the task's own, and from that into its target. That
is what it takes where a row changes or goes, or where somebody else has to judge it. Rows that are only added, and that
the server takes for sure (`sink_sure`), need none of it; where tasks and publisher are on one machine, these wait in a
file. It has the lines of one COPY; beside it are their numbers, the `n` of a staging table, for the one case that the
rows are not new after all: then they are put into such a table (`loaded`), and go on from there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.adaptors import away
from penstock.adaptors.postgres.sink_columns import Columns
from penstock.adaptors.postgres.sink_session import quoted
from penstock.adaptors.postgres.sink_table import Name, Table
from penstock.base.errors import PenstockError

if TYPE_CHECKING:
    import psycopg

AT_ONCE = 1 << 20
"""Bytes that are read, and given to the server, at a time."""


class StagedFile(msgspec.Struct, frozen=True):
    """What a task tells of a file: its place, which fields of which table its lines have, and what these were then."""

    target: Name
    path: str
    fields: tuple[str, ...]
    types: tuple[str, ...]
    rows: int
    size: int

    @property
    def shape(self) -> tuple[str, ...]:
        return tuple(sorted(self.fields))

    def check(self, table: Table) -> None:
        """Raise if the table is not what the lines were written for: they hold values as its columns had them."""
        types = {column.name: column.type for column in table.columns}
        for name, type in zip(self.fields, self.types, strict=True):
            if types.get(name) != type:
                raise PenstockError(
                    f"column '{name}' of table {table.name}, {type} when rows were staged for it, is "
                    f"{types.get(name, 'gone')} now",
                    hint="the rows are staged again",
                )

    def copy(self, connection: psycopg.Connection[Any], table: Table) -> None:
        """Add the rows to their table."""
        columns = ", ".join(map(quoted, self.fields))
        self._copied(connection, f"COPY {table.name.sql} ({columns}) FROM STDIN", self._content())

    def load(self, connection: psycopg.Connection[Any], table: Table, stage: Name) -> None:
        """Put the rows into a staging table, with their numbers."""
        columns = ", ".join(f"c{table.column(name).number}" for name in self.fields)
        self._copied(connection, f"COPY {stage.sql} (n, {columns}) FROM STDIN", self._numbered())

    def remove(self) -> None:
        """Its rows are published; nobody can add them once more."""
        Path(self.path).unlink(missing_ok=True)
        _numbers_of(Path(self.path)).unlink(missing_ok=True)

    def _copied(self, connection: psycopg.Connection[Any], statement: str, content: Iterator[bytes]) -> None:
        cursor = connection.cursor()
        with cursor.copy(statement) as copy:
            for piece in content:
                copy.write(piece)
        if cursor.rowcount != self.rows:
            raise self._changed(f"{cursor.rowcount} rows were copied of {self.rows}")

    def _content(self) -> Iterator[bytes]:
        path = Path(self.path)
        try:
            size = path.stat().st_size
            if size != self.size:
                raise self._changed(f"it has {size} bytes, its task wrote {self.size}")
            with path.open("rb") as file:
                while piece := file.read(AT_ONCE):
                    yield piece
        except OSError as error:
            raise self._changed(str(error)) from error

    def _numbered(self) -> Iterator[bytes]:
        import numpy as np

        try:
            found = np.fromfile(_numbers_of(Path(self.path)), np.int64)
        except OSError as error:
            raise self._changed(str(error)) from error
        if len(found) != self.rows:
            raise self._changed(f"{len(found)} of its {self.rows} rows have a number")
        numbers = iter(found.tolist())
        rest = b""
        for piece in self._content():
            *lines, rest = (rest + piece).split(b"\n")
            numbered = zip(itertools.islice(numbers, len(lines)), lines, strict=True)
            yield b"".join(b"%d\t%b\n" % one for one in numbered)

    def _changed(self, what: str) -> PenstockError:
        return PenstockError(
            f"the rows for {self.target} that were staged in {self.path} cannot be copied: {what}",
            hint="something else works in that directory, or its disk fails; start again",
        )


class RowFile:
    """A file that a task writes: the rows of one table that have these fields. Open only while it is written."""

    def __init__(self, path: Path, table: Table, fields: tuple[str, ...]) -> None:
        self._path, self._target, self._fields = path, table.name, fields
        self._types = tuple(table.column(name).type for name in fields)
        self._rows = self.bytes = 0

    def write(self, rows: Columns) -> None:
        """Add rows at the end. A disk that is full is waited for, as a server is that does not answer."""
        content = rows.content()
        with (
            away.telling(f"cannot stage rows in {self._path}"),
            self._path.open("ab") as lines,
            _numbers_of(self._path).open("ab") as numbers,
        ):
            lines.write(content)
            numbers.write(rows.order.tobytes())
        self._rows += len(rows.order)
        self.bytes += len(content)

    def staged(self) -> StagedFile:
        return StagedFile(self._target, str(self._path), self._fields, self._types, self._rows, self.bytes)


def _numbers_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.numbers")
