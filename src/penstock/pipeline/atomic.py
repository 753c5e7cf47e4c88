"""The sinks of a pipeline that commit together: one query, one position, one decision (`supervisedgroup.py`).

Sinks whose adaptor is `atomic` form the group, if there are at least two of them. They share what is done about refused
messages and about lag, so these must be said alike for all. Who is in it may change from run to run: one that decides
for itself from now on takes the group's last decision over first (`leave_group`).
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from penstock.base.errors import UsageError
from penstock.journal.client import Client
from penstock.log.journals import journal_labels, offsets_journal
from penstock.log.offsets import OffsetLog, SinkOffsets, load
from penstock.pipeline.definition import Pipeline, SinkNode
from penstock.spark.ballot import follow

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
    if nodes and any(node.name == GROUP for node in pipeline.sink_nodes):
        raise UsageError(
            f"a sink cannot be called '{GROUP}': sinks that commit together keep their decisions under this name",
            hint="give it another name",
        )
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


def leave_group(
    client: Client, pipeline: str, sinks: Collection[str], now: int, *, beside_a_run: bool = False
) -> None:
    """Have sinks that decide for themselves from now on take over what a group that they were in has decided last.

    A crash may have kept their own offset logs from it. What these do not know as committed would be aborted, and the
    decision that says otherwise would be found by the next group: therefore it is followed here, and struck out.
    Whoever still decides for the group is fenced off; `beside_a_run`, only if there is something to take over.
    """
    if journal_labels(client, offsets_journal(pipeline, GROUP)) is None:
        return
    if beside_a_run and not _decided(load(client, pipeline, GROUP), sinks):
        return
    decisions = decisions_of(client, pipeline, now)
    state = decisions.state
    if leaving := _decided(state, sinks):
        for sink in leaving:
            follow(state, sink, OffsetLog(client, pipeline, sink, now))
        members = {name: held for name, held in (state.commit.members or {}).items() if name not in leaving}
        others = {ns: at for ns, at in state.namespaces.items() if ns.partition("/")[0] not in leaving}
        decisions.replace(msgspec.structs.replace(state.commit, members=members), others, now)


def _decided(decisions: SinkOffsets, sinks: Collection[str]) -> list[str]:
    """Those of the sinks for which a group has decided."""
    return [sink for sink in sinks if sink in (decisions.commit.members or {})]
