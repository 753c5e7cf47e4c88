"""Values as they stand in a checkpoint's records of open handlers: any plain Python value, and back, with its type.

Scalars stand for themselves, those of a class of their own as what it is made from. Everything else is an array whose
first element says what it is, so that a tuple comes back as a tuple and a struct as its class. Classes are named
`module:qualified.name`; only structs, dataclasses, named tuples, enumerations and exceptions are looked up, so that
reading a checkpoint runs no code but theirs.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from enum import Enum
from typing import Any, cast

import msgspec

from penstock.immortal.binding.errors import ImmortalError

_SCALARS = (type(None), bool, float, str, bytes)
_INT64 = range(-(1 << 63), 1 << 64)
_TEXTS: Mapping[type, tuple[str, Callable[[str], object]]] = {
    Decimal: ("D", Decimal),
    uuid.UUID: ("U", uuid.UUID),
    dt.datetime: ("dt", dt.datetime.fromisoformat),
    dt.date: ("da", dt.date.fromisoformat),
    dt.time: ("ti", dt.time.fromisoformat),
}
_BARE: Mapping[type, Callable[[Any], object]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: bytes.__bytes__,
}
_FROM_TEXT = dict(_TEXTS.values())


def fields_of(kind: type) -> tuple[str, ...] | None:
    """The fields of a struct or dataclass; None for any other class."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return None


def is_named_tuple(kind: type) -> bool:
    """Whether it is a tuple with names for its elements."""
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def is_frozen(kind: type) -> bool:
    """Whether nobody can assign to the fields of a struct or dataclass."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_config__.frozen
    parameters = getattr(kind, "__dataclass_params__", None)
    return bool(getattr(parameters, "frozen", False))


def is_plain(value: object) -> bool:
    """Whether a value can never change, all the way down."""
    kind = type(value)
    if kind in (int, bool, str, float, bytes, type(None)):
        return True
    if isinstance(value, tuple | frozenset):
        return all(is_plain(item) for item in value)
    if kind in _TEXTS or kind is dt.timedelta or isinstance(value, Enum | int | str | float | bytes):
        return True
    names = fields_of(kind)
    return names is not None and is_frozen(kind) and all(is_plain(getattr(value, name)) for name in names)


def is_exact(value: object) -> bool:
    """Whether a value that can never change is given back just as it is, to the type: scalars, and tuples of them."""
    kind = type(value)
    if kind is str:
        return _is_text(cast("str", value))
    if kind is tuple:
        return all(map(is_exact, value))  # type: ignore[call-overload]
    return kind in (int, *_SCALARS)


def _is_text(value: str) -> bool:
    """Unlike what has half of a surrogate pair in it."""
    try:
        return value.isascii() or value.encode() is not None
    except UnicodeEncodeError:
        return False


def class_name(kind: type) -> str:
    """How checkpoints name a class; that of a file loaded beside another of the same name is the file's."""
    module = getattr(sys.modules.get(kind.__module__), "__immortal_file__", kind.__module__)
    return f"{module}:{kind.__qualname__}"


def find_class(name: str) -> type:
    """The struct, dataclass, named tuple, enumeration or exception of that name."""
    module, _, path = name.partition(":")
    found: object = sys.modules.get(module)
    for loaded in list(sys.modules.values()):
        if getattr(loaded, "__immortal_file__", None) == module:
            found = loaded  # of an old and a new one, the new one was loaded last
    try:
        if found is None:
            found = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        found = None
    if not isinstance(found, type) or not (
        issubclass(found, Enum | Exception) or is_named_tuple(found) or fields_of(found) is not None
    ):
        raise ImmortalError(
            f"a checkpoint holds a value of the class {name}, which is not there",
            hint="keep classes whose values open handlers hold where they were until those handlers are done",
        )
    return found


def to_wire(value: object) -> object:
    """The value as scalars and tagged arrays."""
    kind = type(value)
    if kind is str:
        cast("str", value).encode()  # raises for half of a surrogate pair
        return value
    if kind in _SCALARS or (kind is int and value in _INT64):
        return value
    if kind is int:
        return ["i", str(value)]
    if isinstance(value, Enum):
        if value.name not in kind.__members__:  # type: ignore[attr-defined]
            return ["G", class_name(kind), to_wire(value.value)]
        return ["E", class_name(kind), value.name]
    for base, bare in _BARE.items():
        if isinstance(value, base):
            return to_wire(bare(value))
    if kind in (list, tuple, frozenset, set):
        items = sorted(value, key=repr) if kind in (frozenset, set) else value  # type: ignore[call-overload]
        return [
            {list: "l", tuple: "t", frozenset: "f", set: "s"}[kind],
            *map(to_wire, cast("Iterable[object]", items)),
        ]
    if is_named_tuple(kind):
        return ["N", class_name(kind), *map(to_wire, cast("tuple[object, ...]", value))]
    if isinstance(value, dict):
        return ["d", *([to_wire(key), to_wire(item)] for key, item in value.items())]
    if kind in _TEXTS:
        return [_TEXTS[kind][0], str(value) if kind in (Decimal, uuid.UUID) else value.isoformat()]  # type: ignore[attr-defined]
    if isinstance(value, dt.timedelta):
        return ["td", value.days, value.seconds, value.microseconds]
    names = fields_of(kind)
    if names is None:
        raise TypeError(f"a value of the class {class_name(kind)} cannot be kept in a checkpoint")
    return ["S", class_name(kind), *([name, to_wire(getattr(value, name))] for name in names)]


def from_wire(wire: object) -> object:
    """The value that `to_wire` was given."""
    if not isinstance(wire, list | tuple):
        return wire
    tag, rest = wire[0], wire[1:]
    if tag in ("l", "t", "f", "s"):
        return {"l": list, "t": tuple, "f": frozenset, "s": set}[tag](map(from_wire, rest))
    if tag == "d":
        return {from_wire(key): from_wire(item) for key, item in rest}
    if tag == "i":
        return int(rest[0])
    if tag == "td":
        return dt.timedelta(*rest)
    if tag == "E":
        return find_class(rest[0])[rest[1]]  # type: ignore[index]
    if tag == "G":
        return find_class(rest[0])(from_wire(rest[1]))
    if tag == "N":
        return find_class(rest[0])._make(map(from_wire, rest[1:]))  # type: ignore[attr-defined]
    if tag == "S":
        return _made(find_class(rest[0]), {name: from_wire(item) for name, item in rest[1:]})
    if tag in _FROM_TEXT:
        return _FROM_TEXT[tag](rest[0])
    raise ImmortalError(f"a checkpoint holds a value with the unknown mark {tag!r}")


def _made(kind: type, values: dict[str, object]) -> object:
    """A struct, or a dataclass, some fields of which its `__init__` may not take."""
    later = (
        [field.name for field in dataclasses.fields(kind) if not field.init]
        if dataclasses.is_dataclass(kind)
        else []
    )
    made: object = kind(**{name: value for name, value in values.items() if name not in later})
    for name in later:
        object.__setattr__(made, name, values[name])
    return made
