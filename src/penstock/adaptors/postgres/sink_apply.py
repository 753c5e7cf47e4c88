"""From staged rows to rows of the target: the statements of one publication, inside its transaction.

The fast way first, in a savepoint, with constraints deferred; if the target's constraints do not let it pass, the
sure way:

    collapsed     for tables of which only the rows that are left can tell (`Table.plain`), no row that moves, and the
                  same fields in all writes of a table: truncates; deletes, children before parents; then the last row
                  of each key, parents before children. `changes` says why that leaves the rows of the order of the
                  log. A table that only gets inserts is tried without ON CONFLICT: half the work; and what waits for
                  it in files is copied straight into it. In all other cases files are put into staging tables first
    runs          for all else: in the order of the log, changes that follow each other and are alike in one statement
    rows          the sure way: in the order of the log, each row by itself. What the source could do step by step,
                  the target can

Constraints that can be deferred are looked at when all rows are there; those that cannot, at each statement.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.adaptors.changes import Change, Kind, Run, runs
from penstock.adaptors.needs import need
from penstock.adaptors.postgres.sink_file import StagedFile
from penstock.adaptors.postgres.sink_rows import NOT_WRITTEN
from penstock.adaptors.postgres.sink_session import quoted
from penstock.adaptors.postgres.sink_stage import StageTable
from penstock.adaptors.postgres.sink_table import Name, Table
from penstock.adaptors.postgres.sink_values import Column

if TYPE_CHECKING:
    import psycopg

log = logging.getLogger(__name__)

FEW = 20
"""Up to so many runs find their rows without an index."""

_KINDS = {"i": Kind.UPSERT, "u": Kind.UPSERT, "d": Kind.DELETE, "m": Kind.MOVE, "t": Kind.TRUNCATE}
_FROM, _TO = "\x01", "\x02"
"""Stand for the first and last `n` of a run, until the statement is run."""


@dataclass(frozen=True, slots=True)
class Staging:
    """A staging table; see `sink_stage`."""

    name: Name
    numbers: frozenset[int]
    shapes: Sequence[tuple[str, ...]]
    ops: Mapping[str, int]


@dataclass(frozen=True)
class Work:
    """What is staged for one table, in all parts."""

    table: Table
    stages: Sequence[Staging]
    files: Sequence[StagedFile] = ()

    @property
    def ops(self) -> set[str]:
        return {op for stage in self.stages for op, count in stage.ops.items() if count} | (
            {"i"} if self.files else set()
        )

    @property
    def shapes(self) -> set[tuple[str, ...]]:
        """The different sets of fields in rows that are written."""
        return self.staged_shapes | {file.shape for file in self.files}

    @property
    def staged_shapes(self) -> set[tuple[str, ...]]:
        return {shape for stage in self.stages for shape in stage.shapes if shape != NOT_WRITTEN}

    def rows(self, condition: str = "", *, shape: tuple[str, ...] | None = None, old: bool = False) -> str:
        """All staged rows that meet a condition, as a relation."""
        found = []
        for stage in self.stages:
            columns = [_staged(column, stage) for column in self.table.columns]
            columns += [f"o{column.number}" for column in self.table.key_columns] if old else []
            terms = [condition] if condition else []
            if shape is not None:
                numbers = [str(place) for place, one in enumerate(stage.shapes) if one == shape]
                terms.append(f"shape IN ({', '.join(numbers or ['-1'])})")
            where = f" WHERE {' AND '.join(terms)}" if terms else ""
            found.append(f"SELECT n, op, {', '.join(columns)} FROM {stage.name.sql}{where}")
        return "(" + " UNION ALL ".join(found) + ")"


def _staged(column: Column, stage: Staging) -> str:
    """A column; null if the staging table is older than the column."""
    name = f"c{column.number}"
    return name if column.number in stage.numbers else f"NULL::{column.stored} AS {name}"


class Application:
    """Applies what is staged for some tables.

    `conflicting` remembers tables in which plain inserts met rows. `aside` names staging tables, by a number, for what
    waits in files and cannot go straight; `loaded` are the tables of which that was true.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        works: Sequence[Work],
        conflicting: set[Name],
        aside: Callable[[int], Name],
    ) -> None:
        self._connection = connection
        self._works = parents_first(works)
        self._conflicting = conflicting
        self._aside = aside
        self._set_aside: list[Name] = []
        self.loaded: set[Name] = set()

    def apply(self) -> None:
        """Apply everything, or raise what the server said to the sure way."""
        driver = need("psycopg", "postgres")
        quick = self._collapsed if all(map(_collapsible, self._works)) else self._runs
        try:
            with self._checked():
                quick()
        except (driver.IntegrityError, driver.errors.CardinalityViolation) as error:
            log.info("constraints do not let a batch pass at once, so it goes row by row: %s", error)
            with self._checked():
                self._rows()
        for stage in self._set_aside:
            self._run(f"DROP TABLE IF EXISTS {stage.sql}")

    @contextmanager
    def _checked(self) -> Iterator[None]:
        """A savepoint that is let go only if all constraints hold."""
        with self._connection.transaction():
            self._connection.execute("SET CONSTRAINTS ALL DEFERRED")
            yield
            self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def _collapsed(self) -> None:
        works = [work if self._is_new(work) else self._at_server(work) for work in self._works]
        since = {work.table.name: self._last_truncate(work) for work in works if "t" in work.ops}
        self._truncate([work for work in works if "t" in work.ops])
        for work in reversed(works):
            if "d" in work.ops:
                self._run(_delete(work, work.rows(_after("op = 'd'", since.get(work.table.name)))))
        for work in works:
            if work.ops & {"i", "u"}:
                self._write(work, since.get(work.table.name))

    def _is_new(self, work: Work) -> bool:
        """Whether its rows are most likely none that are there already, and can go where they are to go at once."""
        if work.files and not work.table.straight:  # any more
            return False
        return work.ops == {"i"} and work.table.name not in self._conflicting

    def _at_server(self, work: Work) -> Work:
        """The same with all rows in staging tables."""
        numbers = frozenset(column.number for column in work.table.columns)
        stages = list(work.stages)
        for file in work.files:
            self.loaded.add(file.target)
            name = self._aside(len(self._set_aside))
            self._set_aside.append(name)
            StageTable.make(self._connection, name, work.table)
            file.load(self._connection, work.table, name)
            stages.append(Staging(name, numbers, (file.shape,), {"i": file.rows}))
        return Work(work.table, stages)

    def _write(self, work: Work, since: int | None) -> None:
        """The last row of each key."""
        table = work.table
        written = _after("op IN ('i', 'u')", since)
        if self._is_new(work):
            if self._inserted(work, written):
                return
            work = self._at_server(work)
        (shape,) = work.shapes
        if not table.key:
            self._run(_insert(table, shape, work.rows(written)))
            return
        key = ", ".join(f"c{column.number}" for column in table.key_columns)
        last = (
            f"(SELECT DISTINCT ON ({key}) * FROM {work.rows(_after('true', since))} a ORDER BY {key}, n DESC)"
        )
        for statement in upsert(table, shape, f"(SELECT * FROM {last} b WHERE op IN ('i', 'u'))"):
            self._run(statement)

    def _inserted(self, work: Work, written: str) -> bool:
        """Insert rows that are most likely new; False if one of them was there already."""
        driver = need("psycopg", "postgres")
        try:
            with self._checked():
                for shape in sorted(work.staged_shapes):
                    self._run(_insert(work.table, shape, work.rows(written, shape=shape)))
                for file in work.files:
                    file.copy(self._connection, work.table)
        except driver.errors.UniqueViolation:
            if not work.table.key:
                raise
            self._conflicting.add(work.table.name)
            return False
        except driver.IntegrityError:
            if not work.files:
                raise
            # What is looked at behind each statement may be met by all rows together, and not by those of a file.
            return self._inserted(self._at_server(work), written)
        return True

    def _runs(self) -> None:
        works = list(map(self._at_server, self._works))
        self._in_order(works, list(runs(self._changes(works), distinct=True, most=1_000_000)))

    def _rows(self) -> None:
        works = list(map(self._at_server, self._works))
        self._in_order(works, list(runs(self._changes(works), most=1)))

    def _in_order(self, works: Sequence[Work], found: Sequence[Run]) -> None:
        by_name = {str(work.table.name): work for work in works}
        if len(found) > FEW:
            for work in works:
                for stage in work.stages:
                    self._run(f"CREATE INDEX ON {stage.name.sql} (n)")
                    self._run(f"ANALYZE {stage.name.sql}")
        driver = need("psycopg", "postgres")
        with self._connection.pipeline() if driver.Pipeline.is_supported() else nullcontext():
            for run in found:
                for statement in _statements(by_name[run.table], run):
                    first, last = run.changes[0].offset, run.changes[-1].offset
                    text = statement.replace("%", "%%").replace(_FROM, "%(first)s").replace(_TO, "%(last)s")
                    self._connection.execute(text, {"first": first, "last": last})

    def _changes(self, works: Sequence[Work]) -> list[Change]:
        """Everything in the order of the log, with keys as the server writes them and without other values."""
        found: list[Change] = []
        for work in works:
            keys = "".join(f", c{column.number}::text" for column in work.table.key_columns)
            for stage in work.stages:
                rows = self._connection.execute(
                    f"SELECT n, op::text, shape{keys} FROM {stage.name.sql}"
                ).fetchall()
                found += [
                    Change(str(work.table.name), _KINDS[op], n, tuple(key) or None, stage.shapes[shape])
                    for n, op, shape, *key in rows
                ]
        return sorted(found, key=lambda change: change.offset)

    def _last_truncate(self, work: Work) -> int:
        truncates = work.rows("op = 't'")
        row = self._connection.execute(f"SELECT max(n) FROM {truncates} a").fetchone()
        assert row is not None
        return int(row[0])

    def _truncate(self, works: Sequence[Work]) -> None:
        """Empty tables: at once, unless others refer to them, whose rows must be looked at."""
        together = {work.table.oid for work in works}
        at_once = all(work.table.children <= together for work in works)
        if at_once and works:
            self._run(f"TRUNCATE {', '.join(work.table.name.sql for work in works)}")
            return
        for work in reversed(works):
            self._run(f"DELETE FROM {work.table.name.sql}")

    def _run(self, statement: str) -> None:
        self._connection.execute(statement)


def _collapsible(work: Work) -> bool:
    if work.ops == {"i"} and not work.table.key:
        return work.table.plain
    return work.table.plain and "m" not in work.ops and len(work.shapes) <= 1


def _after(condition: str, n: int | None) -> str:
    return condition if n is None else f"{condition} AND n > {n}"


def _statements(work: Work, run: Run) -> list[str]:
    """What applies a run; `_FROM` and `_TO` are its first and last row."""
    rows = work.rows(f"n BETWEEN {_FROM} AND {_TO}", old=run.kind is Kind.MOVE)
    if run.kind is Kind.TRUNCATE:
        return [f"DELETE FROM {work.table.name.sql}"]
    if run.kind is Kind.DELETE:
        return [_delete(work, rows)]
    if run.kind is Kind.MOVE:
        return _move(work.table, run.fields, rows)
    return upsert(work.table, run.fields, rows)


def _insert(table: Table, shape: Sequence[str], rows: str, condition: str = "", tail: str = "") -> str:
    columns = [table.column(name) for name in shape]
    names = ", ".join(quoted(column.name) for column in columns)
    always = " OVERRIDING SYSTEM VALUE" if any(column.always for column in columns) else ""
    values = ", ".join(f"s.c{column.number}" for column in columns)
    if not columns:
        return f"INSERT INTO {table.name.sql} SELECT FROM {rows} s{condition}"
    return f"INSERT INTO {table.name.sql} ({names}){always} SELECT {values} FROM {rows} s{condition}{tail}"


def upsert(table: Table, shape: Sequence[str], rows: str, condition: str = "") -> list[str]:
    """Write rows under their keys, in the order of `n`; no key may occur twice."""
    if not table.key:
        return [_insert(table, shape, rows, tail=" ORDER BY s.n")]
    return [*_replaced(table, shape, rows, "c"), *_written(table, shape, rows, condition)]


def _written(table: Table, shape: Sequence[str], rows: str, condition: str = "") -> list[str]:
    sets = [
        column for column in map(table.column, shape) if column.name not in table.key and not column.always
    ]
    if table.deferrable_key:  # which ON CONFLICT does not take
        there = f" WHERE NOT EXISTS (SELECT FROM {table.name.sql} t WHERE {_same(table)})"
        return [*_update(table, shape, rows, "c"), _insert(table, shape, rows, there, " ORDER BY s.n")]
    key = ", ".join(map(quoted, table.key))
    changed = ", ".join(f"{quoted(column.name)} = EXCLUDED.{quoted(column.name)}" for column in sets)
    action = f"DO UPDATE SET {changed}" if sets else "DO NOTHING"
    return [_insert(table, shape, rows, condition, f" ORDER BY s.n ON CONFLICT ({key}) {action}")]


def _replaced(table: Table, shape: Sequence[str], rows: str, by: str) -> list[str]:
    """Rows go that have another value in a column that no update may set: they are written anew."""
    fixed = [column for column in map(table.column, shape) if column.always and column.name not in table.key]
    if not fixed:
        return []
    differ = " OR ".join(f"t.{quoted(column.name)} IS DISTINCT FROM s.c{column.number}" for column in fixed)
    return [f"DELETE FROM {table.name.sql} t USING {rows} s WHERE {_same(table, by)} AND ({differ})"]


def _update(table: Table, shape: Sequence[str], rows: str, by: str) -> list[str]:
    """Set fields of rows that are there: under their key, or, by `o`, under the one that they had."""
    names = [
        name
        for name in shape
        if (name not in table.key and not table.column(name).always) or (name in table.key and by == "o")
    ]
    if not names:
        return []
    sets = ", ".join(f"{quoted(name)} = s.c{table.column(name).number}" for name in names)
    return [f"UPDATE {table.name.sql} t SET {sets} FROM {rows} s WHERE {_same(table, by)}"]


def _delete(work: Work, rows: str) -> str:
    return f"DELETE FROM {work.table.name.sql} t USING {rows} s WHERE {_same(work.table)}"


def _move(table: Table, shape: Sequence[str], rows: str) -> list[str]:
    """A row takes its other columns along, and the place of what is under its new key; see `changes`."""
    name = table.name.sql
    old_is_there = f"EXISTS (SELECT FROM {name} o WHERE {_same(table, 'o', 'o')})"
    # Keys may be written differently and be the same, 1.0 and 1.00: then the row is not in its own way.
    gone = f"DELETE FROM {name} t USING {rows} s WHERE {_same(table)} AND NOT ({_same(table, 'o')}) AND {old_is_there}"
    if any(column.always for column in table.key_columns):  # such a key cannot be updated
        old = f"DELETE FROM {name} t USING {rows} s WHERE {_same(table, 'o')} AND NOT ({_same(table)})"
        return [old, *upsert(table, shape, rows)]
    replaced = _replaced(table, shape, rows, "c"), _replaced(table, shape, rows, "o")
    (moved,) = _update(table, shape, rows, "o")
    if table.deferrable_key:
        there = f" WHERE NOT EXISTS (SELECT FROM {name} t WHERE {_same(table)})"
        written = [*_update(table, shape, rows, "c"), _insert(table, shape, rows, there)]
        return [*replaced[0], gone, *replaced[1], moved, *written]
    not_moved = " WHERE NOT EXISTS (SELECT FROM moved)"
    (upserted,) = _written(table, shape, rows, not_moved)
    return [*replaced[0], gone, *replaced[1], f"WITH moved AS ({moved} RETURNING 1) {upserted}"]


def _same(table: Table, by: str = "c", alias: str = "t") -> str:
    return " AND ".join(
        f"{alias}.{quoted(column.name)} = s.{by}{column.number}" for column in table.key_columns
    )


def parents_first(works: Sequence[Work]) -> list[Work]:
    """The tables so that what foreign keys refer to comes first; in a circle, as they come."""
    by_oid = {work.table.oid: work for work in works}
    done: dict[int, Work] = {}
    under_way: set[int] = set()

    def visit(oid: int) -> None:
        if oid in done or oid in under_way or oid not in by_oid:
            return
        under_way.add(oid)
        for parent in sorted(by_oid[oid].table.parents):
            visit(parent)
        done[oid] = by_oid[oid]

    for oid in sorted(by_oid):
        visit(oid)
    return list(done.values())
