"""Sizes and durations as people write them: `64MB`, `1.5GiB`, `30s`, `1h30m`, `7d`.

A size is a number with a unit: `B`, the decimal `kB`, `MB`, `GB`, `TB` (1 GB is 1,000,000,000 bytes) or the binary
`KiB`, `MiB`, `GiB`, `TiB` (1 GiB is 1,073,741,824). Case does not matter, a blank before the unit may stand. A
number alone, or one without a unit in text, counts bytes.

A duration is one or more numbers with units, the largest first or not: `ms`, `s`, `m`, `h`, `d`, and the `us` and
`ns` of Go. A number alone counts seconds; in text a unit must stand, since `30` may mean minutes to the next reader.

What cannot be read is a `ValueError` that says what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

SECOND = 10**9
"""In nanoseconds, the unit in which durations are added up."""

GO_UNITS: Mapping[str, int] = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,  # the micro sign
    "μs": 10**3,  # the Greek letter
    "ms": 10**6,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": 3600 * SECOND,
}
"""Those of Go, which has no days."""

_DURATION_UNITS = {**GO_UNITS, "d": 24 * 3600 * SECOND}
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?([a-zµμ]+)")

_SIZE_UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}
_SIZE = re.compile(r"([0-9][0-9_]*)(?:\.([0-9]+))? ?([A-Za-z]*)")


class Unit(Enum):
    """What the number of a setting counts, and so how its text is read."""

    BYTES = "bytes"
    SECONDS = "seconds"

    def parse(self, text: str) -> int | float:
        return parse_size(text) if self is Unit.BYTES else parse_duration(text)


def parse_size(text: str) -> int:
    """Bytes of a size such as `64MB` or `1.5 GiB`."""
    found = _SIZE.fullmatch(text.strip())
    unit = _SIZE_UNITS.get(found[3].lower()) if found else None
    if found is None or unit is None:
        raise ValueError(f"expected a size such as 64MB, 1GB or 512MiB, got '{text}'")
    return scaled(found[1].replace("_", ""), found[2] or "", unit)


def parse_duration(text: str) -> float:
    """Seconds of a duration such as `30s`, `1h30m`, `500ms` or `7d`."""
    try:
        return nanoseconds(text.strip(), _DURATION_UNITS) / SECOND
    except ValueError:
        raise ValueError(f"expected a duration such as 500ms, 30s, 1h30m or 7d, got '{text}'") from None


def nanoseconds(text: str, units: Mapping[str, int] = _DURATION_UNITS) -> int:
    """The whole nanoseconds of numbers with `units`; `0` needs none. Digits beyond a nanosecond are dropped."""
    if text == "0":
        return 0
    total = position = 0
    while position < len(text):
        part = _PART.match(text, position)
        if part is None or not (part[1] or part[2]) or part[3] not in units:
            raise ValueError(f"not a duration ({text})")
        total += scaled(part[1], part[2] or "", units[part[3]])
        position = part.end()
    if not text:
        raise ValueError("not a duration (no text)")
    return total


def scaled(whole: str, fraction: str, unit: int) -> int:
    """The decimal `whole.fraction` times `unit`, in whole numbers; what is left over is dropped."""
    return int(whole or "0") * unit + (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)


def size_text(count: int) -> str:
    """A size as `parse_size` reads it back exactly, in the largest unit that divides it."""
    if count <= 0:
        return f"{count}B"
    names = {"TiB": 1024**4, "TB": 1000**4, "GiB": 1024**3, "GB": 1000**3, "MiB": 1024**2, "MB": 1000**2}
    names |= {"KiB": 1024, "kB": 1000, "B": 1}
    unit = next(name for name, size in names.items() if count % size == 0)
    return f"{count // names[unit]}{unit}"


def rough_size(count: int) -> str:
    """A size for a person to read: three digits or so, and the unit that fits."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


def duration_text(seconds: float) -> str:
    """A duration as `parse_duration` reads it back, in the largest unit that divides it."""
    rest = round(seconds * SECOND)
    for unit in ("d", "h", "m", "s", "ms", "us"):
        if rest and rest % _DURATION_UNITS[unit] == 0:
            return f"{rest // _DURATION_UNITS[unit]}{unit}"
    return f"{rest}ns" if rest else "0s"


def counted(number: int, thing: str) -> str:
    """`1 byte`, `2 bytes`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
