"""`omit`: remove fields (Transporter reference, section 5).

    {"_id":7,"sku":"a","cost":2}  with  fields=["cost","tax"]  gives  {"_id":7,"sku":"a"}

Names that a message does not have are ignored; a message that has none of them keeps its very text.

Not as in the original: the message of one sink is never seen by another, so removing a field for one sink
leaves it in place for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from penstock.base.settings import setting
from penstock.functions.kinds import NOT_AN_OBJECT, TextFunction, fields_of, not_an_object, text_of


@dataclass(frozen=True)
class Omit(TextFunction):
    """Removes top-level fields by name."""

    name: ClassVar[str] = "omit"
    description: ClassVar[str] = "remove the named fields"

    fields: Sequence[str] = setting("names of the fields to remove", example=["password"])

    def rewrite(self, text: bytes) -> bytes:
        try:
            fields = fields_of(text)
        except NOT_AN_OBJECT as error:
            raise not_an_object(error) from None
        found = len(fields)
        for name in self.fields:
            fields.pop(name, None)
        return text if len(fields) == found else text_of(fields)
