"""What stands between the log and one sink, and what is told about it: values that the chain's parts share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.functions.base import Function


class NamespaceMatcher(Protocol):
    """Says which namespaces are meant; `penstock.pipeline.namespace.Namespace` is one."""

    def matches(self, ns: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Step:
    """One function on the way, under the name of its node, for the namespaces that `accept` lets through."""

    name: str
    function: Function
    accept: NamespaceMatcher


class Refused(NamedTuple):
    """A message that the function at `node` could not process, and why; `ns` as the log has it."""

    offset: int
    ns: str
    error: str
    node: str


class StepCount(NamedTuple):
    """What one function did: messages it was asked about, let through, dropped and refused.

    Messages are counted by distinct offset: one of which several rows are left is one, and is dropped only
    when none of them goes on.
    """

    into: int = 0
    out: int = 0
    dropped: int = 0
    refused: int = 0

    def and_(self, other: StepCount) -> StepCount:
        return StepCount(*(one + two for one, two in zip(self, other, strict=True)))
