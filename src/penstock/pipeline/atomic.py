"""The sinks of a pipeline that commit together: one query, one position, one decision (`supervisedgroup.py`).

Sinks whose adaptor is `atomic` form the group, if there are at least two of them. They share what is done about refused
messages and about lag, so these must be said alike for all.
"""

from __future__ import annotations

from penstock.base.errors import UsageError
from penstock.journal.client import Client
from penstock.log.offsets import OffsetLog
from penstock.pipeline.definition import Pipeline, SinkNode

GROUP = "atomic-group"


def members(pipeline: Pipeline) -> tuple[SinkNode, ...]:
    """The sinks that commit together; none if there is only one, which decides for itself."""
    nodes = tuple(node for node in pipeline.sink_nodes if getattr(node.adaptor, "atomic", False))
    return nodes if len(nodes) > 1 else ()


def commits_with(pipeline: Pipeline, sink: SinkNode) -> tuple[str, ...]:
    """The others that a sink commits together with."""
    names = [node.name for node in members(pipeline)]
    return tuple(name for name in names if name != sink.name) if sink.name in names else ()


def atomic_nodes(pipeline: Pipeline) -> tuple[SinkNode, ...]:
    """The sinks that commit together; refused if they do not share what they must."""
    nodes = members(pipeline)
    for node in nodes[1:]:
        if (node.on_error, node.max_lag) != (nodes[0].on_error, nodes[0].max_lag):
            raise UsageError(
                f"sinks '{nodes[0].name}' and '{node.name}' commit together and need the same on_error and max_lag",
                hint=f"say the same for both, or give '{node.name}' a query of its own with atomic=False",
            )
    return nodes


def decisions_of(client: Client, pipeline: str, now: int) -> OffsetLog:
    """The record of the group's decisions, claimed."""
    return OffsetLog(client, pipeline, GROUP, now, kind="decisions")
