"""What the fields of a namespace are, as its source knows it.

A source logs a schema before the first row of a namespace and at every change (DESIGN 2). The text of a message
keeps every digit; the schema says what the digits were: a float or a decimal, a time or a string.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

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


class KnownSchemas:
    """Tells the schema of a namespace: what the log had said when this was made."""

    def __init__(self, known: Mapping[str, Schema]) -> None:
        self._known = known

    def __call__(self, ns: str) -> Schema | None:
        return self._known.get(ns)


class LatestSchemas:
    """Tells the schema of a namespace: what the log last said. Sent to another process, what it had said by then."""

    def __init__(
        self, find: Callable[[str], Schema | None], everything: Callable[[], Mapping[str, Schema]]
    ) -> None:
        self._find = find
        self._everything = everything

    def __call__(self, ns: str) -> Schema | None:
        return self._find(ns)

    def __reduce__(self) -> tuple[type[KnownSchemas], tuple[dict[str, Schema]]]:
        return KnownSchemas, (dict(self._everything()),)
