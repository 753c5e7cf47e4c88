"""What a table needs that is made, or gets columns, for messages: from their schema, and from what is in them.

Shared by relational sinks that make tables. The columns are the fields that the messages have; their types are those
that the source says (`Schema`) of these messages, and where it does not know a field, since a function made it, a kind
that holds every value seen. So too where it says two things, since the batch lies across a change. A batch without
rows to look at (deletes alone) gets all that the source knows of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.log.schema import Field, Kind, Schema, Schemas, still
from penstock.log.values import ValuesError, decode, kind_of

_NUMBERS = frozenset({Kind.INT, Kind.FLOAT, Kind.DECIMAL})
_read = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass
class Seen:
    """What the messages for one table have: the kinds of each field, where they come from, and their key."""

    fields: dict[str, set[Kind]] = field(default_factory=dict)
    origins: dict[str, range] = field(default_factory=dict)
    """The offsets from the first message of each to the last."""
    key: tuple[str, ...] = ()

    def add(self, origin: str, offset: int, op: str, key: str | None, data: str) -> None:
        """Look at a message; one that cannot be read is for somebody else to refuse."""
        seen = self.origins.get(origin)
        if seen is None or offset not in seen:
            begin, end = (seen.start, seen.stop) if seen is not None else (offset, offset)
            self.origins[origin] = range(min(begin, offset), max(end, offset + 1))
        if op not in ("insert", "update"):
            return
        try:
            for name, raw in _read(data).items():
                self.fields.setdefault(name, set()).add(kind_of(decode(bytes(raw))))
            self.key = self.key or (tuple(_read(key)) if key else ())
        except (msgspec.DecodeError, ValuesError, RecursionError):
            return

    def told(self, schemas: Schemas) -> Sequence[Schema]:
        """The schemas of these messages; of each origin, the newest last."""
        return [
            told.schema
            for origin, seen in self.origins.items()
            for told in still(schemas.told(origin), seen.start)
            if told.since < seen.stop
        ]

    def schema(self, schemas: Schemas) -> Schema:
        """The fields in the order of the source, then those that it does not know; with a key if all of it is there."""
        told = self.told(schemas)
        known: dict[str, Field] = {}
        for one in (one for schema in told for one in schema.fields):
            kind = widest({one.kind, known.get(one.name, one).kind})
            known[one.name] = one if kind is one.kind else Field(one.name, kind)
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
