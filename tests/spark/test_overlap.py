"""A batch published beside the next one's staging: in order, one at a time, and no failure that nobody hears of."""

from __future__ import annotations

import threading

import pytest

from penstock.log.message import ByteOffset, MessageOffset
from penstock.log.positions import LogPoint
from penstock.spark.overlap import Overlap

BEGIN = LogPoint(MessageOffset(3), ByteOffset(30))


def test_what_is_under_way_is_waited_for_before_the_next() -> None:
    held, done, heard = threading.Event(), list[str](), list[BaseException]()
    overlap = Overlap("publish", heard.append)

    def publish() -> None:
        held.wait(10)
        done.append("published")

    overlap.begin(publish, BEGIN, 7)
    assert (overlap.busy, overlap.end, done, overlap.wait(0.01)) == (True, 7, [], False)
    assert overlap.since == BEGIN
    held.set()
    assert overlap.settle()
    assert (overlap.busy, overlap.end, done, heard) == (False, None, ["published"], [])
    assert overlap.since is None


def test_a_failure_is_told_at_once_and_raised_once() -> None:
    heard = list[BaseException]()
    overlap = Overlap("publish", heard.append)

    def publish() -> None:
        raise ValueError("refused")

    overlap.begin(publish, BEGIN, 7)
    assert overlap.wait(10)
    assert [str(error) for error in heard] == ["refused"]
    assert overlap.end == 7, "whoever stages next learns of it before he counts on it"
    with pytest.raises(ValueError, match="refused"):
        overlap.settle()
    assert not overlap.settle()
    assert overlap.end is None
    assert overlap.since == BEGIN, "the offset log still stands there"


def test_a_new_start_knows_nothing_of_a_failure_that_was_told() -> None:
    overlap = Overlap("publish", lambda error: None)

    def publish() -> None:
        raise ValueError("refused")

    overlap.begin(publish, BEGIN, 7)
    overlap.wait()
    overlap.forget()
    assert not overlap.settle()
    assert (overlap.busy, overlap.end, overlap.since) == (False, None, None)


def test_nothing_under_way_is_settled() -> None:
    overlap = Overlap("publish", lambda error: None)
    assert not overlap.settle()
    assert overlap.wait(0.0)
    assert not overlap.busy
