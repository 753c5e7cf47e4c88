"""Refuses what makes the result of a DataFrame function depend on where a batch begins and ends.

A batch is whatever was there at the time; after a restart it is another one (DESIGN 3). So each row must be decided by
itself: nothing may put messages together, count them, or look at others than the one in question. Spark's analysed
plan tells, from what the function gave back down to what it was given: below children, inside the subqueries of
expressions, and through the names of a WITH. What is done to tables beside the messages is nobody's concern.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.base.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BY_ITSELF = {
    "Aggregate": "an aggregation",
    "Deduplicate": "a de-duplication",
    "Distinct": "a de-duplication",
    "Window": "a window function",
    "GlobalLimit": "a limit",
    "LocalLimit": "a limit",
    "Offset": "a limit",
    "Tail": "a limit",
    "FlatMapGroupsInPandas": "a function of groups",
    "FlatMapGroupsInArrow": "a function of groups",
    "FlatMapCoGroupsInPandas": "a function of groups",
    "FlatMapCoGroupsInArrow": "a function of groups",
}
"""Operators that no message may pass."""

_ITSELF = "a join of the messages with themselves"
_MESSAGES = "CollectMetrics"
"""What stands at the top of the frame that a function is given: it is observed."""


def refuse_state(node: str, shown: DataFrame, result: DataFrame) -> None:
    """Refuse what the function at `node` made of `shown` if it keeps state."""
    given = shown._jdf.queryExecution().analyzed()
    found = _Plan(given).stateful(result._jdf.queryExecution().analyzed())
    if found is not None:
        raise UsageError(
            f"transformation '{node}' uses {found}, which sees only the messages of one batch",
            hint="keep state in a query of your own on spark.readStream.format('penstock')",
        )


class _Plan:
    """A plan above what the function was given."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self._named: dict[int, bool] = {}
        """Whether messages come out of a part that a WITH gives a name, by its number."""

    def stateful(self, node: Any) -> str | None:
        """The first operator that keeps state between this node and what the function was given."""
        if node.fastEquals(self._given):
            return None
        children = list(_each(node.children()))
        below = next((found for child in children if (found := self.stateful(child)) is not None), None)
        if below is not None:
            return below
        if any(map(self._holds, _each(node.subqueries()))):
            return "a subquery of the messages"
        holding = [self._holds(child) for child in children]
        if node.nodeName() == "CTERelationDef":
            self._named[node.id()] = any(holding)
        if node.nodeName() == "Join" and all(holding):
            return _ITSELF
        return _BY_ITSELF.get(node.nodeName()) if any(holding) else None

    def _holds(self, node: Any) -> bool:
        """Whether messages come out of this part of a plan."""
        if node.nodeName() == _MESSAGES:
            return True
        if node.nodeName() == "CTERelationRef":
            return self._named.get(node.cteId(), False)
        return any(map(self._holds, (*_each(node.children()), *_each(node.subqueries()))))


def _each(nodes: Any) -> Iterator[Any]:
    """The elements of a sequence of Scala's."""
    for i in range(nodes.size()):
        yield nodes.apply(i)
