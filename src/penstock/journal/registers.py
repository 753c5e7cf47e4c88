"""Registers: the small label set of a journal that appends can test and change (seed 003, "Components").

An append may *check* them before it streams, and change them at its commit: first what it subtracts goes,
then what it unites comes, and what comes replaces. Both are pure; registers are the wire's LabelSet.
"""

from __future__ import annotations

from penstock.journal import labels
from penstock.journal.protocol import LabelSelector, LabelSet


def check(registers: LabelSet, selector: LabelSelector | None) -> bool:
    """Whether an append that checks `selector` may go on; None checks nothing.

    Empty registers match any selector: a journal that lost them (or never had any) accepts whoever comes, and
    whoever needs a fence sets one first.
    """
    if selector is None or not registers.labels:
        return True
    return labels.match(selector, registers)


def apply(registers: LabelSet, union: LabelSet | None, subtract: LabelSet | None) -> LabelSet:
    """The registers after a commit; a new set, even when nothing changes."""
    after = labels.subtract(registers, subtract if subtract is not None else LabelSet())
    return labels.union(union if union is not None else LabelSet(), after)
