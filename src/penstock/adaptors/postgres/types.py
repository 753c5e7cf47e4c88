"""What becomes of PostgreSQL's types: from the text that the server prints to the typed text of messages.

The copy and the stream both bring values as the server prints them, under the session settings of
`penstock.adaptors.postgres.connection`, and both go through here, a column at a time: so the copy of a row and the
change that made it have the same text.

    smallint, integer, bigint, oid    int
    real, double precision            float; 7 becomes 7.0; NaN and infinities are kept
    numeric, money                    decimal, with all its digits; NaN and infinities are kept
    boolean                           bool
    date, time, timetz,               date, time, local timestamp, timestamp in UTC; what these cannot be (infinity,
    timestamp, timestamptz            years before 1 or after 9999, 24:00:00) is a string as the server prints it
    uuid, bytea                       uuid, binary
    json, jsonb                       the JSON value itself, its text unchanged; JSON's null is null
    T[]                               list of what T becomes, nested as the array is; its lower bounds are not kept
    domains                           what they are made from
    all others                        string as the server prints it: text, varchar, char (with its blanks), enums,
                                      interval (ISO 8601), inet, cidr, bit, ranges, composites, tsvector, hstore,
                                      xml, geometric types, extensions
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from penstock.adaptors.columns import textarrays as ta
from penstock.adaptors.columns.textarrays import Piece
from penstock.base.errors import PenstockError
from penstock.log import values
from penstock.log.schema import Kind

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Bytes = npt.NDArray[np.uint8]
    Rows = npt.NDArray[np.bool_]

_ARRAY = re.compile(r'[{}]|,|"((?:[^"\\]|\\.)*)"|[^{},"]+', re.DOTALL)
_TIME_ZONE = re.compile(r"(\d\d:\d\d:\d\d(?:\.\d+)?)([+-]\d\d)(:\d\d)?(:\d\d)?")


class UnreadableError(PenstockError):
    """A value that is not what its column's type says."""


@dataclass(frozen=True, slots=True)
class Type:
    """A type of the server. `base` is the name of what its values are printed as, after all domains.

    Of an array, `base` is that of its items and `array` is true. `digits` are those of money behind the point.
    """

    base: str
    array: bool = False
    digits: int = 2

    @property
    def kind(self) -> Kind:
        return Kind.LIST if self.array else self.item_kind

    @property
    def item_kind(self) -> Kind:
        return _KINDS.get(self.base, Kind.STRING)

    def texts(self, printed: pa.Array) -> list[Piece]:
        """The typed text of values that the server printed (`large_binary`, null for NULL)."""
        import pyarrow.compute as pc

        pieces = self._pieces(printed)
        if not printed.null_count:
            return pieces
        return [pc.if_else(printed.is_valid(), ta.joined(pieces, len(printed)), ta.constant(b"null"))]

    def _pieces(self, printed: pa.Array) -> list[Piece]:
        if self.array:
            return _plain_arrays(printed) if self.item_kind is Kind.INT else _arrays(self, printed)
        if self.base == "money":
            return _each(printed, lambda text: _money(text, self.digits))
        return _WRITERS.get(self.base, _strings)(printed)


def _digits(printed: pa.Array) -> list[Piece]:
    return [printed]


def _floats(printed: pa.Array) -> list[Piece]:
    import pyarrow.compute as pc

    content = ta.content_of(printed)
    if _has(content, b"NI"):
        return _each(printed, _float)
    whole = pc.match_substring_regex(printed, "^-?[0-9]+$")
    point = pc.if_else(pc.fill_null(whole, False), ta.constant(b".0"), ta.constant(b""))
    return [printed, point]


def _float(text: str) -> bytes:
    number = float(text)
    if number - number != 0.0:
        return values.encode(number)
    return (text if re.search("[.e]", text) else f"{text}.0").encode()


def _decimals(printed: pa.Array) -> list[Piece]:
    if not _has(ta.content_of(printed), b"NI"):
        return [printed]
    return _each(printed, lambda text: text.encode() if text[-1].isdigit() else values.encode(Decimal(text)))


def _money(text: str, digits: int) -> bytes:
    """A sum as any locale prints it: the digits are there, and how many of them are behind the point is known."""
    plain = "".join(re.findall(r"[0-9]", text)).zfill(digits + 1)
    whole, fraction = plain[: len(plain) - digits], plain[len(plain) - digits :]
    sign = "-" if re.search(r"[-(−]", text) else ""
    return f"{sign}{int(whole)}{'.' if digits else ''}{fraction}".encode()


def _bools(printed: pa.Array) -> list[Piece]:
    import pyarrow as pa
    import pyarrow.compute as pc

    true = pc.is_in(printed, pa.array([b"t", b"true"], pa.large_binary()))
    return [pc.if_else(true, ta.constant(b"true"), ta.constant(b"false"))]


def _strings(printed: pa.Array) -> list[Piece]:
    import pyarrow as pa

    if (ta.content_of(printed) >= 0x80).any():
        try:
            printed.view(pa.large_string()).validate(full=True)
        except pa.ArrowInvalid as error:
            raise UnreadableError(f"text that is not UTF-8 ({error})", hint="mend it at the source") from None
    return ta.quoted(printed)


def _dates(printed: pa.Array) -> list[Piece]:
    at = _Layout(printed)
    return _forms(printed, at.length_is(10) & at.is_at(4, b"-"), b'{"$localDate":"', printed, b'"}')


def _times(printed: pa.Array) -> list[Piece]:
    at = _Layout(printed)
    plain = at.is_at(2, b":") & ~(at.is_at(0, b"2") & at.is_at(1, b"4"))
    return _forms(printed, plain, b'{"$localTime":"', printed, b'"}')


def _times_with_zone(printed: pa.Array) -> list[Piece]:
    return _each(printed, _time_with_zone)


def _time_with_zone(text: str) -> bytes:
    found = _TIME_ZONE.fullmatch(text)
    if found is None or text.startswith("24"):
        return values.encode(text)
    return f'{{"$time":"{found[1]}{found[2]}{found[3] or ":00"}{found[4] or ""}"}}'.encode()


def _local_timestamps(printed: pa.Array) -> list[Piece]:
    at = _Layout(printed)
    plain = at.is_at(4, b"-") & at.is_at(10, b" ") & ~at.ends_with(b"C")
    return _forms(printed, plain, b'{"$localTimestamp":"', at.written(plain, cut=0), b'"}')


def _moments(printed: pa.Array) -> list[Piece]:
    at = _Layout(printed)
    plain = at.is_at(4, b"-") & at.is_at(10, b" ") & at.ends_with(b"+00")
    return _forms(printed, plain, b'{"$date":"', at.written(plain, cut=3), b'Z"}')


class _Layout:
    """Where the bytes of texts of one layout stand: asked for all rows at once."""

    def __init__(self, printed: pa.Array) -> None:
        bounds = ta.bounds_of(printed)
        self._content = ta.content_of(printed)
        self._starts, self._ends = bounds[:-1] - bounds[0], bounds[1:] - bounds[0]

    def length_is(self, length: int) -> Rows:
        found: Rows = self._ends - self._starts == length
        return found

    def is_at(self, place: int, byte: bytes) -> Rows:
        return self._at(self._starts + place, byte)

    def ends_with(self, tail: bytes) -> Rows:
        found = self._at(self._ends - len(tail), tail[:1])
        for index in range(1, len(tail)):
            found &= self._at(self._ends - len(tail) + index, tail[index : index + 1])
        return found

    def _at(self, places: npt.NDArray[np.int64], byte: bytes) -> Rows:
        import numpy as np

        inside = (places >= self._starts) & (places < self._ends)
        found: Rows = np.zeros(len(places), bool)
        found[inside] = self._content[places[inside]] == byte[0]
        return found

    def written(self, rows: Rows, cut: int) -> pa.Array:
        """The texts with a T between date and time, less `cut` bytes at the end, where `rows` says so."""
        import numpy as np

        content, keep = self._content.copy(), np.ones(len(self._content), bool)
        content[self._starts[rows] + 10] = ord("T")
        for back in range(1, cut + 1):
            keep[self._ends[rows] - back] = False
        lengths = self._ends - self._starts - cut * rows
        return ta.of_parts(content[keep], np.concatenate(([0], np.cumsum(lengths))).astype(np.int64))


def _forms(printed: pa.Array, plain: Rows, before: bytes, inside: pa.Array, after: bytes) -> list[Piece]:
    """`inside` in a form where the text is `plain`, and a string where it is not."""
    import numpy as np

    odd = np.flatnonzero(~plain & printed.is_valid().to_numpy(zero_copy_only=False))
    if not len(odd):
        return [before, inside, after]
    texts = ta.joined([before, inside, after], len(printed))
    return [ta.chosen(texts, odd, [values.encode(printed[int(row)].as_py().decode()) for row in odd])]


def _uuids(printed: pa.Array) -> list[Piece]:
    return [b'{"$uuid":"', printed, b'"}']


def _hex_bytes(printed: pa.Array) -> list[Piece]:
    return _base64(_texts_of([_from_hex(text) for text in printed.to_pylist()]))


def _from_hex(text: bytes | None) -> bytes | None:
    return None if text is None else base64.b64encode(bytes.fromhex(text[2:].decode()))


def _base64(printed: pa.Array) -> list[Piece]:
    return [b'{"$binary":{"base64":"', printed, b'","subType":"00"}}']


def _documents(printed: pa.Array) -> list[Piece]:
    """JSON is JSON. Only a document in which something looks like extended JSON, or with line ends, is written anew."""
    import numpy as np
    import pyarrow.compute as pc

    doubtful = pc.fill_null(pc.match_substring_regex(printed, r'"\$|\\u0024|[\n\r]'), False)
    rows = np.flatnonzero(doubtful.to_numpy(zero_copy_only=False))
    if not len(rows):
        return [printed]
    return [ta.chosen(printed, rows, [_document(printed[int(row)].as_py()) for row in rows])]


def _document(text: bytes) -> bytes:
    if not re.search(rb'"\$|\\u0024', text):
        return text.replace(b"\n", b" ").replace(b"\r", b" ")  # no string of JSON has them as they are
    return values.encode(json.loads(text, parse_float=Decimal))


def _plain_arrays(printed: pa.Array) -> list[Piece]:
    """Arrays of integers, in whose text braces and NULL are all that JSON writes otherwise."""
    import pyarrow.compute as pc

    texts = pc.replace_substring_regex(printed, r"^\[.*=", "")
    for theirs, ours in (("{", "["), ("}", "]"), ("NULL", "null")):
        texts = pc.replace_substring(texts, theirs, ours)
    return [texts]


def _arrays(of: Type, printed: pa.Array) -> list[Piece]:
    """Arrays of anything: their items are written as a column, and put back between the brackets."""
    frames: list[list[str | None] | None] = []
    items: list[bytes | None] = []
    for text in printed.to_pylist():
        frames.append(None if text is None else _frame(text.decode(), items))
    column = _texts_of(items)
    written = iter(ta.joined(Type(of.base, digits=of.digits).texts(column), len(items)).to_pylist())
    return [
        _texts_of(
            [
                None
                if frame is None
                else b"".join(next(written) if part is None else part.encode() for part in frame)
                for frame in frames
            ]
        )
    ]


def _frame(text: str, items: list[bytes | None]) -> list[str | None]:
    """The brackets and commas of an array, None where an item is; the items go to `items`."""
    frame: list[str | None] = []
    start = text.index("{")  # lower bounds stand before it
    for found in _ARRAY.finditer(text, start):
        token = found[0]
        if token in "{},":
            frame.append({"{": "[", "}": "]"}.get(token, token))
            continue
        frame.append(None)
        if found[1] is not None:
            items.append(re.sub(r"\\(.)", r"\1", found[1], flags=re.DOTALL).encode())
        else:
            items.append(None if token == "NULL" else token.encode())
    return frame


def _each(printed: pa.Array, write: Callable[[str], bytes]) -> list[Piece]:
    """Types that are rare enough for a look at each value."""
    return [_texts_of([None if text is None else write(text.decode()) for text in printed.to_pylist()])]


def _texts_of(texts: Sequence[bytes | None]) -> pa.Array:
    import pyarrow as pa

    return pa.array(texts, pa.large_binary())


def _has(content: Bytes, letters: bytes) -> bool:
    return any(bool((content == letter).any()) for letter in letters)


_INTS = ("int2", "int4", "int8", "oid")

_KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(_INTS, Kind.INT),
    "float4": Kind.FLOAT, "float8": Kind.FLOAT, "numeric": Kind.DECIMAL, "money": Kind.DECIMAL,
    "bool": Kind.BOOL, "date": Kind.DATE, "time": Kind.TIME, "timetz": Kind.TIME,
    "timestamp": Kind.LOCAL_TIMESTAMP, "timestamptz": Kind.TIMESTAMP, "uuid": Kind.UUID,
    "bytea": Kind.BINARY, "base64": Kind.BINARY, "json": Kind.ANY, "jsonb": Kind.ANY,
}  # fmt: skip

_WRITERS: Mapping[str, Callable[[pa.Array], list[Piece]]] = {
    **dict.fromkeys(_INTS, _digits),
    "float4": _floats, "float8": _floats, "numeric": _decimals, "bool": _bools,
    "date": _dates, "time": _times, "timetz": _times_with_zone,
    "timestamp": _local_timestamps, "timestamptz": _moments, "uuid": _uuids,
    "bytea": _hex_bytes, "base64": _base64, "json": _documents, "jsonb": _documents,
}  # fmt: skip
"""`base64` is no type of the server: it is how the copy asks for bytea."""
