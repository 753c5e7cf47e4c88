"""What a version of a table changed, from rows that are gone and rows that are new: as inserts, updates and deletes.

With a key, a row that is new is an update if another one under its key is gone, and a row that is gone is a delete if
nothing is under its key. Without one, all that are gone are deletes, and all that are new are inserts. Deletes
come first, and the order is the same each time.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.adaptors.lake.chunks import OP
from penstock.adaptors.lake.frames import quoted, quoted_all
from penstock.adaptors.lake.session import Frame
from penstock.log.message import Op

_GONE, _GONE_THERE, _NEW_THERE, _HASH = (
    "_penstock_gone",
    "_penstock_gone_there",
    "_penstock_new_there",
    "_penstock_hash",
)


def changes_of(feed: Frame, gone: str, key: Sequence[str], drop: Sequence[str]) -> Frame:
    """The changes in a feed. `gone` is the condition of rows that are gone, `drop` are columns of the feed itself."""
    names = [name for name in feed.columns if name not in drop]
    feed = feed.selectExpr(*map(quoted, names), f"{gone} AS {_GONE}")
    op = f"CASE WHEN {_GONE} THEN {int(Op.DELETE)} ELSE {int(Op.INSERT)} END"
    if key:
        window = f"OVER (PARTITION BY {quoted_all(key)})"
        both = [
            f"bool_or({_GONE}) {window} AS {_GONE_THERE}",
            f"bool_or(NOT {_GONE}) {window} AS {_NEW_THERE}",
        ]
        feed = feed.selectExpr("*", *both).where(f"NOT ({_GONE} AND {_NEW_THERE})")
        written = f"CASE WHEN {_GONE_THERE} THEN {int(Op.UPDATE)} ELSE {int(Op.INSERT)} END"
        op = f"CASE WHEN {_GONE} THEN {int(Op.DELETE)} ELSE {written} END"
    by = list(map(quoted, key)) or [_HASH]
    hashed = [f"xxhash64({quoted_all(names)}) AS {_HASH}"] if not key else []
    rows = feed.selectExpr(
        *map(quoted, names), f"CAST({op} AS TINYINT) AS {OP}", *hashed, f"NOT {_GONE} AS {_GONE}"
    )
    return rows.orderBy(_GONE, *by).drop(_GONE, _HASH)
