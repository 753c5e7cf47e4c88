"""`opfilter`: let messages pass by what happened to the row (Transporter reference, section 5).

    whitelist=["insert", "update"]    only these go on
    blacklist=["delete"]              these do not

Words are read in any case, and a first letter stands for its word: "Delete" is "d". With both lists a message
must be on the first and not on the second; with neither, all go on. The data is not looked at.

Not as in the original: words are checked when the pipeline file is read (there only the first letter counted, so
that "inserrt" was an insert and "xyz" a filter that nothing passed); commands are given to no function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from penstock.base.errors import did_you_mean
from penstock.base.settings import setting
from penstock.functions.kinds import OpFunction
from penstock.log.message import OP_WORDS

OP_LETTERS = {word[0]: word for word in reversed(OP_WORDS)}
"""Every op by its first letter, as the reference reads them; `u` is an update."""


def op_word(given: str) -> str | None:
    """The op that a word or a first letter means, in any case; None if there is none."""
    word = given.lower()
    return word if word in OP_WORDS else OP_LETTERS.get(word)


@dataclass(frozen=True)
class OpFilter(OpFunction):
    """Keeps or drops messages by their op."""

    name: ClassVar[str] = "opfilter"
    description: ClassVar[str] = "keep or drop messages by their op"

    whitelist: Sequence[str] = setting(
        "ops that go on; none given: all", default=[], example=["insert", "update"]
    )
    blacklist: Sequence[str] = setting("ops that do not go on", default=[], example=["delete"])

    def __post_init__(self) -> None:
        for name, words in (("whitelist", self.whitelist), ("blacklist", self.blacklist)):
            for word in words:
                if op_word(word) is None:
                    raise ValueError(f"setting '{name}': unknown op '{word}'{did_you_mean(word, OP_WORDS)}")

    def keeps(self, op: str) -> bool:
        return op in self._kept

    @cached_property
    def _kept(self) -> frozenset[str]:
        only = {op_word(word) for word in self.whitelist} or set(OP_WORDS)
        never = {op_word(word) for word in self.blacklist}
        return frozenset(word for word in OP_WORDS if word in only and word not in never)
