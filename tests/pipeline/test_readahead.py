"""What waits between a source and the log: its order, what may go together, its bounds, and how a failure is told."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.adaptors.base import Bad, Batch
from penstock.log.message import MAX_MESSAGE_BYTES, Message, Mode
from penstock.log.packing import numbered, pack
from penstock.log.schema import Schema
from penstock.pipeline import readahead
from penstock.pipeline.readahead import Given, ReadAhead, is_copied, may_join, together

NOW = 1_700_000_000_000_000


def rows(first: int, count: int = 1, *, ns: str = "a", mode: Mode = Mode.COPY, **more: object) -> Given:
    """A batch of packed rows, which leads to where the next one begins."""
    packed = pack(ns, pa.array([f'{{"n":{first + i}}}' for i in range(count)]), ts=NOW, mode=mode)
    batch = Batch(packed=[packed], positions={ns: {"n": first + count}}, **more)  # type: ignore[arg-type]
    return Given(batch, [numbered(packed, first, MAX_MESSAGE_BYTES)])


class Appends:
    """An `append` that may be held up, and notes what it is given."""

    def __init__(self) -> None:
        self.taken: list[list[Batch]] = []
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.error: Exception | None = None

    def __call__(self, given: Sequence[Given]) -> None:
        self.begun.release()
        assert self.go.acquire(timeout=20)
        if self.error is not None:
            raise self.error
        self.taken.append([one.batch for one in given])

    @contextmanager
    def held(self) -> Iterator[ReadAhead]:
        """With a first batch under way; once the block ends nothing is held up any more."""
        with ReadAhead(self, lambda: None) as ahead:
            try:
                ahead.give(rows(0))
                assert self.begun.acquire(timeout=20)
                yield ahead
            finally:
                self.go.release(1000)


def test_rows_of_a_copy_that_wait_go_together_and_in_order() -> None:
    appends, following = Appends(), [rows(n) for n in (1, 2, 3)]
    with appends.held() as ahead:
        for one in following:
            ahead.give(one)
        assert appends.taken == []
    assert appends.taken[1:] == [[one.batch for one in following]]


def test_one_batch_says_what_several_say() -> None:
    given = [rows(0, 2, ns="a"), rows(2, 3, ns="b"), rows(5, 1, ns="a")]
    batch, packed, _ = together(given)
    assert batch.positions == {"a": {"n": 6}, "b": {"n": 5}}
    assert [(row.ns, row.first, len(row)) for row in packed] == [("a", 0, 2), ("b", 2, 3), ("a", 5, 1)]
    assert batch == Batch(positions=batch.positions)


def test_a_batch_alone_goes_as_it_is() -> None:
    given = rows(0, completed=("a",), more=True)
    assert together([given]) is given


OTHERS = {
    "messages": Given(Batch([Message("a", b"{}", ts=NOW)], {"a": {"n": 2}}), []),
    "the end of a copy": rows(1, completed=("a",)),
    "a schema": rows(1, schemas={"a": Schema(())}),
    "bad rows": rows(1, bad=(Bad("a", "line 1", "not JSON", b"{"),)),
    "a part of a transaction": rows(1, more=True),
    "changes": rows(1, mode=Mode.SYNC),
    "a position alone": Given(Batch(positions={"a": {"n": 2}}), []),
    "the end of a transaction": rows(1)._replace(closes=True),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_nothing_else_goes_with_rows_of_a_copy(other: Given) -> None:
    assert is_copied(rows(0))
    assert not is_copied(other)
    assert not may_join([rows(0)], other)
    assert not may_join([other], rows(2))


def test_what_waits_is_bounded_in_bytes_and_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(rows(0).rows[0].content)
    monkeypatch.setattr(readahead, "TOGETHER", 3 * size)
    assert may_join([rows(0), rows(1)], rows(2))
    assert not may_join([rows(0), rows(1), rows(2)], rows(3))
    monkeypatch.setattr(readahead, "MOST", 2)
    assert may_join([rows(0)], rows(1))
    assert not may_join([rows(0), rows(1)], rows(2))


def giving(ahead: ReadAhead, *given: Given) -> threading.Thread:
    """A source that gives these, one after the other."""

    def source() -> None:
        for one in given:
            ahead.give(one)

    thread = threading.Thread(target=source)
    thread.start()
    return thread


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_source_of_anything_else_waits_until_what_it_gave_before_is_durable(other: Given) -> None:
    """One batch is in its hands, and none besides: of changes no more is kept than before it was so."""
    appends = Appends()
    with appends.held() as ahead:
        source = giving(ahead, other)
        source.join(0.1)
        assert source.is_alive()
        assert ahead._waiting == []
        appends.go.release()
        source.join(20)
        assert len(appends.taken) == 1
    assert appends.taken[1] == [other.batch]


def test_a_source_waits_when_as_much_waits_as_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readahead, "MOST", 3)
    appends = Appends()
    with appends.held() as ahead:
        source = giving(ahead, *(rows(n) for n in range(1, 6)))
        source.join(0.1)
        assert source.is_alive()
        assert len(ahead._waiting) == 3
        appends.go.release()
        source.join(20)
    assert [len(together) for together in appends.taken] == [1, 3, 2]


def test_a_failure_is_told_at_once_and_raised_where_the_next_batch_is_given() -> None:
    appends, told = Appends(), threading.Event()
    appends.error = OSError("no room")
    appends.go.release(10)
    with pytest.raises(OSError, match="no room"), ReadAhead(appends, told.set) as ahead:  # noqa: PT012
        ahead.give(rows(0))
        assert told.wait(20)
        ahead.give(rows(1))
        pytest.fail("taken")


def test_rows_that_could_not_be_appended_are_let_go_at_once_and_not_when_the_collector_comes() -> None:
    """A full disk is tried again and again, for as long as it takes."""

    class Content(bytearray):
        """One that can be looked after."""

    kept: list[weakref.ref[Content]] = []

    def full(given: Sequence[Given]) -> None:
        mine = [row for one in given for row in one.rows]
        raise OSError(f"no room for {len(mine)}")

    def attempt() -> None:
        with ReadAhead(full, lambda: None) as ahead:
            for number in range(5):
                one = rows(number)
                content = Content(one.rows[0].content)
                kept.append(weakref.ref(content))
                ahead.give(one._replace(rows=[replace(one.rows[0], content=content)]))

    gc.disable()
    try:
        with pytest.raises(OSError, match="no room"):
            attempt()
        assert kept
        assert sum(ref() is not None for ref in kept) <= 1, "but for that in the hands of who gave it"
    finally:
        gc.enable()


def test_a_failure_of_the_last_batch_is_raised_at_the_end() -> None:
    appends = Appends()
    appends.error = OSError("no room")
    appends.go.release(10)
    with pytest.raises(OSError, match="no room"), ReadAhead(appends, lambda: None) as ahead:
        ahead.give(rows(0))


def test_what_was_given_before_the_source_failed_is_appended() -> None:
    appends = Appends()
    with pytest.raises(ValueError, match="the source"), appends.held() as ahead:  # noqa: PT012
        ahead.give(rows(1))
        raise ValueError("the source")
    assert len(appends.taken) == 2


KINDS = st.sampled_from(["copy", *OTHERS])


@settings(max_examples=60, deadline=None)
@given(st.lists(KINDS, max_size=30), st.integers(1, 400))
def test_every_batch_is_appended_once_in_its_order_whatever_waits(kinds: list[str], most: int) -> None:
    taken: list[Batch] = []
    wrong: list[Sequence[Given]] = []
    batches = [rows(n) if kind == "copy" else OTHERS[kind] for n, kind in enumerate(kinds)]

    def append(given: Sequence[Given]) -> None:
        if not all(may_join(given[:i], given[i]) for i in range(1, len(given))):
            wrong.append(given)
        taken.extend(one.batch for one in given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readahead, "TOGETHER", most)
        with ReadAhead(append, lambda: None) as ahead:
            for one in batches:
                ahead.give(one)
        assert not wrong
    assert len(taken) == len(batches)
    assert all(ours is theirs.batch for ours, theirs in zip(taken, batches, strict=True))
