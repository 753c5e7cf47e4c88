"""What a step of a sink would be a step of: sinks that commit together are stepped together, whichever is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.pipeline.definition import Pipeline
from penstock.pipeline.delivering import party
from penstock.pipeline.operations import Directory


@dataclass(frozen=True, slots=True)
class Stepping:
    """The sinks that a message is delivered to by one decision, the first that one of them lacks, and the log's end."""

    sinks: Sequence[str]
    at: int
    end: int

    @property
    def together(self) -> bool:
        return len(self.sinks) > 1

    @property
    def names(self) -> str:
        *others, last = self.sinks
        return f"{', '.join(others)} and {last}" if others else last

    @property
    def obstacle(self) -> str | None:
        """Why there is nothing to step to, if there is not."""
        if self.at < self.end:
            return None
        have, own = ("have", "their offsets") if self.together else ("has", "its offset")
        return f"{self.names} {have} everything: {own} and the log's are {self.end - 1}."


def stepping(directory: Directory, pipeline: str, sink: str, definition: Pipeline | None) -> Stepping:
    """By the definition, if it is at hand."""
    sinks = [sink] if definition is None else [node.name for node in party(definition, sink)]
    at = min(directory.loaded(pipeline, name).commit.watermark for name in sinks)
    return Stepping(sinks, at, directory.reader(pipeline).state().next)
