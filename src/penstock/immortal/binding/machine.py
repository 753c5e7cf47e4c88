"""The binding of one immortal, without sockets: records in, messages out.

`receive` takes what the coordinator sends, in order; `out` is what has to be written to it, in order: messages, and
checkpoints with their blobs. Everything is handled to its end, or to its await, before `receive` returns.

    starting ──checkpoint──▶ recovering ──11, 10, 15──▶ primary
        └──────────11: first start─────────────────────────┘
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, BinaryIO, TypeVar, cast

import msgspec

from penstock.base.errors import PenstockError, UsageError
from penstock.immortal import wire
from penstock.immortal.binding import fields, snapshot
from penstock.immortal.binding.app import Immortal, Spec, make, spec_of
from penstock.immortal.binding.errors import (
    DeterminismError,
    ImmortalError,
    ProtocolError,
    UpgradeRefusedError,
)
from penstock.immortal.binding.handlers import Handlers
from penstock.immortal.binding.journal import Recording
from penstock.immortal.binding.leaks import Leaks
from penstock.immortal.binding.methods import Call, Method, current
from penstock.immortal.binding.scopes import DIRECT, Direct, Saving
from penstock.immortal.binding.services import Services, UnreadableError
from penstock.immortal.binding.snapshot import Origin, Outcome, Runtime
from penstock.immortal.wire import MessageType, Record, ReplyKind, RpcType

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Phase(Enum):
    """What this process is at the moment."""

    STARTING = "starting"
    RECOVERING = "recovering"
    PRIMARY = "primary"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint to be written: its message, then the file's bytes, with nothing between."""

    file: BinaryIO
    length: int


@dataclass(frozen=True, slots=True)
class First:
    """What the first message of an instance says."""

    name: str
    app: str
    now: float


class Machine(Handlers):
    """One instance of an immortal class.

    `upgrade_to` is the class that takes over when the coordinator says so. `compares` is off where output may
    differ from the log, as in a trial of new code. `marks`: write fingerprints of output into the log.
    """

    def __init__(
        self,
        cls: type[Immortal],
        name: str,
        *,
        now: Callable[[], float],
        upgrade_to: type[Immortal] | None = None,
        compares: bool = True,
        marks: bool = True,
        watch_state: bool = False,
    ) -> None:
        super().__init__()
        self.name = name
        self.spec: Spec = spec_of(cls)
        self._next = spec_of(upgrade_to) if upgrade_to is not None else None
        if self._next is not None and self._next.app == self.spec.app:
            raise UsageError(
                f"both classes call themselves {self.spec.app}", hint="count `version` up in the new one"
            )
        self._now = now
        self.compares = compares
        self._marks = marks
        self._leaks = Leaks(self._fingerprint, now, always=watch_state)
        self._checkpoint_size = 0
        self.phase = Phase.STARTING
        self.runtime = Runtime(app=self.spec.app, name=name)
        self.instance = make(self.spec, self)
        self.services = Services(self)
        self.out: list[bytes | Checkpoint] = []
        self.became_primary = False
        self.on_outcome: Callable[[str, Outcome], None] = lambda request, outcome: None
        self.on_impulse: Callable[[], None] = lambda: None
        """Called when there is something to be written that nothing received has caused."""
        self.on_input: Callable[[int, str], None] | None = None
        self._waiters: dict[str, list[str]] = {}
        self._attached: set[str] = set()
        self._crc = 0
        self._busy = ""
        self._next_record: int | None = None

    # What the coordinator sends.

    def load(self, blob: BinaryIO) -> None:
        """A checkpoint, whole: the start of a recovery."""
        if self.phase is not Phase.STARTING:
            raise ProtocolError(f"a checkpoint came while {self.phase.value}")
        self._busy = "a checkpoint is being loaded"
        runtime, version = snapshot.read(blob)
        if runtime.name != self.name:
            raise UsageError(f"this is a checkpoint of '{runtime.name}', not of '{self.name}'")
        if self._next is not None and runtime.app == self._next.app:
            self.spec, self._next = self._next, None  # an earlier start has got through the upgrade
            self.instance = make(self.spec, self)
        if runtime.app != self.spec.app:
            raise UsageError(
                f"the checkpoint was written by {runtime.app}, this is {self.spec.app}",
                hint="`penstock immortal upgrade` takes an instance from one class to another",
            )
        self._in(DIRECT, lambda: snapshot.read_state(blob, version, self.spec, self.instance))
        self.runtime = runtime
        for saved in runtime.handlers:
            self.rebuild(saved, self._method(saved.method))
        runtime.handlers = []
        self._checkpoint_size = blob.tell()
        self.phase = Phase.RECOVERING
        self._busy = ""

    def receive(self, record: Record) -> None:
        """A record: one control message, or logged input."""
        if self._busy:
            raise DeterminismError(f"a message was to be handled while {self._busy}")
        if self._leaks.has_changed():
            raise DeterminismError(
                f"the state changed between the inputs {self.runtime.inputs - 1} and {self.runtime.inputs}, "
                "outside of any handler",
                hint="something keeps a dict or list of the state and changes it later",
            )
        if record.sequence < 0:
            self._control(record.body[1])
            return
        if self.phase is Phase.STARTING:
            raise ProtocolError("logged input came before a checkpoint or a first start")
        if self._next_record is not None and record.sequence != self._next_record:
            raise ProtocolError(f"record {record.sequence} came where {self._next_record} was to come")
        self._next_record = record.sequence + 1
        for message in wire.split_messages(record.body):
            if message.type == MessageType.INITIAL_MESSAGE:
                self._input("first start", lambda data=message.data: self._first_start(data))  # type: ignore[misc]
                continue
            for data in wire.rpcs_of(message.type, message.data):
                self._rpc(data)
        self._leaks.left(self._checkpoint_size)
        if self.phase is Phase.PRIMARY and self._marks:
            self.services.mark(self._now())

    def _control(self, kind: int) -> None:
        recovering = self.phase is Phase.RECOVERING
        if kind == MessageType.TAKE_BECOMING_PRIMARY_CHECKPOINT:
            if self.phase is Phase.STARTING:
                first = First(self.name, self.spec.app, self._now())
                self.out.append(wire.initial_message(msgspec.msgpack.encode(first)))
            elif not recovering:
                raise ProtocolError("told to become primary twice")
            self._checkpoint()
            self._become_primary()
        elif kind == MessageType.TAKE_CHECKPOINT and self.phase is not Phase.STARTING:
            self._checkpoint()
        elif kind == MessageType.BECOMING_PRIMARY and recovering:
            self._become_primary()
        elif kind == MessageType.UPGRADE_TAKE_CHECKPOINT and recovering:
            self.upgrade()
            self._checkpoint()
            self._become_primary()
        elif kind == MessageType.UPGRADE_SERVICE and recovering:
            self.upgrade()
        else:
            raise ProtocolError(f"a message of type {kind} came while {self.phase.value}")

    def _become_primary(self) -> None:
        self.phase = Phase.PRIMARY
        self.became_primary = True

    def _rpc(self, data: bytes) -> None:
        try:
            rpc = wire.decode_incoming(data)
        except wire.CorruptWireError as error:
            unreadable = error
            self._input("unreadable", lambda: self._unreadable(unreadable))
            return
        if isinstance(rpc, wire.Reply):
            self._input(f"answer {rpc.number}", lambda: self._answer(rpc))
        else:
            self._input(f"method {rpc.method}", lambda: self._call(rpc))

    def _answer(self, reply: wire.Reply) -> None:
        if not self.answered(reply.number, (int(reply.kind), reply.payload)):
            words = f"an answer of '{reply.responder}' to call {reply.number}, which waits for none"
            # In a replay that made other calls than the first run, the next mark tells by what was sent.
            self._unreadable(ImmortalError(words))

    def _call(self, call: wire.Call) -> None:
        if call.kind == RpcType.IMPULSE and self._is_the_systems(call):
            return
        kind = {RpcType.ASYNC: "call", RpcType.FORK: "fork", RpcType.IMPULSE: "impulse"}[call.kind]
        origin = Origin(kind, sender=call.sender, number=call.number)
        method = self.spec.methods.get(call.method)
        if method is None or method.is_impulse is not (call.kind == RpcType.IMPULSE):
            wrong = f"{self.spec.cls.__name__} has no method {call.method} for {call.kind.name.lower()} calls"
            logger.warning("%s", wrong)
            self.runtime.failures += 1
            self.settle(origin, None, ("UsageError", wrong), "UsageError")
            return
        self.run(method, call.arguments, origin)

    def _is_the_systems(self, call: wire.Call) -> bool:
        """Whether this Impulse was one of the services', of whoever sent it."""
        try:
            return self.services.handle(call.method, call.arguments)
        except UnreadableError as error:
            self._unreadable(error)
            return True

    def _unreadable(self, error: PenstockError) -> None:
        """Somebody sent what makes no sense. It is in the log, so it must not end us: each replay would end there."""
        logger.warning("%s", error)
        self.runtime.failures += 1

    def _first_start(self, data: bytes) -> None:
        self.runtime.clock = max(self.runtime.clock, msgspec.msgpack.decode(data, type=First).now)
        self.run_plain("on_first_start", self.instance.on_first_start, Origin("first"))

    def _input(self, what: str, handle: Callable[[], None]) -> None:
        """One input: its handler, and what it sent, counted."""
        if self.on_input is not None:
            self.on_input(self.runtime.inputs, what)
        self._crc = 0
        self._busy = "another one is handled"
        DeterminismError.seen.error = None
        try:
            handle()
            if DeterminismError.seen.error is not None:
                raise DeterminismError.seen.error
        except DeterminismError as error:
            if not str(error).startswith("input "):
                error.args = (f"input {self.runtime.inputs} ({what}): {error}",)
                error.message = str(error.args[0])
            raise
        self._busy = ""
        self.runtime.inputs += 1
        if self._marks:
            self.runtime.crcs.append(self._crc)

    # Checkpoints and upgrades.

    def _checkpoint(self) -> None:
        self._busy = "a checkpoint is taken"
        self.runtime.handlers = [activation.saved() for activation in self.open.values()]
        saving = Saving(self.name, self.instance.__dict__["_values"])
        file, length = self._in(saving, lambda: snapshot.write(self.runtime, self.spec, self.instance))
        self.runtime.handlers = []
        self._busy = ""
        self._checkpoint_size = length
        self.out.append(Checkpoint(file, length))

    def upgrade(self) -> None:
        """The new class takes over: state first, then the handlers that are open."""
        if self._next is None:
            raise UpgradeRefusedError(
                "the coordinator asks for an upgrade, and there is no new class",
                hint="`penstock immortal upgrade NAME --to FILE:CLASS`",
            )
        self._leaks.forget()
        old, old_open = self.instance, [activation.saved() for activation in self.open.values()]
        self.abandon()
        self.spec, self._next = self._next, None
        new = make(self.spec, self)
        values, before = new.__dict__["_values"], old.__dict__["_values"]
        for name in self.spec.fields.keys() & before.keys():
            values[name] = before[name]
        self.instance = new
        old.__dict__["_scope"] = DIRECT  # what is converted is given as it is
        self._in(DIRECT, lambda: new.on_upgrade(old))
        self._fits()
        self.runtime.app = self.spec.app
        for saved in old_open:
            try:
                self.rebuild(saved, self._method(saved.method))
            except DeterminismError as error:
                raise UpgradeRefusedError(
                    f"{self.spec.app} cannot go on with a handler that is open: {error}",
                    hint="keep what the handler does before its awaits, or upgrade when it is not open",
                ) from error

    def _fits(self) -> None:
        """The new state must read as what the new class declares."""
        try:
            fields.fit(self.spec, self.instance.__dict__["_values"])
        except msgspec.ValidationError as error:
            raise UpgradeRefusedError(
                f"the state after on_upgrade does not fit {self.spec.cls.__name__}: {error}",
                hint="set the fields that changed in on_upgrade",
            ) from error

    def _in(self, scope: Direct | Saving, function: Callable[[], T]) -> T:
        """Call what uses the instance's fields, with what it may do to them."""
        inside = self.instance.__dict__
        inside["_scope"] = scope
        try:
            return function()
        finally:
            inside["_scope"] = inside["_outside"]

    def _method(self, id: int) -> Method[Any, Any]:
        method = self.spec.methods.get(id)
        if method is None or not method.is_async:
            raise UpgradeRefusedError(
                f"a handler of method {id} is open, and {self.spec.app} has no async method with that id",
                hint="keep the method until no handler of it is open",
            )
        return method

    # What handlers and the outside send.

    def send(
        self,
        peer: str | None,
        method: Method[Any, Any],
        arguments: tuple[object, ...],
        named: dict[str, object],
    ) -> None:
        """`x.method.send(...)`: a Fork in a handler, an Impulse outside of one."""
        if current() is not self:
            self.impulse(peer or "", method, arguments, named)
            return
        if method.is_impulse:
            raise DeterminismError(
                f"an Impulse ({method.name}) was to be sent in a handler: a replay would send it again",
                hint="mark the method @rpc, and send that",
            )
        destination = "" if peer == self.name else peer or ""

        def live() -> object:
            encoded = method.signature.encode(arguments, named)
            self._write(destination, wire.Call(method.id, RpcType.FORK, encoded))
            return None

        scope = self._active.scope if self._active is not None else DIRECT
        if isinstance(scope, Recording) and self.instance.__dict__["_scope"] is not DIRECT:
            scope.effect(("send", destination, method.id), live)
        else:
            live()

    def impulse(
        self, peer: str, method: Method[Any, Any], arguments: tuple[object, ...], named: dict[str, object]
    ) -> None:
        """From outside of handlers."""
        if not method.is_impulse:
            raise DeterminismError(
                f"{method.name} was to be sent outside of a handler, and is no @impulse: a replay would not send it",
                hint="send an Impulse; its handler may send this",
            )
        self._outside(method.name)
        destination = "" if peer == self.name else peer
        encoded = method.signature.encode(arguments, named)
        message = _outgoing(destination, wire.Call(method.id, RpcType.IMPULSE, encoded))
        self._attach(destination)
        self.out.append(message)
        self.on_impulse()

    def system_impulse(self, method: int, arguments: bytes) -> None:
        self._outside(f"of the system, {method}")
        self.out.append(wire.outgoing("", wire.Call(method, RpcType.IMPULSE, arguments)))

    def _outside(self, what: str) -> None:
        if current() is self:
            raise DeterminismError(f"an Impulse ({what}) was to be sent in a handler")
        if self.phase is not Phase.PRIMARY:
            raise DeterminismError(
                f"an Impulse ({what}) was to be sent while {self.phase.value}: it is not primary",
                hint="start timers and ingress in on_primary",
            )

    def place_call(self, call: Call[Any]) -> int:
        number, self.runtime.next_call = self.runtime.next_call, self.runtime.next_call + 1
        destination = "" if call.bound.peer == self.name else call.bound.peer
        encoded = call.bound.method.signature.encode(call.arguments, call.named)
        method = call.bound.method.id
        self._write(destination, wire.Call(method, RpcType.ASYNC, encoded, self.name, number))
        return number

    def settle(self, origin: Origin, method: Method[Any, Any] | None, result: object, error: str) -> None:
        """A handler has ended: whoever waits hears of it."""
        if origin.kind == "call":
            destination = "" if origin.sender == self.name else origin.sender
            if error:
                kind, payload = ReplyKind.EXCEPTION, msgspec.msgpack.encode(result)
            elif method is None or result is None:
                kind, payload = ReplyKind.VOID, None
            else:
                kind, payload = ReplyKind.VALUE, method.signature.encode_result(result)
            self._write(destination, wire.Reply(kind, self.name, origin.number, payload), attach=False)
        elif origin.kind == "ask":
            if error:
                name, text = cast("tuple[str, str]", result)
                self.services.settle(origin, Outcome(kind=name, error=text))
            elif method is not None:
                self.services.settle(origin, Outcome(method.signature.encode_result(result)))

    def _write(self, destination: str, rpc: wire.Call | wire.Reply, *, attach: bool = True) -> None:
        message = _outgoing(destination, rpc)
        if attach:
            self._attach(destination)
        self._crc = zlib.crc32(message, self._crc)
        self.out.append(message)

    def _attach(self, destination: str) -> None:
        if destination and destination not in self._attached:
            self._attached.add(destination)
            self.out.append(wire.encode_message(MessageType.ATTACH_TO, destination.encode()))

    # Who waits outside.

    def outcome(self, request: str, outcome: Outcome) -> None:
        self.on_outcome(request, outcome)

    def waiting_for(self, key: str, request: str) -> None:
        self._waiters.setdefault(key, []).append(request)

    def keyed_outcome(self, key: str, outcome: Outcome) -> None:
        for request in self._waiters.pop(key, ()):
            self.on_outcome(request, outcome)

    # What the shell and the curious ask.

    @property
    def is_primary(self) -> bool:
        return self.phase is Phase.PRIMARY

    @property
    def open_handlers(self) -> int:
        return len(self.open)

    @property
    def next_record(self) -> int | None:
        """The number of the record that has to come next, once one has come."""
        return self._next_record

    def mark(self, now: float) -> None:
        """Write all fingerprints that there are into the log."""
        if self._marks:
            self.services.mark(now, all=True)

    def state(self) -> object:
        """The declared fields but for custom ones, as JSON has them; keys that are no text there become one."""
        plain = msgspec.msgpack.decode(snapshot.state_bytes(self.spec, self.instance))
        return msgspec.json.decode(msgspec.json.encode(plain, enc_hook=str))

    def _fingerprint(self, limit: int | None) -> int | None:
        return fields.fingerprint(self.spec, self.instance.__dict__["_values"], limit)


def _outgoing(destination: str, rpc: wire.Call | wire.Reply) -> bytes:
    """The message; one that no coordinator takes is refused here, as a failure of whoever sends it: the coordinator
    would end, and a replay would send it again."""
    message = wire.outgoing(destination, rpc)
    if len(message) > wire.MAX_MESSAGE:
        raise ImmortalError(f"a message of {len(message)} bytes; up to {wire.MAX_MESSAGE} are taken")
    return message
