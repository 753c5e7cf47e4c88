"""What systems of JSON messages (streams, queues) have in common for the conformance kit."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from penstock.log.schema import Field, Kind, Schema
from penstock.testing.adaptors import Holds, Row, SinkSubject, SourceSubject, TypedDelivery, TypedRow

BODY = '{"id": 1, "n": 1.50, "text": "grüße", "null": null, "list": [1, 2]}'
TEXTS = {"id": "1", "n": "1.50", "text": '"grüße"', "null": "null", "list": "[1, 2]"}
"""A message with a value of each kind that JSON has, and the texts of its fields."""

DATA = b'{"id": 1, "n": 1.50, "when": {"$date":"2026-11-16T02:14:14.123456Z"}, "x":null}'
"""What a target must hold to the byte."""


class Crashing(Protocol):
    """A server that can be killed and started again."""

    def start(self) -> None: ...

    def kill(self) -> None: ...


def body_of(row: Row, **more: str) -> bytes:
    return msgspec.json.encode({"id": row.id, "text": row.text, **more})


class MessageSource(SourceSubject):
    """A namespace holds messages, and whoever puts one there says what is in it."""

    crashing: Crashing

    @abstractmethod
    def send(self, ns: str, bodies: Sequence[bytes]) -> None:
        """Put messages there."""

    def insert(self, ns: str, rows: Sequence[Row]) -> None:
        self.send(ns, [body_of(row) for row in rows])

    def typed(self, word: str) -> TypedRow:
        ns = self.make(f"{word}{uuid.uuid4().hex[:8]}")
        return TypedRow(ns, lambda: self.send(ns, [BODY.encode()]), TEXTS)

    def add_field(self, ns: str) -> None:
        """There is nothing to do: each message has its own fields."""

    def insert_extra(self, ns: str, row: Row, extra: str) -> None:
        self.send(ns, [body_of(row, extra=extra)])

    def stop_server(self) -> None:
        self.crashing.kill()

    def start_server(self) -> None:
        self.crashing.start()


class MessageTarget(SinkSubject):
    """Holds the data of each message as it came."""

    holds = Holds.MESSAGES
    crashing: Crashing

    @abstractmethod
    def bodies(self, ns: str) -> Sequence[bytes]:
        """All that was sent to a namespace, in order."""

    def typed(self, word: str) -> TypedDelivery:
        ns = self.make(f"{word}{uuid.uuid4().hex[:8]}")
        schema = Schema((Field("id", Kind.INT), Field("n", Kind.DECIMAL)), ("id",))

        def read() -> Mapping[str, object]:
            return {"data": self.bodies(ns)[0]}

        return TypedDelivery(ns, schema, DATA, b'{"id":1}', read, {"data": DATA})

    def extra(self, ns: str, id: int) -> str | None:
        for body in self.bodies(ns):
            document = msgspec.json.decode(body, type=dict[str, object])
            if document["id"] == id:
                return str(document.get("extra"))
        return None

    def stop_server(self) -> None:
        self.crashing.kill()

    def start_server(self) -> None:
        self.crashing.start()
