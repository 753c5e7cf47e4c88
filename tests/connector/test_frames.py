"""The bytes of frames: vectors both ways, every cut, every split, limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.connector import vectors

from penstock.connector import frames as fr
from penstock.connector import inner as tp
from penstock.connector.framing import Splitter

U64 = st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
BYTES = st.binary(max_size=60)
TOKENS = st.frozensets(st.sampled_from(["migrate", "a", "b"]))
FRAMES: st.SearchStrategy[fr.Frame] = st.one_of(
    st.builds(fr.Hello, TEXT, BYTES, TEXT, TEXT, TOKENS),
    st.builds(fr.Ok, st.integers(0, 2**32 - 1)),
    st.builds(fr.Error, TEXT),
    st.builds(fr.Notify, U64, TEXT, U64),
    st.builds(fr.NotifyAck, st.booleans(), U64, U64),
    st.builds(fr.Message, U64, U64, st.integers(-(2**63), 2**63 - 1), BYTES, BYTES),
    st.builds(fr.Ack, st.integers(0, 2**32 - 1), st.lists(st.tuples(U64, U64), max_size=4).map(tuple)),
    st.builds(fr.Restart, TEXT),
    st.builds(fr.EosMessage, U64),
    st.builds(fr.Migrate, TEXT, st.integers(0, 65535)),
    st.builds(fr.MigrationAck),
)
INNERS: st.SearchStrategy[tp.Inner] = st.one_of(
    st.builds(tp.ListUncommitted, U64),
    st.builds(tp.ReplyUncommitted, U64, st.lists(TEXT, max_size=3).map(tuple)),
    st.builds(tp.Phase1, TEXT, st.lists(st.tuples(U64, U64, U64), max_size=3).map(tuple)),
    st.builds(tp.Reply, TEXT, st.booleans()),
    st.builds(tp.Phase2, TEXT, st.booleans()),
    st.builds(tp.WorkersLeft, U64, st.lists(TEXT, max_size=3).map(tuple)),
)


@pytest.mark.parametrize(("frame", "text"), vectors.BOTH_WAYS, ids=repr)
def test_vectors_both_ways(frame: fr.Frame, text: str) -> None:
    raw = bytes.fromhex(text)
    assert fr.encode(frame).hex() == text
    assert Splitter().feed(raw) == [raw[4:]]
    assert fr.frame_of(raw[4:]) == frame
    assert fr.tag_of(frame) == raw[4]


@pytest.mark.parametrize(("frame", "text"), vectors.READ_ONLY, ids=repr)
def test_forms_that_only_others_send_are_read(frame: fr.Frame, text: str) -> None:
    assert fr.frame_of(bytes.fromhex(text)[4:]) == frame
    assert fr.encode(frame).hex() != text


@pytest.mark.parametrize(("inner", "text"), vectors.INNER, ids=repr)
def test_vectors_of_the_two_phase_commit(inner: tp.Inner, text: str) -> None:
    raw = bytes.fromhex(text)
    assert tp.encode_inner(inner) == raw
    message = fr.frame_of(raw[4:])
    assert isinstance(message, fr.Message)
    assert (message.stream, message.id, message.time, bytes(message.key)) == (0, 0, 0, b"")
    assert tp.inner_of(message.body) == inner


@pytest.mark.parametrize("text", vectors.REFUSED.values(), ids=vectors.REFUSED.keys())
def test_what_is_no_frame_is_refused(text: str) -> None:
    with pytest.raises(fr.FrameError, match="Unable to decode message"):
        fr.frame_of(bytes.fromhex(text))


@pytest.mark.parametrize("text", vectors.REFUSED_INNER.values(), ids=vectors.REFUSED_INNER.keys())
def test_what_is_no_inner_message_is_refused(text: str) -> None:
    with pytest.raises(fr.FrameError):
        tp.inner_of(bytes.fromhex(text))


def test_every_cut_of_every_vector_is_a_frame_error_or_a_frame() -> None:
    """Cuts inside a body, or before fields that may be absent, still read; all others are one kind of error."""
    refused = 0
    for text in [text for _, text in vectors.BOTH_WAYS] + [text for _, text in vectors.INNER]:
        payload = bytes.fromhex(text)[4:]
        for cut in range(len(payload)):
            try:
                frame = fr.frame_of(payload[:cut])
                if isinstance(frame, fr.Message) and frame.stream == 0:
                    tp.inner_of(frame.body)
            except fr.FrameError:
                refused += 1
    assert refused > 300


@given(FRAMES)
def test_round_trip_and_bytes_behind_the_last_field_are_ignored(frame: fr.Frame) -> None:
    raw = fr.encode(frame)
    assert int.from_bytes(raw[:4], "big") == len(raw) - 4
    assert fr.frame_of(raw[4:]) == frame
    grown = isinstance(frame, fr.Message) or (isinstance(frame, fr.Hello | fr.Ok) and not frame.capabilities)
    if not grown:
        assert fr.frame_of(raw[4:] + b"\x00\x01more") == frame


@pytest.mark.parametrize("behind", [b"\x00", b"\xff", b"\x00\x05more", b"\x00\x01\xff", b"\x00\x00\x00\x00"])
@pytest.mark.parametrize("frame", [fr.Hello("0.0.1", b"", "p", "i"), fr.Ok(500)])
def test_what_is_no_list_of_capabilities_is_ignored(frame: fr.Frame, behind: bytes) -> None:
    assert fr.frame_of(fr.encode(frame)[4:] + behind) == frame


@given(INNERS)
def test_round_trip_of_the_two_phase_commit(inner: tp.Inner) -> None:
    body = tp.body_of(inner)
    assert tp.inner_of(body) == tp.inner_of(memoryview(body + b"more")) == inner


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_frames_come_out_however_the_bytes_are_cut(frames: list[fr.Frame], sizes: list[int]) -> None:
    raw = b"".join(map(fr.encode, frames))
    splitter, seen, at, turn = Splitter(), [], 0, 0
    while at < len(raw):
        size = sizes[turn % len(sizes)]
        seen += [fr.frame_of(payload) for payload in splitter.feed(raw[at : at + size])]
        at, turn = at + size, turn + 1
    assert seen == frames
    assert splitter.pending == 0
    assert splitter.fault is None


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_one_fault(raw: bytes) -> None:
    splitter = Splitter(limit=64)
    for payload in splitter.feed(raw):
        try:
            fr.frame_of(payload)
        except fr.FrameError:
            continue
    assert splitter.pending <= 68


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_lengths_of_zero_or_over_the_limit_are_faults_and_the_frames_before_count(step: int) -> None:
    for length, word in ((0, "length 0"), (65, "the limit is 64")):
        raw = fr.encode(fr.Ok(1)) + length.to_bytes(4, "big") + fr.encode(fr.Ok(2))
        splitter, seen = Splitter(limit=64), []
        for at in range(0, len(raw), step):
            seen += [fr.frame_of(payload) for payload in splitter.feed(raw[at : at + step])]
        assert seen == [fr.Ok(1)]
        assert splitter.fault is not None
        assert word in str(splitter.fault)
        assert splitter.feed(fr.encode(fr.Ok(3))) == []


def test_a_frame_at_the_limit_passes() -> None:
    raw = fr.encode(fr.Message(1, 1, body=bytes(100)))
    assert len(Splitter(limit=len(raw) - 4).feed(raw)) == 1
    assert Splitter(limit=len(raw) - 5).feed(raw) == []


def test_an_announced_length_costs_nothing_before_its_bytes_come() -> None:
    splitter = Splitter()
    splitter.feed((16 << 20).to_bytes(4, "big") + b"\x05")
    assert splitter.pending == 5


def test_bodies_are_views_into_what_came() -> None:
    raw = fr.encode(fr.Message(1, 2, 3, b"key", b"body"))
    message = fr.frame_of(Splitter().feed(raw)[0])
    assert isinstance(message, fr.Message)
    assert isinstance(message.body, memoryview)
    assert message.body.obj is raw


def test_version_and_cookie_are_read_before_the_rest_of_a_hello() -> None:
    payload = memoryview(bytes.fromhex("000005302e302e310003616263ffff"))
    assert fr.greeting_of(payload) == ("0.0.1", b"abc")
    with pytest.raises(fr.FrameError):
        fr.frame_of(payload)


def test_the_cookie_does_not_show() -> None:
    assert "Tacos" not in repr(fr.Hello("0.0.1", vectors.COOKIE, "p", "i"))


def test_values_that_do_not_fit_are_named_and_reasons_are_cut() -> None:
    with pytest.raises(fr.Unsendable, match="a key has 65,536 bytes"):
        fr.encode(fr.Message(1, 1, key=bytes(65536)))
    with pytest.raises(fr.Unsendable, match="MESSAGE"):
        fr.encode(fr.Message(2**64, 1))
    reason = fr.frame_of(fr.encode(fr.Error("ä" * 70000))[4:])
    assert isinstance(reason, fr.Error)
    assert reason.reason == "ä" * 32767
