"""Views of mutable state: what `self.field` gives where the field itself must not be handed out.

A view is a place (`accounts`, then the key `a`, then the attribute `balance`) and the scope that asks. It holds no
object: each use looks up what stands at the place now. What comes out of a view is either a value that cannot change
or a view again, and what goes in is copied, so that state and a handler's own variables never share an object. That
is what makes it possible to run a handler a second time against its records (`penstock.immortal.binding.journal`).
"""

from __future__ import annotations

import copy
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any, Protocol

from penstock.immortal.binding.values import fields_of

Step = tuple[str, object]
"""One step of a place: ("f", a declared field), ("k", a key or an index), ("a", an attribute)."""
Place = tuple[Step, ...]

_OPERATIONS: Mapping[str, Callable[..., object]] = {
    "len": len,
    "in": operator.contains,
    "keys": tuple,
    "eq": operator.eq,
    "slice": lambda target, cut: copy.deepcopy(target[cut]),
    "set": operator.setitem,
    "del": operator.delitem,
    "insert": lambda target, at, value: target.insert(at, value),
    "append": lambda target, value: target.append(value),
    "clear": lambda target: target.clear(),
    "reverse": lambda target: target.reverse(),
    "sort": lambda target, key, reverse: target.sort(key=key, reverse=reverse),
    "setattr": setattr,
}
CHANGES = frozenset({"set", "del", "insert", "append", "clear", "reverse", "sort", "setattr"})
LOOKUP_ERRORS = (KeyError, IndexError, AttributeError)


class Scope(Protocol):
    """Who asks, and what becomes of the question."""

    def look(self, place: Place) -> object:
        """What stands there: a plain value, or a view of it."""

    def operate(self, place: Place, name: str, arguments: tuple[object, ...]) -> object:
        """The outcome of one operation, a plain value."""

    def raw(self, place: Place) -> object:
        """The very object at the place; for copies that are made at once."""

    def copied(self, place: Place) -> object:
        """A copy of it, which is the asker's own."""


def resolve(values: Mapping[str, object], place: Place) -> object:
    """The object at a place; raises as the look-up in it does."""
    found: object = values[str(place[0][1])]
    for kind, key in place[1:]:
        found = getattr(found, str(key)) if kind == "a" else found[key]  # type: ignore[index]
    return found


def apply(target: object, name: str, arguments: tuple[object, ...]) -> object:
    """One operation on an object of the state; arguments that stay in it are copied in."""
    given = arguments if name == "sort" else copy.deepcopy(arguments)
    return _OPERATIONS[name](target, *given)


def told(place: Place) -> str:
    """The place in words."""
    words = str(place[0][1])
    for kind, key in place[1:]:
        words += f".{key}" if kind == "a" else f"[{key!r}]"
    return words


class View:
    """A place, seen from a scope."""

    __slots__ = ("_place", "_scope")
    _scope: Scope
    _place: Place

    def __init__(self, scope: Scope, place: Place) -> None:
        object.__setattr__(self, "_scope", scope)
        object.__setattr__(self, "_place", place)

    def _do(self, name: str, *arguments: object) -> object:
        return self._scope.operate(self._place, name, arguments)

    def _at(self, kind: str, key: object) -> object:
        return self._scope.look((*self._place, (kind, key)))

    def __deepcopy__(self, memo: dict[int, object]) -> Any:
        return self._scope.copied(self._place)

    def __copy__(self) -> Any:
        return self._scope.copied(self._place)

    def __repr__(self) -> str:
        return f"<view of {told(self._place)}>"

    def __len__(self) -> int:
        return int(self._do("len"))  # type: ignore[call-overload, no-any-return]


class DictView(View, MutableMapping[object, object]):
    """A dict of the state."""

    __slots__ = ()

    def __getitem__(self, key: object) -> object:
        return self._at("k", key)

    def __setitem__(self, key: object, value: object) -> None:
        self._do("set", key, value)

    def __delitem__(self, key: object) -> None:
        self._do("del", key)

    def __iter__(self) -> Iterator[object]:
        return iter(self._do("keys"))  # type: ignore[call-overload, no-any-return]

    def __contains__(self, key: object) -> bool:
        return bool(self._do("in", key))

    def setdefault(self, key: object, default: object = None) -> object:
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: object, *default: object) -> object:
        if key not in self and default:
            return default[0]
        value = copy.deepcopy(self[key])
        del self[key]
        return value

    def copy(self) -> Any:
        """A copy, all the way down."""
        return self.__copy__()

    def popitem(self) -> tuple[object, object]:
        keys = tuple(self)
        if not keys:
            raise KeyError("popitem(): dictionary is empty")
        return keys[-1], self.pop(keys[-1])

    def clear(self) -> None:
        self._do("clear")


class ListView(View, MutableSequence[object]):
    """A list of the state. The places of its elements are their indexes."""

    __slots__ = ()

    def __getitem__(self, index: object) -> Any:
        if isinstance(index, slice):
            return self._do("slice", index)
        at = operator.index(index)  # type: ignore[arg-type]
        return self._at("k", at + len(self) if at < 0 else at)

    def __setitem__(self, index: object, value: object) -> None:
        self._do("set", index, list(value) if isinstance(index, slice) else value)  # type: ignore[call-overload]

    def __delitem__(self, index: object) -> None:
        self._do("del", index)

    def insert(self, index: int, value: object) -> None:
        self._do("insert", index, value)

    def append(self, value: object) -> None:
        self._do("append", value)

    def pop(self, index: int = -1) -> object:
        value = copy.deepcopy(self[index])
        del self[index]
        return value

    def clear(self) -> None:
        self._do("clear")

    def copy(self) -> Any:
        """A copy, all the way down."""
        return self.__copy__()

    def reverse(self) -> None:
        self._do("reverse")

    def sort(self, *, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> None:
        self._do("sort", key, reverse)

    def __eq__(self, other: object) -> bool:
        return bool(self._do("eq", other))

    __hash__ = None  # type: ignore[assignment]


class RecordView(View):
    """A struct or dataclass of the state; its methods run with the view as `self`."""

    __slots__ = ("_kind",)
    _kind: type

    def __init__(self, scope: Scope, place: Place, kind: type) -> None:
        super().__init__(scope, place)
        object.__setattr__(self, "_kind", kind)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self._kind

    def __getattr__(self, name: str) -> object:
        if name in (fields_of(self._kind) or ()):
            return self._at("a", name)
        found = inspect.getattr_static(self._kind, name)
        return found.__get__(self, self._kind) if hasattr(found, "__get__") else found

    def __setattr__(self, name: str, value: object) -> None:
        if name not in (fields_of(self._kind) or ()):
            raise AttributeError(f"{self._kind.__name__} has no field {name!r}")
        self._do("setattr", name, value)

    def __eq__(self, other: object) -> bool:
        return bool(self._do("eq", other))

    __hash__ = None  # type: ignore[assignment]


def kind_of(value: object) -> type | None:
    """What a view of this value has to be a view of: dict, list, or its class; None if there are no views of it."""
    kind = type(value)
    if kind in (dict, list):
        return kind
    return kind if fields_of(kind) is not None else None


def make_view(scope: Scope, place: Place, kind: type) -> View:
    """A view of what `kind_of` told."""
    if kind is dict:
        return DictView(scope, place)
    if kind is list:
        return ListView(scope, place)
    return RecordView(scope, place, kind)


def unwrap(value: object) -> object:
    """For encoders: what a view stands for."""
    if isinstance(value, View):
        return value._scope.raw(value._place)
    raise TypeError(f"a value of the class {type(value).__qualname__} cannot be sent")
