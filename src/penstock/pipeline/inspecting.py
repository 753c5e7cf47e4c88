"""What the outside systems of a pipeline say for themselves, asked before a run: `plan` shows it.

The source is asked first: a sink is told which namespaces will come to it, as far as that is known. Every node is
asked, whatever the others answered. Nothing is changed anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.adaptors.base import Finding, Found, Sink, Source
from penstock.base.errors import PenstockError
from penstock.base.secrets import mask
from penstock.pipeline.definition import Pipeline, SinkNode
from penstock.pipeline.engine import at_hand
from penstock.pipeline.plan import arriving
from penstock.pipeline.planned import NodeFinding


@dataclass(frozen=True, slots=True)
class Inspected:
    """The namespaces of the source, None if it could not be asked, for `problem`; and what was found at any node."""

    namespaces: tuple[Found, ...] | None
    findings: tuple[NodeFinding, ...]
    problem: PenstockError | None = None


def inspected(pipeline: Pipeline) -> Inspected:
    """Ask the source and all sinks of `pipeline`."""
    with at_hand(pipeline):
        return _asked(pipeline)


def _asked(pipeline: Pipeline) -> Inspected:
    node = pipeline.source_node
    try:
        found = used_source(pipeline).inspect(node.ns.matches)
    except PenstockError as error:
        return Inspected(None, tuple(_at_sinks(pipeline, None)), error)
    at_source = [_told(node.name, finding) for finding in found.findings]
    read = sorted(one.ns for one in found.namespaces if node.ns.matches(one.ns))
    return Inspected(tuple(found.namespaces), (*at_source, *_at_sinks(pipeline, read)))


def used_source(pipeline: Pipeline) -> Source:
    """The source under the name that it has in a run, so that it finds what a run has set up."""
    node = pipeline.source_node
    source = node.adaptor.source()
    source.use(source.copier, f"{pipeline.name}.{node.name}")
    return source


def _at_sinks(pipeline: Pipeline, read: Sequence[str] | None) -> list[NodeFinding]:
    return [
        finding
        for node in pipeline.sink_nodes
        for finding in _at_sink(pipeline.name, node, arriving(node, read))
    ]


def _at_sink(pipeline: str, node: SinkNode, namespaces: Sequence[str] | None) -> list[NodeFinding]:
    """What stands in the way of writing; a target that cannot be asked does, too."""
    sink: Sink = node.adaptor.sink()
    sink.use(sink.schemas, f"{pipeline}.{node.name}")
    try:
        return [_told(node.name, finding) for finding in sink.inspect(namespaces)]
    except PenstockError as error:
        return [NodeFinding(node.name, mask(error.message), error.hint, fatal=True)]


def _told(node: str, finding: Finding) -> NodeFinding:
    return NodeFinding(node, mask(finding.what), finding.fix, finding.fatal)
