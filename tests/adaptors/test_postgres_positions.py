"""What is news to a table, without a server: positions, stretches of a copy, types, and that tasks travel."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.adaptors.columns import textarrays as ta
from penstock.adaptors.postgres.changes import Change, Shape
from penstock.adaptors.postgres.connection import Connection, Server
from penstock.adaptors.postgres.pgoutput import UNCHANGED, Delete, Insert, Update
from penstock.adaptors.postgres.places import Place, State, resumed
from penstock.adaptors.postgres.position import Copied, Known, Stretch, comparing
from penstock.adaptors.postgres.slot import Names, Slot, check_slot
from penstock.adaptors.postgres.snapshot import RangeTask
from penstock.adaptors.postgres.table import Column, Table
from penstock.adaptors.postgres.types import Type
from penstock.base.errors import CorruptError, UsageError
from penstock.log.message import MessageOffset, Mode, Op, Resume

COLUMNS = [Column("id", Type("int4"), "integer"), Column("v", Type("text"), "text")]
TABLE = Table("public", "t", COLUMNS, ["id"])
SHAPE = Shape(TABLE, TABLE, ["id", "v"], [Type("int4"), Type("text")], [0], TABLE.schema)
FRESH = Known("system", "slot", 7)


def place(*stretches: tuple[str | None, int], lsn: int = 0) -> Place:
    """A table that is followed, copied in these stretches."""
    found = Place(
        FRESH,
        State.FOLLOWED,
        Copied([Stretch(None if upto is None else (upto,), at) for upto, at in stretches]),
    )
    found.lsn = lsn
    found.not_above = comparing(TABLE.keyed, _nobody)
    return found


def _nobody() -> Connection:
    raise AssertionError("integers are compared here")


def summary(change: Change | None) -> tuple[Op, bytes] | None:
    return None if change is None else (change.op, change.row[0])  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("commit", "key", "news"),
    [
        (9, "5", False),
        (10, "5", True),
        (24, "5", True),
        (24, "501", False),
        (25, "501", True),
        (10, "500", True),
    ],
)
def test_a_change_is_news_behind_the_snapshot_of_its_rows_stretch(commit: int, key: str, news: bool) -> None:
    found = place(("500", 10), (None, 25), lsn=10).change(SHAPE, Insert(1, (key.encode(), b"x")), commit, 0)
    assert (found is not None) == news


def test_integers_are_not_compared_as_text() -> None:
    there = place(("90", 10), (None, 25))
    assert there.change(SHAPE, Insert(1, (b"100", b"x")), 20, 0) is None
    assert there.change(SHAPE, Insert(1, (b"9", b"x")), 20, 0) is not None


@pytest.mark.parametrize(
    ("old", "new", "commit", "expected"),
    [
        ("5", "600", 30, (Op.UPDATE, b"600")),
        ("5", "600", 20, (Op.DELETE, b"5")),
        ("600", "5", 20, (Op.INSERT, b"5")),
        ("600", "700", 20, None),
        ("5", "6", 20, (Op.UPDATE, b"6")),
        ("5", "600", 5, None),
    ],
)
def test_a_row_that_changes_its_stretch_is_left_out_where_it_is_copied(
    old: str, new: str, commit: int, expected: tuple[Op, bytes] | None
) -> None:
    update = Update(1, (new.encode(), b"x"), (old.encode(), None))
    assert summary(place(("500", 10), (None, 25)).change(SHAPE, update, commit, 0)) == expected


def test_a_key_that_is_large_and_did_not_change_comes_from_the_old_row() -> None:
    change = place().change(SHAPE, Update(1, (UNCHANGED, b"x"), (b"5", None)), 1, 0)
    assert change is not None
    assert (change.row, change.old) == ((b"5", b"x"), None)
    whole = place().change(SHAPE, Update(1, (b"5", UNCHANGED), (b"5", b"large"), True), 1, 0)
    assert whole is not None
    assert whole.row == (b"5", b"large")


def test_a_delete_of_a_row_that_is_not_copied_yet_is_not_told() -> None:
    assert place(("500", 10), (None, 25)).change(SHAPE, Delete(1, (b"600", None), False), 20, 0) is None


def test_a_truncate_makes_everything_behind_it_news() -> None:
    there = place(("500", 10), (None, 25))
    assert there.truncate(SHAPE, 5, 0) is None
    assert summary_op(there.truncate(SHAPE, 20, 0)) is Op.COMMAND
    assert there.change(SHAPE, Insert(1, (b"600", b"x")), 21, 0) is not None


def summary_op(change: Change | None) -> Op | None:
    return change.op if change is not None else None


def test_of_a_transaction_that_is_logged_in_part_the_rest_is_news() -> None:
    there = place(lsn=44)
    there.done = 3
    assert [there.news(44, number) for number in (1, 3, 4)] == [False, False, True]
    assert there.news(45, 1)
    assert not there.news(43, 1)


@pytest.mark.parametrize("state", [State.COPYING, State.WAITING])
def test_changes_of_a_table_that_is_not_followed_yet_are_noted_as_missed(state: State) -> None:
    there = Place(FRESH, state)
    assert not there.news(10, 1)
    assert there.missed
    there.copied.extend(None, 5)
    there.complete()
    assert there.state is State.WAITING


def test_stretches_are_forgotten_when_they_are_past() -> None:
    there = place(("500", 10), (None, 25), lsn=10)
    there.past(24)
    assert "copied" in there.position
    there.past(25)
    assert there.position == {"system": "system", "slot": "slot", "table": 7, "lsn": 25}


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(1, 9)), min_size=1, max_size=6),
    st.integers(0, 120), st.integers(0, 12),
)  # fmt: skip
def test_any_stretches_say_the_same_as_looking_for_the_first_that_holds_the_key(
    parts: list[tuple[int, int]], key: int, commit: int
) -> None:
    copied = Copied()
    for (upto, _), lsn in zip(sorted(parts), sorted(lsn for _, lsn in parts), strict=True):
        copied.extend((str(upto),), lsn)
    copied.extend(None, 10)
    holding = next(one for one in copied.stretches if one.upto is None or key <= int(one.upto[0]))
    assert copied.wanted(commit, (str(key),), comparing(TABLE.keyed, _nobody)) == (commit >= holding.lsn)


def test_positions_come_back_from_the_log_as_they_were() -> None:
    there = place(("500", 10), (None, 25), lsn=12)
    there.done = 2
    known = Known.of(there.position, "public.t")
    again = resumed("public.t", Resume(Mode.SYNC, known.written, MessageOffset(1)), FRESH)
    assert (again.state, again.lsn, again.done, again.copied, again.kept) == (
        State.FOLLOWED, 12, 2, there.copied, 12,
    )  # fmt: skip
    with pytest.raises(CorruptError, match=r"position of public\.t"):
        Known.of({"lsn": "twelve"}, "public.t")


def test_a_slot_must_have_all_that_is_wanted() -> None:
    slot = Slot(confirmed=100, active=False, lost="", plugin="pgoutput", here=True)
    check_slot(slot, "s", {"a": 100})
    check_slot(None, "s", {})
    with pytest.raises(UsageError, match="changes of b since"):
        check_slot(slot, "s", {"a": 100, "b": 99})
    with pytest.raises(UsageError, match="another database"):
        check_slot(Slot(1, False, "", "test_decoding", True), "s", {})


def test_names_are_those_that_a_server_takes() -> None:
    assert Names.of("shop.db", "", "") == Names("penstock_shop_db", "penstock_shop_db", True)
    assert Names.of("Ünsere-Pipeline." + "x" * 80, "", "").slot.isascii()
    assert len(Names.of("p." + "x" * 80, "", "").slot) <= 63
    assert Names.of("shop.db", "mine", "theirs") == Names("mine", "theirs", False)


def test_a_task_travels_and_shows_no_password() -> None:
    task = RangeTask(
        Server("postgresql://me:top-secret@h/d"), "1", "public.t", "SELECT 1", ["id"], [Type("int4")], [0], 1
    )
    assert pickle.loads(pickle.dumps(task)) == task
    assert "top-secret" not in repr(task)


@pytest.mark.parametrize(
    ("printed", "digits", "expected"),
    [("$1,234.50", 2, "1234.50"), ("-$0.05", 2, "-0.05"), ("($7.00)", 2, "-7.00"), ("1.234,50 €", 2, "1234.50"),
     ("¥1,235", 0, "1235"), ("-1 234,567 din", 3, "-1234.567")],
)  # fmt: skip
def test_money_of_any_locale_is_a_number(printed: str, digits: int, expected: str) -> None:
    column = pa.array([printed.encode(), None], pa.large_binary())
    assert ta.joined(Type("money", digits=digits).texts(column), 2).to_pylist() == [
        expected.encode(),
        b"null",
    ]
