"""From messages to the actions of a bulk: which index, which id, which version, which text.

**Id.** Of a key with one field: a string is its own id, a number or true/false its text, an ObjectId or a UUID its
digits. A string that could be taken for any of those stands in quotes. Of a key with several fields: the JSON list
of the values. No two keys have the same id. A message without a key gets one that follows from its offset.

**Version.** `generation << 40 | offset + 1`, with version_type `external_gte`: the server refuses what is older than
what it has, and takes what it has again.

**Text.** The text of the message as it is, unless it holds values that JSON has no form for: times become ISO 8601,
binaries base64, ids their digits, decimals their digits as a string. `_id` is no field of a document and is left
out. NaN and infinities are refused, since the server has no place for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.adaptors.elasticsearch import Elasticsearch
from penstock.base.errors import PenstockError
from penstock.log import extended
from penstock.log.values import ValuesError

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_ID = 512
"""Bytes that an id may have."""

COLUMNS = ("offset", "op", "ns", "key", "old_key", "data")
WRITES = frozenset({"insert", "update", "delete"})
_TYPED = re.compile(r"[0-9a-fA-F]{24}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_FORBIDDEN = re.compile(r'[\\/*?"<>| ,#:\x00-\x1fA-Z]')
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder(decimal_format="number").encode


def _number(text: str) -> float | Decimal:
    """A number of JSON, with all its digits."""
    number = float(text)
    return number if Decimal(repr(number)) == Decimal(text) else Decimal(text)


_decode = msgspec.json.Decoder(float_hook=_number).decode


@dataclass(frozen=True, slots=True)
class Row:
    offset: int
    op: str
    ns: str
    key: str | None
    old_key: str | None
    data: str


@dataclass(frozen=True, slots=True)
class Action:
    """One line of a bulk, or two. `body` is None for a delete."""

    offset: int
    ns: str
    index: str
    id: str
    version: int
    body: bytes | None

    def lines(self) -> bytes:
        about = {
            "_index": self.index,
            "_id": self.id,
            "version": self.version,
            "version_type": "external_gte",
        }
        if self.body is None:
            return _encode({"delete": about}) + b"\n"
        return _encode({"index": about}) + b"\n" + self.body + b"\n"


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    columns = [batch.column(name).to_pylist() for name in COLUMNS]
    return (Row(*values) for values in zip(*columns, strict=True))


def version_of(generation: int, offset: int) -> int:
    return generation << 40 | (offset + 1)


def default_index(settings: Elasticsearch, ns: str) -> str | None:
    """The index that a namespace has by its name; None if a setting names another."""
    return None if settings.indices.get(ns) else f"{settings.index_prefix}{ns.lower()}"


def index_of(settings: Elasticsearch, ns: str) -> str:
    """The index of a namespace. Raises `ValuesError` if there can be none of that name."""
    index = default_index(settings, ns) or settings.indices[ns]
    if (
        _FORBIDDEN.search(index)
        or index.startswith(("-", "_", "+", "."))
        or not 0 < len(index.encode()) <= 255
    ):
        raise ValuesError(f"'{index}' cannot be the name of an index: name one in the setting `indices`")
    return index


def is_truncate(row: Row) -> bool:
    """Whether a command empties its namespace; any other command is refused."""
    try:
        if msgspec.json.decode(row.data, type=dict[str, object]).get("command") == "truncate":
            return True
    except msgspec.DecodeError:
        pass
    raise ValuesError("a command other than truncate")


def actions_of(row: Row, settings: Elasticsearch, log: str, generation: int) -> Iterator[Action]:
    """What a row asks for; first, if its key has changed, that what was under the old one goes."""
    index, version = index_of(settings, row.ns), version_of(generation, row.offset)
    if row.old_key is not None:
        yield Action(row.offset, row.ns, index, id_of(row.old_key), version, None)
    id = _id(row, log)
    body = None if row.op == "delete" else body_of(row.data)
    yield Action(row.offset, row.ns, index, id, version, body)


def _id(row: Row, log: str) -> str:
    if row.key is not None:
        return id_of(row.key)
    found = _read(row.data).get("_id")
    if found is not None:
        return id_of(f'{{"_id":{bytes(found).decode()}}}')
    if row.op != "insert":
        raise ValuesError(f"an {row.op} without a key: no document can be found by it")
    return f"{log}-{row.offset}"


def id_of(key: str) -> str:
    """The id of a document with this key."""
    given = [_decode(raw) for raw in _read(key).values()]
    if len(given) != 1:
        id = _encode(given).decode()
    else:
        value = _plain(given[0])
        id = value if isinstance(value, str) else _encode(value).decode()
        if isinstance(given[0], str) and _could_be_other(given[0]):
            id = _encode(given[0]).decode()
    if not 0 < len(id.encode()) <= LONGEST_ID:
        raise ValuesError(f"an id of {len(id.encode())} bytes, {LONGEST_ID} is the most")
    return id


def _could_be_other(text: str) -> bool:
    """Whether the id of something else looks like this text."""
    if not text or _TYPED.fullmatch(text):
        return True
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return False
    return True


def body_of(data: str) -> bytes:
    """The document of a message, on one line."""
    if '"$' not in data and "\\u0024" not in data:
        if '"_id"' not in data and '""' not in data and "\n" not in data and "\r" not in data:
            return data.encode()
        fields = _read(data)
        kept = {name: raw for name, raw in fields.items() if name != "_id"}
        if '""' in data:
            _refuse_nameless(msgspec.json.decode(data))
        return b"".join(_encode(kept).splitlines())
    return _encode({name: _field(bytes(raw)) for name, raw in _read(data).items() if name != "_id"})


def _field(raw: bytes) -> Any:
    """A field as it is, unless it holds a form of extended JSON."""
    if b'"$' not in raw and b"\\u0024" not in raw:
        if raw[:1] in b"{[":
            _refuse_nameless(msgspec.json.decode(raw))
        return msgspec.Raw(raw)
    return _plain(_decode(raw))


def _plain(tree: Any) -> Any:
    """A value as the server takes it."""
    if isinstance(tree, list):
        return [_plain(one) for one in tree]
    if not isinstance(tree, dict):
        return tree
    if extended.looks_extended(tree):
        if extended.is_literal(tree):
            tree = tree[extended.LITERAL]
        else:
            name, content = next(iter(tree.items()))
            writer = _FORMS.get(name)
            if writer is not None and extended.read(tree) is not extended.NO_FORM:
                return writer(content)
    if "" in tree:
        raise ValuesError("a field without a name, which the server does not take")
    return {name: _plain(one) for name, one in tree.items()}


def _refuse_nameless(tree: Any) -> None:
    if isinstance(tree, dict):
        if "" in tree:
            raise ValuesError("a field without a name, which the server does not take")
        for one in tree.values():
            _refuse_nameless(one)
    elif isinstance(tree, list):
        for one in tree:
            _refuse_nameless(one)


def _moment(content: Any) -> object:
    if isinstance(content, str):
        return content
    found = extended.read({"$date": content})
    return found.isoformat() if hasattr(found, "isoformat") else content


def _double(content: Any) -> object:
    number = float(content)
    if number - number != 0.0:
        raise ValuesError(f"{content} is no number that the server takes")
    return number


_FORMS: dict[str, Callable[[Any], object]] = {
    "$date": _moment,
    "$localDate": str,
    "$localTime": str,
    "$time": str,
    "$localTimestamp": str,
    "$uuid": str,
    "$oid": str,
    "$numberDecimal": str,
    "$numberLong": int,
    "$numberInt": int,
    "$numberDouble": _double,
    "$binary": lambda content: content["base64"] if isinstance(content, dict) else content,
}


def _read(text: str) -> dict[str, msgspec.Raw]:
    try:
        return _fields(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ValuesError(f"not a document: {error}") from None


def problem_of(row: Row, settings: Elasticsearch) -> str | None:
    """Why the target can never take a row; None if it may."""
    try:
        if row.op == "command":
            is_truncate(row)
            index_of(settings, row.ns)
        elif row.op in WRITES:
            for action in actions_of(row, settings, "", 0):
                if action.body is not None and len(action.body) > settings.bulk_bytes * 16:
                    return (
                        f"a document of {len(action.body):,} bytes, `bulk_bytes` is {settings.bulk_bytes:,}"
                    )
    except (PenstockError, ValueError, RecursionError) as error:
        return str(error)
    return None
