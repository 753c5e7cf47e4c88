"""What in a plan a person may not have meant: patterns, branches, targets and limits that look like mistakes.

Remarks never stop anything; each says what was seen and, where there is one, the way out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.adaptors.base import Adaptor, Guarantee
from penstock.base.units import size_text
from penstock.pipeline.definition import Pipeline, SinkNode
from penstock.pipeline.master import is_remote
from penstock.pipeline.planned import Plan, PlannedSink, Remark


def remarks(
    pipeline: Pipeline, plan: Plan, here: Sequence[str] | None, master: str | None = None
) -> Iterator[Remark]:
    """All there is to say about a plan for a source that has the namespaces `here`, each thing once."""
    found = [
        *_about_experiments(pipeline),
        *_about_the_copy(pipeline, master),
        *_about_the_source(pipeline, here),
        *_about_the_sinks(pipeline, plan.sinks),
        *_about_the_tree(pipeline),
    ]
    yield from dict.fromkeys(found)


def _about_experiments(pipeline: Pipeline) -> Iterator[Remark]:
    nodes = {node.name: node.adaptor for node in pipeline.sink_nodes}
    for name, adaptor in {pipeline.source_node.name: pipeline.source_node.adaptor, **nodes}.items():
        if adaptor.experimental:
            yield Remark(
                name,
                f"adaptor '{adaptor.name}' is experimental: {adaptor.experimental}",
                "try it on data that you can lose",
            )


def _about_the_copy(pipeline: Pipeline, master: str | None) -> Iterator[Remark]:
    """Executors elsewhere cannot leave rows where the owner of the log finds them."""
    if is_remote(master):
        yield Remark(
            pipeline.source_node.name,
            f"large copies are read by the runner itself, in a few threads: the tasks of '{master}' run on other "
            "machines, and share no directory with it",
        )


def _about_the_source(pipeline: Pipeline, here: Sequence[str] | None) -> Iterator[Remark]:
    source = pipeline.source_node
    if here is None:
        return
    if not here:
        yield Remark(source.name, "the source has no namespaces yet")
    elif not any(source.ns.matches(ns) for ns in here):
        yield Remark(
            source.name, f"'{source.ns}' matches none of its namespaces", f"there are: {_some(here)}"
        )
    yield from _more_than_it_seems(source.name, source.ns.surprises(here), str(source.ns))


def _about_the_sinks(pipeline: Pipeline, planned: Sequence[PlannedSink]) -> Iterator[Remark]:
    for node, sink in zip(pipeline.sink_nodes, planned, strict=True):
        if sink.guarantee == Guarantee.AT_LEAST_ONCE.value:
            yield Remark(sink.name, f"after a crash '{sink.adaptor}' may get messages again (at least once)")
            if sink.commits_with:
                yield Remark(
                    sink.name,
                    f"cannot abort what it has taken when {_some(sink.commits_with)}, with which it commits, does",
                    "give it a query of its own with atomic=False",
                )
        yield from _about_the_lag(pipeline, node)
        if sink.namespaces is None:
            continue
        if not sink.namespaces and not node.ns.everything:
            yield Remark(
                sink.name,
                f"'{sink.ns}' matches no namespace that is read",
                "a sink's pattern is tested on the name in the log, before any transformation",
            )
        yield from _more_than_it_seems(sink.name, node.ns.surprises(sink.namespaces), sink.ns)
        yield from _about_the_steps(node, sink)


def _about_the_steps(node: SinkNode, sink: PlannedSink) -> Iterator[Remark]:
    """Steps that no message will match, and those that match more than they seem to."""
    for step, planned in zip(node.steps, sink.steps, strict=True):
        if planned.namespaces is None or not sink.namespaces:
            continue
        if not planned.namespaces:
            yield Remark(step.name, f"'{step.ns}' matches nothing on the way to '{node.name}'")
        yield from _more_than_it_seems(step.name, step.ns.surprises(planned.namespaces), str(step.ns))


def _about_the_lag(pipeline: Pipeline, node: SinkNode) -> Iterator[Remark]:
    limit = pipeline.settings.log_limit
    if node.max_lag is not None and (node.max_lag.bytes or 0) > limit:
        yield Remark(
            node.name,
            f"max_lag of {size_text(node.max_lag.bytes or 0)} is never reached: "
            f"the source pauses when the log has {size_text(limit)}",
            "raise log_limit, or lower max_lag",
        )


def _about_the_tree(pipeline: Pipeline) -> Iterator[Remark]:
    used = {step.name for sink in pipeline.sink_nodes for step in sink.steps}
    for step in pipeline.transform_nodes:
        if step.name not in used:
            yield Remark(
                step.name, "leads to no sink, so it will not run", "add .save(...) behind it, or remove it"
            )
    source = pipeline.source_node
    for place, sink in enumerate(pipeline.sink_nodes):
        if _same_target(sink.adaptor, source.adaptor):
            yield Remark(sink.name, f"writes what '{source.name}' reads", "give the sink another target")
        for other in pipeline.sink_nodes[:place]:
            if _same_target(sink.adaptor, other.adaptor):
                yield Remark(
                    sink.name, f"writes the same target as '{other.name}'", "give each sink its own target"
                )


def _same_target(one: Adaptor, other: Adaptor) -> bool:
    target: object = getattr(one, "uri", None)
    return type(one) is type(other) and target is not None and target == getattr(other, "uri", None)


def _more_than_it_seems(node: str, surprises: Sequence[str], pattern: str) -> Iterator[Remark]:
    if surprises:
        yield Remark(
            node,
            f"'{pattern}' matches more than it seems: {_some(surprises)}",
            f"to mean whole names only, write '^({pattern})$'",
        )


def _some(names: Sequence[str]) -> str:
    """Enough names to recognise them by."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
