"""Handlers at work: called, suspended, resumed, re-created.

A plain handler runs to its end. An async one runs until it awaits a call that has no answer yet; others have
their turn meanwhile, and the answer, when the log brings it, lets it go on. Which handler goes on when is decided by
the log alone, so that replay repeats it.
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec

from penstock.immortal.binding.app import Immortal
from penstock.immortal.binding.errors import DeterminismError, ImmortalError, RemoteError, UnkeptError
from penstock.immortal.binding.journal import Journal, Recording
from penstock.immortal.binding.methods import (
    NOBODY,
    Call,
    Caller,
    Method,
    refuse_unsent,
    set_current,
)
from penstock.immortal.binding.scopes import DIRECT
from penstock.immortal.binding.snapshot import OpenHandler, Origin, Runtime
from penstock.immortal.binding.thrown import text_of
from penstock.immortal.wire import ReplyKind

logger = logging.getLogger(__name__)

Answer = tuple[int, bytes | None]
ENDS = (DeterminismError, KeyboardInterrupt)
"""Whatever else a handler raises is its answer, also what would end a process or a task: each replay would raise it."""


class Activation:
    """One run of an async handler."""

    __slots__ = ("answers", "arguments", "coroutine", "id", "journal", "method", "origin", "request", "scope")

    def __init__(
        self, id: int, method: Method[Any, Any], arguments: bytes, origin: Origin, instance: Immortal
    ) -> None:
        self.id = id
        self.method = method
        self.arguments = arguments
        self.origin = origin
        self.answers: dict[int, Answer] = {}
        self.request: Call[Any] | None = None
        self.begin(instance, Journal(f"{method.name} (handler {id})"))

    def begin(self, instance: Immortal, journal: Journal) -> None:
        self.journal = journal
        self.scope = Recording(instance.__dict__["_values"], journal)
        function = cast("Callable[..., Coroutine[Any, Any, object]]", self.method.function)
        self.coroutine = function(instance, *self.method.signature.decode(self.arguments))

    def abandon(self, instance: Immortal) -> None:
        """Drop the coroutine. It would run its `finally` then, as if the handler had ended: but nothing comes of it."""
        inside = instance.__dict__
        self.journal.end()
        inside["_scope"] = self.scope
        try:
            with contextlib.suppress(Exception):
                self.coroutine.close()
        finally:
            inside["_scope"] = inside["_outside"]

    def saved(self) -> OpenHandler:
        waiting = 0 if self.request is None else self.request.number
        return OpenHandler(
            self.id, self.method.id, self.arguments, self.origin, waiting, self.answers, self._record()
        )

    def _record(self) -> list[list[object]]:
        owner = self.journal.owner
        try:
            record = self.journal.to_wire()
            Journal.from_wire(owner, record)
        except Exception as error:
            raise UnkeptError(
                f"{owner} has used something, as a key say, that no checkpoint can keep: {text_of(error)}",
                hint=UnkeptError.MEND,
            ) from error
        return record


class Handlers(Caller, ABC):
    """All handlers of an instance: those that are open, and the one whose turn it is."""

    instance: Immortal
    runtime: Runtime

    def __init__(self) -> None:
        self.open: dict[int, Activation] = {}
        self._active: Activation | None = None
        self._made: list[Call[Any]] = []

    # What the machine does for handlers.

    @abstractmethod
    def settle(self, origin: Origin, method: Method[Any, Any] | None, result: object, error: str) -> None:
        """The handler of `origin` has ended, with a result or by an error."""

    @abstractmethod
    def place_call(self, call: Call[Any]) -> int:
        """Send a call of the handler whose turn it is; its number."""

    # What handlers do.

    def created(self, call: Call[Any]) -> None:
        self._made.append(call)

    def start(self, call: Call[Any]) -> int:
        active = self._active
        if active is None or self.instance.__dict__["_scope"] is DIRECT:
            raise ImmortalError(
                f"{call.bound.method.name} was called and its answer awaited in a plain handler or a step",
                hint=f"make the handler `async def`, or send it: `x.{call.bound.method.name}.send(...)`",
            )
        key = ("call", call.bound.peer, call.bound.method.id)

        def live() -> object:
            number = self.place_call(call)
            self.runtime.calls[number] = active.id
            return number

        return int(active.scope.effect(key, live))  # type: ignore[call-overload, no-any-return]

    def run(self, method: Method[Any, Any], arguments: bytes, origin: Origin) -> None:
        """Run the handler of a method, as far as it comes."""
        try:
            if method.is_async:
                activation = Activation(self.runtime.next_handler, method, arguments, origin, self.instance)
                self.runtime.next_handler += 1
            else:
                values = method.signature.decode(arguments)
        except Exception as error:  # noqa: BLE001 - it is in the log: no replay would get past what is raised here
            self._failed(origin, method, error)
            return
        if method.is_async:
            self.open[activation.id] = activation
            self._advance(activation, None)
        else:
            self.run_plain(method.name, lambda: method.function(self.instance, *values), origin, method)

    def run_plain(
        self,
        name: str,
        function: Callable[[], object],
        origin: Origin,
        method: Method[Any, Any] | None = None,
    ) -> None:
        """Run something as a plain handler."""
        inside = self.instance.__dict__
        self._made = []
        inside["_scope"] = DIRECT
        set_current(self)
        try:
            result = function()
            refuse_unsent(self._made)
            self.settle(origin, method, result, "")
        except ENDS:
            raise
        except BaseException as error:  # noqa: BLE001
            self._failed(origin, method, error, name)
        finally:
            set_current(NOBODY)
            inside["_scope"] = inside["_outside"]

    def answered(self, number: int, answer: Answer) -> bool:
        """The log brings the answer to a call; whether there is such a call."""
        if number not in self.runtime.calls:
            return False
        activation = self.open.get(self.runtime.calls.pop(number))
        if activation is None:
            return True  # its handler ended without waiting for this one
        activation.answers[number] = answer
        if activation.request is not None and activation.request.number == number:
            self._advance(activation, activation.request)
        return True

    def _advance(self, activation: Activation, request: Call[Any] | None) -> None:
        """Let a handler go on until it waits for an answer that is not there, or ends."""
        while True:
            outcome: object = None
            error: Exception | None = None
            if request is not None:
                outcome, error = self._take_answer(activation, request)
            try:
                ended, request, value = self._turn(activation, outcome, error)
            except ENDS:
                raise
            except BaseException as raised:  # noqa: BLE001
                self._end(activation)
                self._failed(activation.origin, activation.method, raised)
                return
            if ended:
                self._end(activation)
                self._settled(activation, value)
                return
            activation.request = request
            if request is None or not self._has_answer(activation, request.number):
                return

    def _has_answer(self, activation: Activation, number: int) -> bool:
        if activation.journal.rebuilding:
            return not activation.journal.at_end
        return number in activation.answers

    def _take_answer(self, activation: Activation, request: Call[Any]) -> tuple[object, Exception | None]:
        number = request.number
        kind, payload = cast(
            "Answer",
            activation.scope.effect(("answer", number), lambda: activation.answers.pop(number)),
        )
        if kind == ReplyKind.EXCEPTION:
            try:
                name, text = msgspec.msgpack.decode(payload or b"", type=tuple[str, str])
            except msgspec.DecodeError:
                name, text = "Error", repr(payload)
            return None, RemoteError(name, text)
        if payload is None or kind == ReplyKind.VOID:
            return None, None
        try:
            return request.bound.method.signature.decode_result(payload), None
        except Exception as error:  # noqa: BLE001 - types of the class may refuse a value in their own way
            return None, RemoteError("Undecodable", f"{request.bound.method.name}: {text_of(error)}")

    def _turn(
        self, activation: Activation, value: object, error: Exception | None
    ) -> tuple[bool, Call[Any] | None, object]:
        inside = self.instance.__dict__
        self._active, self._made = activation, []
        inside["_scope"] = activation.scope
        set_current(self)
        try:
            coroutine = activation.coroutine
            request = coroutine.send(value) if error is None else coroutine.throw(error)
        except StopIteration as stop:
            refuse_unsent(self._made)
            return True, None, stop.value
        finally:
            set_current(NOBODY)
            inside["_scope"] = inside["_outside"]
            self._active = None
        if not isinstance(request, Call):
            raise DeterminismError(
                f"{activation.method.name} awaits {request!r}: a handler can wait for calls of immortals alone",
                hint="work that waits for anything else belongs outside of handlers, its outcome into an Impulse",
            )
        return False, request, None

    def _settled(self, activation: Activation, value: object) -> None:
        inside = self.instance.__dict__
        inside["_scope"] = DIRECT
        set_current(self)
        try:
            self.settle(activation.origin, activation.method, value, "")
        except DeterminismError:
            raise
        except Exception as error:  # noqa: BLE001 - what cannot be told is the handler's fault
            self._failed(activation.origin, activation.method, error)
        finally:
            set_current(NOBODY)
            inside["_scope"] = inside["_outside"]

    def _end(self, activation: Activation) -> None:
        del self.open[activation.id]
        activation.coroutine.close()

    def _failed(
        self, origin: Origin, method: Method[Any, Any] | None, error: BaseException, name: str = ""
    ) -> None:
        self.runtime.failures += 1
        what, kind, text = (
            name or (method.name if method is not None else ""),
            type(error).__name__,
            text_of(error),
        )
        logger.warning("the handler %s raised %s: %s", what, kind, text, exc_info=error)
        set_current(self)
        try:
            self.settle(origin, method, (kind, text), kind)
        finally:
            set_current(NOBODY)

    def abandon(self) -> None:
        """Nothing is handled here any more: what is open goes on elsewhere, from a checkpoint and the log."""
        for activation in self.open.values():
            activation.abandon(self.instance)
        self.open.clear()

    def rebuild(self, saved: OpenHandler, method: Method[Any, Any]) -> None:
        """Re-create an open handler from its record: it waits again where it waited, and nothing was sent."""
        activation = Activation(saved.id, method, saved.arguments, saved.origin, self.instance)
        activation.coroutine.close()
        activation.begin(
            self.instance, Journal.from_wire(f"{method.name} (handler {saved.id})", saved.journal)
        )
        self.open[saved.id] = activation
        activation.answers = dict(saved.answers)
        self._advance(activation, None)
        waiting = 0 if activation.request is None else activation.request.number
        if saved.id not in self.open or waiting != saved.waiting:
            raise DeterminismError(
                f"{activation.journal.owner} cannot be re-created from its record: it should wait for call "
                f"{saved.waiting} and {'waits for call ' + str(waiting) if saved.id in self.open else 'ended'}"
            )
        activation.journal.finish()
