"""New code tried against the log (`penstock immortal debug --what-if`).

Each input is handled twice, with the old class and with the new one, and what comes of it is compared: what they send,
what they answer to callers outside, what they emit, whether a handler fails. So is the state, after each record: the
fields that were alike, and not large, when the new class took over. The run ends at the first difference, with the
words of both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import BinaryIO

import msgspec

from penstock.immortal import wire
from penstock.immortal.binding import fields
from penstock.immortal.binding.app import Immortal
from penstock.immortal.binding.errors import DeterminismError, ImmortalError
from penstock.immortal.binding.machine import Checkpoint, Machine
from penstock.immortal.binding.snapshot import Emitted, Outcome
from penstock.immortal.wire import MessageType

LARGE = 1 << 20
SHOWN = 200
"""So many characters of a value are shown."""


@dataclass(frozen=True)
class Difference:
    """The first input of which the new class makes something else."""

    input: int
    what: str
    old: list[str]
    new: list[str]

    def __str__(self) -> str:
        def lines(words: list[str]) -> str:
            return "".join(f"\n    {word}" for word in words) or "\n    nothing"

        sides = f"\n  the old code does:{lines(self.old)}\n  the new code does:{lines(self.new)}"
        return f"input {self.input} ({self.what}){sides}"


@dataclass
class Done:
    """What came of one input, in words."""

    input: int
    what: str
    sent_from: int
    emitted: int
    failures: int
    words: list[str] = field(default_factory=list)


class Watched:
    """A machine of which one knows what came of each input."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._done: list[Done] = []
        machine.on_input = self._input
        machine.on_outcome = self._outcome
        self.error = ""

    def _input(self, number: int, what: str) -> None:
        runtime = self.machine.runtime
        self._done.append(Done(number, what, len(self.machine.out), runtime.emitted, runtime.failures))

    def _outcome(self, request: str, outcome: Outcome) -> None:
        told = (
            f"raises {outcome.kind}: {outcome.error}" if outcome.kind else f"answers {_value(outcome.result)}"
        )
        self._done[-1].words.append(f"to its caller outside: {told}")

    def receive(self, record: wire.Record) -> list[Done]:
        """Handle a record; what came of its inputs."""
        self._done = []
        self.machine.out.clear()
        try:
            self.machine.receive(record)
        except ImmortalError as raised:
            self.error = str(raised)
            if not self._done:
                raise
        self._tell()
        return self._done

    def _tell(self) -> None:
        runtime, out = self.machine.runtime, list(self.machine.out)
        end = Done(0, "", len(out), runtime.emitted, runtime.failures)
        for one, following in zip(self._done, [*self._done[1:], end], strict=True):
            sent = [item for item in out[one.sent_from : following.sent_from] if _is_rpc(item)]
            emitted = [e for e in runtime.outbox if one.emitted < e.number <= following.emitted]
            one.words[:0] = [_sent(self.machine, item) for item in sent]
            one.words += [_emitted(item) for item in emitted]
            if following.failures > one.failures:
                one.words.append("its handler fails")
        if self.error:
            self._done[-1].words.append(f"and ends: {self.error}")


def _is_rpc(item: bytes | Checkpoint) -> bool:
    return isinstance(item, bytes) and next(wire.split_messages(item)).type == MessageType.RPC


def _sent(machine: Machine, item: bytes | Checkpoint) -> str:
    assert isinstance(item, bytes)
    destination, rpc = wire.decode_outgoing(next(wire.split_messages(item)).data)
    to = destination or "itself"
    if isinstance(rpc, wire.Reply):
        return f"to {to}: answer to its call {rpc.number}: {_value(rpc.payload)}"
    method = machine.spec.methods.get(rpc.method)
    name = method.name if method is not None and not destination else f"method {rpc.method}"
    kind = {wire.RpcType.ASYNC: f"call {rpc.number}", wire.RpcType.FORK: "fork"}.get(rpc.kind, "impulse")
    return f"to {to}: {kind}, {name}, arguments {_value(rpc.arguments)}"


def _emitted(item: Emitted) -> str:
    key = "" if item.key is None else f", key {item.key.decode()}"
    return f"emits to {item.ns}: {item.op} {item.data.decode()}{key}"


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
        self._alike: list[str] = []

    def load(self, blob: BinaryIO) -> None:
        for one in (self.old, self.new):
            blob.seek(0)
            one.machine.load(blob)

    def receive(self, record: wire.Record) -> Difference | None:
        """Handle a record with both; the first difference, if there is one."""
        if record.sequence < 0:
            self.new.machine.receive(record)
            self._alike = self._fields_alike()
            return None
        old, new = self.old.receive(record), self.new.receive(record)
        if self.old.error:
            raise DeterminismError(f"the old code does not replay its own log: {self.old.error}")
        for one, other in zip(old, new, strict=False):
            self.inputs += 1
            if one.words != other.words:
                return Difference(one.input, one.what, one.words, other.words)
        return self._state(old[-1]) if old else None

    def _fields_alike(self) -> list[str]:
        """What can be compared."""
        specs = (self.old.machine.spec, self.new.machine.spec)
        both = [name for name in fields.types_of(specs[0]) if name in fields.types_of(specs[1])]
        found = {name: (self._encoded(self.old, name), self._encoded(self.new, name)) for name in both}
        return [name for name, (old, new) in found.items() if old == new and len(old) <= LARGE]

    def _state(self, last: Done) -> Difference | None:
        """Whether it differs behind a record, of which this was the last input."""
        for name in self._alike:
            values = self._encoded(self.old, name), self._encoded(self.new, name)
            if values[0] != values[1]:
                old, new = ([f"leaves {name} = {_short(value)}"] for value in values)
                return Difference(last.input, last.what, old, new)
        return None

    def _encoded(self, one: Watched, name: str) -> bytes:
        return msgspec.msgpack.encode(one.machine.instance.__dict__["_values"][name])


def _short(value: bytes) -> str:
    text = _value(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
