"""What a source has set up at its system, taken away for good."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.base.secrets import mask
from penstock.pipeline.definition import Pipeline
from penstock.pipeline.inspecting import used_source


def release(pipeline: Pipeline) -> Sequence[str]:
    """Have the source take away what its runs have set up; tells what that was."""
    pipeline.check()
    return [mask(what) for what in used_source(pipeline).release()]
