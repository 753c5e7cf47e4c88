"""Which journal a record goes to, and where one record ends: the reference's vectors, and what is refused."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import CorruptError, UsageError
from penstock.journal import mapping

PARTITIONS = [f"a/topic/part-{number:03}" for number in range(4)]


@pytest.mark.parametrize(
    ("key", "value"), [("alpha", 1569418667), ("beta", 2944525511), ("gamma", 3492353034), ("", 0x811C9DC5)]
)
def test_fnv1a(key: str, value: int) -> None:
    assert mapping.fnv1a(key.encode()) == value


@pytest.mark.parametrize(
    ("choose", "parts"),
    [(mapping.modulo, ["003", "003", "002"]), (mapping.rendezvous, ["002", "003", "000"])],
)
def test_keys_map_to_the_partitions_of_the_reference(choose: mapping.Choose, parts: list[str]) -> None:
    keys = [b"alpha", b"beta", b"gamma"]
    assert [choose(key, PARTITIONS)[-3:] for key in keys] == parts


def test_a_new_partition_moves_keys_to_itself_only_under_rendezvous() -> None:
    keys = [str(number).encode() for number in range(200)]
    more = [*PARTITIONS, "a/topic/part-004"]
    moved = {
        mapping.rendezvous(key, more)
        for key in keys
        if mapping.rendezvous(key, more) != mapping.rendezvous(key, PARTITIONS)
    }
    assert moved == {"a/topic/part-004"}


@pytest.mark.parametrize("name", PARTITIONS)
def test_direct_finds_every_journal_of_several(name: str) -> None:
    assert mapping.direct(name.encode(), PARTITIONS) == name


@pytest.mark.parametrize("name", ["a/topic/part-00", "a", "z", "", "a/topic/part-0011"])
def test_direct_refuses_a_journal_that_is_not_selected(name: str) -> None:
    with pytest.raises(UsageError, match="not among those selected"):
        mapping.direct(name.encode(), PARTITIONS)


def test_a_fixed_frame() -> None:
    assert mapping.fixed_frame(b"abc").hex() == "6633933603000000616263"


class Trickle(io.RawIOBase):
    """A pipe that gives at most three bytes at a time."""

    def __init__(self, content: bytes) -> None:
        self._content = io.BytesIO(content)

    def read(self, size: int = -1, /) -> bytes:
        return self._content.read(min(size, 3) if size >= 0 else 3)


@given(st.lists(st.binary(max_size=40)))
def test_fixed_frames_are_cut_where_they_were_joined(payloads: list[bytes]) -> None:
    stream = b"".join(map(mapping.fixed_frame, payloads))
    for source in (io.BytesIO(stream), Trickle(stream)):
        frames = list(mapping.fixed_frames(source, "input"))  # type: ignore[arg-type]
        assert [frame.payload for frame in frames] == payloads
        assert b"".join(frame.record for frame in frames) == stream


def test_lines_keep_their_newline_and_the_last_one_gets_one() -> None:
    frames = list(mapping.lines(io.BytesIO(b"one\n\ntwo"), "input"))
    assert [frame.record for frame in frames] == [b"one\n", b"\n", b"two\n"]
    assert [frame.payload for frame in frames] == [b"one", b"", b"two"]


FRAME = mapping.fixed_frame(b"abc")


@pytest.mark.parametrize(
    ("stream", "position", "complaint"),
    [
        (FRAME + b"not a frame", 11, "expected a frame"),
        (FRAME + FRAME[:5], 11, "cut short: 5 of 8 bytes"),
        (FRAME + FRAME[:8], 19, "cut short: 0 of 3 bytes"),
        (FRAME + FRAME[:-1], 19, "cut short: 2 of 3 bytes"),
        (FRAME[:4] + b"\xff\xff\xff\xff", 0, "a frame of more than 64 MiB"),
    ],
)
def test_damaged_frames_are_told_with_their_position(stream: bytes, position: int, complaint: str) -> None:
    with pytest.raises(CorruptError, match=complaint) as error:
        list(mapping.fixed_frames(io.BytesIO(stream), "input"))
    assert error.value.position == position


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "MAX_RECORD", 10)
    with pytest.raises(CorruptError, match="a line of more than") as error:
        list(mapping.lines(io.BytesIO(b"short\n" + b"x" * 11), "input"))
    assert error.value.position == 6


def test_mappings_are_functions_of_key_and_journals() -> None:
    choices: list[Callable[[bytes, list[str]], str]] = [mapping.modulo, mapping.rendezvous]
    for choose in choices:
        assert choose(b"key", ["a/only"]) == "a/only"
