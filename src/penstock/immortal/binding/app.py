"""`Immortal`: the class whose instances survive.

    class Bank(Immortal):
        accounts: dict[str, int] = {}          # declared state: annotated, kept in checkpoints

        @rpc
        def deposit(self, name: str, amount: int) -> int: ...

Declared state is what the class annotates. Attributes that are not declared are volatile: for connections and the
like, set and read outside of handlers, not seen by handlers, gone after a restart.
"""

from __future__ import annotations

import copy
import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Self, TypeVar, cast, get_type_hints

import msgspec

from penstock.base.errors import UsageError
from penstock.immortal.binding.errors import DeterminismError
from penstock.immortal.binding.journal import Recording
from penstock.immortal.binding.methods import Bound, Method
from penstock.immortal.binding.scopes import DIRECT, Direct, Outside

if TYPE_CHECKING:
    from penstock.immortal.binding.machine import Machine

T = TypeVar("T")


class Made:
    """The default of a field: `make` gives its first value."""

    def __init__(self, make: Callable[[], object]) -> None:
        self.make = make


class Custom(Made):
    """A field that the class saves and loads itself."""


def field(make: Callable[[], T]) -> T:
    """Declare a field with what gives its first value: `accounts: dict[str, int] = field(dict)`."""
    return cast("T", Made(make))


def custom(make: Callable[[], T]) -> T:
    """Declare a field that `save` and `load` take care of: `index: Index = custom(Index)`."""
    return cast("T", Custom(make))


def first_value(default: object) -> object:
    """What a field begins with."""
    return default.make() if isinstance(default, Made) else copy.deepcopy(default)


class Field:
    """A declared field, as the class has it."""

    __slots__ = ("default", "name")

    def __init__(self, name: str, default: object) -> None:
        self.name = name
        self.default = default

    def __get__(self, instance: Immortal | None, owner: type) -> object:
        if instance is None:
            return self
        inside = instance.__dict__
        scope = inside["_scope"]
        if scope is DIRECT:
            return inside["_values"][self.name]
        return scope.look((("f", self.name),))

    def __set__(self, instance: Immortal, value: object) -> None:
        scope = instance.__dict__["_scope"]
        if scope is DIRECT:
            instance.__dict__["_values"][self.name] = value
        else:
            values = instance.__dict__["_values"]
            if isinstance(scope, Outside):
                raise scope.refusal(f"the declared field {self.name} was to be changed outside of a handler")
            scope.effect(("set", self.name), lambda: values.__setitem__(self.name, copy.deepcopy(value)))


_MISSING = object()


class _Peer:
    """The scope of a name for another immortal: it has no state here."""

    def look(self, place: object) -> object:
        raise DeterminismError(
            "the state of another immortal cannot be read here", hint="call one of its methods"
        )

    def effect(self, key: object, live: object) -> object:
        return self.look(key)


_PEER = _Peer()


class Immortal:
    """A service that survives any crash. See `docs/writing-immortals.md`."""

    version: ClassVar[int] = 0
    """Counted up with each upgrade; what a checkpoint says it was written by."""
    dedupe_keep: ClassVar[int] = 100_000
    """How many de-duplication keys of calls from outside are remembered, newest first to stay."""
    emit_limit: ClassVar[int] = 1_000_000
    """How many emitted messages wait for a pipeline before `emit` raises."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, annotation in list(inspect.get_annotations(cls).items()):
            if str(annotation).startswith(("ClassVar", "typing.ClassVar")) or name.startswith("_"):
                continue
            setattr(cls, name, Field(name, cls.__dict__.get(name, _MISSING)))

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(getattr(type(self), name, None), Field):
            object.__setattr__(self, name, value)
            return
        if not isinstance(self.__dict__["_scope"], Outside):
            raise DeterminismError(
                f"{type(self).__name__}.{name} is not declared, and a handler sets it",
                hint=f"declare it: annotate `{name}: TYPE = DEFAULT` in the class",
            )
        self.__dict__["_volatile"][name] = value

    def __getattr__(self, name: str) -> Any:
        inside = self.__dict__
        if name.startswith("__") or name not in inside["_volatile"]:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        if not isinstance(inside["_scope"], Outside):
            raise DeterminismError(
                f"{type(self).__name__}.{name} is not declared, and a handler reads it",
                hint="what is not declared is gone after a restart: declare it, or use it outside of handlers",
            )
        return inside["_volatile"][name]

    @classmethod
    def at(cls, name: str) -> Self:
        """The immortal of this class that is called `name`: call its methods."""
        peer = object.__new__(cls)
        peer.__dict__.update(_peer=name, _scope=_PEER, _values={}, _volatile={}, _machine=_Current())
        return peer

    @property
    def name(self) -> str:
        """The name of this instance."""
        return self._runtime().name

    def _runtime(self) -> Machine:
        return cast("Machine", self.__dict__["_machine"])

    def _effect(self, key: tuple[object, ...], live: Any) -> Any:
        scope: Recording | Direct | Outside = self.__dict__["_scope"]
        return scope.effect(key, live)

    def now(self) -> float:
        """The time, in seconds since 1970, of the newest outside event in the log: the same in every replay."""
        return float(self._effect(("now",), lambda: self._runtime().services.clock))

    def after(self, seconds: float, bound: Bound[Any, Any], *arguments: object) -> int:
        """Call a method of this immortal after some time, also over restarts; the number to cancel it by."""
        return int(
            self._effect(("timer",), lambda: self._runtime().services.timer(seconds, 0.0, bound, arguments))
        )

    def every(self, seconds: float, bound: Bound[Any, Any], *arguments: object) -> int:
        """Call a method of this immortal again and again."""
        return int(
            self._effect(
                ("timer",), lambda: self._runtime().services.timer(seconds, seconds, bound, arguments)
            )
        )

    def cancel(self, timer: int) -> bool:
        """Take a timer back; whether it was still there."""
        return bool(self._effect(("cancel",), lambda: self._runtime().services.cancel(timer)))

    def emit(self, ns: str, op: str, data: object, key: object = None) -> int:
        """Give a message to the pipeline that has this immortal as its source; its number.

        `op` is insert, update or delete; `key` is the row's key, if it has one.
        """
        return int(self._effect(("emit",), lambda: self._runtime().services.emit(ns, op, data, key)))

    def declare(self, *namespaces: str) -> None:
        """Tell a pipeline about namespaces before anything is emitted to them."""
        self._effect(("declare",), lambda: self._runtime().services.declare(namespaces))

    def impulse(self, bound: Bound[Any, Any], *arguments: object) -> None:
        """From outside of handlers: send an Impulse to a method of another immortal."""
        self._runtime().impulse(bound.peer, bound.method, arguments, {})

    def on_first_start(self) -> Any:
        """Runs as a handler, before any other, once in the life of the instance (and in replays of that)."""

    async def on_primary(self) -> None:
        """Runs outside of handlers, each time this process becomes the one that serves; ends with the process."""

    def on_upgrade(self, old: Any) -> None:
        """Fills the state of this new class from `old`, the instance of the class before; fields of the same name
        are there already."""

    def save(self, file: BinaryIO) -> None:
        """Write the custom fields."""

    def load(self, file: BinaryIO) -> None:
        """Read them back; the declared fields are there already."""


class _Current:
    """The machine of a peer's name: whichever runs the handler that uses it."""

    def send(
        self,
        peer: str,
        method: Method[Any, Any],
        arguments: tuple[object, ...],
        named: dict[str, object],
    ) -> None:
        from penstock.immortal.binding.machine import Machine
        from penstock.immortal.binding.methods import current

        machine = current()
        if not isinstance(machine, Machine):
            raise DeterminismError(
                f"{method.name} was to be sent to '{peer}' outside of a handler",
                hint="send an Impulse to this immortal; its handler may call others",
            )
        machine.send(peer, method, arguments, named)


@dataclass(frozen=True)
class Spec:
    """What a class declares."""

    cls: type[Immortal]
    fields: Mapping[str, Field]
    customs: Mapping[str, Custom]
    methods: Mapping[int, Method[Any, Any]]
    names: Mapping[str, Method[Any, Any]]
    state: type[msgspec.Struct]

    @property
    def app(self) -> str:
        """How checkpoints name the class."""
        return f"{self.cls.__name__}/{self.cls.version}"


_SPECS: dict[type[Immortal], Spec] = {}


def spec_of(cls: type[Immortal]) -> Spec:
    """What a class declares; raises `UsageError` for what cannot be."""
    if cls not in _SPECS:
        _SPECS[cls] = _read(cls)
    return _SPECS[cls]


def _read(cls: type[Immortal]) -> Spec:
    fields: dict[str, Field] = {}
    methods: dict[int, Method[Any, Any]] = {}
    names: dict[str, Method[Any, Any]] = {}
    for base in reversed(cls.__mro__):
        for name, member in base.__dict__.items():
            if isinstance(member, Field):
                fields[name] = member
            elif isinstance(member, Method):
                names[name] = member
    for method in names.values():
        if method.id in methods:
            raise UsageError(
                f"{cls.__name__}: the methods {methods[method.id].name} and {method.name} have the same id {method.id}",
                hint="give one of them another: @rpc(id=...)",
            )
        methods[method.id] = method
        _ = method.signature
    _check_hooks(cls)
    hints = get_type_hints(cls, include_extras=True)
    customs = {name: f.default for name, f in fields.items() if isinstance(f.default, Custom)}
    shape: list[Any] = []
    for name, declared in fields.items():
        if name in customs:
            continue
        _refuse_sets(f"{cls.__name__}.{name}", hints[name])
        if declared.default is _MISSING:
            raise UsageError(
                f"{cls.__name__}.{name} has no first value", hint=f"write `{name}: TYPE = VALUE`"
            )
        factory = functools.partial(first_value, declared.default)
        shape.append((name, hints[name], msgspec.field(default_factory=factory)))
    state = msgspec.defstruct(f"{cls.__name__}State", shape, kw_only=True)
    return Spec(cls, fields, customs, methods, names, state)


def _check_hooks(cls: type[Immortal]) -> None:
    """A hook that is awaited where nobody awaits it would do nothing, and nobody would hear of it."""
    for name in ("on_first_start", "on_upgrade", "save", "load"):
        if inspect.iscoroutinefunction(getattr(cls, name)):
            raise UsageError(
                f"{cls.__name__}.{name} is `async def`: it runs to its end at once",
                hint=f"write `def {name}`; what it cannot do alone it sends to itself: `self.begin.send()`",
            )
    if not inspect.iscoroutinefunction(cls.on_primary):
        raise UsageError(f"{cls.__name__}.on_primary is no `async def`", hint="write `async def on_primary`")


def _refuse_sets(where: str, hint: Any) -> None:
    if hint in (set, frozenset) or typing.get_origin(hint) in (set, frozenset):
        raise UsageError(
            f"{where} is a set: the order in which it is read is another one after recovery",
            hint="use a dict whose values are None: it keeps its order",
        )
    for inner in typing.get_args(hint):
        _refuse_sets(where, inner)


def make(spec: Spec, machine: Machine) -> Immortal:
    """A new instance with its first values."""
    instance = object.__new__(spec.cls)
    values = {name: first_value(declared.default) for name, declared in spec.fields.items()}
    outside = Outside(f"{spec.cls.__name__} '{machine.name}'", values)
    instance.__dict__.update(
        _peer=None, _scope=outside, _outside=outside, _values=values, _volatile={}, _machine=machine
    )
    return instance
