"""Any values that a message can hold, and when two of them are the same: for the tests of every leg of the way."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from hypothesis import strategies as st

from penstock.log.values import Binary, Document, ObjectId, Regex, Timestamp, Value

offsets = st.timedeltas(dt.timedelta(hours=-23, minutes=-59), dt.timedelta(hours=23, minutes=59)).map(
    dt.timezone
)
minutes = st.integers(-1439, 1439).map(lambda minute: dt.timezone(dt.timedelta(minutes=minute)))
zones = st.just(dt.UTC) | minutes | offsets

texts = st.text(st.characters(codec="utf-8"), max_size=12)
integers = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**40])
decimals = st.decimals() | st.decimals(allow_nan=False, allow_infinity=False, places=2)
scalars: st.SearchStrategy[Value] = st.one_of(
    st.none(), st.booleans(), integers, st.floats(), decimals, texts,
    st.binary(max_size=9), st.builds(Binary, st.binary(max_size=9), st.integers(1, 255)),
    st.dates(), st.times(), st.times(timezones=zones), st.datetimes(), st.datetimes(timezones=zones),
    st.uuids(), st.binary(min_size=12, max_size=12).map(lambda raw: ObjectId(raw.hex())),
    st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    st.builds(Regex, texts, texts),
)  # fmt: skip

DOLLARS = [
    "$", "$oid", "$date", "$binary", "$type", "$numberLong", "$numberDouble", "$numberDecimal", "$uuid", "$regex",
    "$options", "$timestamp", "$localDate", "$localTime", "$localTimestamp", "$literal", "$time", "$numberInt",
]  # fmt: skip
keys = texts | st.sampled_from(["", "t", "i", "base64", "subType", *DOLLARS])

LOOKALIKES: list[Value] = [
    "507f1f77bcf86cd799439011", "2026-11-16", "02:14:14", "2026-11-16T02:14:14", "2026-11-16T02:14:14Z", "NaN",
    "12", "AP8=", "04", "1.50", "1a2f65b0-ef76-4981-8290-2f6ea12912d6", "02:14:14+01:00", 1500000000000,
    {"t": 1, "i": 2}, {"base64": "AP8=", "subType": "00"}, {"$numberLong": "5"}, {"pattern": "a", "options": ""},
]  # fmt: skip
lookalikes: st.SearchStrategy[Value] = st.dictionaries(
    st.sampled_from(DOLLARS), st.sampled_from(LOOKALIKES), min_size=1, max_size=2
)
"""Maps that are maps, although their text would be that of something else."""

values: st.SearchStrategy[Value] = st.recursive(
    scalars | lookalikes,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
documents: st.SearchStrategy[Document] = st.dictionaries(keys, values, max_size=5)


def same(one: Value, other: Value) -> bool:
    """Equal, and of the same type, for the one exception that a decimal may come back as a number like it."""
    if not isinstance(one, Decimal) or not one.is_finite() or isinstance(other, bool):
        return identical(one, other)
    if not isinstance(other, (int, float, Decimal)):
        return False
    number = Decimal(repr(other)) if isinstance(other, float) else Decimal(other)
    return number == one and number.is_signed() == one.is_signed()


def identical(one: Value, other: Value) -> bool:
    """Equal, and of the same type and spelling, whatever is inside."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    if isinstance(one, (float, Decimal)):
        return repr(one) == repr(other)
    if isinstance(one, (dt.datetime, dt.time)) and isinstance(other, (dt.datetime, dt.time)):
        return one == other and one.utcoffset() == other.utcoffset()
    return one == other
