"""Timers, calls from outside, deliveries of pipelines, and emitted messages: all of them on top of the wire.

Each comes in as an Impulse of this immortal to itself, under a negative method id, so that it is in the log before
anything happens; coordinators take none of them from others. All carry the time of the clock outside, which is where
`self.now()` comes from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from penstock.base.errors import UsageError, did_you_mean
from penstock.immortal.binding.errors import OutboxFullError
from penstock.immortal.binding.marks import EVERY, Mark, check
from penstock.immortal.binding.methods import Bound, Method
from penstock.immortal.binding.snapshot import Emitted, Origin, Outcome, SinkState, Timer
from penstock.immortal.binding.views import unwrap
from penstock.immortal.wire.rpc import OWN_METHODS

if TYPE_CHECKING:
    from penstock.immortal.binding.machine import Machine

T = TypeVar("T")

ARM, FIRE, ASK, DELIVER, TAKEN, MARK = OWN_METHODS  # -21 to -26
OPS = ("insert", "update", "delete")


class Arm(msgspec.Struct, frozen=True, array_like=True):
    """A timer's hour is known."""

    now: float
    timer: int
    due: float


class Fire(msgspec.Struct, frozen=True, array_like=True):
    """A timer's hour has come."""

    now: float
    timer: int
    due: float


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """A call from outside."""

    now: float
    request: str
    key: str
    method: str
    arguments: bytes


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    """Messages of a pipeline's sink, below `after.watermark`."""

    now: float
    request: str
    sink: str
    after: SinkState
    method: str
    messages: list[bytes]


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """A pipeline's log has the emitted messages up to and with `number`."""

    now: float
    number: int


class Delivered(msgspec.Struct, frozen=True, array_like=True):
    """A message of a pipeline, as the handler of a delivery gets it: `ts` in microseconds, the texts as JSON."""

    offset: int
    ts: int
    op: str
    ns: str
    key_text: str | None
    old_key_text: str | None
    text: str

    @property
    def data(self) -> Any:
        """The document."""
        return msgspec.json.decode(self.text)

    @property
    def key(self) -> Any:
        """The row's key; None where there is none."""
        return None if self.key_text is None else msgspec.json.decode(self.key_text)


class UnreadableError(UsageError):
    """Bytes that are not what they are sent as. Nothing happens by them: they may be in the log already."""


def _decoded(data: bytes, kind: type[T], what: str) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableError(f"{what} that cannot be read: {error}") from error


def _offsets(messages: list[bytes]) -> list[int]:
    """Of the messages of a delivery."""
    return [
        _decoded(message, Delivered, f"message {at} of a delivery").offset
        for at, message in enumerate(messages)
    ]


def _is_text(value: object) -> bool:
    """Whether a checkpoint can hold it as text, and is read back then."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


class Services:
    """What an immortal has beside its class."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._arming: set[int] = set()
        self._firing: set[int] = set()
        self._marked = 0
        self._handlers: Mapping[int, tuple[type, Callable[[Any], None]]] = {
            ARM: (Arm, self._arm),
            FIRE: (Fire, self._fire),
            ASK: (Ask, self._asked),
            DELIVER: (Delivery, self._delivered),
            TAKEN: (Taken, self._taken),
            MARK: (Mark, self._mark),
        }

    @property
    def clock(self) -> float:
        return self._machine.runtime.clock

    def handle(self, method: int, arguments: bytes) -> bool:
        """An Impulse that may be one of these; whether it was."""
        known = self._handlers.get(method)
        if known is None:
            return False
        event: Any = _decoded(arguments, known[0], f"an Impulse of the system, {method}")
        runtime = self._machine.runtime
        runtime.clock = max(runtime.clock, event.now)
        known[1](event)
        return True

    def _send(self, method: int, event: object) -> None:
        self._machine.system_impulse(method, msgspec.msgpack.encode(event))

    # Timers.

    def timer(self, delay: float, every: float, bound: Bound[Any, Any], arguments: tuple[object, ...]) -> int:
        if bound.peer:
            raise UsageError(f"a timer calls methods of its own immortal, not of '{bound.peer}'")
        delay, every = float(delay), float(every)  # a Decimal, say, would not be read back as a number
        if not 0 <= delay < math.inf or (every and every < 0.001):
            raise UsageError(f"a timer of {delay} s")
        runtime = self._machine.runtime
        number, runtime.next_timer = runtime.next_timer, runtime.next_timer + 1
        encoded = bound.method.signature.encode(arguments, {})
        runtime.timers[number] = Timer(delay, every, bound.method.id, encoded)
        return number

    def cancel(self, number: int) -> bool:
        return self._machine.runtime.timers.pop(number, None) is not None

    def tick(self, now: float) -> float | None:
        """Send what the clock outside asks for; when to come again. Only for a primary."""
        wanted: float | None = None
        for number, timer in self._machine.runtime.timers.items():
            if timer.due is None:
                if number not in self._arming:
                    self._arming.add(number)
                    self._send(ARM, Arm(now, number, now + timer.delay))
            elif timer.due <= now:
                if number not in self._firing:
                    self._firing.add(number)
                    self._send(FIRE, Fire(now, number, timer.due))
            else:
                wanted = timer.due if wanted is None else min(wanted, timer.due)
        return wanted

    def _arm(self, event: Arm) -> None:
        self._arming.discard(event.timer)
        timer = self._machine.runtime.timers.get(event.timer)
        if timer is not None and timer.due is None:
            timer.due = event.due

    def _fire(self, event: Fire) -> None:
        self._firing.discard(event.timer)
        runtime = self._machine.runtime
        timer = runtime.timers.get(event.timer)
        if timer is None or timer.due != event.due:
            return
        if timer.every:
            timer.due = max(timer.due + timer.every, event.now)
        else:
            del runtime.timers[event.timer]
        method = self._machine.spec.methods.get(timer.method)
        if method is not None:
            self._machine.run(method, timer.arguments, Origin("timer"))

    # Calls from outside.

    def method(self, name: str) -> Method[Any, Any]:
        """A method that the outside may call."""
        known = {name for name, method in self._machine.spec.names.items() if method.is_impulse}
        if name not in known:
            cls = self._machine.spec.cls.__name__
            raise UsageError(f"{cls} has no @impulse method '{name}'{did_you_mean(name, known)}")
        return self._machine.spec.names[name]

    def ask(self, now: float, request: str, key: str, name: str, arguments: object) -> None:
        """Send a call from outside; `arguments` are a list, or a dict by name. Bad ones are refused here."""
        method = self.method(name)
        try:
            if isinstance(arguments, dict):
                encoded = method.signature.encode((), arguments)
            else:
                encoded = method.signature.encode(tuple(cast("list[object]", arguments)), {})
            method.signature.decode(encoded)
        except (TypeError, OverflowError, RecursionError, msgspec.DecodeError) as error:
            raise UsageError(f"{name}: {error}") from error
        self._send(ASK, Ask(now, request, key, name, encoded))

    def _asked(self, event: Ask) -> None:
        runtime = self._machine.runtime
        if event.key:
            if event.key in runtime.keys:
                outcome = runtime.keys[event.key]
                if outcome is None:
                    self._machine.waiting_for(event.key, event.request)
                else:
                    self._machine.outcome(event.request, outcome)
                return
            runtime.keys[event.key] = None
            self._machine.waiting_for(event.key, event.request)
        method = self._machine.spec.names.get(event.method)
        origin = Origin("ask", sender=event.request, key=event.key)
        if method is None or not method.is_impulse:
            self.settle(origin, Outcome(kind="UsageError", error=f"there is no method '{event.method}'"))
            return
        self._machine.run(method, event.arguments, origin)

    def settle(self, origin: Origin, outcome: Outcome) -> None:
        """A call from outside has ended."""
        if not origin.key:
            self._machine.outcome(origin.sender, outcome)
            return
        keys = self._machine.runtime.keys
        if origin.key in keys:
            keys[origin.key] = outcome
        self._forget(keys)
        self._machine.keyed_outcome(origin.key, outcome)

    def _forget(self, keys: dict[str, Outcome | None]) -> None:
        keep = self._machine.spec.cls.dedupe_keep
        while len(keys) > keep:
            oldest = next(iter(keys))
            if keys[oldest] is None:
                return  # it is still open, and stays until it is not
            del keys[oldest]

    # Pipelines.

    def deliver(
        self, now: float, request: str, sink: str, after: SinkState, name: str, messages: list[bytes]
    ) -> None:
        """Send messages of a pipeline's sink; each is the MessagePack of a `Delivered`. Others are refused here."""
        _offsets(messages)
        self._send(DELIVER, Delivery(now, request, sink, after, self.method(name).name, messages))

    def _delivered(self, event: Delivery) -> None:
        runtime = self._machine.runtime
        known = runtime.sinks.get(event.sink)
        same = known is not None and (known.log, known.generation) == (
            event.after.log,
            event.after.generation,
        )
        below = known.watermark if known is not None and same else 0
        method = self._machine.spec.names.get(event.method)
        if method is None:
            error = f"there is no method '{event.method}'"
            self._machine.outcome(event.request, Outcome(kind="UsageError", error=error))
            return
        if known is not None and known.log == event.after.log and known.generation > event.after.generation:
            error = f"generation {event.after.generation} of sink '{event.sink}' is over: {known.generation} is there"
            self._machine.outcome(event.request, Outcome(kind="UsageError", error=error))
            return
        try:
            offsets = _offsets(event.messages)
        except UnreadableError as error:
            self._machine.outcome(event.request, Outcome(kind="UsageError", error=str(error)))
            return
        for offset, message in zip(offsets, event.messages, strict=True):
            if offset >= below:
                self._machine.run(method, b"\x91" + message, Origin("delivery"))
        if not same or event.after.watermark > below:
            runtime.sinks[event.sink] = event.after
        self._machine.outcome(event.request, Outcome())

    def emit(self, ns: str, op: str, data: object, key: object) -> int:
        if op not in OPS:
            raise UsageError(f"op '{op}'{did_you_mean(op, OPS)}")
        runtime = self._machine.runtime
        if len(runtime.outbox) >= self._machine.spec.cls.emit_limit:
            raise OutboxFullError(
                f"{len(runtime.outbox)} emitted messages wait for a pipeline",
                hint="run the pipeline that has this immortal as its source, or raise `emit_limit`",
            )
        text = msgspec.json.encode(data, enc_hook=unwrap)
        key_text = None if key is None else msgspec.json.encode(key, enc_hook=unwrap)
        self.declare((ns,))
        runtime.emitted += 1  # numbers have no gaps: nothing raises from here on
        runtime.outbox.append(Emitted(runtime.emitted, runtime.clock, ns, op, text, key_text))
        return runtime.emitted

    def declare(self, namespaces: tuple[str, ...]) -> None:
        for ns in namespaces:
            if not _is_text(ns):
                raise UsageError(f"{ns!r} is no name of a namespace: a text was expected")
        self._machine.runtime.namespaces.update(dict.fromkeys(namespaces))

    def taken(self, now: float, number: int) -> None:
        """A pipeline's log has what was emitted up to `number`."""
        self._send(TAKEN, Taken(now, number))

    def _taken(self, event: Taken) -> None:
        outbox = self._machine.runtime.outbox
        keep = next((at for at, item in enumerate(outbox) if item.number > event.number), len(outbox))
        del outbox[:keep]

    # Marks.

    def mark(self, now: float, *, all: bool = False) -> None:
        """Write fingerprints into the log, if there are enough of them, or `all` there are."""
        runtime = self._machine.runtime
        first = max(runtime.inputs - len(runtime.crcs), self._marked)
        crcs = runtime.crcs[len(runtime.crcs) - (runtime.inputs - first) :] if runtime.inputs > first else []
        if len(crcs) >= EVERY or (all and any(crcs)):
            self._marked = runtime.inputs
            self._send(MARK, Mark(now, first, crcs))

    def _mark(self, mark: Mark) -> None:
        runtime = self._machine.runtime
        first = runtime.inputs - len(runtime.crcs)
        if self._machine.compares:
            check(mark, first, runtime.crcs)
        del runtime.crcs[: max(0, mark.first + len(mark.crcs) - first)]
