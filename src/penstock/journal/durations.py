"""Durations as Go writes them, `1h30m0s`, which is how journal specs and Gazette's tools spell them.

The value is a whole number of nanoseconds that fits 63 bits, as Go's. What `format_duration` prints,
`parse_duration` reads back as the same number.
"""

from __future__ import annotations

import re

from google.protobuf.duration_pb2 import Duration

from penstock.journal.tokens import ValidationError

SECOND = 10**9
_LIMIT = 1 << 63

_UNITS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,  # the micro sign
    "μs": 10**3,  # the Greek letter
    "ms": 10**6,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": 3600 * SECOND,
}
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)")


def parse_duration(text: str) -> int:
    """Nanoseconds of a Go duration such as `1m0s`, `1h30m` or `1.5s`; `0` needs no unit."""
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return 0
    total = position = 0
    while position < len(rest):
        part = _PART.match(rest, position)
        if part is None or not (part[1] or part[2]):
            raise _refused(text)
        total += _nanoseconds(part[1], part[2] or "", _UNITS[part[3]])
        position = part.end()
    if not rest or total >= _LIMIT:
        raise _refused(text)
    return sign * total


def _nanoseconds(whole: str, fraction: str, unit: int) -> int:
    """Digits beyond a nanosecond are dropped, as Go does."""
    return int(whole or "0") * unit + (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)


def _refused(text: str) -> ValidationError:
    return ValidationError(f"not a duration ({text}; expected one such as 30s, 1m0s, 1h30m or 500ms)")


def format_duration(nanoseconds: int) -> str:
    """As Go prints it: `1h30m0s`, `1m0s`, `1.5s`, `500ms`, `0s`."""
    if nanoseconds < 0:
        return "-" + format_duration(-nanoseconds)
    if nanoseconds == 0:
        return "0s"
    if nanoseconds < SECOND:
        unit = next(unit for unit in ("ms", "µs", "ns") if nanoseconds >= _UNITS[unit])
        return f"{_decimal(nanoseconds, _UNITS[unit])}{unit}"
    minutes, rest = divmod(nanoseconds, 60 * SECOND)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{_decimal(rest, SECOND)}s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    if not rest:
        return str(whole)
    return f"{whole}.{rest:0{len(str(unit)) - 1}}".rstrip("0")


def to_proto(nanoseconds: int) -> Duration:
    """The wire's duration; seconds and nanoseconds have the same sign."""
    sign = -1 if nanoseconds < 0 else 1
    seconds, rest = divmod(abs(nanoseconds), SECOND)
    return Duration(seconds=sign * seconds, nanos=sign * rest)
