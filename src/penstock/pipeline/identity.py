"""Which source a log belongs to: the positions in it are that one's, and no other can go on from them.

A source is known by the name of its node and by its adaptor. Where it reads may change: a server moves, a password is
renewed. A log that another source has written is refused before anything is read: rows would come again, or be left
out, and nobody could tell which.
"""

from __future__ import annotations

from penstock.base.errors import UsageError
from penstock.pipeline.definition import Pipeline


def source_identity(pipeline: Pipeline) -> str:
    node = pipeline.source_node
    return f"'{node.name}' ({node.adaptor.name})"


def refuse_another_source(pipeline: Pipeline, wrote: str, messages: int) -> None:
    """`wrote` is the identity of the source that read last, empty if none is known; `messages` are in the log."""
    now = source_identity(pipeline)
    if wrote and messages and wrote != now:
        raise UsageError(
            f"the log of pipeline '{pipeline.name}' was written by source {wrote}, and this one is {now}",
            hint="a source of another name or adaptor cannot go on from its positions: give the pipeline another name, "
            "or another --data-dir; if it is the same source, give it its old name",
        )
