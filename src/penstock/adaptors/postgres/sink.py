"""The writing half of `postgres`: tables that hold what the log says, each message applied exactly once.

Tasks copy rows into staging tables (`sink_stage`), or, where rows are only added, into files (`sink_file`). The
publisher applies them in the order of the log and moves the sink's position, in one transaction:

1. the position moves, if it still is where this publisher left it: whoever came in between makes it fail;
2. tables that are missing are made, if asked to (`sink_grow`);
3. the rows are applied (`sink_apply`), and all constraints hold;
4. staging tables are dropped, and the transaction commits: durable on return.

The position is a row of `positions`, in a schema of Penstock's own, under the name of pipeline and sink. A session
holds the advisory lock of that name while it publishes; so a second publisher waits until the first one is gone for
good, with whatever it had under way, and reads what it left. Staging tables of this name that are left behind are
dropped when a publisher opens and behind each batch, but for those of the next one, which may be staged meanwhile;
those of other names are other sinks' and are not touched.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.adaptors.base import (
    Finding,
    Guarantee,
    Order,
    Publisher,
    RivalError,
    Schemas,
    Sink,
    SinkPosition,
    Staged,
    Stager,
)
from penstock.adaptors.continuing import continued
from penstock.adaptors.needs import need
from penstock.adaptors.postgres.sink_apply import Application, Staging, Work
from penstock.adaptors.postgres.sink_grow import Grower
from penstock.adaptors.postgres.sink_session import AGAIN, connect, literal, meaning, quoted, telling
from penstock.adaptors.postgres.sink_stage import Options, Part, PostgresStager
from penstock.adaptors.postgres.sink_table import Name, Table, has_schema, tables_of
from penstock.base import faults
from penstock.base.errors import AwayError, PenstockError, UsageError

if TYPE_CHECKING:
    import psycopg

PATIENCE = 5.0
"""Seconds to wait for a publisher that is on its way out."""

TRIES = 4
"""How often a transaction is tried that met another one."""

log = logging.getLogger(__name__)


class PostgresSink(Sink):
    """Tables of a PostgreSQL database."""

    order = Order.TOTAL
    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, options: Options) -> None:
        self._options = options

    def inspect(self, namespaces: Sequence[str] | None = None) -> Sequence[Finding]:
        from penstock.adaptors.postgres.sink_inspect import findings

        return findings(self._named(), namespaces)

    def stager(self) -> Stager:
        return PostgresStager(self._named(), self.schemas)

    def publisher(self) -> Publisher:
        return PostgresPublisher(self._named(), self.schemas, self._learn)

    def staging(self, scratch: Path) -> Path:
        """For the files of rows that are only added; all others are staged at the server."""
        return scratch

    def _learn(self, staged: Set[Name]) -> None:
        if not staged <= self._options.staged:
            self._options = replace(self._options, staged=self._options.staged | staged)
            self.learnt += 1

    def _named(self) -> Options:
        return replace(self._options, name=self.name)


class PostgresPublisher(Publisher):
    """Holds one session, and with it the sink's lock, from `open` to `close`.

    It tells `learn` of tables whose rows did not go straight: tasks then stage them at the server.
    """

    def __init__(self, options: Options, schemas: Schemas, learn: Callable[[Set[Name]], None]) -> None:
        self._options = options
        self._schemas = schemas
        self._learn = learn
        self._connection: psycopg.Connection[Any] | None = None
        self._at: SinkPosition | None = None
        self._conflicting: set[Name] = set()

    @property
    def _positions(self) -> str:
        return quoted(self._options.own_schema, "positions")

    def open(self, start: SinkPosition) -> SinkPosition:
        self.close()
        connection = connect(self._options.uri, f"penstock {self._options.name}", self._options.timeout)
        try:
            with telling("cannot open the target"):
                self._lock(connection)
                self._set_up(connection)
                self._at = self._position(connection, start)
                self._clear(connection)
        except PenstockError:
            connection.close()
            raise
        self._connection = connection
        return self._at

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        connection, at = self._connection, self._at
        if connection is None or at is None:
            raise PenstockError("the target is not open")
        staged = _staged(parts)
        driver = need("psycopg", "postgres")
        for attempt in range(1, TRIES + 1):
            try:
                self._transaction(connection, staged, at, position)
                break
            except driver.Error as error:
                if error.sqlstate in AGAIN and attempt < TRIES and not connection.closed:
                    time.sleep(0.05 * 3**attempt)
                    continue
                if isinstance(error, driver.DataError):
                    # Some value is not what it seemed. At the server, a task can tell in which message.
                    self._learn({file.target for file in staged.files})
                raise meaning(error, "PostgreSQL did not take the batch") from error
        self._at = position
        for file in staged.files:
            file.remove()
        if parts:
            with faults.step("postgres clear"), telling("cannot clear up behind a batch"):
                self._clear(connection, upto=staged.begin)

    def overlaps(self, parts: Sequence[Staged]) -> bool:
        """Rows that came as they are, since their table is to change, are waited for: the next ones fit it then."""
        return not any(table.raw for table in _staged(parts).tables)

    def close(self) -> None:
        connection, self._connection, self._at = self._connection, None, None
        if connection is not None:
            connection.close()

    def _transaction(
        self,
        connection: psycopg.Connection[Any],
        staged: Part,
        at: SinkPosition,
        position: SinkPosition,
    ) -> None:
        with connection.transaction():
            with faults.step("postgres position"):
                self._move(connection, at, position)
            with faults.step("postgres apply"):
                works = self._works(connection, staged)
                application = Application(connection, works, self._conflicting, self._options.aside_name)
                if works:
                    application.apply()
            with faults.step("postgres drop"):
                if staged.tables:
                    names = (quoted(self._options.own_schema, table.stage) for table in staged.tables)
                    connection.execute(f"DROP TABLE {', '.join(names)}")
            commit = faults.step("postgres commit")
            commit.__enter__()
        commit.__exit__(None, None, None)
        self._learn(application.loaded)

    def _works(self, connection: psycopg.Connection[Any], staged: Part) -> list[Work]:
        named = [table.target for table in staged.tables] + [file.target for file in staged.files]
        targets = list(dict.fromkeys(named))
        straight = self._held(connection, {file.target for file in staged.files})
        known = tables_of(connection, targets)
        if not straight:
            known = {target: replace(table, straight=False) for target, table in known.items()}
        stages: dict[Name, list[Staging]] = {target: [] for target in targets}
        for table in staged.tables:
            if not table.raw:
                stage = Name(self._options.own_schema, table.stage)
                stages[table.target].append(Staging(stage, frozenset(table.numbers), table.shapes, table.ops))
        for number, target in enumerate(targets):
            raws = [
                Name(self._options.own_schema, t.stage) for t in staged.tables if t.raw and t.target == target
            ]
            if raws:
                grower = Grower(connection, self._options, self._schemas)
                known[target], grown = grower.convert(target, raws, number)
                told = grown.staged()
                stages[target].append(Staging(grown.stage, frozenset(told.numbers), told.shapes, told.ops))
        for target in targets:
            _must_be_table(target, known.get(target))
        files = {target: [file for file in staged.files if file.target == target] for target in targets}
        for file in staged.files:
            file.check(known[file.target])
        append = self._options.mode == "append"
        return [
            Work(replace(known[target], key=()) if append else known[target], stages[target], files[target])
            for target in targets
        ]

    def _held(self, connection: psycopg.Connection[Any], targets: Set[Name]) -> bool:
        """Keep tables as they are until the transaction ends: lines in files are of their columns as they were.

        A role that may not lock them, or a table that is none any more, is no error: the rows go by way of the server.
        """
        if not targets:
            return True
        driver = need("psycopg", "postgres")
        names = ", ".join(f"ONLY {target.sql}" for target in sorted(targets))
        try:
            with connection.transaction():
                connection.execute(f"LOCK TABLE {names} IN ROW EXCLUSIVE MODE")
        except (
            driver.errors.InsufficientPrivilege,
            driver.errors.UndefinedTable,
            driver.errors.InvalidSchemaName,
            driver.errors.WrongObjectType,
        ):
            return False
        return True

    def _lock(self, connection: psycopg.Connection[Any]) -> None:
        """Wait for whoever has this sink; a session that was killed lets go as soon as the server sees it."""
        digest = hashlib.sha256(f"penstock {self._options.own_schema} {self._options.name}".encode()).digest()
        number = int.from_bytes(digest[:8], "big", signed=True)
        deadline = time.monotonic() + PATIENCE
        while connection.execute(f"SELECT pg_try_advisory_lock({number})").fetchone() != (True,):
            if time.monotonic() > deadline:
                raise AwayError(
                    f"another session writes as sink '{self._options.name}'",
                    hint="two runs of one pipeline cannot share a target; if a run was killed, its session ends soon",
                )
            time.sleep(0.1)

    def _set_up(self, connection: psycopg.Connection[Any]) -> None:
        own = self._options.own_schema
        if not has_schema(connection, own):
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(own)}")
        if connection.execute(f"SELECT to_regclass({literal(self._positions)})").fetchone() == (None,):
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self._positions} (sink text PRIMARY KEY, log text NOT NULL, "
                "generation bigint NOT NULL, watermark bigint NOT NULL, written timestamptz NOT NULL DEFAULT now())"
            )

    def _position(self, connection: psycopg.Connection[Any], start: SinkPosition) -> SinkPosition:
        name = self._options.name
        row = connection.execute(
            f"SELECT log, generation, watermark FROM {self._positions} WHERE sink = %s", [name]
        ).fetchone()
        if row is None:
            connection.execute(
                f"INSERT INTO {self._positions} (sink, log, generation, watermark) VALUES (%s, %s, %s, %s)",
                [name, start.log, start.generation, start.watermark],
            )
            return start
        held = SinkPosition(*row)
        goes_on = continued(
            held,
            start,
            f"the target of sink '{name}'",
            f"DELETE FROM {self._positions} WHERE sink = {literal(name)}",
        )
        if goes_on != held:
            self._move(connection, held, goes_on)
        return goes_on

    def _move(self, connection: psycopg.Connection[Any], at: SinkPosition, to: SinkPosition) -> None:
        moved = connection.execute(
            f"UPDATE {self._positions} SET generation = %s, watermark = %s, written = now() "
            "WHERE sink = %s AND log = %s AND generation = %s AND watermark = %s",
            [to.generation, to.watermark, self._options.name, at.log, at.generation, at.watermark],
        ).rowcount
        if moved != 1 or to.log != at.log:
            raise RivalError(
                f"the position of sink '{self._options.name}' is not where this run left it, at {at.watermark}",
                hint="another run writes the same target; end one of them",
            )

    def _clear(self, connection: psycopg.Connection[Any], upto: int | None = None) -> None:
        """Drop staging tables of this sink that nobody needs; one that is in use by a late task waits for the next.

        With `upto`, only those of batches that do not begin behind that message.
        """
        driver = need("psycopg", "postgres")
        found = connection.execute(
            "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relkind = 'r' AND starts_with(c.relname, %s)",
            [self._options.own_schema, self._options.prefix],
        ).fetchall()
        for (name,) in found:
            if upto is not None and self._options.begin_of(name) > upto:
                continue
            try:
                with connection.transaction():
                    connection.execute("SET LOCAL lock_timeout = '50ms'")
                    connection.execute(f"DROP TABLE IF EXISTS {quoted(self._options.own_schema, name)}")
            except driver.errors.LockNotAvailable:
                log.info("the staging table %s is still in use", name)


def _staged(parts: Sequence[Staged]) -> Part:
    """The staging tables and files of these parts."""
    return Part.of([msgspec.json.decode(part.part, type=Part) for part in parts if part.part])


def _must_be_table(target: Name, table: Table | None) -> None:
    if table is None:
        raise PenstockError(f"table {target} is gone since its rows were staged")
    if table.kind not in ("r", "p"):
        raise UsageError(
            f"{target} is not a table", hint="a view cannot be written; name the table behind it"
        )
