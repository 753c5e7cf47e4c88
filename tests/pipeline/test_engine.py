"""What the runner asks of Spark before it starts it."""

from __future__ import annotations

import pytest

from penstock import Pipeline
from penstock import adaptors as a
from penstock import functions as f
from penstock.adaptors.base import Adaptor
from penstock.pipeline.engine import works_in_jvm


@pytest.mark.parametrize(
    ("function", "sink", "expected"),
    [
        (f.pick(fields=["id"]), a.discard(), False),
        (f.sql("SELECT * FROM messages"), a.discard(), True),
        (lambda frame: frame, a.discard(), True),
        (f.pick(fields=["id"]), a.jdbc(uri="jdbc:postgresql://localhost/shop"), True),
    ],
)
def test_the_jvm_is_asked_for_peak_speed_only_where_rows_pass_through_it(
    function: object, sink: Adaptor, expected: bool
) -> None:
    pipeline = Pipeline("p")
    pipeline.source("in", a.generate(count=1)).transform("step", function).save("out", sink)  # type: ignore[arg-type]
    assert works_in_jvm(pipeline) is expected
