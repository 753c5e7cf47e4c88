"""How a sink stands: its offsets, the log's end and what a run tells of it, put together into one value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.log.control import ControlState
from penstock.log.message import ByteOffset
from penstock.log.offsets import SinkOffsets
from penstock.log.positions import LogPoint
from penstock.log.reader import LogReader
from penstock.pipeline.progress import NodeProgress
from penstock.pipeline.records import Quota, SinkStatus


class Pending(NamedTuple):
    """What a sink has still to take: bytes of the log, and the time of its oldest message, if that is known."""

    bytes: int
    ts: int | None


def pending(reader: LogReader, watermark: int, end: LogPoint) -> Pending:
    """What lies between a sink's watermark and the end of the log.

    If compaction has removed messages that it lacks (it was detached, or set back), what is left counts.
    """
    if watermark >= end.offset:
        return Pending(0, None)
    begin = reader.at_or_after(watermark).byte
    for _, record in reader.records(ByteOffset(begin), ByteOffset(end.byte)):
        if not record.control:
            return Pending(end.byte - begin, record.ts or None)
    return Pending(end.byte - begin, None)


def status_of(
    sink: str,
    held: SinkOffsets,
    end: LogPoint,
    lacking: Pending,
    *,
    dead_letters: int,
    paused: bool,
    node: NodeProgress | None,
) -> SinkStatus:
    """All that is known of a sink. `node` is what a run tells of it, while one does."""
    commit = held.commit
    return SinkStatus(
        sink=sink,
        watermark=commit.watermark,
        generation=commit.generation,
        delivered=commit.delivered,
        dropped=commit.dropped,
        dead=commit.dead,
        lag=max(end.offset - commit.watermark, 0),
        lag_bytes=lacking.bytes,
        updated_ts=held.updated,
        namespaces=dict(sorted(held.namespaces.items())),
        state=node.state if node else None,
        error=node.error if node else None,
        pending_ts=lacking.ts,
        careful=commit.careful if commit.careful > commit.watermark else 0,
        acked=commit.acked,
        dead_letters=dead_letters,
        paused=paused,
        detached=commit.detached,
        quotas=_quotas(node) if node else (),
        transaction=node.transaction if node else None,
    )


def _quotas(node: NodeProgress) -> list[Quota]:
    limits = (
        ("max_lag bytes", float(node.lag_bytes), node.max_lag_bytes),
        ("max_lag age", node.lag_seconds, node.max_lag_seconds),
    )
    return [Quota(what, used, float(limit)) for what, used, limit in limits if limit is not None]


def holder(sinks: Sequence[SinkStatus]) -> str | None:
    """The sink for which the log keeps most; detached sinks hold nothing."""
    behind = [sink for sink in sinks if not sink.detached and sink.lag]
    return min(behind, key=lambda sink: sink.watermark).sink if behind else None


def bad_end(control: ControlState) -> str | None:
    """How the last run ended, in words, unless it ended in order. To be asked when none goes on."""
    run = control.run
    if run is None or (run.ended and not run.exit_code):
        return None
    if run.ended:
        return f"the last run ended with exit code {run.exit_code}"
    return f"the last run (process {run.pid}) did not end by itself: it was killed, or its machine stopped"
