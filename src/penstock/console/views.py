"""What the page is told about a pipeline: one object, made from its status, its graph and what its run tells. Pure.

Every node has a `state` in a word, a `tone` (ok, busy, idle, warn, bad) for its colour, and a sentence for what
is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from penstock.base.secrets import mask
from penstock.log.control import ControlState
from penstock.pipeline.progress import NodeProgress, RunFile
from penstock.pipeline.records import PipelineStatus, SinkStatus

_NAMESPACES = 200
"""More are not sent with every change; the log can be asked for them."""

_TONES = {
    "running": "ok",
    "one at a time": "busy",
    "starting": "busy",
    "waiting": "idle",
    "done": "idle",
    "behind": "warn",
    "paused": "warn",
    "retrying": "warn",
    "away": "warn",
    "restarting": "warn",
    "detached": "bad",
    "stopped": "bad",
    "not running": "idle",
}
_WORST = ("bad", "warn", "busy", "ok", "idle")

Json = dict[str, object]


def state_of(sink: SinkStatus) -> str:
    """How the sink stands, in one word or two; as `penstock status` has it, and `stopped` if it waits for a person."""
    if sink.detached:
        return "detached"
    if sink.paused:
        return "paused"
    if sink.state:
        return sink.state
    if sink.lag and (sink.error or sink.careful > sink.watermark):
        return "stopped"
    return "behind" if sink.lag else "waiting"


def pipeline_view(
    status: PipelineStatus,
    control: ControlState,
    file: RunFile | None,
    nodes_told: Sequence[NodeProgress],
    rates: Mapping[str, float],
) -> Json:
    """Everything that the overview and the pages of a pipeline show without asking for more."""
    told = {node.node: node for node in nodes_told}
    live = told if status.running else {}
    nodes, edges = _shape(status, control, told)
    sinks = {sink.sink: sink for sink in status.sinks}
    shown = [
        _sink(node, sinks[str(node["name"])], live.get(str(node["name"])), rates)
        if str(node["name"]) in sinks
        else _other(node, status, told.get(str(node["name"])), rates)
        for node in nodes
    ]
    run = status.run
    return {
        "name": status.pipeline,
        "running": status.running,
        "run": msgspec.to_builtins(run) if run else None,
        "ended": status.ended,
        "last_run": _last_run(control),
        "tone": _tone(status, shown),
        "trouble": _trouble(status, shown),
        "log": {
            "oldest": status.oldest,
            "first": status.first,
            "next": status.next,
            "bytes": status.log_bytes,
            "limit": status.log_limit,
        },
        "readers": status.readers,
        "holder": status.holder,
        "bad": status.bad,
        "namespaces": [
            {"ns": ns, "mode": at.mode, "offset": at.offset}
            for ns, at in list(status.namespaces.items())[:_NAMESPACES]
        ],
        "namespace_count": len(status.namespaces),
        "nodes": shown,
        "edges": edges,
        "rate": rates.get("", 0.0),
        "spark": _spark(control, file) if status.running else None,
    }


def told_nodes(control: ControlState, file: RunFile | None) -> Sequence[NodeProgress]:
    """What the run tells of its nodes. Of one that has its file elsewhere: the functions, as of its last beat."""
    if file is not None:
        return file.progress.nodes
    return msgspec.convert(control.run.functions, list[NodeProgress]) if control.run else ()


def _spark(control: ControlState, file: RunFile | None) -> object:
    if file is not None:
        return msgspec.to_builtins(file.progress.spark)
    return control.run.spark if control.run else None


def _last_run(control: ControlState) -> Json | None:
    run = control.run
    if run is None:
        return None
    return {
        "pid": run.pid,
        "host": run.host,
        "began": run.began,
        "beat": run.beat,
        "ended": run.ended,
        "exit_code": run.exit_code,
        "file": run.file or None,
    }


def _shape(
    status: PipelineStatus, control: ControlState, told: Mapping[str, NodeProgress]
) -> tuple[list[Json], list[list[str]]]:
    """The graph that the last run recorded, with sinks that only the journals know; without one, a plain fan."""
    graph = (control.run.graph if control.run else None) or {}
    nodes = [
        {
            "name": str(node["name"]),
            "kind": _kind(node),
            "what": str(node.get("what", "")),
            "ns": node.get("ns"),
        }
        for node in _objects(graph.get("nodes"))
    ]
    edges = [[str(edge["from"]), str(edge["to"])] for edge in _objects(graph.get("edges"))]
    if not nodes:
        nodes = [{"name": n.node, "kind": n.kind, "what": n.adaptor, "ns": None} for n in told.values()]
        if not any(node["kind"] == "source" for node in nodes):
            nodes.insert(0, {"name": "source", "kind": "source", "what": "", "ns": None})
    source = next(str(node["name"]) for node in nodes if node["kind"] == "source")
    known = {node["name"] for node in nodes}
    for sink in status.sinks:
        if sink.sink not in known:
            nodes.append({"name": sink.sink, "kind": "sink", "what": "", "ns": None, "gone": bool(graph)})
    reached = {target for _, target in edges}
    edges += [
        [source, str(node["name"])]
        for node in nodes
        if node["name"] not in reached and node["kind"] != "source" and not node.get("gone")
    ]
    return nodes, edges


def _kind(node: Json) -> str:
    return "function" if node.get("kind") == "transform" else str(node.get("kind"))


def _objects(value: object) -> Sequence[Json]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _sink(node: Json, sink: SinkStatus, live: NodeProgress | None, rates: Mapping[str, float]) -> Json:
    state = state_of(sink)
    return {
        **node,
        "state": state,
        "tone": _TONES.get(state, "warn"),
        "rate": rates.get(sink.sink, 0.0),
        "watermark": sink.watermark,
        "generation": sink.generation,
        "delivered": sink.delivered,
        "dropped": sink.dropped,
        "dead": sink.dead,
        "dead_letters": sink.dead_letters,
        "lag": sink.lag,
        "lag_bytes": sink.lag_bytes,
        "pending_ts": sink.pending_ts,
        "updated_ts": sink.updated_ts,
        "error": mask(sink.error) if sink.error else None,
        "careful": sink.careful,
        "acked": list(sink.acked),
        "paused": sink.paused,
        "detached": sink.detached,
        "quotas": [{"what": q.what, "used": q.used, "limit": q.limit} for q in sink.quotas],
        "batch_ms": live.batch_ms if live else None,
        "transaction": msgspec.to_builtins(sink.transaction),
    }


def _other(node: Json, status: PipelineStatus, told: NodeProgress | None, rates: Mapping[str, float]) -> Json:
    """A source or a function: what its run tells; without a run, that it rests."""
    live = told if status.running else None
    state = live.state if live else "not running"
    if node["kind"] == "function" and live:
        state = "running" if live.messages_in else "waiting"
    shown: Json = {
        **node,
        "state": state,
        "tone": _TONES.get(state, "warn"),
        "rate": rates.get(str(node["name"]), 0.0),
        "in": told.messages_in if told else 0,
        "out": told.delivered if told else 0,
        "dropped": told.dropped if told else 0,
        "dead": told.dead if told else 0,
        "error": mask(live.error) if live and live.error else None,
    }
    if node["kind"] == "source":
        shown["rate"] = rates.get("", 0.0)
        shown["copies"] = msgspec.to_builtins(live.copies) if live else []
        shown["gauges"] = dict(live.gauges) if live else {}
        if live and status.readers:
            shown["error"] = status.readers
    return shown


def _tone(status: PipelineStatus, nodes: Sequence[Json]) -> str:
    tones = {str(node["tone"]) for node in nodes} | ({"warn"} if status.ended else set())
    return next((tone for tone in _WORST if tone in tones), "idle")


def _trouble(status: PipelineStatus, nodes: Sequence[Json]) -> list[str]:
    """What a person should know, in sentences, the worst first."""
    found = []
    for tone in ("bad", "warn"):
        for node in nodes:
            if node["tone"] == tone and node["kind"] == "sink":
                found.append(f"{node['name']} {_wording(node)}")
            elif node["tone"] == tone:
                found.append(f"{node['kind']} {node['name']} is {node['state']}")
    if status.ended:
        found.append(status.ended)
    if status.bad:
        found.append(f"the source could make no message of {status.bad} of what it read")
    return found


def _wording(node: Json) -> str:
    lag = node["lag"]
    behind = f", {lag:,} behind" if isinstance(lag, int) and lag else ""
    if node["state"] == "stopped":
        return f"stopped before message {node['watermark']}{behind}"
    if node["state"] == "behind":
        return f"lacks {lag:,} messages"
    return f"is {node['state']}{behind}"
