"""`rename`: give fields other names (Transporter reference, section 5).

    {"_id":7,"name":"x","n":1}  with  field_map={"name": "n"}  gives  {"_id":7,"n":"x"}

All pairs apply at once, to the names that the message came with: `{"a": "b", "b": "a"}` swaps, and
`{"a": "b", "b": "c"}` moves each by one place. A renamed field stays where it stood. A field that already has
the new name is overwritten. When two fields get one name, the pair that stands later in the setting wins.
A message that has none of the old names keeps its very text.

Not as in the original: there the pairs were applied one after another in random order, which left chains and
swaps undefined.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from penstock.base.settings import setting
from penstock.functions.base import Fields
from penstock.functions.kinds import NOT_AN_OBJECT, TextFunction, fields_of, not_an_object, text_of


@dataclass(frozen=True)
class Rename(TextFunction):
    """Renames top-level fields, all pairs at once."""

    name: ClassVar[str] = "rename"
    description: ClassVar[str] = "give fields other names"

    field_map: Mapping[str, str] = setting(
        "old name to new name, for each field to rename", example={"_id": "id"}
    )

    def rewrite(self, text: bytes) -> bytes:
        try:
            fields = fields_of(text)
        except NOT_AN_OBJECT as error:
            raise not_an_object(error) from None
        new_names = self.field_map
        if new_names.keys().isdisjoint(fields):
            return text
        renamed = {new_names.get(name, name): value for name, value in fields.items()}
        return text_of(renamed if len(renamed) == len(fields) else self._where_names_meet(fields))

    def _where_names_meet(self, fields: Fields) -> Fields:
        """Rename where several fields want one name: the last pair that has a field wins it."""
        winners = {new: old for old, new in self.field_map.items() if old in fields}
        renamed: Fields = {}
        for name, value in fields.items():
            new = self.field_map.get(name, name)
            if winners.get(new, name) == name:
                renamed[new] = value
        return renamed
