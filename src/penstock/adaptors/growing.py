"""What a table needs that is made, or gets columns, for messages: from their schema, and from what is in them.

Shared by relational sinks that make tables. The columns are the fields that the messages have; their types are those
that the source says (`Schema`), and where it does not know a field, since a function made it, a kind that holds every
value seen. A batch without rows to look at (deletes alone) gets all that the source knows of.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from penstock.adaptors.base import Schemas
from penstock.log.schema import Field, Kind, Schema
from penstock.log.values import ValuesError, decode, kind_of

_NUMBERS = frozenset({Kind.INT, Kind.FLOAT, Kind.DECIMAL})
_read = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass
class Seen:
    """What the messages for one table have: the kinds of each field, where they come from, and their key."""

    fields: dict[str, set[Kind]] = field(default_factory=dict)
    origins: list[str] = field(default_factory=list)
    key: tuple[str, ...] = ()

    def add(self, origin: str, op: str, key: str | None, data: str) -> None:
        """Look at a message; one that cannot be read is for somebody else to refuse."""
        if origin not in self.origins:
            self.origins.append(origin)
        if op not in ("insert", "update"):
            return
        try:
            for name, raw in _read(data).items():
                self.fields.setdefault(name, set()).add(kind_of(decode(bytes(raw))))
            self.key = self.key or (tuple(_read(key)) if key else ())
        except (msgspec.DecodeError, ValuesError, RecursionError):
            return

    def schema(self, schemas: Schemas) -> Schema:
        """The fields in the order of the source, then those that it does not know; with a key if all of it is there."""
        told = [schema for origin in self.origins if (schema := schemas(origin)) is not None]
        known = {one.name: one for schema in told for one in schema.fields}
        fields = [known[name] for name in known if name in self.fields or not self.fields]
        fields += [Field(name, widest(kinds)) for name, kinds in self.fields.items() if name not in known]
        have = {one.name for one in fields}
        keys = [*(schema.key for schema in told), self.key]
        return Schema(tuple(fields), next((key for key in keys if key and have.issuperset(key)), ()))


def widest(kinds: set[Kind]) -> Kind:
    """A kind that holds every value of these."""
    found = kinds - {Kind.NULL}
    if len(found) == 1:
        return next(iter(found))
    return Kind.DECIMAL if found and found <= _NUMBERS else Kind.ANY
