"""The contract of a function that works on one message at a time.

A function is a frozen dataclass whose fields are its settings (`penstock.base.settings`), so that it can be
checked at load, shown by `about`, and sent to Spark's workers. `penstock.functions.chain` calls it:

- in an executor process, once for each message whose current namespace matches the function's pattern, in
  the order declared;
- with an `Editable` that belongs to this sink alone; nothing is shared between sinks;
- it returns True to keep the message, False to drop it; a dropped message counts as acknowledged;
- it raises `FunctionError` when it cannot decide; the message is then refused, by offset and with the text.

What is not promised: that it is called once a message (a task may be retried), or in the order of offsets
across partitions. A function must therefore be free of side effects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import msgspec

from penstock.base.errors import PenstockError

Fields = dict[str, msgspec.Raw]

_decode = msgspec.json.Decoder(Fields).decode
_encode = msgspec.json.encode


class FunctionError(PenstockError):
    """This message cannot be processed; the text says why, in terms of its fields."""


class Editable:
    """A message as a function sees it: `ns`, `op`, `ts`, and the top-level fields of its data.

    `fields` maps each name to the untouched text of its value; it is parsed at first use, and the text of
    the message is written again only if `touch` was called.
    """

    __slots__ = ("_fields", "_text", "_touched", "ns", "op", "ts")

    def __init__(self, ns: str, op: str, ts: int, text: str | bytes) -> None:
        self.ns = ns
        self.op = op
        self.ts = ts
        self._text = text
        self._fields: Fields | None = None
        self._touched = False

    @property
    def fields(self) -> Fields:
        if self._fields is None:
            try:
                self._fields = _decode(self._text)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise FunctionError(f"data is not a JSON object: {error}") from None
        return self._fields

    def replace(self, fields: Fields) -> None:
        """Give the message these fields instead."""
        self._fields = fields
        self._touched = True

    def touch(self) -> None:
        """Say that `fields` was changed in place."""
        self._touched = True

    def text(self) -> str | bytes:
        """The data's text: the very text that came unless a function touched it."""
        if not self._touched:
            return self._text
        return _encode(self._fields)


class Function(ABC):
    """A transformation of one message; see the module's text for who calls it and when."""

    name: ClassVar[str]
    description: ClassVar[str]

    @abstractmethod
    def apply(self, message: Editable) -> bool:
        """Edit the message in place; return whether it goes on."""
