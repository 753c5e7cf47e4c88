"""What tasks report: counted by column, as if by row. And the sink that does nothing but count."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import adaptors as a
from penstock.adaptors.base import Guarantee, Order, SinkPosition, Stage, Staged
from penstock.base.errors import UsageError

Row = tuple[int, str]
"""Offset, and namespace as logged."""


def batch(rows: Sequence[Row]) -> pa.RecordBatch:
    size = len(rows)
    return pa.record_batch(
        {
            "offset": pa.array([offset for offset, _ in rows], pa.int64()),
            "ts": pa.array([0] * size, pa.timestamp("us", "UTC")),
            "mode": pa.array(["copy"] * size, pa.string()),
            "op": pa.array(["insert"] * size, pa.string()),
            "ns": pa.array(["current"] * size, pa.string()),
            "key": pa.array([None] * size, pa.string()),
            "data": pa.array(['{"a":1}'] * size, pa.string()),
            "origin": pa.array([ns for _, ns in rows], pa.string()),
        }
    )


def counted(*batches: Sequence[Row], skip_below: int = 0) -> Staged:
    stager = pickle.loads(pickle.dumps(a.discard().sink().stager()))
    staged = stager.stage(Stage(Path("unused"), "part", skip_below), iter(map(batch, batches)))
    assert isinstance(staged, Staged)
    return staged


def test_a_task_without_rows_reports_nothing() -> None:
    assert counted() == counted([]) == Staged("", 0, 0, 0, -1, -1, True, {})


def test_rows_of_one_message_count_as_one_also_across_batches() -> None:
    staged = counted([(4, "x"), (5, "x"), (5, "x")], [(5, "x"), (6, "y")])
    assert (staged.rows, staged.messages) == (5, 3)
    assert (staged.first, staged.last, staged.ordered) == (4, 6, True)
    assert staged.namespaces == {"x": 5, "y": 6}
    assert staged.bytes == 5 * len('{"a":1}')


def test_messages_below_the_watermark_count_as_delivered_and_are_not_staged() -> None:
    staged = counted([(4, "x"), (5, "y"), (6, "x")], skip_below=6)
    assert (staged.rows, staged.messages) == (1, 3)
    assert (staged.first, staged.last) == (6, 6)
    assert staged.namespaces == {"x": 6, "y": 5}
    all_known = counted([(4, "x")], skip_below=6)
    assert (all_known.rows, all_known.messages, all_known.first, all_known.last) == (0, 1, -1, -1)
    assert all_known.namespaces == {"x": 4}


@pytest.mark.parametrize("batches", [([(2, "x"), (1, "x")],), ([(2, "x")], [(1, "x")])])
def test_rows_out_of_order_are_noticed(batches: Sequence[Sequence[Row]]) -> None:
    assert not counted(*batches).ordered


@settings(deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 30), st.sampled_from("xyz")), max_size=6), max_size=4),
    st.integers(0, 30),
)
def test_columns_count_as_rows_would(batches: list[list[Row]], skip_below: int) -> None:
    rows = [row for rows in batches for row in rows]
    rows = sorted(rows, key=lambda row: row[0])
    staged = counted(rows[: len(rows) // 2], rows[len(rows) // 2 :], skip_below=skip_below)
    kept = [offset for offset, _ in rows if offset >= skip_below]
    assert staged.rows == len(kept)
    assert staged.messages == len({offset for offset, _ in rows})
    assert (staged.first, staged.last) == ((kept[0], kept[-1]) if kept else (-1, -1))
    assert staged.ordered
    assert staged.namespaces == {ns: max(o for o, other in rows if other == ns) for _, ns in rows}


def test_discard_keeps_no_position_and_promises_nothing(tmp_path: Path) -> None:
    sink = a.discard().sink()
    assert (sink.order, sink.guarantee) == (Order.NONE, Guarantee.AT_LEAST_ONCE)
    assert sink.staging(tmp_path) == tmp_path
    publisher = sink.publisher()
    assert publisher.open(SinkPosition("log", 0, 0)) is None
    publisher.publish([counted([(1, "x")])], SinkPosition("log", 0, 2))
    publisher.close()
    assert list(tmp_path.iterdir()) == []


def test_asking_for_the_other_half_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="adaptor 'discard' cannot be a source"):
        a.discard().source()
    with pytest.raises(UsageError, match="adaptor 'generate' cannot be a sink"):
        a.generate().sink()


def test_settings_of_discard_are_refused() -> None:
    with pytest.raises(UsageError, match="adaptor 'discard': unknown setting 'uri'"):
        a.discard(uri="x")


@pytest.mark.parametrize("name", a.ALL)
def test_every_adaptor_says_what_it_is_and_does(name: str) -> None:
    kind = a.ALL[name]
    assert kind.name == name
    assert kind.description
    assert kind.reads or kind.writes
