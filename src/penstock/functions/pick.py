"""`pick`: keep only the named fields (Transporter reference, section 5).

    {"_id":7,"sku":"a","cost":2}  with  fields=["sku","nope"]  gives  {"sku":"a"}

The new text has the fields in the order of the setting; names that a message does not have are left out.

Not as in the original: `ts` stays what it was, and the message is acknowledged like any other (there `pick`
reset the one and lost the other). Picking nothing at all is refused at load: it is a misspelt setting more
often than a wish for empty documents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from penstock.base.settings import setting
from penstock.functions.kinds import NOT_AN_OBJECT, TextFunction, not_an_object, reader_of, text_of


@dataclass(frozen=True)
class Pick(TextFunction):
    """Keeps top-level fields by name."""

    name: ClassVar[str] = "pick"
    description: ClassVar[str] = "keep only the named fields"

    fields: Sequence[str] = setting("names of the fields to keep", example=["id", "total"])

    def __post_init__(self) -> None:
        if not self.fields:
            raise ValueError("setting 'fields': expected at least one name, got none")

    @cached_property
    def _read(self) -> Callable[[bytes], object]:
        return reader_of(self.fields)

    def rewrite(self, text: bytes) -> bytes:
        try:
            return text_of(self._read(text))
        except NOT_AN_OBJECT as error:
            raise not_an_object(error) from None
