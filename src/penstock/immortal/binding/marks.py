"""Whether a replay repeats what was sent: fingerprints of output, written into the log.

The log holds input alone. So the primary sends itself, now and then, an Impulse with one CRC-32 for each input it has
handled: of all that the handler of that input sent. A replay meets the mark, compares, and names the first input whose
output is another one now.
"""

from __future__ import annotations

import msgspec

from penstock.immortal.binding.errors import DeterminismError

EVERY = 512
"""Inputs between two marks, while there is input."""


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """The fingerprints of inputs from `first` on."""

    now: float
    first: int
    crcs: list[int]


def check(mark: Mark, first: int, crcs: list[int]) -> None:
    """Compare with the fingerprints of inputs from `first` on; raises for the first that differs."""
    for at, was in enumerate(mark.crcs, mark.first):
        if not first <= at < first + len(crcs):
            continue
        if crcs[at - first] != was:
            raise DeterminismError(
                f"input {at} made its handler send something else in this replay than when it was first handled",
                hint=f"`penstock immortal debug NAME --at {at}` stops there; a clock, a random number, the order of a "
                "set or changed code are the usual reasons",
            )
