"""Where a sink goes on in a target that holds a position of its own: one rule for all that do."""

from __future__ import annotations

from penstock.adaptors.base import SinkPosition
from penstock.base.errors import UsageError


def continued(held: SinkPosition, start: SinkPosition, target: str, anew: str) -> SinkPosition:
    """At `held`; or at `start`, the offset log's, if an operator has rewound the sink since.

    A target that was written from another log is refused, and so is one that is further in the sink's history than
    the offset log knows. `target` names it, `anew` tells a person how to begin anew with it (`delete the stream`).
    """
    if held.log != start.log:
        raise UsageError(
            f"{target} was written from another log: it has the messages below {held.watermark} of that one",
            hint=f"give the pipeline or the sink another name; or, to begin anew: {anew}",
        )
    if held.generation > start.generation:
        raise UsageError(
            f"{target} was written in generation {held.generation} of this sink's history, "
            f"the offset log knows only {start.generation}: it is older than the target",
            hint=f"bring back the data directory that belongs to the target; or, to begin anew: {anew}",
        )
    return start if held.generation < start.generation else held
