"""The values of a message: one model for every source, function and sink, and its text.

    kind                 Python                       text
    null, bool, string   None, bool, str              as JSON has them
    int                  int                          a number, all digits; beyond 64 bit it is of the kind decimal
    float                float                        a number, the shortest that reads as the same float
    decimal              Decimal                      a number, its own digits, also the zeros at the end
    list, map            list, dict                   array, object; the keys of a map are strings, "" is one
    all others           see `penstock.log.extended`  extended JSON

`encode` and `decode` are exact: what is encoded comes back with its type, for the one exception that a number
is a number. Whether 1.50 was a float or a decimal is not in its text; the schema that its source has logged
(`penstock.log.schema`) says it, and `decode` takes one. Without, a number with a fraction or an exponent is a
float if a float is the same number, and else a Decimal: no digits are lost, but zeros at the end are.

A message's data is a *document*: its fields have values, but it is not one itself, whatever their names are.
Hence `encode_document` and `decode_document`.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from types import NoneType
from typing import TypeAlias, TypeVar, cast
from uuid import UUID

import msgspec

from penstock.base.errors import PenstockError
from penstock.log import extended
from penstock.log.extended import Binary, ObjectId, Regex, Timestamp
from penstock.log.schema import Field, Kind, Schema

__all__ = [
    "Binary", "Document", "ObjectId", "Regex", "Timestamp", "Value", "ValuesError",
    "decode", "decode_document", "encode", "encode_document", "from_json", "kind_of", "to_json",
]  # fmt: skip

Value: TypeAlias = (
    "bool | int | float | Decimal | str | bytes | Binary | dt.date | dt.time | dt.datetime | UUID"
    " | ObjectId | Timestamp | Regex | list[Value] | dict[str, Value] | None"
)
Document: TypeAlias = "dict[str, Value]"

T = TypeVar("T")

_PLAIN = frozenset({NoneType, bool, int, str})
"""Types whose values are JSON as they are."""

_LEAVES = frozenset({NoneType, bool, int, float, Decimal, str})
"""Types that are read from JSON and hold nothing."""

_STRINGS = frozenset({str})
_NUMBER = frozenset(b"-0123456789")
_FLOAT_DIGITS = 15
"""Whole numbers of so many digits are floats, all of them."""

_write = msgspec.json.Encoder(decimal_format="number").encode


class ValuesError(PenstockError):
    """A value that has no text, or a text that is no value; says where in the document."""


def encode(value: Value) -> bytes:
    """The text of one value: compact, keys in their order."""
    return _encoded(to_json, value)


def encode_document(document: Mapping[str, Value]) -> bytes:
    """The text of a message's data."""
    return _encoded(_fields_to_json, document)


def decode(text: bytes | str, schema: Schema | None = None) -> Value:
    """The value of a text; with a schema, of a document whose fields it describes."""
    if schema is not None:
        return decode_document(text, schema)
    try:
        return _as_read(text)
    except _UNREADABLE as error:
        raise _unreadable(error) from None


def decode_document(text: bytes | str, schema: Schema | None = None) -> Document:
    """The fields of a message's data. Raises `ValuesError` if it is not the text of an object."""
    try:
        if schema is not None:
            readers = _readers_of(schema)
            return {name: readers.get(name, _as_read)(bytes(raw)) for name, raw in _read_fields(text).items()}
        tree = _parsed(text)
        if not isinstance(tree, dict):
            raise ValuesError(f"not a document: {_shown(tree)}")
        return _fields_from_json(tree) if _may_be_extended(text) else tree
    except _UNREADABLE as error:
        raise _unreadable(error) from None


def kind_of(value: Value) -> Kind:
    """What a value is, as the type matrix has it."""
    kind = type(value)
    if kind is int and not -(1 << 63) <= cast(int, value) < 1 << 63:
        return Kind.DECIMAL
    if kind is dt.datetime and cast(dt.datetime, value).utcoffset() is not None:
        return Kind.TIMESTAMP
    found = _KINDS.get(kind)
    if found is None:
        raise ValuesError(f"{_shown(value)} is no value that a message can hold")
    return found


_KINDS: Mapping[type, Kind] = {
    NoneType: Kind.NULL, bool: Kind.BOOL, int: Kind.INT, float: Kind.FLOAT, Decimal: Kind.DECIMAL,
    str: Kind.STRING, bytes: Kind.BINARY, Binary: Kind.BINARY, dt.date: Kind.DATE, dt.time: Kind.TIME,
    dt.datetime: Kind.LOCAL_TIMESTAMP, UUID: Kind.UUID, ObjectId: Kind.OBJECT_ID,
    Timestamp: Kind.MONGO_TIMESTAMP, Regex: Kind.REGEX, list: Kind.LIST, dict: Kind.MAP,
}  # fmt: skip


def to_json(value: object) -> object:
    """A value as msgspec can write it. For text use `encode`, which says where something is wrong."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        return _map_to_json(cast("dict[str, object]", value))
    if kind is list or kind is tuple:
        return [one if type(one) in _PLAIN else to_json(one) for one in cast("list[object]", value)]
    writer = extended.WRITERS.get(kind)
    return writer(value) if writer else to_json(_as_base(value))


def from_json(tree: object) -> Value:
    """The value of what msgspec has read."""
    if type(tree) is list:
        return [one if type(one) in _LEAVES else from_json(one) for one in tree]
    if type(tree) is not dict:
        return cast(Value, tree)
    if extended.looks_extended(tree):
        if extended.is_literal(tree):
            return _fields_from_json(cast("dict[str, object]", tree[extended.LITERAL]))
        found = extended.read(tree)
        if found is not extended.NO_FORM:
            return cast(Value, found)
    return _fields_from_json(tree)


def _fields_to_json(fields: Mapping[str, object]) -> dict[str, object]:
    if not _STRINGS.issuperset(map(type, fields)):
        fields = {_name(key): one for key, one in fields.items()}
    return {key: one if type(one) in _PLAIN else to_json(one) for key, one in fields.items()}


def _map_to_json(fields: dict[str, object]) -> object:
    """A map; put in a literal if it would be read as something else."""
    tree = _fields_to_json(fields)
    if extended.looks_extended(tree) and (
        extended.is_literal(tree) or extended.read(tree) is not extended.NO_FORM
    ):
        return {extended.LITERAL: tree}
    return tree


def _fields_from_json(tree: dict[str, object]) -> Document:
    return {key: cast(Value, one) if type(one) in _LEAVES else from_json(one) for key, one in tree.items()}


def _name(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"the key {_shown(key)} is not a string")
    return str.__str__(key)


def _as_base(value: object) -> object:
    """A value of a subclass that holds no more than its base does; dates are not among them."""
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"{_shown(value)} is no value that a message can hold")


def _encoded(as_json: Callable[[T], object], value: T) -> bytes:
    try:
        tree = as_json(value)
        try:
            return _write(tree)
        except UnicodeEncodeError:
            raise
        except ValueError:  # more digits than Python turns an int into
            return _write(_with_long_numbers(tree))
    except RecursionError:
        raise ValuesError("the value is nested too deeply, or holds itself") from None
    except (TypeError, ValueError) as error:
        where, reason = _culprit(value, error)
        raise ValuesError(f"at {where}: {reason}" if where else str(reason)) from None


def _with_long_numbers(tree: object) -> object:
    if isinstance(tree, dict):
        return {key: _with_long_numbers(one) for key, one in tree.items()}
    if isinstance(tree, list):
        return [_with_long_numbers(one) for one in tree]
    return Decimal(tree) if type(tree) is int else tree


def _culprit(value: object, reason: Exception, where: str = "") -> tuple[str, Exception]:
    """Which part of a value has no text: it is asked for part by part."""
    inside: list[tuple[str, object]] = []
    if isinstance(value, Mapping):
        inside = [(f"{where}.{key}" if where else str(key), one) for key, one in value.items()]
    elif isinstance(value, (list, tuple)):
        inside = [(f"{where}[{index}]", one) for index, one in enumerate(value)]
    for place, one in inside:
        try:
            _write(_with_long_numbers(to_json(one)))
        except (TypeError, ValueError) as error:
            return _culprit(one, error, place)
    return where, reason


def _number(text: str) -> float | Decimal:
    """A number with a fraction or an exponent: a float if that is the same number."""
    number = float(text)
    if len(text) <= 16 and "e" not in text and "E" not in text:
        return number  # fifteen digits at most, which every float keeps
    shortest = repr(number)
    if shortest == text:
        return number
    exact = Decimal(text)
    return number if Decimal(shortest) == exact else exact


_read = msgspec.json.Decoder(float_hook=_number).decode
_read_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


_UNREADABLE = (msgspec.DecodeError, ValueError, InvalidOperation, RecursionError)
"""What a text can be refused with."""


def _unreadable(error: Exception) -> ValuesError:
    if isinstance(error, InvalidOperation):
        return ValuesError("a number is larger or smaller than a Decimal can be")
    if isinstance(error, RecursionError):
        return ValuesError("the text is nested too deeply")
    if isinstance(error, msgspec.ValidationError):
        return ValuesError(f"not a document: {error}".replace("`", ""))
    return ValuesError(f"not JSON: {error}")


def _parsed(text: bytes | str) -> object:
    try:
        return _read(text)
    except msgspec.ValidationError:
        # Without a type there is one reason: more digits than Python is willing to make an int of.
        return json.loads(text, parse_int=_long_integer, parse_float=_number, parse_constant=_no_constant)


def _long_integer(digits: str) -> int | Decimal:
    try:
        return int(digits)
    except ValueError:
        return Decimal(digits)


def _no_constant(word: str) -> Value:
    raise ValueError(f"{word} is not JSON")


def _may_be_extended(text: bytes | str) -> bool:
    """Whether a key of the text can begin with `$`; if not, the text has no extended forms."""
    if isinstance(text, str):
        return '"$' in text or "\\u0024" in text
    return b'"$' in text or b"\\u0024" in text


Reader: TypeAlias = "Callable[[bytes], Value]"


@lru_cache(maxsize=256)
def _readers_of(schema: Schema) -> Mapping[str, Reader]:
    """How to read the fields whose text does not tell all by itself."""
    found = {field.name: _reader_of(field) for field in schema.fields}
    return {name: reader for name, reader in found.items() if reader is not None}


def _reader_of(field: Field) -> Reader | None:
    item = _TYPED.get(field.items) if field.items is not None else None
    if field.kind is not Kind.LIST or item is None:
        return _TYPED.get(field.kind)
    return lambda text: _items(text, item)


def _items(text: bytes, item: Reader) -> Value:
    if not text.startswith(b"["):
        return _as_read(text)
    return [item(bytes(raw)) for raw in _read_items(text)]


def _as_read(text: bytes | str) -> Value:
    tree = _parsed(text)
    return from_json(tree) if _may_be_extended(text) else cast(Value, tree)


def _as_float(text: bytes) -> Value:
    if text[0] not in _NUMBER:
        return _as_read(text)
    return float_of(text)


def float_of(text: bytes) -> float | int | Decimal:
    """The number of a JSON text as a float; as what it is where no float is that large, or the same whole number."""
    number = float(text)
    if number - number != 0.0:
        return Decimal(text.decode())
    whole = len(text) > _FLOAT_DIGITS and text.lstrip(b"-").isdigit()
    return number if not whole or is_float(int(text)) else int(text)


def is_float(whole: int) -> bool:
    """Whether a float is this number, or is written so: 1e23 is a little less than its digits say."""
    try:
        number = float(whole)
    except OverflowError:
        return False
    return whole == int(number) or whole == Decimal(repr(number))


def _as_decimal(text: bytes) -> Value:
    return Decimal(text.decode()) if text[0] in _NUMBER else _as_read(text)


_TYPED: Mapping[Kind, Reader] = {Kind.FLOAT: _as_float, Kind.DECIMAL: _as_decimal}


def _shown(value: object) -> str:
    """A value for an error: its type, and as much of it as fits."""
    text = repr(value)
    return f"{text[:60]}{'…' if len(text) > 60 else ''} ({type(value).__name__})"
