"""A sink for the toy, right in every respect, and wrong in one where a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec
from tests.testing.toyserver import PASSWORD, SERVERS, Change, Document, ToyServer, apply

from penstock.adaptors.base import (
    Adaptor,
    Guarantee,
    Order,
    Publisher,
    Refusal,
    Sink,
    SinkPosition,
    Stage,
    Staged,
    Stager,
)
from penstock.adaptors.staging import Tally
from penstock.base.errors import PenstockError, UsageError
from penstock.base.settings import setting
from penstock.log.message import Op
from penstock.log.schema import Field, Kind, Schema
from penstock.testing.adaptors import Holds, Row, SinkSubject, TypedDelivery

if TYPE_CHECKING:
    import pyarrow as pa


class Fault(Enum):
    """What can be wrong with it."""

    SWALLOWS_A_REFUSAL = auto()
    LOSES_A_ROW = auto()
    KEEPS_NO_POSITION = auto()
    POSITION_BEFORE_ROWS = auto()
    SHOWS_WHAT_IS_STAGED = auto()
    PUBLISHES_ALL_ATTEMPTS = auto()
    IGNORES_WHAT_TO_SKIP = auto()
    IGNORES_A_REWIND = auto()
    TAKES_A_FOREIGN_TARGET = auto()
    LEAVES_ITS_STAGING = auto()
    OLDEST_WINS = auto()
    UPDATES_ONLY_WHAT_IS_THERE = auto()
    LEAVES_THE_OLD_KEY = auto()
    IGNORES_DELETES = auto()
    TRUNCATES_EVERYTHING = auto()
    EMPTY_IS_NULL = auto()
    NUMBERS_AS_FLOATS = auto()
    IGNORES_NEW_FIELDS = auto()
    OTHER_ERROR_WHEN_AWAY = auto()
    SHOWS_THE_PASSWORD = auto()
    MIXES_NAMESPACES = auto()
    PROMISES_LESS = auto()
    COUNTS_WRONG = auto()


DOUBLING = (Fault.PUBLISHES_ALL_ATTEMPTS, Fault.IGNORES_WHAT_TO_SKIP)
"""What does no harm where the newest state of each row is kept: the toy keeps every message then."""


@dataclass(frozen=True)
class ToyTarget(Adaptor):
    name: ClassVar[str] = "toy"
    description: ClassVar[str] = "a toy"
    writes: ClassVar[bool] = True

    server: str = setting("its name")
    password: str = setting("to get in", default=PASSWORD, secret=True)
    fault: Fault | None = field(default=None)

    def sink(self) -> Sink:
        return ToySink(self)


class ToySink(Sink):
    order = Order.TOTAL
    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, settings: ToyTarget) -> None:
        self._settings = settings
        if settings.fault is Fault.PROMISES_LESS:
            self.guarantee = Guarantee.AT_LEAST_ONCE

    def stager(self) -> Stager:
        return ToyStager(self._settings)

    def publisher(self) -> Publisher:
        return ToyPublisher(self._settings, self)

    def staging(self, scratch: Path) -> Path:
        return scratch


def _session(settings: ToyTarget) -> AbstractContextManager[ToyServer]:
    server = SERVERS[settings.server]
    if settings.fault is Fault.OTHER_ERROR_WHEN_AWAY and not server.up:
        raise PenstockError("connection refused")
    if settings.fault is Fault.SHOWS_THE_PASSWORD and settings.password != PASSWORD:
        raise UsageError(f"cannot log in with {settings.password}")
    return server.session(settings.password)


class ToyStager(Stager):
    def __init__(self, settings: ToyTarget) -> None:
        self._settings = settings

    def stage(self, stage: Stage, rows: Iterator[pa.RecordBatch]) -> Staged:
        import pyarrow as pa

        fault = self._settings.fault
        tally = Tally(0 if fault is Fault.IGNORES_WHAT_TO_SKIP else stage.skip_below)
        found: list[tuple[int, Change]] = []
        refused: list[Refusal] = []
        for batch in rows:
            fresh = tally.fresh(batch)
            taken = []
            for i, row in enumerate(fresh.to_pylist()):
                change = self._change(row)
                if change is None:
                    refused.append(Refusal(row["offset"], row["origin"], "not for me", ""))
                else:
                    found.append((row["offset"], change))
                    taken.append(i)
            tally.add(fresh.take(pa.array(taken, pa.int64())))
        if fault is Fault.LOSES_A_ROW:
            found = found[:-1]
        with _session(self._settings) as server:
            if fault is Fault.SHOWS_WHAT_IS_STAGED:
                server.changes += [change for _, change in found]
            elif found:
                server.staged[stage.name] = found
        told = () if fault is Fault.SWALLOWS_A_REFUSAL else refused
        staged = tally.staged(stage.name if found else "", 1, told)
        return _miscounted(staged, fault)

    def _change(self, row: Mapping[str, object]) -> Change | None:
        op = Op[str(row["op"]).upper()]
        document = msgspec.json.decode(str(row["data"]), type=Document)
        if op is not Op.COMMAND and not isinstance(document["id"], int):
            return None
        old = row["old_key"]
        was = None if old is None else int(str(msgspec.json.decode(str(old), type=Document)["id"]))
        return Change(str(row["ns"]), op, document, was)


def _miscounted(staged: Staged, fault: Fault | None) -> Staged:
    if fault is not Fault.COUNTS_WRONG:
        return staged
    values = {name: getattr(staged, name) for name in Staged.__slots__}
    return Staged(**{**values, "rows": staged.rows + 1})


class ToyPublisher(Publisher):
    def __init__(self, settings: ToyTarget, sink: Sink) -> None:
        self._settings = settings
        self._sink = sink
        self._fault = settings.fault

    def open(self, start: SinkPosition) -> SinkPosition:
        with _session(self._settings) as server:
            if self._fault is not Fault.LEAVES_ITS_STAGING:
                server.staged.clear()
            kept = server.kept.get("position")
            if kept is None or self._fault is Fault.KEEPS_NO_POSITION:
                return start
            log, generation, watermark = kept
            if log != start.log and self._fault is not Fault.TAKES_A_FOREIGN_TARGET:
                raise UsageError("another log wrote this toy")
            if generation < start.generation and self._fault is not Fault.IGNORES_A_REWIND:
                return start
            return SinkPosition(start.log, generation, watermark)

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        with _session(self._settings) as server:
            names = [part.part for part in parts]
            if self._fault is Fault.PUBLISHES_ALL_ATTEMPTS:
                names = list(server.staged)
            if self._fault is not Fault.SHOWS_WHAT_IS_STAGED:
                staged = sorted(
                    (one for name in names for one in server.staged[name]), key=lambda one: one[0]
                )
                if self._fault is Fault.OLDEST_WINS:
                    staged.reverse()
                for _, change in staged:
                    server.changes += self._changes(change, server)
            for name in names if self._fault is not Fault.LEAVES_ITS_STAGING else ():
                server.staged.pop(name, None)
            if self._fault is not Fault.POSITION_BEFORE_ROWS:
                server.kept["position"] = (position.log, position.generation, position.watermark)

    def _changes(self, change: Change, server: ToyServer) -> list[Change]:
        ns, op, row, old = change.ns, change.op, dict(change.row), change.old
        if self._fault is Fault.MIXES_NAMESPACES:
            ns = next((one.ns for one in server.changes), ns)
        if self._fault is Fault.LEAVES_THE_OLD_KEY:
            old = None
        if self._fault is Fault.EMPTY_IS_NULL and row.get("text") == "":
            row["text"] = None
        if self._fault is Fault.NUMBERS_AS_FLOATS and isinstance(row.get("n"), int):
            row["n"] = float(str(row["n"]))
        if self._fault is Fault.IGNORES_NEW_FIELDS:
            row.pop("extra", None)
        there = row.get("id") in server.rows(ns)
        skips = self._fault is Fault.UPDATES_ONLY_WHAT_IS_THERE and op is Op.UPDATE and not there
        if skips or (self._fault is Fault.IGNORES_DELETES and op is Op.DELETE):
            return []
        spaces = {ns}
        if self._fault is Fault.TRUNCATES_EVERYTHING and op is Op.COMMAND:
            spaces = {one.ns for one in server.changes}
        return [Change(space, op, row, old) for space in sorted(spaces)]

    def close(self) -> None:
        pass


class ToySinkSubject(SinkSubject):
    """Everything that the kit asks for."""

    name = "toy"
    server = "toy 1"
    secret = PASSWORD

    def __init__(self, fault: Fault | None = None) -> None:
        self._name = f"toy-{id(self)}"
        self._fault = fault
        if fault in DOUBLING:
            self.holds = Holds.MESSAGES
        self._server = SERVERS[self._name] = ToyServer()

    def close(self) -> None:
        SERVERS.pop(self._name, None)

    def adaptor(self) -> Adaptor:
        return ToyTarget(self._name, fault=self._fault)

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return {"wrong password": ToyTarget(self._name, password=PASSWORD + "!", fault=self._fault)}

    def make(self, word: str) -> str:
        return word

    def contents(self, ns: str) -> Sequence[Row]:
        if self.holds is Holds.MESSAGES:
            rows = [change.row for change in self._server.changes if change.ns == ns]
            return [Row(int(str(row["id"])), str(row["text"])) for row in rows]
        return [Row(id, str(row.get("text"))) for id, row in self._rows(ns).items()]

    def bad(self, ns: str) -> bytes:
        return b'{"id":"not a number","text":""}'

    def typed(self, word: str) -> TypedDelivery:
        schema = Schema((Field("id", Kind.INT), Field("n", Kind.INT)), ("id",))
        data = b'{"id":1,"n":9007199254740993}'
        return TypedDelivery(word, schema, data, b'{"id":1}', lambda: self._rows(word)[1], {"n": 2**53 + 1})

    def extra(self, ns: str, id: int) -> str | None:
        value = self._rows(ns)[id].get("extra")
        return None if value is None else str(value)

    def leftovers(self) -> Sequence[str]:
        return sorted(self._server.staged)

    def stop_server(self) -> None:
        self._server.up = False

    def start_server(self) -> None:
        self._server.up = True

    def _rows(self, ns: str) -> dict[int, Document]:
        rows: dict[int, Document] = {}
        for change in self._server.changes:
            if change.ns == ns:
                apply(rows, change)
        return rows
