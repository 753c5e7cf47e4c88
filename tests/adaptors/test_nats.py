"""Reading and writing JetStream, at a real server: the kit, and what NATS has that others do not."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import nats as driver
import pytest
from tests.servers.nats import MAX_PAYLOAD, PASSWORD, NatsServer, server_version

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor, Publisher, SinkPosition
from penstock.adaptors.nats import sink as nats_sink
from penstock.adaptors.nats.client import Client
from penstock.adaptors.nats.sink import NatsPublisher
from penstock.adaptors.nats.source import LostError
from penstock.base import secrets
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.log.message import Message, Op
from penstock.log.schema import Field, Kind, Schema
from penstock.testing.adaptors import (
    Can,
    Holds,
    Row,
    SinkConformance,
    SinkSubject,
    SourceConformance,
    SourceSubject,
    TypedDelivery,
    TypedRow,
)
from penstock.testing.adaptors.delivery import Delivery, message, truncate
from penstock.testing.adaptors.model import Log, Reading
from penstock.testing.adaptors.subject import row_of

pytestmark = pytest.mark.xdist_group("nats")

PATIENCE = 60.0


@pytest.fixture(autouse=True)
def _unregistered() -> Iterator[None]:
    """Passwords that tests register are forgotten."""
    yield
    secrets.forget_all()


class Streams:
    """The server, past the adaptors: each act is a connection of its own, so that it may restart between two."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def ask(self, subject: str, body: object = None) -> dict[str, object]:
        async def work() -> dict[str, object]:
            async with await driver.connect(self._uri) as client:
                content = b"" if body is None else msgspec.json.encode(body)
                answer = await client.request(f"$JS.API.{subject}", content, timeout=PATIENCE)
                return msgspec.json.decode(answer.data, type=dict[str, object])

        return asyncio.run(work())

    def make(self, name: str, **config: object) -> None:
        told = self.ask(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], **config})
        assert "error" not in told, told

    def put(
        self, subject: str, bodies: Sequence[bytes], headers: Mapping[str, str] | None = None
    ) -> None:
        async def work() -> None:
            async with await driver.connect(self._uri) as client:
                js = client.jetstream(timeout=PATIENCE)
                for i in range(0, len(bodies), 200):
                    await asyncio.gather(
                        *(js.publish(subject, body, headers=dict(headers or {})) for body in bodies[i : i + 200])
                    )

        asyncio.run(work())

    def all(self, name: str) -> list[tuple[str, dict[str, str], bytes]]:
        async def work() -> list[tuple[str, dict[str, str], bytes]]:
            async with await driver.connect(self._uri) as client:
                js = client.jetstream(timeout=PATIENCE)
                count = (await js.stream_info(name)).state.messages
                reader = await js.subscribe(">", stream=name, ordered_consumer=True) if count else None
                found = [await reader.next_msg(PATIENCE) for _ in range(count)] if reader else []
                return [(one.subject, dict(one.headers or {}), one.data) for one in found]

        return asyncio.run(work())

    def state(self, name: str) -> dict[str, int]:
        return msgspec.convert(self.ask(f"STREAM.INFO.{name}")["state"], dict[str, object])  # type: ignore[return-value]

    def consumers(self, name: str) -> list[str]:
        return msgspec.convert(self.ask(f"CONSUMER.NAMES.{name}")["consumers"] or [], list[str])


def misconfigured(server: NatsServer, **settings: object) -> Mapping[str, Adaptor]:
    here = f"127.0.0.1:{server.port}"
    return {
        "nobody listens": a.nats(uri=f"nats://penstock:{PASSWORD}@127.0.0.1:1", timeout=1.0, **settings),
        "wrong password": a.nats(uri=f"nats://penstock:wrong-{PASSWORD}@{here}", **settings),
        "no password": a.nats(uri=f"nats://{here}", **settings),
        "wrong token": a.nats(uri=f"nats://{here}", token=f"wrong-{PASSWORD}", **settings),
    }


class NatsSubject(SourceSubject):
    name = "nats"
    patience = PATIENCE
    secret = PASSWORD
    cannot: Mapping[Can, str] = {
        Can.UPDATES: "a message of a stream stays as it is",
        Can.DELETES: "that a message is deleted is not told",
        Can.REKEYS: "a message of a stream stays as it is",
        Can.TRUNCATE: "that a stream is purged is an error",
        Can.OVERSIZE: "a message above the limit is kept among the dead letters",
        Can.ACKNOWLEDGES: "a stream keeps its messages by its own limits",
    }

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self.server = server_version()
        self.streams = Streams(server.uri)
        self._made: list[str] = []

    def adaptor(self, *, tail: bool) -> Adaptor:
        return a.nats(uri=self._server.uri, tail=tail, poll_interval=0.3, timeout=5.0, key=["id"])

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return misconfigured(self._server)

    def stop_server(self) -> None:
        self._server.kill()

    def start_server(self) -> None:
        self._server.start()

    def make(self, word: str) -> str:
        self.streams.make(word)
        self._made.append(word)
        return word

    def insert(self, ns: str, rows: Sequence[Row]) -> None:
        self.streams.put(f"{ns}.x", [msgspec.json.encode({"id": row.id, "text": row.text}) for row in rows])

    def contents(self, ns: str) -> Mapping[int, str]:
        return dict(row_of(Message(ns, data)) for _, _, data in self.streams.all(ns))

    def typed(self, word: str) -> TypedRow:
        ns = self.make(f"{word}{uuid.uuid4().hex[:8]}")
        body = '{"id": 1, "n": 1.50, "text": "grüße", "null": null, "list": [1, 2]}'
        expected = {"id": "1", "n": "1.50", "text": '"grüße"', "null": "null", "list": "[1, 2]"}
        return TypedRow(ns, lambda: self.streams.put(f"{ns}.x", [body.encode()]), expected)

    def add_field(self, ns: str) -> None:
        """There is nothing to do: each message has its own fields."""

    def insert_extra(self, ns: str, row: Row, extra: str) -> None:
        self.streams.put(
            f"{ns}.x", [msgspec.json.encode({"id": row.id, "text": row.text, "extra": extra})]
        )

    def leftovers(self) -> Sequence[str]:
        return [consumer for ns in self._made for consumer in self.streams.consumers(ns)]

    def close(self) -> None:
        for ns in self._made:
            self.streams.ask(f"STREAM.DELETE.{ns}")


class TestNatsSource(SourceConformance):
    @pytest.fixture
    def subject(self, nats_server: NatsServer) -> NatsSubject:
        return NatsSubject(nats_server)


class NatsTarget(SinkSubject):
    name = "nats"
    holds = Holds.MESSAGES
    patience = PATIENCE
    secret = PASSWORD

    def __init__(self, server: NatsServer, **settings: object) -> None:
        self._server = server
        self.server = server_version()
        self.streams = Streams(server.uri)
        self.stream = f"t{uuid.uuid4().hex[:8]}"
        self._settings = {"stream": self.stream, "prefix": f"{self.stream}.", "timeout": 5.0, **settings}
        self.streams.make(self.stream)

    def adaptor(self) -> Adaptor:
        return a.nats(uri=self._server.uri, **self._settings)

    def misconfigured(self) -> Mapping[str, Adaptor]:
        none = a.nats(uri=self._server.uri, stream="no-such-stream")
        return {**misconfigured(self._server, stream=self.stream), "no such stream": none}

    def stop_server(self) -> None:
        self._server.kill()

    def start_server(self) -> None:
        self._server.start()

    def make(self, word: str) -> str:
        return word

    def entries(self, ns: str) -> list[tuple[dict[str, str], bytes]]:
        subject = f"{self.stream}.{ns}"
        return [(headers, data) for at, headers, data in self.streams.all(self.stream) if at == subject]

    def contents(self, ns: str) -> Sequence[Row]:
        entries = self.entries(ns)
        return [row_of(Message(ns, data)) for headers, data in entries if headers["Penstock-Op"] != "command"]

    def bad(self, ns: str) -> bytes:
        return msgspec.json.encode({"id": 666, "text": "x" * MAX_PAYLOAD})

    def typed(self, word: str) -> TypedDelivery:
        data = b'{"id": 1, "n": 1.50, "when": {"$date":"2026-11-16T02:14:14.123456Z"}, "x":null}'
        schema = Schema((Field("id", Kind.INT), Field("n", Kind.DECIMAL)), ("id",))
        return TypedDelivery(
            word, schema, data, b'{"id":1}', lambda: {"data": self.entries(word)[0][1]}, {"data": data}
        )

    def extra(self, ns: str, id: int) -> str | None:
        for _, data in self.entries(ns):
            document = msgspec.json.decode(data, type=dict[str, object])
            if document["id"] == id:
                return str(document.get("extra"))
        return None

    def died(self, publisher: Publisher) -> None:
        publisher.close()

    def close(self) -> None:
        self.streams.ask(f"STREAM.DELETE.{self.stream}")


class TestNatsSink(SinkConformance):
    @pytest.fixture
    def subject(self, nats_server: NatsServer) -> Iterator[NatsTarget]:
        target = NatsTarget(nats_server)
        yield target
        target.streams.ask(f"STREAM.PURGE.{nats_sink.POSITIONS}")
