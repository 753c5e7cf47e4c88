"""Durations as Go writes them, `1h30m0s`, which is how journal specs and Gazette's tools spell them.

The value is a whole number of nanoseconds that fits 63 bits, as Go's. What `format_duration` prints,
`parse_duration` reads back as the same number.
"""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from penstock.base.units import GO_UNITS, SECOND, nanoseconds
from penstock.journal.tokens import ValidationError

_LIMIT = 1 << 63


def parse_duration(text: str) -> int:
    """Nanoseconds of a Go duration such as `1m0s`, `1h30m` or `1.5s`; `0` needs no unit."""
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    try:
        total = nanoseconds(rest, GO_UNITS)
    except ValueError:
        raise _refused(text) from None
    if total >= _LIMIT:
        raise _refused(text)
    return sign * total


def _refused(text: str) -> ValidationError:
    return ValidationError(f"not a duration ({text}; expected one such as 30s, 1m0s, 1h30m or 500ms)")


def format_duration(nanoseconds: int) -> str:
    """As Go prints it: `1h30m0s`, `1m0s`, `1.5s`, `500ms`, `0s`."""
    if nanoseconds < 0:
        return "-" + format_duration(-nanoseconds)
    if nanoseconds == 0:
        return "0s"
    if nanoseconds < SECOND:
        unit = next(unit for unit in ("ms", "µs", "ns") if nanoseconds >= GO_UNITS[unit])
        return f"{_decimal(nanoseconds, GO_UNITS[unit])}{unit}"
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
