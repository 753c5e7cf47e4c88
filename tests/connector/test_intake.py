"""Runs of messages out of bytes: against the plain reading of each frame, however the bytes are cut."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.connector.rig import feed

from penstock.connector import alike as al
from penstock.connector import buffers
from penstock.connector import frames as fr
from penstock.connector import intake as intake_module
from penstock.connector import streak as sk
from penstock.connector.buffers import Buffers
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


@st.composite
def alike_messages(draw: st.DrawFn) -> list[fr.Frame]:
    """Many messages of one stream with ids that mostly grow, and perhaps one that is different."""
    stream, first = draw(st.sampled_from([1, 2, 2**64 - 2])), draw(st.integers(0, 400))
    key, body = draw(st.binary(max_size=2)), draw(st.binary(max_size=4))
    longer = draw(st.sampled_from([0, 7]))  # or of many lengths
    row: list[fr.Frame] = [
        fr.Message(stream, first + number, number, key, body + bytes(number * longer % 31))
        for number in range(draw(st.integers(60, 200)))
    ]
    if draw(st.booleans()):
        row[draw(st.integers(0, len(row) - 1))] = draw(
            st.one_of(
                MESSAGES,
                OTHERS,
                st.builds(
                    fr.Message,
                    st.sampled_from([1, 2]),
                    st.integers(0, 600),
                    key=st.just(key),
                    body=st.just(body),
                ),
            )
        )
    return row


ROWS = st.lists(st.one_of(alike_messages(), st.lists(st.one_of(MESSAGES, OTHERS), max_size=5)), max_size=5)


@given(ROWS, st.lists(st.integers(1, 9000), min_size=1, max_size=5))
def test_messages_that_are_alike_are_taken_as_if_one_by_one(
    rows: list[list[fr.Frame]], sizes: list[int]
) -> None:
    require_taken([frame for row in rows for frame in row], sizes)


@given(
    st.lists(st.one_of(MESSAGES, OTHERS), max_size=20), st.lists(st.integers(1, 70), min_size=1, max_size=5)
)
def test_new_messages_are_taken_as_they_came_and_repeats_left_out(
    frames: list[fr.Frame], sizes: list[int]
) -> None:
    require_taken(frames, sizes)


def require_taken(frames: list[fr.Frame], sizes: list[int]) -> None:
    """That pieces of these sizes give what the plain reading gives, in small buffers as well, which change often."""
    with pytest.MonkeyPatch.context() as patched:
        for small in (intake_module._SMALL, 64):
            patched.setattr(intake_module, "_SMALL", small)
            patched.setattr(intake_module, "_FEW", small // 2)
            patched.setattr(intake_module, "SIZE", 4 * small)
            patched.setattr(buffers, "SIZE", 4 * small)
            _require_taken(frames, sizes)


def _require_taken(frames: list[fr.Frame], sizes: list[int]) -> None:
    raw = b"".join(map(fr.encode, frames))
    intake = Intake()
    for stream in (1, 2, 2**64 - 2):
        intake.open(stream, fr.NOTHING_SEEN)
    pieces: list[memoryview] = []  # looked at when all has come, and so never overwritten
    others, spent, count, at, turn = [], 0, 0, 0, 0
    lasts: dict[int, int] = {}
    while at < len(raw):
        feed(intake, raw[at : at + sizes[turn % len(sizes)]])
        at, turn = at + sizes[turn % len(sizes)], turn + 1
        for item in intake.items():
            if isinstance(item, Run):
                pieces += item.pieces
                assert item.size == sum(map(len, item.pieces))
                spent, count = spent + item.spent, count + item.count
                lasts |= item.lasts
            else:
                others.append(item)
    wanted, wanted_others, wanted_spent = plain(frames)
    taken = b"".join(pieces)
    assert (taken, others, spent, count) == (b"".join(wanted), wanted_others, wanted_spent, len(wanted))
    assert intake.pending == 0
    for stream, last in lasts.items():
        assert intake.close(stream) == last


def test_messages_at_or_below_the_point_are_dropped_and_still_counted() -> None:
    intake = Intake()
    intake.open(7, 400)
    feed(intake, b"".join(fr.encode(fr.Message(7, number)) for number in (399, 400, 401, 401, 402)))
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
    feed(intake, b"".join(fr.encode(fr.Message(*each)) for each in sent))
    items = intake.items()
    run = next(items)
    assert isinstance(run, Run)
    assert (run.spent, run.count, run.lasts) == (2, 2, {7: 2})
    assert next(items) == fr.Message(7, fr.NOTHING_SEEN)


def test_a_message_over_the_limit_ends_a_run_also_if_all_of_it_is_there() -> None:
    intake = Intake(limit=100)
    intake.open(7, fr.NOTHING_SEEN)
    sent = [fr.Message(7, 1, body=bytes(73)), fr.Message(7, 2, body=bytes(74)), fr.Message(7, 3)]
    feed(intake, b"".join(map(fr.encode, sent)))
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
    feed(intake, b"".join(fr.encode(fr.Message(*each)) for each in sent))
    runs = [item for item in intake.items() if isinstance(item, Run)]
    assert [(run.partition, run.spent, run.count, run.lasts) for run in runs] == [
        (0, 2, 2, {1: 2}),
        (1, 3, 3, {2: 2, 3: 1}),
        (0, 2, 1, {1: 3}),
    ]


def test_messages_of_streams_that_are_not_open_are_handed_out_to_be_judged() -> None:
    intake = Intake()
    feed(intake, fr.encode(fr.Message(7, 1)) + fr.encode(fr.Message(7, fr.NOTHING_SEEN)))
    items = intake.items()
    assert next(items) == fr.Message(7, 1)
    intake.open(7, fr.NOTHING_SEEN)
    assert next(items) == fr.Message(7, fr.NOTHING_SEEN)


def test_a_frame_may_open_a_stream_for_what_stands_behind_it_in_the_same_bytes() -> None:
    intake = Intake()
    feed(intake, fr.encode(fr.Notify(7, "s", 0)) + fr.encode(fr.Message(7, 1)))
    items = intake.items()
    assert next(items) == fr.Notify(7, "s", 0)
    intake.open(7, fr.NOTHING_SEEN)
    assert isinstance(next(items), Run)


@pytest.mark.parametrize("raw", ["00000000", "00000041" + "05" * 65, "0000001b05" + "00" * 24 + "0005"])
def test_bad_lengths_are_frame_errors(raw: str) -> None:
    intake = Intake(limit=64)
    intake.open(0, fr.NOTHING_SEEN)
    feed(intake, bytes.fromhex(raw))
    with pytest.raises(fr.FrameError):
        list(intake.items())


def test_large_frames_in_small_pieces_are_put_together_once() -> None:
    raw = fr.encode(fr.Message(1, 5, body=bytes(1 << 20)))
    intake = Intake()
    intake.open(1, fr.NOTHING_SEEN)
    seen: list[object] = []
    for at in range(0, len(raw), 4096):
        feed(intake, raw[at : at + 4096])
        seen += list(intake.items())
    assert [run.count for run in seen if isinstance(run, Run)] == [1]


def test_what_is_announced_takes_no_memory_before_it_comes() -> None:
    intake = Intake()
    intake.open(1, fr.NOTHING_SEEN)
    feed(intake, fr.encode(fr.Message(1, 5, body=bytes(8 << 20)))[:40_000])
    assert list(intake.items()) == []
    assert len(intake.room()) < buffers.SIZE


def test_a_buffer_is_used_again_only_when_nobody_looks_into_it() -> None:
    pool = Buffers()
    first = pool.take()
    view = memoryview(first)[5:9]
    number = id(first)
    del first
    other = pool.take()
    assert id(other) != number
    view.release()
    assert id(pool.take()) == number
    assert id(pool.take()) == number, "nobody kept it"


def test_a_pool_of_which_all_are_in_use_gives_others_that_it_does_not_keep() -> None:
    pool = Buffers()
    taken = [pool.take() for _ in range(buffers.MOST + 3)]
    assert len({id(each) for each in taken}) == len(taken)
    assert len(pool._kept) == buffers.MOST


def test_who_sends_much_gets_a_large_buffer_and_gives_it_back_when_it_sends_little() -> None:
    pool = Buffers()
    intake = Intake(buffers=pool)
    intake.open(1, fr.NOTHING_SEEN)
    for number in range(1, 9):
        feed(intake, fr.encode(fr.Message(1, number, body=bytes(20_000))))
        assert [item.count for item in intake.items() if isinstance(item, Run)] == [1]
    assert len(pool._kept) == 1
    assert intake._data is pool._kept[0]
    feed(intake, fr.encode(fr.Message(1, 10)))
    assert [item.count for item in intake.items() if isinstance(item, Run)] == [1]
    assert len(intake._data) == 0


def test_a_buffer_without_room_is_not_kept_while_nothing_comes() -> None:
    """Or each connection would keep as much as the largest frame, for as long as it says nothing."""
    intake = Intake()
    intake.open(1, fr.NOTHING_SEEN)
    raw = fr.encode(fr.Message(1, 1, body=bytes(3 * buffers.SIZE - fr.HEAD.size)))
    seen: list[object] = []
    for at in range(0, len(raw), 1 << 16):
        feed(intake, raw[at : at + (1 << 16)])
        seen += list(intake.items())
    assert [run.count for run in seen if isinstance(run, Run)] == [1]
    assert len(intake._data) == 0


def test_what_waits_for_the_log_keeps_no_buffer_that_is_much_larger() -> None:
    pool = Buffers()
    intake = Intake(buffers=pool)
    intake.open(1, fr.NOTHING_SEEN)
    sizes, pieces = [30_000, 30_000, 30_000, 200_000, 10], []
    for number, size in enumerate(sizes, 1):
        feed(intake, fr.encode(fr.Message(1, number, body=bytes([number]) * size)))
        pieces += [piece for item in intake.items() if isinstance(item, Run) for piece in item.pieces]
    assert [len(piece) - fr.HEAD.size for piece in pieces] == sizes
    kept = [any(piece.obj is each for each in pool._kept) for piece in pieces]
    assert kept[-3:] == [False, True, False]
    assert [piece[-1] for piece in pieces] == [1, 2, 3, 4, 5]


ROW = [fr.Message(7, 10 + number, number, b"k", b"body") for number in range(al.LEAST)]
STRIDE = len(fr.encode(ROW[0]))


@given(st.integers(0, al.LEAST - 1), st.integers(0, fr.HEAD.size - 1), st.integers(1, 255))
def test_a_changed_byte_in_any_head_of_many_that_are_alike_is_seen(row: int, place: int, change: int) -> None:
    raw = bytearray(b"".join(map(fr.encode, ROW)))
    raw[row * STRIDE + place] ^= change
    count, last = al.grown(bytes(raw), 0, STRIDE, len(ROW), 9)
    first = fr.HEAD.unpack_from(raw, 0)
    heads = [fr.HEAD.unpack_from(raw, at) for at in range(0, len(raw), STRIDE)]
    fine = 0
    while (
        fine < len(heads)
        and heads[fine][:3] == first[:3]
        and heads[fine][3] > (heads[fine - 1][3] if fine else 9)
        and heads[fine][3] != fr.NOTHING_SEEN
        and heads[fine][5] <= STRIDE - fr.HEAD.size
    ):
        fine += 1
    assert (count, last) == (fine, heads[fine - 1][3] if fine else 9)


VARIED = [fr.Message(7, 10 + number, number, b"k", bytes(number % 5)) for number in range(sk.LEAST)]


@given(st.integers(0, sk.LEAST - 1), st.integers(4, fr.HEAD.size - 1), st.integers(1, 255))
def test_a_changed_byte_in_any_head_of_a_streak_is_seen(row: int, place: int, change: int) -> None:
    """All but the lengths: with another length another walk is taken."""
    frames = list(map(fr.encode, VARIED))
    ends = list(accumulate(map(len, frames), initial=0))
    raw = bytearray(b"".join(frames))
    raw[ends[row] + place] ^= change
    heads = [fr.HEAD.unpack_from(raw, at) for at in ends[:-1]]
    fine = 0
    while (
        fine < len(heads)
        and heads[fine][1:3] == heads[0][1:3]
        and heads[fine][3] > (heads[fine - 1][3] if fine else 9)
        and heads[fine][3] != fr.NOTHING_SEEN
        and heads[fine][5] <= len(frames[fine]) - fr.HEAD.size
    ):
        fine += 1
    reached = sk.grown(raw, np.array(ends), fr.MAX_FRAME, 9)
    assert reached == (fine, heads[fine - 1][3] if fine else 9, ends[fine])


def test_a_streak_is_walked_up_to_the_last_frame_that_is_whole() -> None:
    raw = bytearray(b"".join(map(fr.encode, VARIED)))
    ends = list(accumulate((len(fr.encode(each)) for each in VARIED), initial=0))
    assert list(sk.begins(raw, 0, len(raw), 1000)) == ends
    assert list(sk.begins(raw, 0, len(raw) - 1, 1000)) == ends[:-1]
    assert list(sk.begins(raw, 0, len(raw), 10)) == ends[:11]
    assert list(sk.begins(raw, ends[3], ends[20] + 5, 1000)) == ends[3:21], (
        "what is behind the end does not count"
    )
    assert sk.grown(raw, np.array(ends), len(fr.encode(VARIED[3])) - 5, 9)[0] == 3, "one is over the limit"
    other = raw + fr.encode(fr.Message(8, 1)) + raw
    assert list(sk.begins(other, len(raw), len(other), 1000)) == [], (
        "those behind the first are of another stream"
    )


HEADLIKE = fr.encode(fr.Message(7, 11))
FOUND = st.one_of(
    st.integers(0, 200).map(bytes),
    st.integers(0, 200).map(lambda size: bytes([7]) * size),
    st.integers(1, 40).map(lambda size: b"x" * size + HEADLIKE + b"y" * (size % 3)),
    st.integers(1, len(HEADLIKE)).map(lambda size: HEADLIKE[-size:]),
)
"""Bodies among which the heads are not easily found: one looks like a message, or like the end of one."""


@example(7, [b""] * 4 + [b"longer than those before"] * 200, 100, None, 0)
@example(7, [b"longer than those behind"] * 4 + [b""] * 200, 100, None, 0)
@example(7, [b"body"] * 200, 200, (4, 5, 1), 0)
@given(
    stream=st.sampled_from([0, 7, 0x0707070707070707, 0x8123456789ABCDEF]),
    bodies=st.lists(FOUND, min_size=sk.LEAST, max_size=3 * sk.LEAST),
    most=st.integers(4, 4 * sk.LEAST),
    strange=st.none() | st.tuples(st.integers(0, sk.LEAST - 1), st.integers(0, 12), st.integers(1, 255)),
    cut=st.integers(0, 300),
)
def test_what_is_searched_for_is_found_where_a_walk_finds_it(
    stream: int,
    bodies: list[bytes],
    most: int,
    strange: tuple[int, int, int] | None,
    cut: int,
) -> None:
    frames = [
        fr.encode(
            fr.Message(
                stream, number, body=body.replace(HEADLIKE[:13], HEADLIKE[:5] + stream.to_bytes(8, "big"))
            )
        )
        for number, body in enumerate(bodies)
    ]
    raw = bytearray(b"".join(frames))
    if strange is not None:
        row, place, change = strange
        raw[len(b"".join(frames[:row])) + place] ^= change
    end = max(len(raw) - cut, 0)
    raw[end:] = HEADLIKE * (cut // len(HEADLIKE) + 1)  # what an earlier read left there
    walked, at = [0], 0
    while at <= end - fr.HEAD.size and len(walked) <= most:
        at += 4 + int.from_bytes(raw[at : at + 4], "big")
        walked.append(at)
    if walked[-1] > end:
        walked.pop()
    probed = [raw[begin + 4 : begin + 13] == raw[4:13] for begin in walked[:4] if begin <= end - fr.HEAD.size]
    assert list(sk.begins(raw, 0, end, most)) == (walked if probed == [True] * 4 else [])


def test_streams_that_take_turns_in_short_stretches_are_not_walked_again_and_again() -> None:
    intake = Intake()
    for stream in (7, 8):
        intake.open(stream, fr.NOTHING_SEEN)
    sent = [
        fr.Message(7 + turn % 2, turn * 50 + number, body=bytes(number % 7))
        for turn in range(20)
        for number in range(50)
    ]
    looked = 0
    walk = sk.begins

    def counted(*arguments: object) -> NDArray[np.int64]:
        nonlocal looked
        places = walk(*arguments)  # type: ignore[arg-type]
        looked += len(places)
        return places

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sk, "begins", counted)
        feed(intake, b"".join(map(fr.encode, sent)))
        runs = [item for item in intake.items() if isinstance(item, Run)]
    assert sum(run.count for run in runs) == len(sent)
    assert looked < len(sent)


def test_streams_that_take_turns_so_that_they_seem_alike_are_not_looked_at_again_and_again() -> None:
    """Each guess looks into the first three, the one in the middle and the last: of these, all are of one stream."""
    intake, count = Intake(), 2 * al.MOST
    for stream in (7, 8):
        intake.open(stream, fr.NOTHING_SEEN)
    raw = bytearray(b"".join(fr.encode(fr.Message(7 + (turn % 9 > 4), turn)) for turn in range(count)))
    intake._data, intake._end = raw, len(raw)  # as if all of it had come at once
    looked, look = 0, al.grown

    def counted(data: bytearray, at: int, stride: int, likely: int, last: int) -> tuple[int, int]:
        nonlocal looked
        looked += likely
        return look(data, at, stride, likely, last)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(intake_module, "grown", counted)
        runs = [item for item in intake.items() if isinstance(item, Run)]
    assert sum(run.count for run in runs) == count
    assert looked < 32 * count


def test_many_that_are_alike_are_taken_at_once_and_those_that_differ_are_not_tried() -> None:
    raw = b"".join(map(fr.encode, ROW))
    assert al.likely(raw, 0, len(raw)) == (STRIDE, al.LEAST)
    assert al.likely(raw, 0, len(raw) - 1) == (STRIDE, 0), "what is behind the end does not count"
    assert al.likely(fr.encode(fr.Message(7, 1)) + raw, 0, len(raw))[1] == 0
    assert al.grown(raw, 0, STRIDE, al.LEAST, 9) == (al.LEAST, ROW[-1].id)
    assert al.grown(raw, 0, STRIDE, al.LEAST, 10) == (0, 10)


def test_of_many_that_are_alike_one_over_the_limit_is_a_fault() -> None:
    intake = Intake(limit=STRIDE - 5)
    intake.open(7, fr.NOTHING_SEEN)
    feed(intake, b"".join(map(fr.encode, ROW)))
    with pytest.raises(fr.FrameError, match=f"the limit is {STRIDE - 5}"):
        next(intake.items())


def test_of_many_that_are_alike_those_up_to_the_id_that_stands_for_nothing_are_taken() -> None:
    intake = Intake()
    intake.open(7, fr.NOTHING_SEEN)
    first = fr.NOTHING_SEEN - al.LEAST + 1
    feed(intake, b"".join(fr.encode(fr.Message(7, first + number)) for number in range(al.LEAST)))
    items = intake.items()
    run = next(items)
    assert isinstance(run, Run)
    assert (run.count, run.lasts) == (al.LEAST - 1, {7: fr.NOTHING_SEEN - 1})
    assert next(items) == fr.Message(7, fr.NOTHING_SEEN)
