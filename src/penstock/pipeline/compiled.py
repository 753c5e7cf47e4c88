"""Steps of a definition as the engine takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.functions.base import Function
from penstock.functions.chain import Step
from penstock.functions.sql import SqlFunction
from penstock.pipeline.definition import TransformNode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.transform import FrameStep

VIEW = "messages"


@dataclass(frozen=True, slots=True)
class Query:
    """SQL text as a function of a DataFrame, which it sees as the view `messages`."""

    text: str

    def __call__(self, frame: DataFrame) -> DataFrame:
        frame.createOrReplaceTempView(VIEW)
        return frame.sparkSession.sql(self.text)


def compiled(step: TransformNode) -> Step | FrameStep:
    """A function of messages for the chain, anything else for Spark."""
    from penstock.spark.transform import FrameStep

    accept = None if step.ns.everything else step.ns
    if isinstance(step.function, SqlFunction):
        return FrameStep(step.name, Query(step.function.text), accept)
    if isinstance(step.function, Function):
        return Step(step.name, step.function, step.ns)
    return FrameStep(step.name, step.function, accept)
