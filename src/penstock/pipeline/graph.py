"""The shape of a pipeline: its nodes and who feeds whom, drawn as text, Mermaid or Graphviz's DOT.

Pure: made from the definition alone, nothing is asked and no setting is shown. A transformation that feeds several
sinks is one node; names are unique in a pipeline, so they are the nodes' identities.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.pipeline.atomic import commits_with
from penstock.pipeline.definition import Pipeline, SinkNode, TransformNode
from penstock.pipeline.namespace import Namespace
from penstock.pipeline.saving import max_lag_text, policy_text


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A source, a transformation or a sink."""

    name: str
    kind: str
    """source | transform | sink"""
    what: str
    """The adaptor's or the function's name."""
    ns: str
    on_error: str | None = None
    max_lag: str | None = None
    commits_with: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """What is not the default, in words."""
        found = [] if self.ns == ".*" else [f"ns {self.ns}"]
        found += [] if self.on_error in (None, "stop") else [f"on error {self.on_error}"]
        found += [] if self.max_lag is None else [f"at most {self.max_lag}"]
        return found + ([f"commits with {', '.join(self.commits_with)}"] if self.commits_with else [])


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in the order of the definition, the source first; edges as pairs of names."""

    pipeline: str
    nodes: tuple[GraphNode, ...]
    edges: tuple[tuple[str, str], ...]

    def behind(self, name: str) -> list[GraphNode]:
        """The nodes that this one feeds."""
        targets = {target for origin, target in self.edges if origin == name}
        return [node for node in self.nodes if node.name in targets]


def graph_of(pipeline: Pipeline) -> Graph:
    """The shape of a pipeline. Transformations that lead to no sink are not in it: they would not run."""
    source = pipeline.source_node
    nodes = {source.name: GraphNode(source.name, "source", source.adaptor.name, _ns(source.ns))}
    edges: dict[tuple[str, str], None] = {}
    for sink in pipeline.sink_nodes:
        above = source.name
        for step in sink.steps:
            nodes.setdefault(step.name, _step(step))
            edges[above, step.name] = None
            above = step.name
        nodes[sink.name] = _sink(sink, commits_with(pipeline, sink))
        edges[above, sink.name] = None
    return Graph(pipeline.name, tuple(nodes.values()), tuple(edges))


def _step(step: TransformNode) -> GraphNode:
    return GraphNode(step.name, "transform", step.label, _ns(step.ns))


def _sink(sink: SinkNode, others: tuple[str, ...]) -> GraphNode:
    limit = None if sink.max_lag is None else max_lag_text(sink.max_lag)
    policy = policy_text(sink.on_error)
    return GraphNode(sink.name, "sink", sink.adaptor.name, _ns(sink.ns), policy, limit, others)


def _ns(pattern: Namespace) -> str:
    return ".*" if pattern.everything else str(pattern)


def as_text(graph: Graph) -> str:
    """A tree, a node a line."""
    return "\n".join([graph.pipeline, *_lines(graph, graph.nodes[:1], "")])


def _lines(graph: Graph, nodes: Sequence[GraphNode], indent: str) -> Iterator[str]:
    for place, node in enumerate(nodes):
        last = place == len(nodes) - 1
        notes = "".join(f"  {note}" for note in node.notes)
        yield f"{indent}{'└── ' if last else '├── '}{node.name}  {node.what}{notes}"
        yield from _lines(graph, graph.behind(node.name), indent + ("    " if last else "│   "))


_MERMAID_SHAPES = {"source": ('[("', '")]'), "transform": ('["', '"]'), "sink": ('[/"', '"/]')}


def as_mermaid(graph: Graph) -> str:
    """A flow chart for documents that draw Mermaid."""
    numbers = {node.name: f"n{number}" for number, node in enumerate(graph.nodes)}
    lines = ["flowchart LR"]
    for node in graph.nodes:
        left, right = _MERMAID_SHAPES[node.kind]
        text = "<br/>".join(_in_mermaid(part) for part in (node.name, node.what, *node.notes))
        lines.append(f"    {numbers[node.name]}{left}{text}{right}")
    lines += [f"    {numbers[origin]} --> {numbers[target]}" for origin, target in graph.edges]
    return "\n".join(lines)


def _in_mermaid(text: str) -> str:
    """Signs that Mermaid reads as its own are spelled as entities."""
    return "".join(char if char.isalnum() or char in " ._-,/" else f"#{ord(char)};" for char in text)


_DOT_SHAPES = {"source": "cylinder", "transform": "box", "sink": "folder"}


def as_dot(graph: Graph) -> str:
    """Graphviz's language."""
    lines = [f"digraph {_in_dot(graph.pipeline)} {{", "    rankdir=LR;"]
    for node in graph.nodes:
        label = _in_dot("\n".join((node.name, node.what, *node.notes)))
        lines.append(f"    {_in_dot(node.name)} [shape={_DOT_SHAPES[node.kind]}, label={label}];")
    lines += [f"    {_in_dot(origin)} -> {_in_dot(target)};" for origin, target in graph.edges]
    return "\n".join([*lines, "}"])


def _in_dot(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def as_json(graph: Graph) -> str:
    """One object: `pipeline`, `nodes`, `edges`."""
    return json.dumps(as_values(graph), ensure_ascii=False)


def as_values(graph: Graph) -> dict[str, object]:
    """The same as plain values."""
    nodes = [
        {
            "name": node.name,
            "kind": node.kind,
            "what": node.what,
            "ns": node.ns,
            **({"on_error": node.on_error, "max_lag": node.max_lag} if node.kind == "sink" else {}),
            **({"commits_with": list(node.commits_with)} if node.commits_with else {}),
        }
        for node in graph.nodes
    ]
    edges = [{"from": origin, "to": target} for origin, target in graph.edges]
    return {"pipeline": graph.pipeline, "nodes": nodes, "edges": edges}


FORMATS: Mapping[str, Callable[[Graph], str]] = {
    "text": as_text,
    "mermaid": as_mermaid,
    "dot": as_dot,
    "json": as_json,
}
