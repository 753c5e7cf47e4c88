"""BSON and the text of messages: every type goes there and comes back as what it was.

    BSON                        text                                          back in BSON
    double                      a number with a point or an exponent; NaN     double
                                and infinities as {"$numberDouble": …}
    int32, int64                a number                                      int32 if it fits, else int64
    int64 with numbers="typed"  {"$numberLong": "5"} if int32 could hold it   int64
    decimal128                  {"$numberDecimal": "1.50"}                    decimal128
    date                        {"$date": "2026-11-16T02:14:14.123Z"}; beyond date
                                the years 1 to 9999 {"$date": {"$numberLong": "ms"}}
    binary, subtype 4, 16 long  {"$uuid": "…"}                                binary, subtype 4
    binary                      {"$binary": {"base64": …, "subType": "80"}}   binary of the subtype
    objectId, timestamp, regex  {"$oid": …}, {"$timestamp": …}, {"$regex": …, "$options": …}
    minKey, maxKey, undefined   {"$minKey": 1}, {"$maxKey": 1}, {"$undefined": true}; the driver reads undefined as null
    code                        {"$code": …}, with a scope {"$code": …, "$scope": {…}}
    dbRef                       the map that it is: {"$ref": …, "$id": …}

A map that only looks like one of these stands in {"$literal": …}. The order of fields is kept.

Other sources bring values that BSON has no type for: a date or a local timestamp becomes a BSON date in UTC, a time
of day its text, an integer beyond 64 bits a decimal128. A BSON date counts milliseconds: finer times are cut, or
kept as text if the setting `times` says so.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from types import NoneType
from typing import Any
from uuid import UUID

import msgspec

from penstock.adaptors.needs import need
from penstock.log import extended
from penstock.log.schema import Kind, Schema
from penstock.log.values import ValuesError, float_of

_INT32 = 1 << 31
_INT64 = 1 << 63
_OWN = frozenset({"$minKey", "$maxKey", "$undefined", "$code", "$symbol"})
"""Forms of extended JSON beside those that every message knows."""

_encode = msgspec.json.Encoder(decimal_format="number").encode


class Writer:
    """BSON to text."""

    def __init__(self, typed_numbers: bool) -> None:
        self._writers = _writers(typed_numbers)

    def document(self, document: Mapping[str, Any]) -> bytes:
        return _encode({name: self.value(one) for name, one in document.items()})

    def key(self, id: object) -> bytes:
        return _encode({"_id": self.value(id)})

    def value(self, value: Any) -> object:
        kind = type(value)
        if kind is dict:
            return self._map(value)
        if kind is list:
            return [self.value(one) for one in value]
        writer = self._writers.get(kind)
        if writer is None:
            return self._scoped(value)
        return writer(value)

    def _map(self, value: Mapping[str, Any]) -> object:
        tree = {name: self.value(one) for name, one in value.items()}
        return {extended.LITERAL: tree} if _is_form(tree) else tree

    def _scoped(self, value: Any) -> object:
        """What holds more values: code with its scope, and references."""
        if isinstance(value, str) and hasattr(value, "scope"):
            code = {"$code": str.__str__(value)}
            return code if value.scope is None else {**code, "$scope": self._fields(value.scope)}
        if hasattr(value, "as_doc"):
            return self._fields(value.as_doc())
        raise ValuesError(f"{type(value).__name__} is no value of BSON")

    def _fields(self, fields: Mapping[str, Any]) -> object:
        return {name: self.value(one) for name, one in fields.items()}


def _is_form(tree: Mapping[str, object]) -> bool:
    """Whether a map would be read as something else."""
    if not extended.looks_extended(tree):
        return False
    return (
        extended.is_literal(tree) or next(iter(tree)) in _OWN or extended.read(tree) is not extended.NO_FORM
    )


def _writers(typed: bool) -> Mapping[type, Callable[[Any], object]]:
    bson = need("bson", "mongodb")

    def same(value: object) -> object:
        return value

    def long(value: int) -> object:
        return {"$numberLong": str(int(value))} if typed and -_INT32 <= value < _INT32 else int(value)

    def binary(value: Any) -> object:
        if value.subtype == 4 and len(value) == 16:
            return {"$uuid": str(UUID(bytes=bytes(value)))}
        return {"$binary": {"base64": base64.b64encode(value).decode(), "subType": f"{value.subtype:02x}"}}

    def regex(value: Any) -> object:
        return {"$regex": value.pattern, "$options": _options(value.flags)}

    return {
        NoneType: same, bool: same, int: same, str: same,
        float: extended.write_float,
        bytes: extended.write_bytes,
        dt.datetime: extended.write_moment,
        bson.Int64: long,
        bson.Decimal128: lambda value: {"$numberDecimal": str(value)},
        bson.Binary: binary,
        bson.ObjectId: lambda value: {"$oid": str(value)},
        bson.Timestamp: lambda value: {"$timestamp": {"t": value.time, "i": value.inc}},
        bson.Regex: regex,
        bson.MinKey: lambda value: {"$minKey": 1},
        bson.MaxKey: lambda value: {"$maxKey": 1},
        bson.DatetimeMS: lambda value: {"$date": {"$numberLong": str(int(value))}},
    }  # fmt: skip


_FLAGS = (("i", 2), ("l", 4), ("m", 8), ("s", 16), ("u", 32), ("x", 64))


def _options(flags: int) -> str:
    return "".join(letter for letter, flag in _FLAGS if flags & flag)


class Reader:
    """Text to BSON. What has no place there is a `ValuesError`."""

    def __init__(self, times: str) -> None:
        self._bson = need("bson", "mongodb")
        self._text_times = times == "text"

    def document(self, text: bytes | str, schema: Schema | None = None) -> dict[str, Any]:
        """The fields of a message's data; a schema tells decimals from floats."""
        try:
            fields = _fields(text)
            kinds = {field.name: field.kind for field in schema.fields} if schema is not None else {}
            return {name: self._field(bytes(raw), kinds.get(name)) for name, raw in fields.items()}
        except (msgspec.DecodeError, ArithmeticError, ValueError, RecursionError) as error:
            raise ValuesError(f"not a document: {error}") from None

    def _field(self, raw: bytes, kind: Kind | None) -> Any:
        if raw[0] in b"-0123456789":
            if kind is Kind.DECIMAL:
                return self._decimal(Decimal(raw.decode()))
            if kind is Kind.FLOAT:
                return self.value(float_of(raw))
        return self.value(_tree(raw))

    def value(self, tree: Any) -> Any:
        kind = type(tree)
        if kind is int:
            return self._integer(tree)
        if kind is Decimal:
            return self._decimal(tree)
        if kind is list:
            return [self.value(one) for one in tree]
        if kind is not dict:
            return tree
        if extended.looks_extended(tree):
            if extended.is_literal(tree):
                return {name: self.value(one) for name, one in tree[extended.LITERAL].items()}
            found = self._form(tree)
            if found is not extended.NO_FORM:
                return found
        return {name: self.value(one) for name, one in tree.items()}

    def _form(self, tree: dict[str, Any]) -> Any:
        name = next(iter(tree))
        if name in _OWN:
            return self._own(name, tree)
        if len(tree) == 1 and name == "$numberLong":
            return self._long(extended.read(tree))
        found = extended.read(tree)
        if found is extended.NO_FORM:
            return self._far_date(tree) if name == "$date" and len(tree) == 1 else found
        return self._typed(found)

    def _long(self, value: object) -> Any:
        if not isinstance(value, int):
            return extended.NO_FORM
        return self._bson.Int64(value) if -_INT64 <= value < _INT64 else self._integer(value)

    def _own(self, name: str, tree: dict[str, Any]) -> Any:
        bson, content = self._bson, tree[name]
        if name == "$code" and isinstance(content, str):
            scope = tree.get("$scope")
            if len(tree) == 1:
                return bson.Code(content)
            return bson.Code(content, self.value(scope)) if isinstance(scope, dict) else extended.NO_FORM
        if len(tree) != 1:
            return extended.NO_FORM
        if name == "$symbol":
            return content if isinstance(content, str) else extended.NO_FORM
        if name == "$undefined":
            return None if content is True else extended.NO_FORM
        if content != 1:
            return extended.NO_FORM
        return bson.MinKey() if name == "$minKey" else bson.MaxKey()

    def _far_date(self, tree: dict[str, Any]) -> Any:
        """A date beyond Python's years, in milliseconds."""
        content = tree["$date"]
        milliseconds = (
            content.get("$numberLong") if isinstance(content, dict) and len(content) == 1 else content
        )
        try:
            value = int(milliseconds) if isinstance(milliseconds, (str, int)) else None
        except ValueError:
            value = None
        if value is None or not -_INT64 <= value < _INT64:
            return extended.NO_FORM
        return self._bson.DatetimeMS(value)

    def _typed(self, value: Any) -> Any:
        bson = self._bson
        match value:
            case Decimal():
                return self._decimal(value)
            case dt.datetime() | dt.date() | dt.time():
                return self._time(value)
            case UUID():
                return bson.Binary(value.bytes, 4)
            case extended.ObjectId():
                return bson.ObjectId(value.hex)
            case extended.Binary():
                return bson.Binary(value.data, value.subtype)
            case extended.Timestamp():
                return bson.Timestamp(value.t, value.i)
            case extended.Regex():
                return bson.Regex(value.pattern, sum(f for letter, f in _FLAGS if letter in value.options))
            case int():
                return self._integer(value)
        return value

    def _time(self, value: dt.datetime | dt.date | dt.time) -> Any:
        if self._text_times or isinstance(value, dt.time):
            return value.isoformat()
        if not isinstance(value, dt.datetime):
            value = dt.datetime.combine(value, dt.time())
        return value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)

    def _integer(self, value: int) -> Any:
        if -_INT32 <= value < _INT32:
            return value
        return self._bson.Int64(value) if -_INT64 <= value < _INT64 else self._decimal(Decimal(value))

    def _decimal(self, value: Decimal) -> Any:
        try:
            found = self._bson.Decimal128(value)
        except ArithmeticError:
            found = None
        if found is None or (value.is_finite() and found.to_decimal() != value):
            raise ValuesError(f"{str(value)[:60]} has more digits than the 34 of a BSON decimal")
        return found


def _number(text: str) -> float | Decimal:
    """A number with a point or an exponent: a double if that is the same number."""
    number = float(text)
    return number if Decimal(repr(number)) == Decimal(text) else Decimal(text)


_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_tree = msgspec.json.Decoder(float_hook=_number).decode
