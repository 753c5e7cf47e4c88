"""A small language binding for the tests: it speaks the wire, and nothing else of the product.

`Lb` is the binding; an `App` is what runs on it: deterministic, with state that is JSON. As a program
(`python -m tests.immortal.lb APP RECEIVE_PORT SEND_PORT REPORT OPTIONS`) it runs one of the apps below, and writes what
the app reports into a file, replaced whole each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.immortal.wire import (
    Blob,
    Call,
    CheckpointRecord,
    MessageType,
    Record,
    RecordDecoder,
    RpcType,
    batch,
    checkpoint_message,
    decode_incoming,
    encode_message,
    initial_message,
    outgoing,
    rpcs_of,
    split_messages,
)

PRIMARY = {
    MessageType.TAKE_BECOMING_PRIMARY_CHECKPOINT,
    MessageType.BECOMING_PRIMARY,
    MessageType.UPGRADE_TAKE_CHECKPOINT,
}
CHECKPOINTS = {
    MessageType.TAKE_BECOMING_PRIMARY_CHECKPOINT,
    MessageType.TAKE_CHECKPOINT,
    MessageType.UPGRADE_TAKE_CHECKPOINT,
}


class App:
    """State and handlers; `send` queues a call, `report` tells the test."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.send: Callable[[str, Call], None] = lambda *_: None
        self.attach: Callable[[str], None] = lambda _: None
        self.report: Callable[[dict[str, Any]], None] = lambda _: None
        self.options: dict[str, Any] = {}

    def first(self) -> None:
        """The InitialMessage came."""

    def call(self, method: int, arguments: bytes) -> None:
        """A call came."""

    async def primary(self, send: Callable[[str, Call], None]) -> None:
        """Became primary: from now on Impulses may be sent, by a task of its own."""

    def upgraded(self) -> None:
        """State and code are to become those of the next version."""

    def blob(self) -> bytes:
        return json.dumps(self.state).encode()

    def load(self, blob: bytes) -> None:
        self.state = json.loads(blob)


class Lb:
    """One connection pair, from connecting to its end."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.seen: list[str] = []
        """What came, in short: `checkpoint`, `record 3`, `control 11`, ..."""
        self.is_primary = False
        self.is_first = True
        self._out: list[bytes] = []
        self._impulses: asyncio.Task[None] | None = None
        self.changed = asyncio.Event()
        app.send = self.send
        app.attach = self.attach

    async def run(self, receive_port: int, send_port: int) -> None:
        _, self.writer = await _connect(receive_port)
        reader, self._second = await _connect(send_port)
        decoder = RecordDecoder()
        loaded = bytearray()
        try:
            while data := await reader.read(1 << 18):
                for event in decoder.feed(data):
                    if isinstance(event, CheckpointRecord):
                        loaded.clear()
                    elif isinstance(event, Blob):
                        loaded += event.piece
                        if not event.left:
                            self.app.load(bytes(loaded))
                            self.is_first = False
                            self._note("checkpoint")
                    else:
                        self._record(event)
                self.flush()
                self.app.report(self.app.state)
                await self.writer.drain()
        finally:
            if self._impulses is not None:
                self._impulses.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._impulses
            self.writer.close()
            self._second.close()

    def _note(self, what: str) -> None:
        self.seen.append(what)
        self.changed.set()

    def _record(self, record: Record) -> None:
        if record.sequence < 0:
            self._control(MessageType(record.body[1]))
            return
        self._note(f"record {record.sequence}")
        for message in split_messages(record.body):
            if message.type == MessageType.INITIAL_MESSAGE:
                self.app.first()
                continue
            for data in rpcs_of(message.type, message.data):
                rpc = decode_incoming(data)
                assert isinstance(rpc, Call)
                self.app.call(rpc.method, rpc.arguments)

    def _control(self, kind: MessageType) -> None:
        self._note(f"control {int(kind)}")
        if kind in (MessageType.UPGRADE_TAKE_CHECKPOINT, MessageType.UPGRADE_SERVICE):
            self.app.upgraded()
        if kind in CHECKPOINTS:
            self.flush()
            if kind == MessageType.TAKE_BECOMING_PRIMARY_CHECKPOINT and self.is_first:
                self.writer.write(initial_message(b"test"))
            blob = self.app.blob()
            self.writer.write(checkpoint_message(len(blob)) + blob)
        if kind in PRIMARY:
            self.is_primary = True
            self._impulses = asyncio.ensure_future(self.app.primary(self.impulse))

    def send(self, destination: str, call: Call) -> None:
        self._out.append(outgoing(destination, call))

    def attach(self, destination: str) -> None:
        self.flush()
        self.writer.write(encode_message(MessageType.ATTACH_TO, destination.encode()))

    def impulse(self, destination: str, call: Call) -> None:
        """From outside of a handler."""
        assert self.is_primary
        self.flush()
        self.writer.write(outgoing(destination, call))

    def flush(self) -> None:
        out, self._out = self._out, []
        if len(out) == 1:
            self.writer.write(out[0])
        elif out:
            self.writer.write(batch(out))


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.02)


def fork(method: int, **arguments: Any) -> Call:
    return Call(method, RpcType.FORK, json.dumps(arguments).encode())


def impulse(method: int, **arguments: Any) -> Call:
    return Call(method, RpcType.IMPULSE, json.dumps(arguments).encode())


class Asker(App):
    """Sends numbered calls in batches, and checks the echoes.

    There are `total` of them, as fast as it can, each batch by a call to itself; or some every 10 ms, until the file
    `until` is there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state = {"sent": 0, "echoed": 0, "errors": [], "is_over": False, "done": False}

    def first(self) -> None:
        self.attach(self.options["peer"])
        if "total" in self.options:
            self.send("", fork(1))

    def call(self, method: int, arguments: bytes) -> None:
        state, told = self.state, json.loads(arguments)
        if method == 1:
            self._ask()
        elif method == 5:
            state["is_over"] = True
        else:
            if told["n"] != state["echoed"] + 1:
                state["errors"].append(f"echo {told['n']} after {state['echoed']}")
            state["echoed"] = told["n"]
        state["done"] = state["is_over"] and state["echoed"] == state["sent"]

    def _ask(self) -> None:
        state, total = self.state, self.options.get("total")
        for _ in range(self.options.get("batch", 10)):
            if not state["is_over"]:
                state["sent"] += 1
                self.send(
                    self.options["peer"], fork(2, n=state["sent"], pad="x" * self.options.get("pad", 0))
                )
                state["is_over"] = state["sent"] == total
        if total is not None and not state["is_over"]:
            self.send("", fork(1))

    async def primary(self, send: Callable[[str, Call], None]) -> None:
        until = Path(self.options["until"]) if "until" in self.options else None
        for number in range(1 << 60):
            await asyncio.sleep(0.01)
            send(self.options["peer"], impulse(3, n=number, life=os.getpid()))
            if until is not None:
                send("", impulse(5 if until.exists() else 1))


class Echo(App):
    """Checks that numbers are consecutive, sends each back, and counts Impulses, of which none may come twice."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {"last": 0, "impulses": 0, "lives": {}, "errors": []}

    def call(self, method: int, arguments: bytes) -> None:
        state, told = self.state, json.loads(arguments)
        if method == 3:
            life = str(told["life"])
            if told["n"] <= state["lives"].get(life, -1):
                state["errors"].append(f"impulse {told['n']} of {life} again")
            state["lives"][life] = told["n"]
            state["impulses"] += 1
        else:
            if told["n"] != state["last"] + 1:
                state["errors"].append(f"call {told['n']} after {state['last']}")
            state["last"] = told["n"]
            self.send(self.options["peer"], fork(4, n=told["n"]))


APPS: dict[str, type[App]] = {"asker": Asker, "echo": Echo}


def main(app_name: str, receive_port: str, send_port: str, report: str, options: str) -> None:
    app = APPS[app_name]()
    app.options = json.loads(options)
    target = Path(report)

    def write(value: dict[str, Any]) -> None:
        partial = target.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(value))
        partial.replace(target)

    app.report = write
    with contextlib.suppress(ConnectionError):
        asyncio.run(Lb(app).run(int(receive_port), int(send_port)))


if __name__ == "__main__":
    main(*sys.argv[1:])
