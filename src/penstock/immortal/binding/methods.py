"""Methods that others call: `@rpc`, `@impulse`, and `@step` for work inside of an async handler.

    @rpc       called by handlers, of this immortal or of another: `await bank.balance("a")`, `bank.deposit.send("a")`
    @impulse   called from outside of handlers: by timers, by HTTP, by the command line, by `self.tick.send()` in a hook
    @step      a plain method that an async handler calls as one step: it has the state itself, and runs once

An attribute that is an `@rpc` is never the function itself, also not for its own class: `self.deposit.send(...)` goes
through the log as any other call does. Arguments travel as a MessagePack array, checked against the annotations.
The id of a method on the wire is made from its name, so that its place in the class does not matter.
"""

from __future__ import annotations

import copy
import functools
import inspect
import threading
import zlib
from collections.abc import Callable, Coroutine, Generator
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    get_type_hints,
    overload,
)

import msgspec

from penstock.base.errors import UsageError
from penstock.immortal.binding.errors import DeterminismError, ImmortalError
from penstock.immortal.binding.journal import Recording
from penstock.immortal.binding.scopes import DIRECT, Direct, Outside
from penstock.immortal.binding.views import unwrap

if TYPE_CHECKING:
    from penstock.immortal.binding.app import Immortal

P = ParamSpec("P")
R = TypeVar("R")
I = TypeVar("I", bound="Immortal")  # noqa: E741

_ENCODER = msgspec.msgpack.Encoder(enc_hook=unwrap)


def method_id(name: str) -> int:
    """The id that a name stands for: positive, 31 bits."""
    return zlib.crc32(name.encode()) & 0x7FFF_FFFF


class Signature:
    """The arguments and the result of a function, typed."""

    def __init__(self, function: Callable[..., object], raw: bool) -> None:
        self.function = function
        self.raw = raw
        self._shape = inspect.signature(function)
        hints = get_type_hints(function, include_extras=True)
        fields: list[Any] = []
        for name, parameter in list(self._shape.parameters.items())[1:]:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY):
                raise UsageError(f"{function.__qualname__}: '{name}' must be a plain parameter")
            field: tuple[Any, ...] = (f"p_{name}", hints.get(name, Any))
            if parameter.default is not parameter.empty:
                field = (*field, parameter.default)
            fields.append(field)
        if raw and len(fields) != 1:
            raise UsageError(f"{function.__qualname__}: a raw method takes exactly one argument, its bytes")
        shape = msgspec.defstruct("Arguments", fields, array_like=True, forbid_unknown_fields=True)
        self._arguments = msgspec.msgpack.Decoder(shape)
        result = hints.get("return", Any)
        self.is_void = result is type(None)
        self._result = msgspec.msgpack.Decoder(result)

    def encode(self, arguments: tuple[object, ...], named: dict[str, object]) -> bytes:
        if self.raw:
            return bytes(cast("bytes", arguments[0]))
        bound = self._shape.bind(None, *arguments, **named)
        bound.apply_defaults()
        return _ENCODER.encode(bound.args[1:])

    def decode(self, data: bytes) -> tuple[object, ...]:
        if self.raw:
            return (data,)
        return tuple(msgspec.structs.astuple(self._arguments.decode(data)))

    def encode_result(self, result: object) -> bytes:
        return bytes(cast("bytes", result)) if self.raw else _ENCODER.encode(result)

    def decode_result(self, data: bytes) -> object:
        return data if self.raw else self._result.decode(data)


class Method(Generic[P, R]):
    """A method that can be called over the wire."""

    def __init__(
        self, function: Callable[..., object], *, impulse: bool, id: int | None = None, raw: bool = False
    ) -> None:
        if id is not None and id < 0:
            raise UsageError(f"{function.__qualname__}: negative method ids are the system's")
        self.function = function
        self.is_impulse = impulse
        self.is_async = inspect.iscoroutinefunction(function)
        self.name = function.__name__
        self.id = method_id(self.name) if id is None else id
        self._raw = raw
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    @functools.cached_property
    def signature(self) -> Signature:
        return Signature(self.function, self._raw)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Immortal, owner: type) -> Bound[P, R]: ...
    def __get__(self, instance: Immortal | None, owner: type) -> Self | Bound[P, R]:
        return self if instance is None else Bound(self, instance)


class Bound(Generic[P, R]):
    """A method of an immortal: this one, or one that `at` names."""

    __slots__ = ("method", "target")

    def __init__(self, method: Method[P, R], target: Immortal) -> None:
        self.method = method
        self.target = target

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> Call[R]:
        """The call, to be awaited; nothing is sent before."""
        if self.method.is_impulse:
            raise DeterminismError(
                f"{self.method.name} is an @impulse: it is called from outside of handlers alone",
                hint="mark it @rpc to call it from handlers",
            )
        return Call(self, arguments, named)

    def send(self, *arguments: P.args, **named: P.kwargs) -> None:
        """Call it and go on; there is no answer."""
        machine = self.target.__dict__["_machine"]
        machine.send(self.target.__dict__["_peer"], self.method, arguments, named)

    @property
    def peer(self) -> str:
        return str(self.target.__dict__["_peer"] or "")


class Call(Generic[R]):
    """A call whose answer somebody waits for: `await` it; or `start()` it now, and await it later."""

    __slots__ = ("arguments", "bound", "is_awaited", "named", "number")

    def __init__(self, bound: Bound[..., R], arguments: tuple[object, ...], named: dict[str, object]) -> None:
        self.bound = bound
        self.arguments = arguments
        self.named = named
        self.number = 0
        self.is_awaited = False
        current().created(self)

    def start(self) -> Self:
        """Send the call."""
        if not self.number:
            self.number = current().start(self)
        return self

    def __await__(self) -> Generator[Call[R], object, R]:
        if self.is_awaited:
            raise ImmortalError(
                f"a call of {self.bound.method.name} was awaited twice: its answer comes once",
                hint="keep the answer in a variable",
            )
        self.is_awaited = True
        return cast("R", (yield self.start()))


async def gather(*calls: Call[R]) -> list[R]:
    """Make all calls at once; their answers in the order of the calls."""
    for call in calls:
        call.start()
    return [await call for call in calls]


class Caller:
    """Who makes calls at this moment; the machine whose handler runs sets it."""

    def created(self, call: Call[Any]) -> None:
        """A call was made, and is neither sent nor awaited yet."""

    def start(self, call: Call[Any]) -> int:
        """Send it; its number."""
        raise DeterminismError(
            f"{call.bound.method.name} was called outside of a handler",
            hint="send an Impulse; its handler may call others",
        )


NOBODY = Caller()
_current = NOBODY


_thread = 0


def current() -> Caller:
    """Whose handler runs in this thread."""
    return _current if _current is NOBODY or _thread == threading.get_ident() else NOBODY


def set_current(caller: Caller) -> None:
    global _current, _thread
    _current = caller
    _thread = threading.get_ident()


@overload
def rpc(function: Callable[Concatenate[I, P], Coroutine[Any, Any, R]], /) -> Method[P, R]: ...
@overload
def rpc(function: Callable[Concatenate[I, P], R], /) -> Method[P, R]: ...
@overload
def rpc(*, id: int | None = None, raw: bool = False) -> _Decorator: ...
def rpc(function: Any = None, /, *, id: int | None = None, raw: bool = False) -> Any:
    """A method that handlers call. `id`: its number on the wire; `raw`: arguments and result are bytes as they come."""
    decorator = _Decorator(impulse=False, id=id, raw=raw)
    return decorator if function is None else decorator(function)


@overload
def impulse(function: Callable[Concatenate[I, P], Coroutine[Any, Any, R]], /) -> Method[P, R]: ...
@overload
def impulse(function: Callable[Concatenate[I, P], R], /) -> Method[P, R]: ...
@overload
def impulse(*, id: int | None = None, raw: bool = False) -> _Decorator: ...
def impulse(function: Any = None, /, *, id: int | None = None, raw: bool = False) -> Any:
    """A method that the outside calls; options as those of `rpc`."""
    decorator = _Decorator(impulse=True, id=id, raw=raw)
    return decorator if function is None else decorator(function)


class _Decorator:
    """`@rpc(...)` and `@impulse(...)` with options."""

    def __init__(self, *, impulse: bool, id: int | None, raw: bool) -> None:
        self._impulse, self._id, self._raw = impulse, id, raw

    @overload
    def __call__(self, function: Callable[Concatenate[I, P], Coroutine[Any, Any, R]]) -> Method[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[I, P], R]) -> Method[P, R]: ...
    def __call__(self, function: Any) -> Any:
        return Method(function, impulse=self._impulse, id=self._id, raw=self._raw)


def step(function: Callable[Concatenate[I, P], R], /) -> Callable[Concatenate[I, P], R]:
    """A plain method that an async handler calls as one step, with the state itself; its result is recorded."""
    if inspect.iscoroutinefunction(function):
        raise UsageError(f"{function.__qualname__}: a step cannot wait; make it a plain method")

    @functools.wraps(function)
    def once(self: I, *arguments: P.args, **named: P.kwargs) -> R:
        scope: Recording | Direct | Outside = self.__dict__["_scope"]
        if scope is DIRECT:
            return function(self, *arguments, **named)

        def live() -> object:
            self.__dict__["_scope"] = DIRECT
            try:
                return function(self, *copy.deepcopy(arguments), **copy.deepcopy(named))
            finally:
                self.__dict__["_scope"] = scope

        return cast("R", scope.effect(("step", function.__name__), live))

    return cast("Callable[Concatenate[I, P], R]", once)


def refuse_unsent(calls: list[Call[Any]]) -> None:
    """A call that nobody sent or awaited is a mistake."""
    for call in calls:
        if not call.number:
            raise ImmortalError(
                f"{call.bound.method.name} was called, but neither awaited nor sent",
                hint=f"write `await x.{call.bound.method.name}(...)`, or `x.{call.bound.method.name}.send(...)`",
            )
