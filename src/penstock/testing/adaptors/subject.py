"""What the kit has to know about an outside system: a *subject* makes, changes and reads it, past the adaptor.

The kit speaks of rows with a number and a text, and of namespaces by a word of its own choice; a subject puts both
into the shape of its system. What a system or its adaptor cannot do is declared in `cannot`, with the reason: the
tests of it are then shown as declared. What is not in `cannot` is promised, and tested.

A subject is made anew for each test by the fixture `subject`; the server behind it may serve many. Namespaces that
other tests have left do no harm: the kit reads only those that it made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import msgspec

from penstock.adaptors.base import Adaptor, Publisher
from penstock.log.message import Message, Op
from penstock.log.schema import Kind, Schema


class Row(NamedTuple):
    """A row as the kit means it."""

    id: int
    text: str


class Can(Enum):
    """What a subject may be able to do; the value says it to a person."""

    SEVERAL = "a copy of a few megabytes comes in several batches"
    NAMESPACES = "there may be several namespaces"
    TAIL = "follows what changes after the copy"
    ADDED = "follows a namespace that is made while it tails"
    UPDATES = "updates of rows"
    DELETES = "deletes of rows"
    REKEYS = "changes of a row's key, as one update with the key before"
    TRUNCATE = "emptying a whole namespace, as one command"
    TYPES = "types of values"
    FIELDS = "fields that are added in mid-stream"
    EXACT = "every message once, whatever crashes"
    CLEAN = "no change is both in the copy and behind it"
    TRANSACTIONS = "what one transaction wrote reaches a sink in one piece"
    ACKNOWLEDGES = "tells the system what it may forget"
    RESTART = "a server that can be stopped and started"
    CONNECTS = "settings that can be wrong where it matters: a host, a password, a path"
    HUGE = "a text of a megabyte, and the empty one"
    OVERSIZE = "a text above the limit of a message"
    REFUSES = "rows that the target can never take"
    CLAIMS = "a target that another log wrote is refused"
    COMES_TO_REST = "an end: without `tail` the source returns"


SOURCE = frozenset(
    {
        Can.SEVERAL, Can.NAMESPACES, Can.TAIL, Can.ADDED, Can.UPDATES, Can.DELETES, Can.REKEYS, Can.TRUNCATE,
        Can.TYPES, Can.FIELDS, Can.EXACT, Can.CLEAN, Can.TRANSACTIONS, Can.ACKNOWLEDGES, Can.RESTART,
        Can.CONNECTS, Can.HUGE, Can.OVERSIZE, Can.COMES_TO_REST,
    }
)  # fmt: skip
"""What is asked of sources."""

SINK = frozenset(
    {
        Can.NAMESPACES, Can.UPDATES, Can.DELETES, Can.REKEYS, Can.TRUNCATE, Can.TYPES, Can.FIELDS, Can.EXACT,
        Can.RESTART, Can.CONNECTS, Can.HUGE, Can.REFUSES, Can.CLAIMS,
    }
)  # fmt: skip
"""What is asked of sinks."""


class Holds(Enum):
    """What a target is made of."""

    ROWS = "the newest state of each row, by its key"
    MESSAGES = "one entry for each message, in the order they came"


class Subject(ABC):
    """What sources and sinks have in common."""

    name: ClassVar[str]
    """The adaptor's name."""
    server: str = ""
    """Server and version that it runs against, as the table shows it: `PostgreSQL 17.2`; empty if there is none."""
    asked: ClassVar[frozenset[Can]]
    cannot: Mapping[Can, str] = MappingProxyType({})
    """What it cannot do, and why."""
    patience: float = 20.0
    """Seconds in which anything that is to happen does."""
    secret: str = ""
    """A password in the settings that must never show."""

    @property
    def can(self) -> frozenset[Can]:
        """All that is asked of it, but for what it declares that it cannot."""
        return self.asked - set(self.cannot)

    @property
    def once(self) -> str:
        """How often a message counts after any number of crashes, for the table."""
        return "exactly once" if Can.EXACT in self.can else "at least once"

    def misconfigured(self) -> Mapping[str, Adaptor]:
        """Adaptors that cannot work, by what is wrong: `wrong password`, `nobody listens`, `no such file`.

        A `password` in them is `secret`.
        """
        raise self.undefined("misconfigured", Can.CONNECTS)

    def stop_server(self) -> None:
        """Stop the server; hard, if it can be."""
        raise self.undefined("stop_server", Can.RESTART)

    def start_server(self) -> None:
        """Start it again, on the same data and port; ready on return."""
        raise self.undefined("start_server", Can.RESTART)

    def leftovers(self) -> Sequence[str]:
        """What the adaptor has set up at the system, or staged, and not removed; by name."""
        return ()

    def undefined(self, method: str, can: Can) -> NotImplementedError:
        """What a subject says that promises something and does not do its part."""
        return NotImplementedError(
            f"the subject {type(self).__name__} promises {can.name} ({can.value}): define `{method}`, "
            f"or declare Can.{can.name} in `cannot`, with the reason"
        )

    def close(self) -> None:  # noqa: B027 - a subject may hold nothing
        """The test is over."""


@dataclass(frozen=True)
class TypedRow:
    """A row with a value of each type. `insert` puts it there, with another key each time.

    `expected` is the text that each field must have in the message; fields that are not in it are not looked at.
    `kinds` are what the schema must say.
    """

    ns: str
    insert: Callable[[], None]
    expected: Mapping[str, str]
    kinds: Mapping[str, Kind] = field(default_factory=dict)


class SourceSubject(Subject):
    """A system that is read."""

    asked = SOURCE
    key: Sequence[str] = ("id",)
    """The key that `inspect` must find; empty if its rows have none."""
    read_ahead: int = 16 * 1024 * 1024
    """So many bytes a source may have read, in all, that nobody asked for yet."""

    @abstractmethod
    def adaptor(self, *, tail: bool) -> Adaptor:
        """The adaptor for this system. Small waiting times are good: the kit waits for it."""

    @abstractmethod
    def make(self, word: str) -> str:
        """Make an empty namespace whose name has `word` in it, and tell the name."""

    @abstractmethod
    def insert(self, ns: str, rows: Sequence[Row]) -> None:
        """Put rows there; in one transaction where there are any."""

    @abstractmethod
    def contents(self, ns: str) -> Mapping[int, str]:
        """The rows that are there now, as the system itself says; of a queue, all that were put there."""

    def several(self) -> Sequence[Row]:
        """Rows that make at least three batches: copied, or written in one transaction."""
        return [Row(i, f"{i:06d} " + "x" * 1200) for i in range(3000)]

    def row(self, message: Message) -> Row:
        """The row in a message; the text is empty if the message has only the key, as a delete may."""
        document = msgspec.json.decode(message.data, type=dict[str, object])
        return Row(int(str(document["id"])), str(document.get("text", "")))

    def old_id(self, message: Message) -> int | None:
        """The number that the row had before, if the message changes it."""
        if message.old_key is None:
            return None
        return int(str(msgspec.json.decode(message.old_key, type=dict[str, object])["id"]))

    def update(self, ns: str, row: Row) -> None:
        """Give a row another text; nothing happens if it is not there."""
        raise self.undefined("update", Can.UPDATES)

    def delete(self, ns: str, id: int) -> None:
        """Take a row away; nothing happens if it is not there."""
        raise self.undefined("delete", Can.DELETES)

    def rekey(self, ns: str, id: int, new: int) -> None:
        """Give a row another number, in one statement."""
        raise self.undefined("rekey", Can.REKEYS)

    def truncate(self, ns: str) -> None:
        raise self.undefined("truncate", Can.TRUNCATE)

    def typed(self, word: str) -> TypedRow:
        """Make a namespace with a field of each type."""
        raise self.undefined("typed", Can.TYPES)

    def add_field(self, ns: str) -> None:
        """Add a field `extra`, of texts, to a namespace."""
        raise self.undefined("add_field", Can.FIELDS)

    def insert_extra(self, ns: str, row: Row, extra: str) -> None:
        """Put a row there that has the field."""
        raise self.undefined("insert_extra", Can.FIELDS)

    def held_back(self) -> int:
        """How much the system keeps because it was not acknowledged: messages, or bytes; 0 if nothing."""
        raise self.undefined("held_back", Can.ACKNOWLEDGES)


@dataclass(frozen=True)
class TypedDelivery:
    """A message with a value of each type for a sink. `read` tells what the target then has, to equal `expected`."""

    ns: str
    schema: Schema
    data: bytes
    key: bytes | None
    read: Callable[[], Mapping[str, object]]
    expected: Mapping[str, object]


class SinkSubject(Subject):
    """A system that is written."""

    asked = SINK
    holds: Holds = Holds.ROWS

    @abstractmethod
    def adaptor(self) -> Adaptor:
        """The adaptor for this target; the same target each time."""

    @abstractmethod
    def make(self, word: str) -> str:
        """The name of a namespace with `word` in it whose messages the target takes; its place made, if need be."""

    @abstractmethod
    def contents(self, ns: str) -> Sequence[Row]:
        """What the target has of a namespace: its rows in any order, or its messages in their order."""

    @property
    def once(self) -> str:
        """A row that is written twice is the same row."""
        return "converges" if Can.EXACT not in self.can and self.holds is Holds.ROWS else super().once

    def settle(self) -> None:
        """Have the target show what it was given, where that takes an act (a refresh of an index)."""

    def expected(self, messages: Sequence[Message]) -> Sequence[Row]:
        """What the target must hold after these messages of one namespace."""
        if self.holds is Holds.MESSAGES:
            return [row_of(message) for message in messages if message.op is not Op.COMMAND]
        return [Row(id, text) for id, text in sorted(state_of(messages).items())]

    def bad(self, ns: str) -> bytes:
        """The data of a message that the target can never take, with the number 666."""
        raise self.undefined("bad", Can.REFUSES)

    def typed(self, word: str) -> TypedDelivery:
        raise self.undefined("typed", Can.TYPES)

    def extra(self, ns: str, id: int) -> str | None:
        """The field `extra` of a row in the target."""
        raise self.undefined("extra", Can.FIELDS)

    def died(self, publisher: Publisher) -> None:
        """Do what the system does when the process of a publisher is killed: close its files and sockets.

        Called instead of `Publisher.close`, just before the kit forgets it.
        """


def row_of(message: Message) -> Row:
    """The row in a message that the kit made."""
    document = msgspec.json.decode(message.data, type=dict[str, object])
    return Row(int(str(document["id"])), str(document.get("text", "")))


def state_of(messages: Sequence[Message]) -> dict[int, str]:
    """The rows that are left after these messages that the kit made."""
    rows: dict[int, str] = {}
    for message in messages:
        if message.op is Op.COMMAND:
            rows.clear()
            continue
        row = row_of(message)
        if message.old_key is not None:
            rows.pop(int(str(msgspec.json.decode(message.old_key, type=dict[str, object])["id"])), None)
        if message.op is Op.DELETE:
            rows.pop(row.id, None)
        else:
            rows[row.id] = row.text
    return rows
