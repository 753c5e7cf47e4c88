"""The endpoint of `http` as the kit sees it: senders that post to the pipeline, and send again until they are heard."""

from __future__ import annotations

import gzip
import socket
import uuid
from collections.abc import Mapping, Sequence

import msgspec
from tests.adaptors.posting import MOST_DOCUMENTS, Sender
from tests.servers.ports import free_port

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor
from penstock.testing.adaptors import Can, Row, SourceSubject, TypedRow

TOKEN = "not-to-be-shown"


class HookSubject(SourceSubject):
    """Senders, one for each namespace, that post to the pipeline until they are heard."""

    name = "http (listen)"
    secret = TOKEN
    patience = 8.0
    server = "senders over real sockets"
    cannot: Mapping[Can, str] = {
        Can.COMES_TO_REST: "senders may post at any time: the source always follows",
        Can.UPDATES: "what was posted stays as it is",
        Can.DELETES: "what was posted stays as it is",
        Can.REKEYS: "what was posted stays as it is",
        Can.TRUNCATE: "what was posted stays as it is",
        Can.TRANSACTIONS: "a sender says no more than what it posts together, which is logged together",
        Can.OVERSIZE: "a body above the limit is refused with 413",
        Can.RESTART: "the endpoint is part of the run: there is no server",
    }

    def __init__(self) -> None:
        self._port = free_port()
        self._senders: dict[str, Sender] = {}
        self._rows: dict[str, dict[int, bytes]] = {}
        self._busy: socket.socket | None = None

    def adaptor(self, *, tail: bool) -> Adaptor:
        # For `inspect`, which comes without `tail`, the namespaces are in the settings.
        named = [] if tail else list(self._senders)
        return a.http(
            listen=f"127.0.0.1:{self._port}", token=TOKEN, key=["id"], namespaces=named, timeout=2.0
        )

    def misconfigured(self) -> Mapping[str, Adaptor]:
        self._busy = socket.create_server(("127.0.0.1", 0))
        return {
            "in use": a.http(listen=f"127.0.0.1:{self._busy.getsockname()[1]}", token=TOKEN),
            "not an address of this machine": a.http(listen="192.0.2.1:8080", token=TOKEN),
            "no such certificate": a.http(
                listen=f"127.0.0.1:{self._port}", token=TOKEN, certificate="nowhere.pem", private_key="nowhere.key"
            ),
        }  # fmt: skip

    def make(self, word: str) -> str:
        self._senders[word] = sender = Sender(self._port, f"/{word}", authorization=f"Bearer {TOKEN}")
        self._rows[word] = {}
        sender.start()
        return word

    def insert(self, ns: str, rows: Sequence[Row]) -> None:
        self._senders[ns].put(*(msgspec.json.encode({"id": row.id, "text": row.text}) for row in rows))
        # Compressed, since the kit looks at the memory of this process.
        self._rows[ns].update({row.id: gzip.compress(row.text.encode(), 1) for row in rows})

    def contents(self, ns: str) -> Mapping[int, str]:
        return {id: gzip.decompress(text).decode() for id, text in self._rows[ns].items()}

    def several(self) -> Sequence[Row]:
        return [Row(i, f"{i:06d} " + "x" * 1200) for i in range(4 * MOST_DOCUMENTS)]

    def typed(self, word: str) -> TypedRow:
        ns = self.make(f"{word}{uuid.uuid4().hex[:8]}")
        body = '{"id": 1, "n": 1.50, "text": "grüße", "null": null, "list": [1, 2]}'
        expected = {"id": "1", "n": "1.50", "text": '"grüße"', "null": "null", "list": "[1, 2]"}
        return TypedRow(ns, lambda: self._senders[ns].put(body.encode()), expected)

    def add_field(self, ns: str) -> None:
        """There is nothing to do: each document has its own fields."""

    def insert_extra(self, ns: str, row: Row, extra: str) -> None:
        self._senders[ns].put(msgspec.json.encode({"id": row.id, "text": row.text, "extra": extra}))
        self._rows[ns][row.id] = gzip.compress(row.text.encode(), 1)

    def held_back(self) -> int:
        return sum(sender.left for sender in self._senders.values())

    def close(self) -> None:
        for sender in self._senders.values():
            sender.end()
        if self._busy is not None:
            self._busy.close()
