"""The order of `_id`: how to ask for the documents behind one, whatever the types are.

MongoDB sorts values of different types by type first. A comparison in a query, though, only finds values of the type
that it names: what is behind the number 5 are the larger numbers *and* everything of the types that come later.
"""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

from penstock.adaptors.needs import need
from penstock.base.errors import PenstockError

BRACKETS: tuple[tuple[str, ...], ...] = (
    ("minKey",),
    ("null",),
    ("int", "long", "double", "decimal"),
    ("string", "symbol"),
    ("object",),
    ("binData",),
    ("objectId",),
    ("bool",),
    ("date",),
    ("timestamp",),
    ("javascript", "javascriptWithScope"),
    ("maxKey",),
)
"""The types that an `_id` may have (not: arrays, regular expressions, undefined), in the order of BSON; those in one
bracket are compared with each other."""

RARE = frozenset({"symbol", "javascript", "javascriptWithScope"})
"""Types of which hardly anybody makes an `_id`, and which not every server knows."""

_NUMBERS = 2
_SINGLE = frozenset({0, 1, 11})
"""Brackets with one value each."""


def bracket_of(value: Any) -> int:
    """Where the type of a value stands in `BRACKETS`."""
    bson = need("bson", "mongodb")
    kinds: tuple[tuple[type, int], ...] = (
        (bson.MinKey, 0), (type(None), 1), (bool, 7), (int, 2), (float, 2), (bson.Decimal128, 2), (bson.Code, 10),
        (str, 3), (dict, 4), (bytes, 5), (bson.ObjectId, 6), (dt.datetime, 8), (bson.DatetimeMS, 8),
        (bson.Timestamp, 9), (bson.MaxKey, 11), (bson.DBRef, 4),
    )  # fmt: skip
    for kind, place in kinds:
        if isinstance(value, kind):
            return place
    raise PenstockError(f"an _id of the type {type(value).__name__} has no place in the order of BSON")


def behind(value: Any, rare: bool = False) -> dict[str, Any]:
    """The query for all documents whose `_id` comes after `value`; `rare` if there are some of the types in `RARE`."""
    place = bracket_of(value)
    later = [kind for bracket in BRACKETS[place + 1 :] for kind in bracket if rare or kind not in RARE]
    terms: list[dict[str, Any]] = [{"_id": _larger(value, place)}] if place not in _SINGLE else []
    if later:
        terms.append({"_id": {"$type": later}})
    return {"$or": terms} if terms else {"_id": {"$in": []}}


def up_to(value: Any, rare: bool = False) -> dict[str, Any]:
    """The query for all documents whose `_id` is `value` or comes before it."""
    place = bracket_of(value)
    earlier = [kind for bracket in BRACKETS[:place] for kind in bracket if rare or kind not in RARE]
    same: dict[str, Any] = {"$lte": value}
    if place in _SINGLE:
        same = {"$type": list(BRACKETS[place])}
    elif place == _NUMBERS and _is_nan(value):
        same = {"$eq": value}
    terms: list[dict[str, Any]] = [{"_id": same}]
    if earlier:
        terms.append({"_id": {"$type": earlier}})
    return {"$or": terms}


def _larger(value: Any, place: int) -> dict[str, Any]:
    if place == _NUMBERS and _is_nan(value):
        return {"$gte": -math.inf}  # nothing is larger than NaN, for a query; for the order all numbers are
    return {"$gt": value}


def _is_nan(value: Any) -> bool:
    return math.isnan(value.to_decimal() if hasattr(value, "to_decimal") else value)
