"""Streams of a NATS server, and the subjects of the kit on them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence

import msgspec
import nats as driver
from tests.adaptors.message_subjects import MessageSource, MessageTarget
from tests.servers.nats import MAX_PAYLOAD, PASSWORD, NatsServer, server_version

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor, Publisher
from penstock.log.message import Message
from penstock.testing.adaptors import (
    Can,
    Row,
)
from penstock.testing.adaptors.subject import row_of

PATIENCE = 60.0


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

    def put(self, subject: str, bodies: Sequence[bytes], headers: Mapping[str, str] | None = None) -> None:
        async def work() -> None:
            async with await driver.connect(self._uri) as client:
                js = client.jetstream(timeout=PATIENCE)
                for i in range(0, len(bodies), 200):
                    await asyncio.gather(
                        *(
                            js.publish(subject, body, headers=dict(headers or {}))
                            for body in bodies[i : i + 200]
                        )
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

    def count(self, name: str) -> int:
        state = msgspec.convert(self.ask(f"STREAM.INFO.{name}")["state"], dict[str, object])
        return int(str(state["messages"]))

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


class NatsSubject(MessageSource):
    name = "nats"
    patience = PATIENCE
    secret = PASSWORD
    cannot: Mapping[Can, str] = {
        Can.UPDATES: "a message of a stream stays as it is",
        Can.DELETES: "that a message is deleted is not told",
        Can.REKEYS: "a message of a stream stays as it is",
        Can.TRUNCATE: "that a stream is purged is an error",
        Can.TRANSACTIONS: "a stream has none",
        Can.OVERSIZE: "a message above the limit is kept among the dead letters",
        Can.ACKNOWLEDGES: "a stream keeps its messages by its own limits",
    }

    def __init__(self, server: NatsServer) -> None:
        self._server = self.crashing = server
        self.server = server_version()
        self.streams = Streams(server.uri)
        self._made: list[str] = []

    def adaptor(self, *, tail: bool) -> Adaptor:
        return a.nats(uri=self._server.uri, tail=tail, poll_interval=0.3, timeout=5.0, key=["id"])

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return misconfigured(self._server)

    def make(self, word: str) -> str:
        self.streams.make(word)
        self._made.append(word)
        return word

    def send(self, ns: str, bodies: Sequence[bytes]) -> None:
        self.streams.put(f"{ns}.x", bodies)

    def contents(self, ns: str) -> Mapping[int, str]:
        return dict(row_of(Message(ns, data)) for _, _, data in self.streams.all(ns))

    def leftovers(self) -> Sequence[str]:
        return [
            consumer
            for ns in self._made
            for consumer in self.streams.consumers(ns)
            if consumer.startswith("penstock-")
        ]

    def close(self) -> None:
        for ns in self._made:
            self.streams.ask(f"STREAM.DELETE.{ns}")


class NatsTarget(MessageTarget):
    name = "nats"
    patience = PATIENCE
    secret = PASSWORD

    def __init__(self, server: NatsServer, **settings: object) -> None:
        self._server = self.crashing = server
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

    def bodies(self, ns: str) -> Sequence[bytes]:
        return [data for _, data in self.entries(ns)]

    def died(self, publisher: Publisher) -> None:
        publisher.close()

    def close(self) -> None:
        self.streams.ask(f"STREAM.DELETE.{self.stream}")
