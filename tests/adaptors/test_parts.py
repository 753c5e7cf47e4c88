"""Parts: what tasks set aside is what the publisher reads, in order, whole messages only, and nothing refused."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.adaptors.base import Refusal, Stage, Staged
from penstock.adaptors.parts import PartStager, read_parts, whole_messages
from penstock.base.errors import PenstockError

Row = tuple[int, str]
"""Offset and data."""


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
            "old_key": pa.array([None] * size, pa.string()),
            "data": pa.array([data for _, data in rows], pa.string()),
            "origin": pa.array(["logged"] * size, pa.string()),
        }
    )


def refuse_bad(rows: pa.RecordBatch) -> list[Refusal]:
    named = zip(rows.column("offset").to_pylist(), rows.column("data").to_pylist(), strict=True)
    return [Refusal(offset, "logged", "bad", "") for offset, data in named if data == "bad"]


def staged(path: Path, *batches: Sequence[Row], name: str = "part", skip_below: int = 0) -> Staged:
    stager = pickle.loads(pickle.dumps(PartStager(refuse_bad)))
    report = stager.stage(Stage(path / "new", name, skip_below), iter(map(batch, batches)))
    assert isinstance(report, Staged)
    return report


def rows_of(*parts: Staged) -> list[Row]:
    return [
        (row["offset"], row["data"])
        for found in read_parts(parts)
        for row in found.select(["offset", "data"]).to_pylist()
    ]


def test_what_was_staged_is_read_in_the_order_of_the_parts(tmp_path: Path) -> None:
    first = staged(tmp_path, [(4, "a"), (5, "b")], [(6, "c")], name="one")
    second = staged(tmp_path, [(7, "d")], name="two")
    assert rows_of(first, second) == [(4, "a"), (5, "b"), (6, "c"), (7, "d")]
    assert (first.rows, first.messages, first.first, first.last) == (3, 3, 4, 6)
    assert first.bytes == Path(first.part).stat().st_size


def test_only_the_columns_that_are_asked_for_are_read(tmp_path: Path) -> None:
    report = staged(tmp_path, [(4, "a"), (5, "b")])
    (found,) = read_parts([report], ["ns", "offset"])
    assert found.to_pydict() == {"offset": [4, 5], "ns": ["current", "current"]}


def test_a_task_without_rows_leaves_no_file(tmp_path: Path) -> None:
    report = staged(tmp_path, [])
    assert (report.part, report.rows, report.bytes) == ("", 0, 0)
    assert not (tmp_path / "new").exists()
    assert rows_of(report) == []


def test_what_the_target_has_is_counted_and_not_staged(tmp_path: Path) -> None:
    report = staged(tmp_path, [(4, "a"), (5, "b")], skip_below=5)
    assert (report.rows, report.messages) == (1, 2)
    assert rows_of(report) == [(5, "b")]


def test_a_refused_message_is_reported_and_leaves_no_row_also_across_batches(tmp_path: Path) -> None:
    report = staged(tmp_path, [(4, "a"), (5, "b")], [(5, "bad"), (6, "c"), (7, "bad")])
    assert [refusal.offset for refusal in report.refused] == [5, 7]
    assert rows_of(report) == [(4, "a"), (6, "c")]
    assert (report.rows, report.messages, report.namespaces) == (2, 2, {"logged": 6})


def test_a_task_of_which_all_is_refused_leaves_no_file(tmp_path: Path) -> None:
    report = staged(tmp_path, [(4, "bad")])
    assert (report.part, report.messages, len(report.refused)) == ("", 0, 1)


def test_two_attempts_never_write_into_one_file(tmp_path: Path) -> None:
    staged(tmp_path, [(4, "a")])
    with pytest.raises(PenstockError, match="cannot write"):
        staged(tmp_path, [(4, "a")])


def test_a_part_that_is_not_what_the_task_wrote_is_an_error_before_any_row(tmp_path: Path) -> None:
    report = staged(tmp_path, [(4, "a")])
    with Path(report.part).open("r+b") as file:
        file.truncate(report.bytes - 1)
    with pytest.raises(PenstockError, match="its task reported"):
        next(read_parts([report]))
    Path(report.part).unlink()
    with pytest.raises(PenstockError, match="cannot read"):
        next(read_parts([report]))


@given(st.lists(st.integers(1, 4), max_size=12), st.lists(st.integers(0, 5), max_size=8))
def test_messages_are_whole_however_the_rows_come_in(sizes: list[int], cuts: list[int]) -> None:
    rows = [(offset, f"{offset}.{n}") for offset, size in enumerate(sizes) for n in range(size)]
    given, begin = [], 0
    for cut in [*cuts, len(rows)]:
        given.append(batch(rows[begin : begin + cut]))
        begin += cut
    found = [one.column("offset").to_pylist() for one in whole_messages(iter(given))]
    assert [offset for offsets in found for offset in offsets] == [offset for offset, _ in rows]
    assert all(before[-1] != after[0] for before, after in pairwise(found))
    assert all(found)
