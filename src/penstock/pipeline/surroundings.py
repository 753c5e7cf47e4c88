"""What all sinks of a run share, and what carries out the batches of one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.adaptors.base import Schemas, Sink
from penstock.log.offsets import OffsetLog
from penstock.log.reader import LogReader
from penstock.log.schema import KnownSchemas
from penstock.pipeline.compiled import compiled
from penstock.pipeline.definition import SinkNode

if TYPE_CHECKING:
    from penstock.spark.batch import BatchRunner, Bury
    from penstock.spark.reach import Reach
    from penstock.spark.sealed import Safe


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all sinks of a run share."""

    pipeline: str
    reader: LogReader
    log_id: str
    scratch: Path
    options: dict[str, str]
    reach: Reach
    schemas: Schemas = field(default_factory=lambda: KnownSchemas({}))
    safe: Safe | None = None
    """Where tasks find the settings of their sink; in the scratch directory if not given."""
    moved: Callable[[], None] = lambda: None
    """Called when a batch has been carried out."""
    alone: Callable[[], bool] = lambda: False
    """Tells whether no other run has taken this one's place: then only operators can have taken an offset log."""
    rest: float = 0.0
    """Seconds from the last sign of the run before to the begin of this one."""


def runner_for(
    node: SinkNode,
    claim: Callable[[], OffsetLog],
    bury: Bury,
    around: Surroundings,
    sink: Sink | None = None,
    kind: type[BatchRunner] | None = None,
) -> BatchRunner:
    """What carries out the batches of a sink; of one that votes, by two-phase commit."""
    from penstock.spark.batch import BatchRunner
    from penstock.spark.sealed import Safe
    from penstock.spark.voting import VotingRunner

    sink = sink or node.adaptor.sink()
    sink.use(around.schemas, f"{around.pipeline}.{node.name}")
    kind = kind or (VotingRunner if sink.lanes else BatchRunner)
    return kind(
        pipeline=around.pipeline,
        sink_name=node.name,
        sink=sink,
        accept=node.ns,
        steps=[compiled(step) for step in node.steps],
        claim=claim,
        reach=around.reach,
        log_id=around.log_id,
        scratch=around.scratch / "staging" / node.name,
        bury=bury,
        safe=around.safe or Safe(around.scratch / "sealed"),
        options=around.options,
    )
