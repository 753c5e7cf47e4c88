"""Documents that are alike, taken apart together: the same fields in the same order, written without blanks.

The rows of a table are texts that differ in nothing but their values. `apart` finds where each value of such texts is,
for all rows at once and without an object for any of them: the quotes are looked up once, names are compared as bytes,
and each value begins behind its name. It promises of a row that is not *odd*: its text is an object of exactly these
fields; a string or form has no escapes, so that its bytes are its value; what is plain stands without quotes and is
left to be checked by whoever knows what it should be. Any other row is odd, and to be read by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from penstock.adaptors.columns import textarrays as ta
from penstock.adaptors.columns.textcolumns import PLAIN, STRING

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Places: TypeAlias = NDArray[np.int64]
    Rows: TypeAlias = NDArray[np.bool_]

_names = msgspec.json.Decoder(dict[str, msgspec.Raw])
_QUOTE = ord('"')


@dataclass(frozen=True, slots=True)
class Apart:
    """The fields of some rows, in the order in which they are written."""

    odd: Places
    """The rows that are not in `columns`."""
    columns: Mapping[str, pa.Array]
    """Of each field the bytes of its values (`binary`, or `large_string`), without quotes; null for null."""


def apart(texts: pa.Array, spelt: Mapping[str, str], *, as_strings: bool = False) -> Apart | None:
    """Take `texts` (`large_binary`) apart; `spelt` tells how the values of each known field are written.

    Texts that are known to be UTF-8 may be had `as_strings`: so is what stands between two of their quotes or commas.
    None if the first one has other fields than known ones, or is odd itself: the others are most likely like it.
    """
    if not len(texts) or texts.null_count:
        return None
    names = _fields_of(texts[0].as_py())
    if not names or any(name not in spelt for name in names):
        return None
    walk = _Walk(texts)
    for index, name in enumerate(names):
        before = b"," if index else b"{"
        walk.over(before + msgspec.json.encode(name) + b":")
        walk.value(spelt[name])
    walk.end()
    if not walk.fits[0]:
        return None
    odd = np.flatnonzero(~walk.fits)
    return Apart(odd, dict(zip(names, walk.columns(as_strings=as_strings), strict=True)))


def _fields_of(text: bytes) -> list[str]:
    """The names in a document; none where it has one twice, or one that is written with escapes."""
    try:
        names = list(_names.decode(text))
    except (msgspec.DecodeError, RecursionError):
        return []
    return [] if any('"' in name or "\\" in name for name in names) else names


class _Walk:
    """A place in each text, which all move at once; rows that are not as expected stop to fit."""

    def __init__(self, texts: pa.Array) -> None:
        bounds, self._content = ta.bounds_of(texts), ta.content_of(texts)
        self._ends = bounds[1:] - bounds[0]
        self._at = (bounds[:-1] - bounds[0]).copy()
        quotes = np.flatnonzero(self._content == _QUOTE)
        # Behind the last quote stand some that no row reaches, so that each look-up finds something.
        self._quotes = np.append(quotes, np.full(8, len(self._content)))
        self._next = np.searchsorted(quotes, self._at)
        """The index of each row's next quote."""
        self.fits = ~self._escaped(bounds - bounds[0])
        self._found: list[tuple[Places, Places]] = []
        self._plain_since: Places | None = None

    def _escaped(self, bounds: Places) -> Rows:
        """Rows with a backslash, or with what has no place in a document unless it is escaped."""
        found = np.zeros(len(bounds) - 1, bool)
        if self._content.min() < 0x20 or (self._content == ord("\\")).any():
            special = (self._content == ord("\\")) | (self._content < 0x20)
            found[np.searchsorted(bounds, np.flatnonzero(special), side="right") - 1] = True
        return found

    def over(self, text: bytes) -> None:
        """Step over `text`, which holds two quotes. A plain value ends where it begins."""
        if self._plain_since is not None:
            self._at = self._quote() - 1
            self._end_plain()
        self.fits &= self._is_at(self._at, text)
        self._at = self._at + len(text)
        self._next += 2

    def value(self, spelt: str) -> None:
        """Step over a value."""
        if spelt == PLAIN:
            self._plain_since = self._at
            return
        opening, closing = (b'"', b'"') if spelt == STRING else (b'{"%s":"' % spelt.encode(), b'"}')
        there = self._is_at(self._at, opening)
        begins = self._at + len(opening)
        if there.all():
            self._next += opening.count(_QUOTE)
            ends = self._quote()
            lengths = ends - begins
            self._at = ends + len(closing)
            self._next += 1
        else:
            null = ~there & self._is_at(self._at, b"null")
            self.fits &= there | null
            self._next += np.where(null, 0, opening.count(_QUOTE))
            ends = self._quote()
            lengths = np.where(null, -1, ends - begins)
            self._at = np.where(null, self._at + 4, ends + len(closing))
            self._next += ~null
        if len(closing) > 1:
            self.fits &= (lengths == -1) | self._is_at(ends, closing)
        self._found.append((begins, lengths))

    def end(self) -> None:
        """Behind the last value there is nothing but the end of the text."""
        if self._plain_since is not None:
            self._at = self._ends - 1
            self._end_plain()
        self.fits &= (
            self._is_at(self._at, b"}") & (self._at + 1 == self._ends) & (self._quote() >= self._ends)
        )

    def columns(self, *, as_strings: bool) -> list[pa.Array]:
        """The values of the rows that fit."""
        whole = bool(self.fits.all())
        found = [(at, length) if whole else (at[self.fits], length[self.fits]) for at, length in self._found]
        return [ta.slices(self._content, at, length, as_strings=as_strings) for at, length in found]

    def _end_plain(self) -> None:
        begins, self._plain_since = self._plain_since, None
        assert begins is not None
        length = self._at - begins
        self.fits &= length > 0
        null = self._content.take(begins, mode="clip") == ord("n")
        if null.any():
            null &= (length == 4) & self._is_at(begins, b"null")
            length = np.where(null, -1, length)
        self._found.append((begins, length))

    def _quote(self) -> Places:
        found: Places = self._quotes.take(self._next, mode="clip")
        return found

    def _is_at(self, at: Places, text: bytes) -> Rows:
        """Whether `text` stands there. A row that no longer fits may be anywhere: it does not end where it should."""
        same: Rows
        if len(text) == 1:
            same = self._content.take(at, mode="clip") == text[0]
            return same
        room = len(self._content) - len(text)
        if room < 0:
            return np.zeros(len(at), bool)
        everywhere = np.ndarray((room + 1,), f"V{len(text)}", self._content, strides=(1,))
        same = everywhere[np.minimum(at, room)].view(f"S{len(text)}") == text
        return same
