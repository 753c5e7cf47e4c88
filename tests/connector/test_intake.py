"""Runs of messages out of bytes: against the plain reading of each frame, however the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connector import frames as fr
from penstock.connector.intake import Intake, Run

MESSAGES = st.builds(
    fr.Message,
    st.sampled_from([1, 2, 2**64 - 2]),
    st.integers(0, 12),
    st.integers(-5, 5),
    st.binary(max_size=3),
    st.binary(max_size=20),
)
OTHERS: st.SearchStrategy[fr.Frame] = st.one_of(st.builds(fr.Error, st.just("x")), st.just(fr.EosMessage(9)))


def plain(frames: list[fr.Frame]) -> tuple[list[bytes], list[fr.Frame], int]:
    """What should be taken, what handed out, how many messages came."""
    lasts: dict[int, int] = {}
    others: list[fr.Frame] = []
    taken, spent = [], 0
    for frame in frames:
        if not isinstance(frame, fr.Message):
            others.append(frame)
            continue
        spent += 1
        if frame.id > lasts.get(frame.stream, -1):
            lasts[frame.stream] = frame.id
            taken.append(fr.encode(frame))
    return taken, others, spent


@given(
    st.lists(st.one_of(MESSAGES, OTHERS), max_size=20), st.lists(st.integers(1, 70), min_size=1, max_size=5)
)
def test_new_messages_are_taken_as_they_came_and_repeats_left_out(
    frames: list[fr.Frame], sizes: list[int]
) -> None:
    raw = b"".join(map(fr.encode, frames))
    intake = Intake()
    for stream in (1, 2, 2**64 - 2):
        intake.open(stream, fr.NOTHING_SEEN)
    taken, others, spent, count, at, turn = b"", [], 0, 0, 0, 0
    lasts: dict[int, int] = {}
    while at < len(raw):
        intake.feed(raw[at : at + sizes[turn % len(sizes)]])
        at, turn = at + sizes[turn % len(sizes)], turn + 1
        for item in intake.items():
            if isinstance(item, Run):
                taken += b"".join(item.pieces)
                assert item.size == sum(map(len, item.pieces))
                spent, count = spent + item.spent, count + item.count
                lasts |= item.lasts
            else:
                others.append(item)
    wanted, wanted_others, wanted_spent = plain(frames)
    assert (taken, others, spent, count) == (b"".join(wanted), wanted_others, wanted_spent, len(wanted))
    assert intake.pending == 0
    for stream, last in lasts.items():
        assert intake.close(stream) == last


def test_messages_at_or_below_the_point_are_dropped_and_still_counted() -> None:
    intake = Intake()
    intake.open(7, 400)
    intake.feed(b"".join(fr.encode(fr.Message(7, number)) for number in (399, 400, 401, 401, 402)))
    run, *rest = intake.items()
    assert isinstance(run, Run)
    assert (run.spent, run.count, run.lasts, rest) == (5, 2, {7: 402}, [])
    assert intake.close(7) == 402


@pytest.mark.parametrize("behind", [(), ((7, 4),), ((7, fr.NOTHING_SEEN),), ((8, 1),), ((7, 1), (8, 1))])
def test_the_id_that_stands_for_nothing_ends_a_run_whatever_comes_behind_it(
    behind: tuple[tuple[int, int], ...],
) -> None:
    intake = Intake()
    intake.open(7, fr.NOTHING_SEEN)
    intake.open(8, fr.NOTHING_SEEN)
    sent = [(7, 1), (7, 2), (7, fr.NOTHING_SEEN), *behind]
    intake.feed(b"".join(fr.encode(fr.Message(*each)) for each in sent))
    items = intake.items()
    run = next(items)
    assert isinstance(run, Run)
    assert (run.spent, run.count, run.lasts) == (2, 2, {7: 2})
    assert next(items) == fr.Message(7, fr.NOTHING_SEEN)


def test_a_message_over_the_limit_ends_a_run_also_if_all_of_it_is_there() -> None:
    intake = Intake(limit=100)
    intake.open(7, fr.NOTHING_SEEN)
    sent = [fr.Message(7, 1, body=bytes(73)), fr.Message(7, 2, body=bytes(74)), fr.Message(7, 3)]
    intake.feed(b"".join(map(fr.encode, sent)))
    items = intake.items()
    run = next(items)
    assert isinstance(run, Run)
    assert (run.spent, run.lasts) == (1, {7: 1})
    with pytest.raises(fr.FrameError, match="the limit is 100"):
        next(items)


def test_a_run_is_of_one_partition() -> None:
    intake = Intake()
    for stream, partition in ((1, 0), (2, 1), (3, 1)):
        intake.open(stream, fr.NOTHING_SEEN, partition)
    sent = [(1, 1), (1, 2), (2, 1), (3, 1), (2, 2), (1, 2), (1, 3)]
    intake.feed(b"".join(fr.encode(fr.Message(*each)) for each in sent))
    runs = [item for item in intake.items() if isinstance(item, Run)]
    assert [(run.partition, run.spent, run.count, run.lasts) for run in runs] == [
        (0, 2, 2, {1: 2}),
        (1, 3, 3, {2: 2, 3: 1}),
        (0, 2, 1, {1: 3}),
    ]


def test_messages_of_streams_that_are_not_open_are_handed_out_to_be_judged() -> None:
    intake = Intake()
    intake.feed(fr.encode(fr.Message(7, 1)) + fr.encode(fr.Message(7, fr.NOTHING_SEEN)))
    items = intake.items()
    assert next(items) == fr.Message(7, 1)
    intake.open(7, fr.NOTHING_SEEN)
    assert next(items) == fr.Message(7, fr.NOTHING_SEEN)


def test_a_frame_may_open_a_stream_for_what_stands_behind_it_in_the_same_bytes() -> None:
    intake = Intake()
    intake.feed(fr.encode(fr.Notify(7, "s", 0)) + fr.encode(fr.Message(7, 1)))
    items = intake.items()
    assert next(items) == fr.Notify(7, "s", 0)
    intake.open(7, fr.NOTHING_SEEN)
    assert isinstance(next(items), Run)


@pytest.mark.parametrize("raw", ["00000000", "00000041" + "05" * 65, "0000001b05" + "00" * 24 + "0005"])
def test_bad_lengths_are_frame_errors(raw: str) -> None:
    intake = Intake(limit=64)
    intake.open(0, fr.NOTHING_SEEN)
    intake.feed(bytes.fromhex(raw))
    with pytest.raises(fr.FrameError):
        list(intake.items())


def test_large_frames_in_small_pieces_are_put_together_once() -> None:
    raw = fr.encode(fr.Message(1, 5, body=bytes(1 << 20)))
    intake = Intake()
    intake.open(1, fr.NOTHING_SEEN)
    seen: list[object] = []
    for at in range(0, len(raw), 4096):
        intake.feed(raw[at : at + 4096])
        seen += list(intake.items())
    assert [run.count for run in seen if isinstance(run, Run)] == [1]
