"""Coordinators without sockets or disks: what is in the log, what is delivered, and what a crash leaves.

`World` carries messages between machines as coordinators do: input is logged before it is handled; output is numbered a
destination and dropped where the receiver has it already; an Impulse is delivered or lost, and never sent by a replay.
"""

from __future__ import annotations

import io
from collections import Counter, deque
from dataclasses import dataclass, field

from penstock.immortal import Immortal, wire
from penstock.immortal.binding.machine import Checkpoint, Machine, Phase
from penstock.immortal.binding.snapshot import Outcome
from penstock.immortal.wire import MessageType, Record

COMMITTER = 7


@dataclass
class Saved:
    """A checkpoint: the binding's blob, where the log was, and the counters and output of the coordinator."""

    blob: bytes
    at: int
    sent: Counter[str]
    unsent: list[tuple[str, int, bytes]]


@dataclass
class Node:
    """One instance and its coordinator."""

    name: str
    cls: type[Immortal]
    machine: Machine
    log: list[bytes] = field(default_factory=list)
    gone: int = 0
    """Records that are deleted from the front of the log."""
    saved: Saved | None = None
    sent: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    history: list[tuple[str, bytes]] = field(default_factory=list)
    """What the binding sent to others, in order, since its last start."""


class World:
    """Several instances, and the messages between them."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.now = 1000.0
        self.flight: deque[tuple[str, str, int, bytes]] = deque()
        """Replayable messages on their way: source, destination, number, incoming message."""

    def machine(self, cls: type[Immortal], name: str, upgrade_to: type[Immortal] | None = None) -> Machine:
        return Machine(cls, name, now=lambda: self.now, upgrade_to=upgrade_to, watch_state=True)

    def start(self, cls: type[Immortal], name: str) -> Immortal:
        """A first start."""
        node = Node(name, cls, self.machine(cls, name))
        self.nodes[name] = node
        node.machine.on_outcome = node.outcomes.__setitem__
        self.control(name, MessageType.TAKE_BECOMING_PRIMARY_CHECKPOINT)
        return node.machine.instance

    def control(self, name: str, kind: MessageType) -> None:
        node = self.nodes[name]
        node.machine.receive(Record(COMMITTER, -1, wire.encode_message(kind)))
        self.collect(node)

    def log(self, name: str, *messages: bytes) -> None:
        """Input: durable first, handled then."""
        node = self.nodes[name]
        node.log.append(b"".join(messages))
        node.machine.receive(Record(COMMITTER, node.gone + len(node.log) - 1, node.log[-1]))
        self.collect(node)

    def collect(self, node: Node) -> None:
        """Take what the binding wants to have written."""
        out, node.machine.out = node.machine.out, []
        impulses: list[tuple[str, bytes]] = []
        initial: list[bytes] = []
        for item in out:
            if isinstance(item, Checkpoint):
                unsent = [
                    (to, n, m)
                    for src, to, n, m in self.flight
                    if src == node.name and n > self.nodes[to].accepted[src]
                ]
                node.saved = Saved(item.file.read(), node.gone + len(node.log), Counter(node.sent), unsent)
                continue
            [message] = wire.split_messages(item)
            if message.type == MessageType.INITIAL_MESSAGE:
                initial.append(item)
            elif message.type == MessageType.RPC:
                to, rpc = wire.decode_outgoing(message.data)
                incoming = wire.incoming(rpc)
                to = to or node.name
                if isinstance(rpc, wire.Call) and rpc.kind == wire.RpcType.IMPULSE:
                    impulses.append((to, incoming))
                    continue
                node.sent[to] += 1
                node.history.append((to, incoming))
                if to not in self.nodes or node.sent[to] > self.nodes[to].accepted[node.name]:
                    self.flight.append((node.name, to, node.sent[to], incoming))
        for first in initial:
            self.log(node.name, first)
        for to, incoming in impulses:
            self.log(to, incoming)

    def deliver(self) -> bool:
        """Bring one message to where it goes; whether there was one."""
        while self.flight:
            source, to, number, incoming = self.flight.popleft()
            node = self.nodes[to]
            if number <= node.accepted[source]:
                continue
            assert number == node.accepted[source] + 1, "a message was lost"
            node.accepted[source] = number
            self.log(to, incoming)
            return True
        return False

    def settle(self) -> None:
        """Deliver until nothing is on its way."""
        while self.deliver():
            pass

    def checkpoint(self, name: str, *, forget: bool = True) -> None:
        """Roll the log; `forget` deletes what is before the checkpoint."""
        node = self.nodes[name]
        self.control(name, MessageType.TAKE_CHECKPOINT)
        if forget:
            node.gone += len(node.log)
            node.log = []

    def crash(
        self,
        name: str,
        cls: type[Immortal] | None = None,
        upgrade_to: type[Immortal] | None = None,
        end: MessageType | None = MessageType.TAKE_BECOMING_PRIMARY_CHECKPOINT,
    ) -> Immortal:
        """kill -9 and recovery: from the last checkpoint, then the log."""
        node = self.nodes[name]
        assert node.saved is not None
        saved = node.saved
        node.machine.abandon()
        node.machine = self.machine(cls or node.cls, name, upgrade_to)
        node.machine.on_outcome = node.outcomes.__setitem__
        kept = [item for item in self.flight if item[0] != name]
        self.flight = deque([*kept, *((name, to, n, m) for to, n, m in saved.unsent)])
        node.sent = Counter(saved.sent)
        node.history = []
        node.machine.load(io.BytesIO(saved.blob))
        for at, body in enumerate(node.log, node.gone):
            if at >= saved.at:
                node.machine.receive(Record(COMMITTER, at, body))
        self.collect(node)
        assert node.machine.phase is Phase.RECOVERING
        if end is not None:
            self.control(name, end)
        return node.machine.instance

    def ask(self, name: str, method: str, *arguments: object, key: str = "", request: str = "r") -> None:
        """A call from outside."""
        node = self.nodes[name]
        node.machine.services.ask(self.now, request, key, method, list(arguments))
        self.collect(node)

    def tick(self, name: str) -> None:
        node = self.nodes[name]
        node.machine.services.tick(self.now)
        self.collect(node)
