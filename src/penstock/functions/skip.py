"""`skip`: let a message pass if one of its fields passes a test (Transporter reference, section 5).

Despite its name, which is the original's, it **keeps** the message when the test holds and drops it when not.

    operator              holds when                            cannot decide (the message is refused)
    ==  eq  $eq           the value equals `match`, deeply      -
    =~                    the pattern `match` is found in it    the value is not a string
    >   gt  $gt           the number is greater than `match`    the value is neither a number nor a
    >=  gte $gte  and so on for  <  lt  $lt  and  <=  lte $lte  string that holds one

Equality does not convert: 10 equals 10.0 but not "10", true does not equal 1; a missing field equals null.
Numbers are compared as the decimals they are written as, of any size and with all their digits.

Not as in the original: operator, pattern and `match` are checked when the pipeline file is read; a value of
the wrong kind refuses the message instead of ending the process; numbers above 2^53 keep their last digits;
"NaN", "inf" and hexadecimal strings are not numbers; a pattern keeps to what Python's, Java's and Go's engines
read alike, as namespace patterns do (`penstock.base.patterns`).
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, DecimalException
from functools import cached_property
from typing import ClassVar, Protocol

import msgspec

from penstock.base.errors import did_you_mean
from penstock.base.patterns import checked_pattern, found
from penstock.base.settings import setting
from penstock.functions.base import FunctionError
from penstock.functions.kinds import NOT_AN_OBJECT, TextFunction, not_an_object, value_reader_of

_COMPARISONS: dict[str, Callable[[Decimal, Decimal], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_OTHER_SPELLINGS = {
    "eq": "==", "gt": ">", "gte": ">=", "lt": "<", "lte": "<=",
    "$eq": "==", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<=",
}  # fmt: skip
OPERATORS = ("==", "=~", *_COMPARISONS, *_OTHER_SPELLINGS)

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_KINDS = {"t": "true", "f": "false", "n": "null", "[": "a list", "{": "an object", '"': "a string"}

_decode = msgspec.json.Decoder(float_hook=Decimal).decode
_decode_string = msgspec.json.Decoder(str).decode


@dataclass(frozen=True)
class Skip(TextFunction):
    """Keeps a message whose field passes a test."""

    name: ClassVar[str] = "skip"
    description: ClassVar[str] = "keep the messages whose field passes a test, drop the others"

    field: str = setting("name of the field to test", example="total")
    operator: str = setting(f"one of {' '.join(OPERATORS)}", example=">")
    match: object = setting("what to test against", example=10)

    def __post_init__(self) -> None:
        self._test  # noqa: B018 - made now, so that a bad pattern is refused at load

    def rewrite(self, text: bytes) -> bytes | None:
        try:
            value = self._read(text)
        except NOT_AN_OBJECT as error:
            raise not_an_object(error) from None
        return text if self._test.holds(self.field, value) else None

    @cached_property
    def _read(self) -> Callable[[bytes], msgspec.Raw]:
        return value_reader_of(self.field)

    @cached_property
    def _test(self) -> _Test:
        sign = _OTHER_SPELLINGS.get(self.operator, self.operator)
        if sign == "==":
            return _Equals(_exact(self.match))
        if sign == "=~":
            return _Finds(_pattern(self.match))
        if sign in _COMPARISONS:
            return _Compares(self.operator, _COMPARISONS[sign], _limit(self.match))
        raise ValueError(
            f"setting 'operator': unknown operator '{self.operator}'{did_you_mean(self.operator, OPERATORS)}"
        )


class _Test(Protocol):
    def holds(self, field: str, value: msgspec.Raw) -> bool: ...


@dataclass(frozen=True)
class _Equals:
    match: object

    def holds(self, field: str, value: msgspec.Raw) -> bool:
        try:
            return _same(_decode(value), self.match)
        except (msgspec.DecodeError, DecimalException) as error:
            raise FunctionError(f"field '{field}': the value cannot be compared: {error}") from None


@dataclass(frozen=True)
class _Finds:
    pattern: str

    def holds(self, field: str, value: msgspec.Raw) -> bool:
        text = bytes(value)
        if not text.startswith(b'"'):
            raise FunctionError(f"field '{field}': '=~' wants a string, the value is {_kind(text)}")
        return found(self.pattern, _string(field, text))


@dataclass(frozen=True)
class _Compares:
    sign: str
    compare: Callable[[Decimal, Decimal], bool]
    limit: Decimal

    def holds(self, field: str, value: msgspec.Raw) -> bool:
        text = bytes(value)
        written = _string(field, text) if text.startswith(b'"') else text.decode()
        number = _number(written)
        if number is None:
            kind = _kind(text)
            raise FunctionError(
                f"field '{field}': incompatible type: '{self.sign}' wants a number, the value is {kind}"
            )
        return self.compare(number, self.limit)


def _same(value: object, match: object) -> bool:
    """Deep equality of JSON values, in which true is not 1."""
    if isinstance(value, bool) or isinstance(match, bool):
        return value is match
    if isinstance(value, dict) and isinstance(match, dict):
        return value.keys() == match.keys() and all(_same(value[key], match[key]) for key in match)
    if isinstance(value, list) and isinstance(match, list):
        return len(value) == len(match) and all(map(_same, value, match))
    return value == match


def _exact(match: object) -> object:
    """The setting as the decoder would have read it: fractions as decimals."""
    if match is None or isinstance(match, (bool, int, str)):
        return match
    if isinstance(match, float) and math.isfinite(match):
        return Decimal(repr(match))
    if isinstance(match, (list, tuple)):
        return [_exact(item) for item in match]
    if isinstance(match, dict) and all(isinstance(key, str) for key in match):
        return {key: _exact(value) for key, value in match.items()}
    raise ValueError(f"setting 'match': expected a JSON value, got {match!r}")


def _pattern(match: object) -> str:
    if not isinstance(match, str):
        raise ValueError(f"setting 'match': '=~' wants a pattern, got {match!r}")
    return checked_pattern(match, "function 'skip': setting 'match': bad pattern")


def _limit(match: object) -> Decimal:
    number = None
    if isinstance(match, (int, float, str)) and not isinstance(match, bool):
        number = _number(str(match))
    if number is None:
        raise ValueError(f"setting 'match': a comparison wants a number, got {match!r}")
    return number


def _number(text: str) -> Decimal | None:
    if not _NUMBER.fullmatch(text):
        return None
    try:
        return Decimal(text)
    except DecimalException:  # an exponent of twenty digits
        return None


def _string(field: str, text: bytes) -> str:
    try:
        return _decode_string(text)
    except msgspec.DecodeError as error:
        raise FunctionError(f"field '{field}': the string cannot be read: {error}") from None


def _kind(text: bytes) -> str:
    """What a value is, in words, with as much of its text as helps."""
    shown = text[:40].decode(errors="replace") + ("…" if len(text) > 40 else "")
    kind = _KINDS.get(shown[:1], "a number")
    return kind if kind in ("true", "false", "null") else f"{kind}, {shown}"
