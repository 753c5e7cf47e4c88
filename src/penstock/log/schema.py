"""What the fields of a namespace are, as its source knows it.

A source logs a schema before the first row of a namespace and at every change (DESIGN 2). The text of a message
keeps every digit; the schema says what the digits were: a float or a decimal, a time or a string.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from operator import attrgetter

import msgspec


class Kind(Enum):
    """The types of values that Penstock knows."""

    NULL = "null"
    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    DECIMAL = "decimal"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    """A moment: with a zone."""
    LOCAL_TIMESTAMP = "local timestamp"
    """A date and a time of day somewhere: without a zone."""
    UUID = "uuid"
    OBJECT_ID = "object id"
    MONGO_TIMESTAMP = "mongo timestamp"
    """MongoDB's own: seconds and a counter. No moment that anything else should compare with."""
    REGEX = "regex"
    LIST = "list"
    MAP = "map"
    ANY = "any"
    """Of a field: any of the others, as each row has it. No value is of this kind."""


class Field(msgspec.Struct, frozen=True, omit_defaults=True):
    """One field. `native` is the type's name in the system it came from."""

    name: str
    kind: Kind
    nullable: bool = True
    native: str = ""
    items: Kind | None = None
    """Of a list: what it holds, if that is known."""


class Schema(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fields of a namespace in their order, and which of them make up the row's key."""

    fields: tuple[Field, ...]
    key: tuple[str, ...] = ()


class Told(msgspec.Struct, frozen=True, array_like=True):
    """A schema of a namespace, and the message from which on it holds: until the next one that was told."""

    since: int
    schema: Schema


class Schemas(ABC):
    """What the log says of the fields of namespaces, by the names that they have in the log (`origin`).

    A sink that lags behind gets rows from before a change: what these are, the schema says that held then.
    """

    @abstractmethod
    def told(self, ns: str) -> Sequence[Told]:
        """All that were told of a namespace and may still matter, ascending; none for a source that tells none."""

    @abstractmethod
    def since(self, offset: int) -> KnownSchemas:
        """What is known now of messages from this one on. Can be sent to another process."""

    def __call__(self, ns: str) -> Schema | None:
        """The newest."""
        told = self.told(ns)
        return told[-1].schema if told else None

    def at(self, ns: str, offset: int) -> Schema | None:
        """That of a message."""
        told = self.told(ns)
        held = bisect_right(told, offset, key=attrgetter("since"))
        return told[held - 1].schema if held else None


class KnownSchemas(Schemas):
    """What the log had said when this was made."""

    def __init__(self, known: Mapping[str, Sequence[Told]]) -> None:
        self._known = known

    def told(self, ns: str) -> Sequence[Told]:
        return self._known.get(ns, ())

    def since(self, offset: int) -> KnownSchemas:
        return KnownSchemas({ns: still(told, offset) for ns, told in self._known.items()})


class LatestSchemas(Schemas):
    """What the log last said. Sent to another process, what it had said by then."""

    def __init__(
        self, find: Callable[[str], Sequence[Told]], everything: Callable[[], Mapping[str, Sequence[Told]]]
    ) -> None:
        self._find = find
        self._everything = everything

    def told(self, ns: str) -> Sequence[Told]:
        return self._find(ns)

    def since(self, offset: int) -> KnownSchemas:
        return KnownSchemas(self._everything()).since(offset)

    def __reduce__(self) -> tuple[type[KnownSchemas], tuple[dict[str, Sequence[Told]]]]:
        return KnownSchemas, (dict(self._everything()),)


def still(told: Sequence[Told], offset: int) -> Sequence[Told]:
    """Those that hold for messages from `offset` on."""
    return told[max(0, bisect_right(told, offset, key=attrgetter("since")) - 1) :]
