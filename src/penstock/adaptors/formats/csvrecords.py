"""CSV as columns: RFC 4180, fields in quotes may hold delimiters, newlines and doubled quotes.

A block of text is cut into records and fields by arithmetic on its bytes; no object is made for a field. A quote opens
at the start of a field and closes at its end, nowhere else: a record in which it does not is malformed, and so is one
with another number of fields than there are columns. Of a malformed record the first line is bad, and reading goes on
with the next one: a stray quote does not swallow what comes after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.adaptors.columns import textarrays as ta

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Mask = npt.NDArray[np.bool_]
    Places = npt.NDArray[np.int64]

_QUOTE, _NEWLINE, _RETURN = ord('"'), ord("\n"), ord("\r")


@dataclass(frozen=True, slots=True)
class Records:
    """The records at the front of a text.

    `fields` are their fields, row after row, `quoted` says which of them stood in quotes. `starts` are the bytes at
    which records begin, `size` where the last of them ends; `wrong` says why what begins there is no record.
    """

    fields: pa.Array
    quoted: Mask
    starts: Places
    size: int
    wrong: str | None = None

    @property
    def rows(self) -> int:
        return len(self.starts)


def split(text: bytes, columns: int, delimiter: int) -> Records:
    """The whole records of `columns` fields each at the front of `text`; blank lines among them count for nothing.

    With `columns` 0 the first record says how many there are.
    """
    import numpy as np

    content = np.frombuffer(text, np.uint8)
    quotes = content == _QUOTE
    # Behind each byte: whether the quotes so far are odd. Counting may wrap, since that leaves it as it is.
    inside = (np.cumsum(quotes, dtype=np.uint8) & 1).view(bool)
    newlines = (content == _NEWLINE) & ~inside
    wrong_at = _first_stray_quote(content, quotes, inside, delimiter)
    ends = np.flatnonzero(newlines)
    ends = ends[ends < wrong_at]
    size = int(ends[-1]) + 1 if len(ends) else 0
    reason = "a quote in the middle of a field" if wrong_at < len(content) else None
    return _fields(content[:size], quotes[:size], inside[:size], ends, columns, delimiter, reason)


def _first_stray_quote(content: npt.NDArray[np.uint8], quotes: Mask, inside: Mask, delimiter: int) -> int:
    """Where a quote stands that neither opens nor closes a field; the length if there is none."""
    import numpy as np

    at = np.flatnonzero(quotes)
    if not len(at):
        return len(content)
    opens = inside[at]
    before = np.where(at > 0, content[at - 1], _NEWLINE)
    after = np.where(at + 1 < len(content), content[np.minimum(at + 1, len(content) - 1)], _NEWLINE)
    starts_well = (before == delimiter) | (before == _NEWLINE) | (before == _QUOTE)
    ends_well = (after == delimiter) | (after == _NEWLINE) | (after == _RETURN) | (after == _QUOTE)
    stray = at[np.where(opens, ~starts_well, ~ends_well)]
    return int(stray[0]) if len(stray) else len(content)


def _fields(
    content: npt.NDArray[np.uint8],
    quotes: Mask,
    inside: Mask,
    ends: Places,
    columns: int,
    delimiter: int,
    reason: str | None,
) -> Records:
    import numpy as np

    separators = ((content == delimiter) & ~inside) | _ends_mask(len(content), ends)
    places = np.flatnonzero(separators)
    last = np.searchsorted(places, ends)  # which separator ends each record
    counts = np.diff(last, prepend=-1)
    starts = np.concatenate(([0], ends[:-1] + 1)).astype(np.int64) if len(ends) else np.zeros(0, np.int64)
    blank = (ends == starts) | (
        (ends == starts + 1) & (content[np.minimum(starts, len(content) - 1)] == _RETURN)
    )
    wanted = columns or (int(counts[~blank][0]) if (~blank).any() else 0)
    off = np.flatnonzero((counts != wanted) & ~blank)
    if len(off):
        reason = f"{counts[off[0]]} fields where {wanted} are expected"
        kept = int(off[0])
        size = int(starts[kept])
        ends, starts, blank, counts = ends[:kept], starts[:kept], blank[:kept], counts[:kept]
        content, quotes, separators, places = (
            content[:size],
            quotes[:size],
            separators[:size],
            places[places < size],
        )
    keep = ~_dropped(content, quotes, separators)
    bounds = np.zeros(len(places) + 1, np.int64)
    bounds[1:] = np.cumsum(keep)[places]
    firsts = np.concatenate(([0], places[:-1] + 1)).astype(np.int64) if len(places) else places
    fields = ta.of_parts(np.ascontiguousarray(content[keep]), bounds)
    opened = quotes[firsts] if len(firsts) else np.zeros(0, bool)
    real = np.repeat(~blank, counts)
    if not real.all():
        fields, opened = fields.take(np.flatnonzero(real)), opened[real]
    return Records(fields, opened, starts[~blank], len(content), reason)


def _ends_mask(size: int, ends: Places) -> Mask:
    import numpy as np

    mask = np.zeros(size, bool)
    mask[ends] = True
    return mask


def _dropped(content: npt.NDArray[np.uint8], quotes: Mask, separators: Mask) -> Mask:
    """Bytes that are not part of a value: separators, the return before a newline, quotes but one of a doubled pair."""
    import numpy as np

    dropped = separators.copy()
    if len(content):
        newline = separators & (content == _NEWLINE)
        dropped[:-1] |= newline[1:] & (content[:-1] == _RETURN)
    at = np.flatnonzero(quotes)
    if len(at):
        # Quotes come in pairs, one that opens and one that closes. The one that opens again right behind one that
        # closes stands for itself.
        again = np.zeros(len(at), bool)
        again[2::2] = at[2::2] == at[1:-1:2] + 1
        dropped[at[~again]] = True
    return dropped
