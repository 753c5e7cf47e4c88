"""Batches of messages for the tests of functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark import cloudpickle

from penstock.functions.base import Function
from penstock.functions.chain import Applied, Chain, Step

T = TypeVar("T")
TIME = pa.timestamp("us", "UTC")
FIRST = 100
"""The offset of the first message of a batch."""


class Everything:
    """A matcher that means every namespace."""

    def matches(self, ns: str) -> bool:
        return True


def batch_of(
    texts: Sequence[str | bytes], *, ns: str = "orders", op: str | Sequence[str] = "insert", ts: int = 1_700
) -> pa.RecordBatch:
    """One row a text, with offsets from 100 on."""
    size = len(texts)
    data = pa.array([text.encode() if isinstance(text, str) else text for text in texts], pa.binary())
    return pa.record_batch(
        {
            "offset": pa.array(range(FIRST, FIRST + size), pa.int64()),
            "ts": pa.array([ts] * size, pa.int64()).cast(TIME),
            "mode": ["copy"] * size,
            "op": [op] * size if isinstance(op, str) else list(op),
            "ns": [ns] * size,
            "key": pa.array([None] * size, pa.string()),
            "data": data.cast(pa.string()),
        }
    )


def applied(rows: pa.RecordBatch, *functions: Function) -> Applied:
    steps = [Step(f"step{number}", function, Everything()) for number, function in enumerate(functions)]
    return Chain(steps).apply(rows, Everything())


def shipped(value: T) -> T:
    """As it arrives at a Spark worker."""
    sent: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    arrived: T = cloudpickle.loads(sent)
    return arrived


def texts_of(result: Applied) -> list[str]:
    return list(result.batch.column("data").to_pylist())


def errors_of(result: Applied) -> list[tuple[int, str]]:
    return [(refused.offset, refused.error) for refused in result.refused]
