"""How the values of one column are read: first from JSON by msgspec, as a *member*, then many of them into an array.

Each form of `penstock.log.extended` is a type of its own to msgspec, so that reading it is one step, and what has
another form is an error. `rowcolumns` then looks at the row by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Optional
from uuid import UUID

import msgspec

from penstock.adaptors.columns import textarrays as ta
from penstock.adaptors.columns.textcolumns import TextReader, text_reader_of
from penstock.log.schema import Kind
from penstock.log.values import is_float

if TYPE_CHECKING:
    import pyarrow as pa

Members = Sequence[Any]


FIT_ERRORS = (
    msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError, NotImplementedError,
)  # fmt: skip
"""What is raised where a value does not fit. Arrow's own errors are among them: each is one of Python's as well."""


@dataclass(frozen=True, slots=True)
class Reader:
    """`member` is what msgspec reads; `gather` makes a column of these, of which any may be None."""

    member: object
    gather: Callable[[Members], pa.Array]

    @property
    def optional(self) -> Any:
        """The member, or null; raw text is either as it is."""
        return self.member if self.member is msgspec.Raw else Optional[self.member]  # noqa: UP045


def _form(name: str, kind: object = str) -> type[msgspec.Struct]:
    return msgspec.defstruct(
        "Form", [("content", kind, msgspec.field(name=name))], gc=False, forbid_unknown_fields=True
    )


class _Base64(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    base64: bytes
    subType: str  # noqa: N815 - its name in the text


_DOUBLE = _form("$numberDouble")
_NAMES = {
    Kind.DATE: "$localDate", Kind.TIME: "$localTime", Kind.TIMESTAMP: "$date", Kind.LOCAL_TIMESTAMP: "$localTimestamp",
    Kind.UUID: "$uuid", Kind.OBJECT_ID: "$oid",
}  # fmt: skip
_FORMS = {kind: _form(name) for kind, name in _NAMES.items()}
_BINARY = _form("$binary", _Base64)
_JSON_NUMBER = r"^-?[0-9][-+.0-9eE]*$"
_NOT_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def reader_of(arrow: pa.DataType, kind: Kind) -> Reader:
    """How to read values of this kind into a column of this type."""
    import pyarrow.types as pt

    if pt.is_dictionary(arrow):
        inner = reader_of(arrow.value_type, kind)
        return Reader(inner.member, lambda members: inner.gather(members).dictionary_encode().cast(arrow))
    if kind is Kind.LIST and (pt.is_list(arrow) or pt.is_large_list(arrow) or pt.is_fixed_size_list(arrow)):
        return _list_reader(arrow)
    if kind is Kind.MAP and pt.is_map(arrow):
        return _map_reader(arrow)
    if kind is Kind.MAP and pt.is_struct(arrow):
        return _struct_reader(arrow)
    if kind in _FORMS:
        return Reader(_FORMS[kind], _texts_of("content", _PARSERS.get(kind, _as_is), arrow))
    if kind is Kind.BINARY:
        return Reader(_BINARY, lambda members: _array(list(map(_bytes, members)), arrow))
    member = {Kind.BOOL: bool, Kind.INT: int, Kind.STRING: str, Kind.NULL: None}.get(kind, msgspec.Raw)
    if kind is Kind.FLOAT:
        return Reader(int | float | _DOUBLE, lambda members: _floats(members, arrow))
    if kind is Kind.DECIMAL:
        return Reader(msgspec.Raw, lambda members: _decimals(members, arrow))
    if member is msgspec.Raw:
        return Reader(msgspec.Raw, lambda members: _array(list(map(_raw, members)), arrow))
    return Reader(member, lambda members: _array(members, arrow))


def texts_reader_of(arrow: pa.DataType, kind: Kind) -> TextReader | None:
    """How to read them as text, without a member for each; None where that is not known."""
    form = (_NAMES[kind], _PARSERS.get(kind, _as_is)) if kind in _NAMES else None
    return text_reader_of(arrow, kind, form)


def nested(arrow: pa.DataType) -> Reader:
    from penstock.adaptors.columns.rowtext import kind_of

    return reader_of(arrow, kind_of(arrow))


def _array(members: Members, arrow: pa.DataType) -> pa.Array:
    """Through the widest type of its family, so that what does not fit is an error and not a wrapped number."""
    import pyarrow as pa

    if pa.types.is_duration(arrow):
        return pa.array(members, pa.int64()).cast(arrow)
    return pa.array(members, arrow)


def _bytes(member: Any) -> bytes | None:
    return None if member is None else member.content.base64


def _raw(member: Any) -> str | None:
    text = None if member is None else bytes(member).decode()
    return None if text == "null" else text


def _floats(members: Members, arrow: pa.DataType) -> pa.Array:
    import pyarrow as pa

    try:
        found = pa.array(members, pa.float64())
    except (TypeError, ValueError):
        found = pa.array([_float(member) for member in members], pa.float64())
    return found if found.type == arrow else found.cast(arrow)


def _float(member: Any) -> float | None:
    if member is None or isinstance(member, float):
        return member
    if isinstance(member, int):
        if not is_float(member):
            raise ValueError(f"{member} has more digits than a float")
        return float(member)
    text = member.content
    if text not in _NOT_NUMBERS:
        raise ValueError(f"{text} is written as a number")
    return _NOT_NUMBERS[text]


def _decimals(members: Members, arrow: pa.DataType) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = _numbers(members).cast(pa.string())
    if not pc.all(pc.match_substring_regex(texts, _JSON_NUMBER)).as_py() and texts.null_count != len(texts):
        raise ValueError("not a number")
    return texts.cast(arrow)


def _numbers(members: Members) -> pa.Array:
    """The texts of numbers, without an object for each. One that is no number is some other text, or too many."""
    import pyarrow.compute as pc

    given = [b"null" if member is None else member for member in members] if None in members else members
    content = b",".join(given)
    if content.count(b",") != max(len(given) - 1, 0):
        raise ValueError("not numbers")
    texts = ta.split(b"[" + content + b"]", len(given))
    return pc.if_else(pc.equal(texts, ta.constant(b"null")), ta.constant(None), texts)


def _texts_of(name: str, parse: Callable[[pa.Array, pa.DataType], pa.Array], arrow: pa.DataType) -> Any:
    import pyarrow as pa

    content = attrgetter(name)

    def gather(members: Members) -> pa.Array:
        try:
            found = list(map(content, members))
        except AttributeError:  # some are null
            found = [None if one is None else content(one) for one in members]
        return parse(pa.array(found, pa.string()), arrow)

    return gather


def _as_is(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    return texts.cast(arrow)


def _time(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    """Arrow reads no times of day: that of a day is taken."""
    import pyarrow as pa
    import pyarrow.compute as pc

    moments = pc.binary_join_element_wise("1970-01-01T", texts.cast(pa.string()), "")
    return moments.cast(pa.timestamp(arrow.unit)).cast(arrow)


def read_times(texts: pa.Array) -> pa.Array:
    """Times of day, to the microsecond."""
    import pyarrow as pa

    return _time(texts, pa.time64("us"))


def _uuid(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if not isinstance(arrow, pa.BaseExtensionType):
        return texts.cast(arrow)
    raw = [None if text is None else UUID(text).bytes for text in texts.to_pylist()]
    return pa.ExtensionArray.from_storage(arrow, pa.array(raw, arrow.storage_type))


_PARSERS = {Kind.TIME: _time, Kind.UUID: _uuid}


def _list_reader(arrow: pa.DataType) -> Reader:
    inner = nested(arrow.value_type)

    def gather(members: Members) -> pa.Array:
        import pyarrow as pa
        import pyarrow.types as pt

        items = inner.gather([one for member in members if member is not None for one in member])
        if pt.is_fixed_size_list(arrow):
            return pa.array(_relisted(members, items.to_pylist()), arrow)
        kind = pa.LargeListArray if pt.is_large_list(arrow) else pa.ListArray
        return kind.from_arrays(_offsets(members, pt.is_large_list(arrow)), items).cast(arrow)

    return Reader(list[inner.optional], gather)  # type: ignore[name-defined]


def _relisted(members: Members, items: list[Any]) -> list[list[Any] | None]:
    rest = iter(items)
    return [None if member is None else [next(rest) for _ in member] for member in members]


def _offsets(members: Members, large: bool = False) -> pa.Array:
    """Where each list begins among all items; null for a list that is null."""
    import pyarrow as pa

    offsets: list[int | None] = []
    end = 0
    for member in members:
        offsets.append(None if member is None else end)
        end += len(member) if member is not None else 0
    return pa.array([*offsets, end], pa.int64() if large else pa.int32())


def _map_reader(arrow: pa.DataType) -> Reader:
    inner = nested(arrow.item_type)

    def gather(members: Members) -> pa.Array:
        import pyarrow as pa

        whole = [member for member in members if member is not None]
        keys = [key for member in whole for key in member]
        if "$literal" in keys:
            raise ValueError("a literal")
        items = inner.gather([one for member in whole for one in member.values()])
        return pa.MapArray.from_arrays(
            _offsets(members), pa.array(keys, pa.string()).cast(arrow.key_type), items
        ).cast(arrow)

    return Reader(dict[str, inner.optional], gather)  # type: ignore[name-defined]


def _struct_reader(arrow: pa.DataType) -> Reader:
    readers = [nested(field.type) for field in arrow]
    members_of = [
        (f"f{i}", reader.optional, msgspec.field(default=None, name=field.name))
        for i, (field, reader) in enumerate(zip(arrow, readers, strict=True))
    ]
    row = msgspec.defstruct("Nested", members_of, gc=False, forbid_unknown_fields=True)
    empty = row()

    def gather(members: Members) -> pa.Array:
        import pyarrow as pa

        whole = [empty if member is None else member for member in members]
        columns = [
            reader.gather([getattr(one, f"f{i}") for one in whole]) for i, reader in enumerate(readers)
        ]
        missing = pa.array([member is None for member in members])
        return pa.StructArray.from_arrays(columns, fields=list(arrow), mask=missing)

    return Reader(row, gather)
