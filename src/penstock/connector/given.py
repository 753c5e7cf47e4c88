"""What `read` gave, looked at before any of it is sent; and once more, closely, if it could not be.

Ids must grow from record to record and from one `read` to the next, until there is a `seek`: a worker drops what does
not as a repeat, and acknowledges what came after it. That is one comparison a record. Whatever else no frame can carry
fails where its bytes are made; `fault` finds the record then.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Sequence
from struct import error as StructError  # noqa: N812
from typing import Final

import numpy as np

from penstock.connector.columns import Columns
from penstock.connector.frames import NOTHING_SEEN, Unsendable
from penstock.connector.link import Fields

UNSENDABLE: Final = (Unsendable, StructError, TypeError, ValueError, OverflowError)
"""What looking at records and making their bytes raises, if the records are at fault."""

MANY: Final = 256
"""So many records cost less as columns, though they must be taken apart for that."""


def together(records: Sequence[Fields]) -> Sequence[Fields]:
    """Many records as columns; as they are where those make none, so that the record is found that is at fault."""
    if len(records) < MANY or isinstance(records, Columns):
        return records
    try:
        # One list after the other: `zip` makes an iterator of each record, which is work for the garbage collector.
        ids = [number for number, _, _, _ in records]
        bodies = [each[1] for each in records]
        keys = [each[2] or b"" for each in records]
        times = np.frombuffer(array("q", [each[3] for each in records]), np.int64)
        return Columns(ids, bodies, keys=keys if any(keys) else None, times=times if times.any() else None)
    except (*UNSENDABLE, LookupError):
        return records


def last_id(records: Sequence[Fields], last: int) -> int:
    """The last of their ids, which grow from `last` on; -1 is before all. Raises one of `UNSENDABLE`."""
    if isinstance(records, Columns):
        ids = records.ids
        if int(ids[0]) <= last or not (ids[1:] > ids[:-1]).all():
            raise Unsendable("ids that do not grow")
        last = int(ids[-1])
    else:
        for number, _, _, _ in records:
            if number <= last:
                raise Unsendable("ids that do not grow")
            last = number
    if last == NOTHING_SEEN:  # they grow, so none before it is
        raise Unsendable("an id that stands for none")
    return last


def fault(records: object, last: int) -> str | None:
    """What is wrong with the first record that cannot be sent behind message `last`."""
    if not isinstance(records, Sequence):
        return f"`read` gives a list of records, and not one of type {type(records).__name__}"
    for place, record in enumerate(records):
        if not isinstance(record, (tuple, list)) or len(record) != 4:
            return f"record {place} of a `read` is {repr(record)[:80]}, and not id, body, key and time"
        number, body, key, time = record
        if not _is_whole(number, 0, NOTHING_SEEN):
            return f"record {place} of a `read` has the id {number!r}: ids are whole numbers from 0 to 2^64-2"
        if number == NOTHING_SEEN:
            return f"record {place} of a `read` has the id {number}, which stands for none at all"
        if number <= last:
            return f"message {number} comes behind message {last}: ids must grow, since repeats are dropped"
        if not _is_whole(time, -(1 << 63), (1 << 63) - 1):
            return f"message {number} has the time {time!r}: times are whole numbers of 64 bits"
        for what, value in (("body", body), ("key", b"" if key is None else key)):
            if not _is_bytes(value):
                return f"message {number} has a {what} of type {type(value).__name__}, and not bytes"
        last = number
    return None


def _is_whole(value: object, least: int, most: int) -> bool:
    try:
        return least <= operator.index(value) <= most  # type: ignore[arg-type]
    except TypeError:
        return False


def _is_bytes(value: object) -> bool:
    """Also a view, if its items are bytes: the length of others is not that of what would be written."""
    try:
        return memoryview(value).nbytes == len(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
