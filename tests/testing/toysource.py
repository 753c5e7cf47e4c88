"""A source for the toy, right in every respect, and wrong in one where a test asks for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import ClassVar

import msgspec
from tests.testing.toyserver import PASSWORD, SERVERS, Change, Document, ToyServer, packed, unpacked

from penstock.adaptors.base import Adaptor, Batch, Found, Inspection, Source
from penstock.base.errors import UsageError
from penstock.base.settings import setting
from penstock.log.message import MAX_MESSAGE_BYTES, Message, Mode, Op, Position, Resume
from penstock.log.schema import Field, Kind, Schema
from penstock.testing.adaptors import Row, SourceSubject, TypedRow

BYTES, CHANGES = 1024 * 1024, 50
"""In a batch."""


class Bug(Enum):
    """What can be wrong with it."""

    LOSES_A_ROW_ON_RESUME = auto()
    REPEATS_A_BATCH_ON_RESUME = auto()
    BEGINS_ANEW = auto()
    ACKNOWLEDGES_EARLY = auto()
    NEVER_ACKNOWLEDGES = auto()
    GAP_BEHIND_THE_COPY = auto()
    OVERLAP_BEHIND_THE_COPY = auto()
    DEAF_TO_STOP = auto()
    READS_AHEAD = auto()
    WAITS_FOR_THE_SERVER = auto()
    SHOWS_THE_PASSWORD = auto()
    PARTIAL_UPDATES = auto()
    DELETE_WITHOUT_KEY = auto()
    TWO_MESSAGES_FOR_A_KEY = auto()
    NO_TRUNCATE = auto()
    OLD_SCHEMA = auto()
    NO_END_OF_THE_COPY = auto()
    NUMBERS_AS_TEXT = auto()
    READS_WHAT_IS_NOT_WANTED = auto()
    FORGETS_NEW_NAMESPACES = auto()
    LEAVES_ITS_SLOT = auto()
    SECONDS = auto()
    CUTS_LONG_TEXTS = auto()
    HIDES_KEYS = auto()
    POSITION_IN_MEMORY = auto()
    COPIES_INSIDE_A_TRANSACTION = auto()
    CUTS_TRANSACTIONS = auto()
    PASSES_OVER_A_GAP = auto()


@dataclass(frozen=True)
class Toy(Adaptor):
    name: ClassVar[str] = "toy"
    description: ClassVar[str] = "a toy"
    reads: ClassVar[bool] = True

    server: str = setting("its name")
    password: str = setting("to get in", default=PASSWORD, secret=True)
    tail: bool = setting("follow changes", default=False)
    bug: Bug | None = field(default=None)

    def source(self) -> Source:
        return ToySource(self)


class _Known(msgspec.Struct):
    """A position: the moment of the copy and the last row of it, or the next change."""

    at: int = 0
    after: int = -1
    next: int | None = None


class ToySource(Source):
    memory: ClassVar[dict[str, int]] = {}

    def __init__(self, settings: Toy) -> None:
        self._settings = settings
        self._bug = settings.bug
        self._server = SERVERS[settings.server]
        self._places: dict[str, _Known] = {}
        self._durable: dict[str, int] = {}
        self._told: dict[str, Schema] = {}

    def namespaces(self) -> Sequence[str]:
        with self._session() as server:
            return list(server.tables)

    def inspect(self, accept: Callable[[str], bool]) -> Inspection:
        key = () if self._bug is Bug.HIDES_KEYS else ("id",)
        with self._session() as server:
            return Inspection([Found(ns, len(server.rows(ns)), key) for ns in server.tables])

    def release(self) -> Sequence[str]:
        with self._session() as server:
            if self._bug is Bug.LEAVES_ITS_SLOT or self.name not in server.slots:
                return ()
            server.slots.discard(self.name)
            return [f"slot {self.name}"]

    def logged(self, batch: Batch) -> None:
        if self._bug is not Bug.NEVER_ACKNOWLEDGES:
            self._acknowledge(batch.positions)

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        batches = self._read(accept, resume, stop)
        if self._bug is Bug.READS_AHEAD:
            batches = _ahead(batches, stop)
        for batch in batches:
            if self._bug is Bug.ACKNOWLEDGES_EARLY:
                self._acknowledge(batch.positions)
            yield batch

    def _read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        for ns, known in resume.items():
            if not accept(ns):
                continue
            place = msgspec.convert(known.position, _Known)
            self._durable[ns] = place.at if place.next is None else place.next
            begins_anew = self._bug is Bug.BEGINS_ANEW and known.mode is Mode.COPY
            self._places[ns] = _Known(at=place.at) if begins_anew else place
            if self._bug is Bug.PASSES_OVER_A_GAP and self.name not in self._server.slots:
                self._places[ns] = _Known(next=len(self._server.changes))
            if self._bug is Bug.POSITION_IN_MEMORY and place.next is None:
                self._places[ns] = _Known(at=place.at, after=self.memory[ns])
        if self._settings.tail and self._bug is not Bug.COPIES_INSIDE_A_TRANSACTION:
            yield from self._follow(accept)
        first = True
        while not stop.is_set():
            if first or self._bug is not Bug.FORGETS_NEW_NAMESPACES:
                for ns in self._wanted(accept):
                    yield from self._copy(ns, stop)
            first = False
            if not self._settings.tail:
                return
            yield from self._follow(accept)
            if self._bug is Bug.DEAF_TO_STOP:
                time.sleep(3.0)
            stop.wait(0.02)

    def _wanted(self, accept: Callable[[str], bool]) -> list[str]:
        """The namespaces whose copy is not over."""
        with self._session() as server:
            server.slots.add(self.name)
            for ns in server.tables:
                if accept(ns) or self._bug is Bug.READS_WHAT_IS_NOT_WANTED:
                    self._places.setdefault(ns, _Known(at=len(server.changes)))
            return [ns for ns, place in self._places.items() if place.next is None]

    def _copy(self, ns: str, stop: threading.Event) -> Iterator[Batch]:
        place = self._places[ns]
        with self._session() as server:
            rows = server.rows(ns, place.at)
        left = [rows[id] for id in sorted(rows) if id > place.after]
        for some in _in_batches(left):
            if stop.is_set():
                return
            last = int(str(some[-1]["id"]))
            position: Position = {"at": place.at, "after": last + self._slip(len(some))}
            messages = [self._message(ns, Change(ns, Op.INSERT, row), Mode.COPY) for row in some]
            with self._session() as server:
                schemas = self._schema(ns, server)
            self.memory[ns] = last
            yield Batch(messages, {ns: position}, schemas=schemas)
        next = place.at
        if self._bug is Bug.GAP_BEHIND_THE_COPY:
            next = len(self._server.changes)
        elif self._bug is Bug.OVERLAP_BEHIND_THE_COPY:
            next = 0
        self._places[ns] = _Known(next=next)
        done = () if self._bug is Bug.NO_END_OF_THE_COPY else (ns,)
        with self._session() as server:
            schemas = self._schema(ns, server)
        yield Batch((), {ns: {"next": next}}, completed=done, schemas=schemas)

    def _slip(self, rows: int) -> int:
        if self._bug is Bug.LOSES_A_ROW_ON_RESUME:
            return 1
        return -rows // 2 if self._bug is Bug.REPEATS_A_BATCH_ON_RESUME else 0

    def _follow(self, accept: Callable[[str], bool]) -> Iterator[Batch]:
        while True:
            with self._session() as server:
                followed = {
                    ns: place.next
                    for ns, place in self._places.items()
                    if place.next is not None and accept(ns)
                }
                begin = min(followed.values(), default=len(server.changes))
                if begin < server.forgotten:
                    if self._bug is not Bug.ACKNOWLEDGES_EARLY:
                        raise UsageError("the toy has forgotten what comes next")
                    begin = server.forgotten
                some = server.changes[begin : begin + CHANGES]
                if not some:
                    return
                end = begin + len(some)
                wanted = [
                    change
                    for at, change in enumerate(some, begin)
                    if change.ns in followed and at >= followed[change.ns]
                ]
                messages = [one for change in wanted for one in self._messages(change)]
                schemas: dict[str, Schema] = {}
                for ns in {change.ns for change in wanted}:
                    schemas |= self._schema(ns, server)
            for ns in followed:
                self._places[ns] = _Known(next=max(end, followed[ns]))
            more = some[-1].more and self._bug is not Bug.CUTS_TRANSACTIONS
            positions: dict[str, Position] = {ns: {"next": self._places[ns].next} for ns in followed}
            yield Batch(messages, positions, schemas=schemas, more=more)

    def _messages(self, change: Change) -> list[Message]:
        if change.op is Op.COMMAND:
            if self._bug is Bug.NO_TRUNCATE:
                return []
            return [Message(change.ns, b'{"command":"truncate"}', Op.COMMAND, _now(), Mode.SYNC)]
        if change.old is not None and self._bug is Bug.TWO_MESSAGES_FOR_A_KEY:
            old = Change(change.ns, Op.DELETE, {"id": change.old})
            return [
                self._message(old.ns, old, Mode.SYNC),
                self._message(change.ns, Change(change.ns, Op.INSERT, change.row), Mode.SYNC),
            ]
        return [self._message(change.ns, change, Mode.SYNC)]

    def _message(self, ns: str, change: Change, mode: Mode) -> Message:
        row = unpacked(change.row)
        if self._bug is Bug.PARTIAL_UPDATES and change.op is Op.UPDATE:
            row.pop("text")
        if self._bug is Bug.DELETE_WITHOUT_KEY and change.op is Op.DELETE:
            row["id"] = 0
        if self._bug is Bug.NUMBERS_AS_TEXT and "n" in row:
            row["n"] = str(row["n"])
        if self._bug is Bug.CUTS_LONG_TEXTS:
            row["text"] = str(row.get("text", ""))[:65536]
        data = msgspec.json.encode(row)
        if len(data) > MAX_MESSAGE_BYTES:
            raise UsageError(f"a row of namespace '{ns}' is too large")
        old = None if change.old is None else msgspec.json.encode({"id": change.old})
        now = _now() // 1_000_000 if self._bug is Bug.SECONDS else _now()
        return Message(ns, data, change.op, now, mode, msgspec.json.encode({"id": change.row["id"]}), old)

    def _schema(self, ns: str, server: ToyServer) -> dict[str, Schema]:
        if self._bug is Bug.OLD_SCHEMA and ns in self._told:
            return {}
        kinds = {"id": Kind.INT, "n": Kind.INT}
        fields = tuple(Field(name, kinds.get(name, Kind.STRING)) for name in server.tables[ns])
        self._told[ns] = Schema(fields, ("id",))
        return {ns: self._told[ns]}

    def _acknowledge(self, positions: Mapping[str, Position]) -> None:
        for ns, position in positions.items():
            known = msgspec.convert(position, _Known)
            self._durable[ns] = known.at if known.next is None else known.next
        if self._durable:
            with self._server.lock:
                self._server.forgotten = max(self._server.forgotten, min(self._durable.values()))

    def _session(self) -> AbstractContextManager[ToyServer]:
        while self._bug is Bug.WAITS_FOR_THE_SERVER and not self._server.up:
            time.sleep(0.05)
        if self._bug is Bug.SHOWS_THE_PASSWORD and self._settings.password != PASSWORD:
            raise UsageError(f"cannot log in with {self._settings.password}")
        return self._server.session(self._settings.password)


def _in_batches(rows: Sequence[Document]) -> Iterator[Sequence[Document]]:
    some: list[Document] = []
    size = 0
    for row in rows:
        some.append(row)
        size += len(str(unpacked(row)["text"]))
        if size >= BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _ahead(batches: Iterator[Batch], stop: threading.Event) -> Iterator[Batch]:
    """All there is, read by a thread as fast as it comes, and held twice: far more than a source may."""
    found: list[Batch | BaseException | None] = []
    copies: list[bytes] = []

    def run() -> None:
        try:
            for batch in batches:
                copies.extend(bytes(bytearray(message.data)) for message in batch.messages)
                found.append(batch)
            found.append(None)
        except BaseException as error:  # noqa: BLE001 - raised below
            found.append(error)

    threading.Thread(target=run, daemon=True).start()
    for i in range(1_000_000_000):
        while len(found) <= i:
            if stop.wait(0.01):
                return
        one = found[i]
        if one is None:
            return
        if isinstance(one, BaseException):
            raise one
        yield one


def _now() -> int:
    return time.time_ns() // 1000


class ToySubject(SourceSubject):
    """Everything that the kit asks for."""

    name = "toy"
    server = "toy 1"
    secret = PASSWORD
    patience = 4.0

    def __init__(self, bug: Bug | None = None) -> None:
        self._name = f"toy-{id(self)}"
        self._bug = bug
        self._server = SERVERS[self._name] = ToyServer()

    def close(self) -> None:
        SERVERS.pop(self._name, None)

    def adaptor(self, *, tail: bool) -> Adaptor:
        return Toy(self._name, tail=tail, bug=self._bug)

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return {"wrong password": Toy(self._name, password=PASSWORD + "!", bug=self._bug)}

    def make(self, word: str) -> str:
        self._server.tables[word] = ["id", "text"]
        return word

    def insert(self, ns: str, rows: Sequence[Row]) -> None:
        with self._server.lock:
            self._server.changes += [
                Change(ns, Op.INSERT, packed({"id": row.id, "text": row.text}), more=row is not rows[-1])
                for row in rows
            ]

    def contents(self, ns: str) -> Mapping[int, str]:
        return {id: str(unpacked(row)["text"]) for id, row in self._server.rows(ns).items()}

    def update(self, ns: str, row: Row) -> None:
        self._server.write(Change(ns, Op.UPDATE, {"id": row.id, "text": row.text}))

    def delete(self, ns: str, id: int) -> None:
        self._server.write(Change(ns, Op.DELETE, {"id": id}))

    def rekey(self, ns: str, id: int, new: int) -> None:
        row: Document = {**self._server.rows(ns)[id], "id": new}
        self._server.write(Change(ns, Op.UPDATE, row, old=id))

    def truncate(self, ns: str) -> None:
        self._server.write(Change(ns, Op.COMMAND, {}))

    def typed(self, word: str) -> TypedRow:
        self._server.tables[word] = ["id", "n", "text"]
        numbers = iter(range(100))

        def insert() -> None:
            row: Document = {"id": next(numbers), "n": 2**60, "text": "x"}
            self._server.write(Change(word, Op.INSERT, row))

        return TypedRow(word, insert, {"n": str(2**60), "text": '"x"'}, {"n": Kind.INT})

    def add_field(self, ns: str) -> None:
        self._server.tables[ns].append("extra")

    def insert_extra(self, ns: str, row: Row, extra: str) -> None:
        self._server.write(Change(ns, Op.INSERT, {"id": row.id, "text": row.text, "extra": extra}))

    def held_back(self) -> int:
        return len(self._server.changes) - self._server.forgotten

    def leftovers(self) -> Sequence[str]:
        return sorted(self._server.slots)

    def stop_server(self) -> None:
        with self._server.lock:
            self._server.up = False

    def start_server(self) -> None:
        with self._server.lock:
            self._server.up = True
