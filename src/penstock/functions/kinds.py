"""Kinds of functions that need less than a whole message, or take many at once, and are quicker for it.

A `TextFunction` looks at nothing but the text of the data and gives back another text; a `NamespaceFunction`
looks at nothing but the namespace, an `OpFunction` at nothing but the op. The chain applies the first to plain
bytes, the others once for each distinct namespace or op of a batch. A `BatchFunction` is given whole batches. All
are functions like any other to everybody else.

The helpers read the top level of a document. Values stay the text they are (`msgspec.Raw`), and fields that
nobody asked for are stepped over.
"""

from __future__ import annotations

import dataclasses
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.functions.base import Editable, Fields, Function, FunctionError

if TYPE_CHECKING:
    import pyarrow as pa

NULL = msgspec.Raw(b"null")
NOT_AN_OBJECT = (msgspec.DecodeError, UnicodeDecodeError)
"""What the readers below raise for a text that is not one JSON object."""

fields_of = msgspec.json.Decoder(Fields).decode
"""The fields of a document: names to the untouched text of their values."""

text_of = msgspec.json.encode
"""A document of such fields, or of what `reader_of` read; values are copied byte for byte."""

_ESCAPED = re.compile(r'[\x00-\x1f"\\]')
"""Characters in a name with which msgspec cannot read it as an attribute."""


class TextFunction(Function):
    """A function of the text alone."""

    @abstractmethod
    def rewrite(self, text: bytes) -> bytes | None:
        """The new text, `text` itself if nothing changes, or None to drop the message."""

    def apply(self, message: Editable) -> bool:
        given = message.text()
        text = given.encode() if isinstance(given, str) else given
        new = self.rewrite(text)
        if new is not None and new is not text:
            message.replace(fields_of(new))
        return new is not None

    def __getstate__(self) -> dict[str, object]:
        """The settings; readers that were made from them stay behind, they cannot be pickled."""
        settings = dataclasses.fields(self)  # type: ignore[arg-type]  # every function is a dataclass
        return {setting.name: getattr(self, setting.name) for setting in settings}


class NamespaceFunction(Function):
    """A function of the namespace alone."""

    @abstractmethod
    def moved(self, ns: str) -> str:
        """The new namespace, or `ns` itself."""

    def apply(self, message: Editable) -> bool:
        message.ns = self.moved(message.ns)
        return True


class OpFunction(Function):
    """A function of the op alone, which keeps a message or drops it."""

    @abstractmethod
    def keeps(self, op: str) -> bool:
        """Whether messages with this op go on."""

    def apply(self, message: Editable) -> bool:
        return self.keeps(message.op)


class BatchFunction(Function):
    """A function of many messages at once."""

    @abstractmethod
    def apply_batch(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[tuple[int, str]]]:
        """What goes on of a batch of at least one row, and the offsets it refuses, each with the reason.

        The result has the same columns, in the order of offsets, and only offsets that were given. An offset
        that is neither in it nor refused is dropped; one that is refused is not in it.
        """

    def apply(self, message: Editable) -> bool:
        """The same for one message by itself."""
        import pyarrow as pa

        data = message.text()
        row = {
            "offset": pa.array([0], pa.int64()),
            "ts": pa.array([message.ts], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "mode": ["sync"],
            "op": [message.op],
            "ns": [message.ns],
            "key": pa.array([None], pa.string()),
            "old_key": pa.array([None], pa.string()),
            "data": [data if isinstance(data, str) else data.decode()],
            "origin": [message.ns],
        }
        result, refused = self.apply_batch(pa.record_batch(row))
        if refused:
            raise FunctionError(refused[0][1])
        if result.num_rows > 1:
            raise FunctionError(f"one message became {result.num_rows} rows, which only a batch can hold")
        for kept in result.select(["ns", "op", "data"]).to_pylist():
            message.ns, message.op = kept["ns"], kept["op"]
            message.ts = result.column("ts").cast(pa.int64())[0].as_py()
            if kept["data"] != row["data"][0]:
                message.replace(fields_of(kept["data"]))
        return bool(result.num_rows)


def reader_of(names: Sequence[str]) -> Callable[[bytes], object]:
    """Reads these fields of a document, those that it has, in this order; `text_of` writes them again."""
    distinct = list(dict.fromkeys(names))
    if any(map(_ESCAPED.search, distinct)):
        return lambda text: _chosen(fields_of(text), distinct)
    attributes = {f"field_{index}": name for index, name in enumerate(distinct)}
    kind = msgspec.Raw | msgspec.UnsetType
    document = msgspec.defstruct(
        "Document",
        [(attribute, kind, msgspec.UNSET) for attribute in attributes],
        rename=attributes,
        gc=False,
    )
    return msgspec.json.Decoder(document).decode


def value_reader_of(name: str) -> Callable[[bytes], msgspec.Raw]:
    """Reads the value of one field; a document without it has null there."""
    if _ESCAPED.search(name):
        return lambda text: fields_of(text).get(name, NULL)
    document = msgspec.defstruct("Document", [("value", msgspec.Raw, NULL)], rename={"value": name}, gc=False)
    decode = msgspec.json.Decoder(document).decode
    return lambda text: decode(text).value  # type: ignore[attr-defined]  # made three lines above


def not_an_object(error: Exception) -> FunctionError:
    return FunctionError(f"data is not a JSON object: {error}")


def _chosen(fields: Fields, names: Sequence[str]) -> Fields:
    return {name: fields[name] for name in names if name in fields}
