"""Columns of dates, times and timestamps as ISO 8601, digit for digit as `penstock.log.extended` writes them.

Seconds without a fraction have none in the text; a fraction has six digits, and nine where nanoseconds need them.
Years before 1 and after 9999 are written with their sign and digits: they are read as text, not as dates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.adaptors.columns import textarrays as ta
from penstock.base.errors import PenstockError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def dates(array: pa.Array) -> pa.Array:
    import pyarrow as pa

    return ta.as_texts(array.cast(pa.date32()))


def times(array: pa.Array) -> pa.Array:
    """Times of day, `02:14:14.123456`."""
    import pyarrow as pa

    whole, fraction = _split(array)
    return _with_fraction(ta.as_texts(pa.array(whole, pa.int32()).cast(pa.time32("s"))), fraction)


def moments(array: pa.Array) -> pa.Array:
    """Timestamps, in UTC if they have a zone, `2026-11-16T02:14:14.123456`; nothing behind it for the zone."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole, fraction = _split(array)
    text = ta.as_texts(pa.array(whole).cast(pa.timestamp("s")))
    if pc.any(pc.starts_with(text, b"<")).as_py():
        raise PenstockError("a timestamp further away than a calendar goes", hint="mend it at the source")
    return _with_fraction(pc.replace_substring(text, b" ", b"T", max_replacements=1), fraction)


def _split(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Whole seconds, and nanoseconds behind them; 0 for nulls."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    per_second = _PER_SECOND[array.type.unit]
    narrow = pa.types.is_time32(array.type)
    counted = array.cast(pa.int32()).cast(pa.int64()) if narrow else array.cast(pa.int64())
    whole, fraction = np.divmod(pc.fill_null(counted, 0).to_numpy(), per_second)
    return whole, fraction * (1_000_000_000 // per_second)


def _with_fraction(text: pa.Array, fraction: npt.NDArray[np.int64]) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not fraction.any():
        return text
    fine = fraction % 1000
    digits = ta.joined([b".", ta.padded(fraction // 1000, 6)], len(text))
    if fine.any():
        digits = pc.if_else(pa.array(fine != 0), ta.joined([b".", ta.padded(fraction, 9)], len(text)), digits)
    return ta.joined([text, pc.if_else(pa.array(fraction != 0), digits, ta.constant(b""))], len(text))
