"""Units of the log: records that a sink gets in one batch, since they may be one transaction of the source (DESIGN 7).

What a source read in one go while it followed changes is a unit. A transaction that is too large for that comes in
several appends, all of them one unit. What was copied has no units: it may be cut anywhere. Each append of a unit
begins with a control record of no namespace, its mark:

    header {"unit": {"first": o, "size": n, "more": true}}

`first` is the offset of the first message behind it, `size` the number of bytes of the append that follow. With `more`
the unit goes on behind them, up to the end of the next append whose mark does not say so. Until that is there the unit
is open: the log may end so, after a crash for instance, and nobody is given what has no end.

Who begins to read within a unit (an operator has stepped a sink that far, say) finds the rest of it without a mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.base.disk import Buffer
from penstock.log import record as rec
from penstock.log.message import Mode, Op
from penstock.log.record import Record

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Mark(msgspec.Struct, frozen=True):
    """The begin of an append that belongs together."""

    first: int
    size: int
    more: bool = False


def encode_mark(mark: Mark, now: int) -> bytes:
    extra: dict[str, object] = {"unit": msgspec.to_builtins(mark)}
    return rec.encode(Record(-1, now, Mode.COPY, Op.NOOP, "", b"", extra=extra, control=True))


def mark_of(record: Record) -> Mark | None:
    """What a record says about a unit; None if it is no mark. A mark that does not read is a ValidationError."""
    if not record.control or record.ns or record.extra is None or "unit" not in record.extra:
        return None
    return msgspec.convert(record.extra["unit"], Mark)


def mark_at(buffer: Buffer, position: int, where: str, base: int = 0) -> Mark | None:
    """The mark at `position`, where a whole record begins; None if that is something else."""
    if rec.offset_at(buffer, position) >= 0 or rec.ns_at(buffer, position):
        return None
    try:
        return mark_of(rec.decode(buffer, position, where, base))
    except msgspec.ValidationError as error:
        raise rec.CorruptRecordError(
            f"a mark that does not read ({error})", where=where, position=base + position
        ) from None


class Borders:
    """Tells which borders between records lie outside of units. Is given the records of a log in their order."""

    def __init__(self) -> None:
        self._until = 0
        self._open = False

    def outside(self, byte: int) -> bool:
        """Whether the border at `byte`, behind all records seen so far, is one."""
        return not self._open and byte >= self._until

    def see(self, end: int, mark: Mark) -> None:
        """Take a mark that ends at byte `end`."""
        self._until, self._open = end + mark.size, mark.more

    def among(self, ends: npt.NDArray[np.int64], marks: Sequence[tuple[int, Mark]]) -> npt.NDArray[np.bool_]:
        """Which of these ends of records lie outside. `marks` are those among the records, with their indexes."""
        outside: npt.NDArray[np.bool_] = (ends >= self._until) & (not self._open)
        for index, mark in marks:
            self.see(int(ends[index]), mark)
            outside[index:] = (ends[index:] >= self._until) & (not mark.more)
        return outside
