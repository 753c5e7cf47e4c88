"""What a person sees of a plan: a tree of nodes, and below it what may not have been meant.

Pure, as `penstock.cli.render` is. A step on the way to several sinks is drawn once, with all that it changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from penstock.cli.common import visible
from penstock.pipeline.planned import (
    NodeFinding,
    Plan,
    PlannedNamespace,
    PlannedSink,
    PlannedSource,
    PlannedStep,
)

MOST_SHOWN = 20
"""Namespaces whose rows and keys are shown."""


def plan(planned: Plan) -> RenderableType:
    """What a pipeline would do, as a tree; then what in it may not have been meant."""
    title = Text(planned.pipeline, style="bold")
    if planned.settings:
        title.append(f"  {_given(planned.settings)}", style="not bold")
    tree = Tree(title)
    branches: dict[tuple[str, ...], Tree] = {(): tree.add(_source_text(planned.source))}
    changed = _changed(planned)
    for sink in planned.sinks:
        path: tuple[str, ...] = ()
        for step in sink.steps:
            above, path = path, (*path, step.name)
            if path not in branches:
                branches[path] = branches[above].add(_step_text(step, changed[step.name]))
        branches[path].add(_sink_text(sink))
    parts: list[RenderableType] = [tree]
    if planned.problem:
        parts.append(Text(f"\nNamespaces are not known: {visible(planned.problem)}", style="yellow"))
    parts += [_finding_text(finding) for finding in planned.findings]
    for remark in planned.warnings:
        hint = f" ({visible(remark.hint)})" if remark.hint else ""
        parts.append(
            Text.assemble(("warning ", "yellow"), (remark.node, "bold"), f": {visible(remark.text)}{hint}")
        )
    return Group(*parts)


def _finding_text(finding: NodeFinding) -> Text:
    word, style = ("missing ", "red") if finding.fatal else ("warning ", "yellow")
    text = Text.assemble((word, style), (finding.node, "bold"), f": {visible(finding.what)}")
    return text.append(f"\n    {visible(finding.fix)}", style="cyan") if finding.fix else text


def _source_text(source: PlannedSource) -> Text:
    text = _node_text(source.name, source.adaptor, source.ns, source.settings)
    text.append(f"\nreads {_names(source.namespaces)}")
    for found in source.found[:MOST_SHOWN]:
        if found.rows is not None or found.key:
            text.append(f"\n  {_about(found)}", style="dim")
    if len(source.found) > MOST_SHOWN:
        text.append(f"\n  and {len(source.found) - MOST_SHOWN:,} more; --json has them all", style="dim")
    if source.left_out:
        text.append(f"\nleaves out {_names(source.left_out)}", style="dim")
    return text


def _about(found: PlannedNamespace) -> str:
    rows = (
        ["about 1 row" if found.rows == 1 else f"about {found.rows:,} rows"] if found.rows is not None else []
    )
    key = [f"key {', '.join(map(visible, found.key))}" if found.key else "no key"]
    return f"{visible(found.ns)}: {', '.join(rows + key)}"


def _changed(planned: Plan) -> dict[str, list[str] | None]:
    """The names that each step is applied to, on its way to any sink; None if some are not known."""
    found: dict[str, list[str] | None] = {}
    for step in (step for sink in planned.sinks for step in sink.steps):
        before = found.get(step.name, [])
        known = before is not None and step.namespaces is not None
        found[step.name] = sorted({*(before or ()), *(step.namespaces or ())}) if known else None
    return found


def _step_text(step: PlannedStep, changed: Sequence[str] | None) -> Text:
    text = _node_text(step.name, step.function, step.ns, step.settings)
    return text if step.ns == ".*" else text.append(f"\nchanges {_names(changed)}")


def _sink_text(sink: PlannedSink) -> Text:
    text = _node_text(sink.name, sink.adaptor, sink.ns, sink.settings)
    text.append(f"\ngets {_names(sink.namespaces)}; {sink.guarantee}, order: {sink.order}")
    if sink.commits_with:
        text.append(f"\ncommits together with {', '.join(sink.commits_with)}: all of them or none")
    limit = f"; may lag by {sink.max_lag}" if sink.max_lag else ""
    return text.append(f"\non error: {sink.on_error}{limit}")


def _node_text(name: str, kind: str, ns: str, settings: Mapping[str, str]) -> Text:
    pattern = "" if ns == ".*" else f"  ns {visible(ns)}"
    # "DataFrame function" takes no settings
    call = f"{kind}({_given(settings)})" if kind.isidentifier() else kind
    return Text.assemble((name, "bold"), f"  {call}", (pattern, "cyan"))


def _given(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={visible(value)}" for key, value in settings.items())


def _names(namespaces: Sequence[str] | None) -> str:
    if namespaces is None:
        return "namespaces that are not known yet"
    return ", ".join(visible(ns) for ns in namespaces) if namespaces else "nothing"
