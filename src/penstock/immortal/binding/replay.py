"""An instance run again from its log: to look at it (`penstock immortal debug`), or to try new code (`--what-if`).

A what-if run handles each input twice, with the old class and with the new one, and compares what they send. It ends
at the first input where they differ, with the words of both.
"""

from __future__ import annotations

import dis
import pdb
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec

from penstock.immortal import wire
from penstock.immortal.binding.app import Immortal
from penstock.immortal.binding.errors import DeterminismError, ImmortalError
from penstock.immortal.binding.machine import Checkpoint, Machine
from penstock.immortal.binding.methods import Method
from penstock.immortal.binding.shell import HOST
from penstock.immortal.binding.snapshot import spool
from penstock.immortal.wire import MessageType


@dataclass(frozen=True)
class Difference:
    """The first input that the new class answers with something else."""

    input: int
    what: str
    old: list[str]
    new: list[str]

    def __str__(self) -> str:
        def lines(words: list[str]) -> str:
            return "".join(f"\n    {word}" for word in words) or "\n    nothing"

        sides = f"\n  the old code sends:{lines(self.old)}\n  the new code sends:{lines(self.new)}"
        return f"input {self.input} ({self.what}){sides}"


class Watched:
    """A machine whose output is kept by input."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.starts: list[tuple[int, str, int]] = []
        machine.on_input = lambda number, what: self.starts.append((number, what, len(machine.out)))
        self.error: str = ""

    def receive(self, record: wire.Record) -> list[tuple[int, str, list[str]]]:
        """Handle a record; for each input its number, what it was, and what was sent."""
        self.starts.clear()
        self.machine.out.clear()
        error = ""
        try:
            self.machine.receive(record)
        except ImmortalError as raised:
            error = str(raised)
        out = list(self.machine.out)
        ends = [start for _, _, start in self.starts[1:]] + [len(out)]
        found = [
            (number, what, [words(self.machine, item) for item in out[start:end] if told(item)])
            for (number, what, start), end in zip(self.starts, ends, strict=True)
        ]
        if error:
            if not found:
                raise ImmortalError(error)
            found[-1][2].append(f"and ends: {error}")
            self.error = error
        return found


def told(item: bytes | Checkpoint) -> bool:
    return isinstance(item, bytes) and next(wire.split_messages(item)).type == MessageType.RPC


def words(machine: Machine, item: bytes | Checkpoint) -> str:
    """A message that was sent, for people."""
    assert isinstance(item, bytes)
    destination, rpc = wire.decode_outgoing(next(wire.split_messages(item)).data)
    to = destination or "itself"
    if isinstance(rpc, wire.Reply):
        return f"to {to}: answer to its call {rpc.number}: {_value(rpc.payload)}"
    method = machine.spec.methods.get(rpc.method)
    name = method.name if method is not None and not destination else f"method {rpc.method}"
    kind = {wire.RpcType.ASYNC: f"call {rpc.number}", wire.RpcType.FORK: "fork"}.get(rpc.kind, "impulse")
    return f"to {to}: {kind}, {name}, arguments {_value(rpc.arguments)}"


def _value(data: bytes | None) -> str:
    if data is None:
        return "none"
    try:
        return repr(msgspec.msgpack.decode(data))
    except msgspec.DecodeError:
        return repr(data)


class WhatIf:
    """The old class and the new one, side by side."""

    def __init__(self, old: type[Immortal], new: type[Immortal], name: str) -> None:
        self.old = Watched(Machine(old, name, now=float))
        self.new = Watched(Machine(old, name, now=float, upgrade_to=new, compares=False))
        self.inputs = 0

    def load(self, blob: BinaryIO) -> None:
        for one in (self.old, self.new):
            blob.seek(0)
            one.machine.load(blob)

    def receive(self, record: wire.Record) -> Difference | None:
        """Handle a record with both; the first difference, if there is one."""
        if record.sequence < 0:
            self.new.machine.receive(record)
            return None
        old, new = self.old.receive(record), self.new.receive(record)
        if self.old.error:
            raise DeterminismError(f"the old code does not replay its own log: {self.old.error}")
        for one, other in zip(old, new, strict=False):
            self.inputs += 1
            if one != other:
                return Difference(one[0], one[1], one[2], other[2])
        return None


class Breaks:
    """A debugger that stops where the handler of an input begins."""

    def __init__(self, machine: Machine, at: int | None, debugger: pdb.Pdb | None = None) -> None:
        self._machine = machine
        self._at = at
        self._debugger = debugger or pdb.Pdb()
        self._armed = False
        machine.on_input = self.input

    def input(self, number: int, what: str) -> None:
        if self._armed or (self._at is not None and number < self._at):
            return
        self._armed = True
        self._debugger.message(f"input {number} ({what}) of {self._machine.name}; `c` runs to its handler")
        for method in self._machine.spec.names.values():
            self._break(method)
        self._debugger.set_trace()

    def _break(self, method: Method[Any, Any]) -> None:
        code = method.function.__code__
        body = [
            line for _, line in dis.findlinestarts(code) if line is not None and line > code.co_firstlineno
        ]
        self._debugger.set_break(code.co_filename, body[0] if body else code.co_firstlineno)


class Feed:
    """What a coordinator in repro mode sends, over plain sockets, up to where its log ended."""

    def __init__(self, ports: tuple[int, int], connect: Callable[[int], socket.socket]) -> None:
        self._out = connect(ports[0])
        self._in = connect(ports[1])

    def run(
        self,
        load: Callable[[BinaryIO], None],
        receive: Callable[[wire.Record], bool],
        is_over: Callable[[int | None], bool],
    ) -> None:
        """Hand on checkpoint and records until `receive` says stop, or `is_over` with how many records there were.

        It is asked with None while there is no checkpoint yet.
        """
        decoder = wire.RecordDecoder()
        blob: BinaryIO | None = None
        handled: int | None = None
        self._in.settimeout(0.1)
        while not is_over(handled):
            try:
                data = self._in.recv(256 << 10)
            except TimeoutError:
                continue
            if not data:
                raise ImmortalError("the coordinator ended", hint="what it said is above")
            for event in decoder.feed(data):
                if isinstance(event, wire.CheckpointRecord):
                    blob = spool()
                elif isinstance(event, wire.Blob):
                    assert blob is not None
                    blob.write(event.piece)
                    if event.left == 0:
                        blob.seek(0)
                        load(blob)
                        handled = 0
                else:
                    if event.sequence >= 0:
                        handled = (handled or 0) + 1
                    if receive(event):
                        return

    def close(self) -> None:
        self._out.close()
        self._in.close()


def connect(port: int, patience: float = 60.0) -> socket.socket:
    """Connect to a coordinator that is on its way."""
    import time

    deadline = time.monotonic() + patience
    while True:
        try:
            return socket.create_connection((HOST, port), timeout=5)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
