"""The account of a run: what source and functions did while it goes on, and whether all adds up when it has ended."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.adaptors.base import Source
from penstock.base.errors import PenstockError
from penstock.base.secrets import mask
from penstock.pipeline.copies import Copies, copying_of, gauges_of
from penstock.pipeline.definition import Pipeline, SourceNode
from penstock.pipeline.errortext import first_line
from penstock.pipeline.ingest import Ingest
from penstock.pipeline.progress import NodeProgress, Summary
from penstock.pipeline.supervisor import SupervisedSink


def source_told(
    node: SourceNode, ingest: Ingest, source: Source, copies: Copies, elapsed: float
) -> NodeProgress:
    """What the source has given."""
    trouble = ingest.error or ingest.away
    return NodeProgress(
        node=node.name,
        kind="source",
        adaptor=node.adaptor.name,
        state=ingest.state,
        messages_in=ingest.read,
        delivered=ingest.read,
        dead=ingest.bad,
        rate=ingest.read / elapsed if elapsed else 0.0,
        error=first_line(trouble) if trouble else None,
        gauges=gauges_of(source),
        copies=copies.told(copying_of(source), elapsed),
    )


def functions_told(pipeline: Pipeline, sinks: Sequence[SupervisedSink]) -> list[NodeProgress]:
    """What each function did, on its way to whichever sink."""
    shown = []
    for step in pipeline.transform_nodes:
        counts = [sink.steps[step.name] for sink in sinks if step.name in sink.steps]
        into, out, dropped, refused = (
            (sum(column) for column in zip(*counts, strict=True)) if counts else (0,) * 4
        )
        shown.append(
            NodeProgress(
                node=step.name,
                kind="function",
                adaptor=step.label,
                state="running" if counts else "waiting",
                messages_in=into,
                delivered=out,
                dropped=dropped,
                dead=refused,
            )
        )
    return shown


def account(
    pipeline: str,
    elapsed: float,
    ingest: Ingest,
    sinks: Sequence[SupervisedSink],
    failure: BaseException | None = None,
) -> Summary:
    """How a run ended: what went wrong, and what became of every message. `failure` is what ended all of it."""
    end = ingest.end
    ended = [summary for sink in sinks for summary in sink.summaries(end)]
    errors = [error for error in (failure, ingest.error, *(sink.error for sink in sinks)) if error]
    adds_up = all(sink.adds_up for sink in ended)
    codes = [getattr(error, "exit_code", 1) for error in errors]
    code = codes[0] if failure is not None else max(codes, default=0)
    message = "; ".join(_told(error) for error in errors) or None
    if not adds_up:
        code, message = code or 1, message or "the account does not add up"
    return Summary(
        pipeline=pipeline,
        elapsed=elapsed,
        read=ingest.read,
        log_next=end.offset,
        sinks=ended,
        adds_up=adds_up,
        exit_code=code,
        message=message,
        bad=ingest.bad,
    )


def _told(error: BaseException) -> str:
    text = first_line(error)
    return f"{text} ({mask(error.hint)})" if isinstance(error, PenstockError) and error.hint else text
