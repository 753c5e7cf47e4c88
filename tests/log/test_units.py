"""What belongs together in the log: marks, and borders outside of units."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import CorruptError
from penstock.journal.client import Client
from penstock.log import record as rec
from penstock.log import walking
from penstock.log.commitlog import CommitLog
from penstock.log.message import Message, Mode, Op
from penstock.log.positions import LogState
from penstock.log.record import CorruptRecordError, Record
from penstock.log.units import Borders, Mark, encode_mark, mark_at

NOW = 1_700_000_000_000_000


def some(count: int, mode: Mode = Mode.SYNC) -> list[Message]:
    return [Message("orders", b"{}", ts=NOW, mode=mode) for _ in range(count)]


def test_a_mark_is_read_as_it_was_written_and_nothing_else_is_one() -> None:
    mark = Mark(7, 100, more=True)
    assert mark_at(encode_mark(mark, NOW), 0, "log") == mark
    claim = Record(-1, NOW, Mode.COPY, Op.NOOP, "", b"", extra={"claim": "x"}, control=True)
    position = Record(-1, NOW, Mode.COPY, Op.NOOP, "ns", b"", extra={"unit": {}}, control=True)
    message = Record(3, NOW, Mode.COPY, Op.INSERT, "", b"{}", extra={"unit": {}})
    for record in (claim, position, message):
        assert mark_at(rec.encode(record), 0, "log") is None


def test_a_mark_that_does_not_read_is_named() -> None:
    damaged = rec.encode(
        Record(-1, NOW, Mode.COPY, Op.NOOP, "", b"", extra={"unit": {"first": "x"}}, control=True)
    )
    with pytest.raises(CorruptRecordError, match="log, byte 50: a mark that does not read"):
        mark_at(damaged, 0, "log", 50)
    with pytest.raises(CorruptError, match="a header that does not read"):
        LogState().skim(damaged, "log", 0)


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.booleans()), max_size=12), st.integers(1, 5))
def test_borders_are_the_same_one_by_one_and_in_columns(
    appends: list[tuple[int, bool, bool]], cut: int
) -> None:
    """Each append: so many records of 10 bytes, marked or not, to be continued or not."""
    import numpy as np

    ends: list[int] = []
    marks: list[tuple[int, Mark]] = []
    expected: list[bool] = []
    is_open = False
    byte = 0
    for count, marked, more in appends:
        marked = marked or is_open
        if marked:
            marks.append((len(ends), Mark(0, 10 * count, more)))
            byte += 10
            ends.append(byte)
            expected.append(False)
            is_open = more
        for i in range(count):
            byte += 10
            ends.append(byte)
            expected.append(not is_open and (not marked or i == count - 1))
    one_by_one, columns = Borders(), Borders()
    found: list[bool] = []
    for i, end in enumerate(ends):
        for index, mark in marks:
            if index == i:
                one_by_one.see(end, mark)
        found.append(one_by_one.outside(end))
    assert found == expected
    together: list[bool] = []
    for begin in range(0, len(ends), cut):
        some_marks = [(at - begin, mark) for at, mark in marks if begin <= at < begin + cut]
        together += columns.among(np.array(ends[begin : begin + cut]), some_marks).tolist()
    assert together == expected


def test_a_log_knows_where_its_open_unit_begins_whoever_reads_it(client: Client, tmp_path: Path) -> None:
    log = CommitLog(client, "shop", tmp_path / "index", None, NOW)
    log.append(some(3), {}, [], NOW)
    begin = log.point
    log.append(some(2), {"orders": {"n": 1}}, [], NOW, more=True)
    log.append(some(2, Mode.COPY), {"orders": {"n": 2}}, [], NOW, more=True)
    assert (log.closed, log.is_open) == (begin, True)
    assert log.reader.state().closed == begin
    log.close()
    assert CommitLog(client, "shop", tmp_path / "index", None, NOW).closed == begin
    again = CommitLog(client, "shop", tmp_path / "without cache", None, NOW)
    assert (again.closed, again.resume()["orders"].position) == (begin, {"n": 2})
    again.append([], {}, ["orders"], NOW)
    assert not again.is_open
    assert again.reader.state().closed == again.point
    found = list(walking.borders(client, log.journal, 0, again.point.byte))
    assert begin in found
    assert not [point for point in found if begin.byte < point.byte < again.point.byte]


def test_what_is_copied_and_single_changes_need_no_mark(client: Client, tmp_path: Path) -> None:
    log = CommitLog(client, "shop", tmp_path / "index", None, NOW)
    log.append(some(5, Mode.COPY), {}, [], NOW)
    log.append(some(1), {"orders": {}}, [], NOW)
    records = [record for _, record in log.reader.records(log.reader.first().byte, log.point.byte)]
    assert [record.offset for record in records] == [0, 1, 2, 3, 4, 5]


def test_a_batch_of_nothing_ends_a_unit_and_is_nothing_otherwise(client: Client, tmp_path: Path) -> None:
    log = CommitLog(client, "shop", tmp_path / "index", None, NOW)
    before = log.append(some(2), {}, [], NOW, more=True)
    assert log.append([], {}, [], NOW, more=True) == before
    assert log.append([], {}, [], NOW).byte > before.byte
    assert (log.is_open, log.closed) == (False, log.point)
    assert CommitLog(client, "shop", tmp_path / "new", None, NOW).closed.offset == 2
    assert log.append([], {}, [], NOW) == log.point
