"""Things found many at a time are those that a walk meets."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.base.chained import alike

HEAD = struct.Struct(">I8sB")
ONE, OTHER = b"\x00\x06AAAA\xfeA", b"\x00\x06AAAA\xfeB"
LOOKALIKE = HEAD.pack(7, ONE, 0)


def walked(content: bytes, begin: int, end: int) -> list[int]:
    """The places of those that are like the first, one after the other, and whole as far as their heads go."""
    found, at = [], begin
    while at + HEAD.size <= end and content[at + 4 : at + 12] == content[begin + 4 : begin + 12]:
        found.append(at)
        at += HEAD.size + HEAD.unpack_from(content, at)[0]
    return found


BODIES = st.one_of(st.binary(max_size=40), st.just(LOOKALIKE), st.just(LOOKALIKE[:-2]), st.just(ONE * 3))


@example([(ONE, b"x")] * 3000, 0, 0)
@example([(ONE, LOOKALIKE), (ONE, b"")] * 40, 0, 0)
@example([(ONE, b"")], 0, HEAD.size)
@given(
    st.lists(st.tuples(st.sampled_from([ONE, ONE, ONE, OTHER]), BODIES)),
    st.integers(0, 20),
    st.integers(0, 60),
)
def test_a_search_finds_a_part_of_what_a_walk_would_and_nothing_else(
    things: list[tuple[bytes, bytes]], begin: int, cut: int
) -> None:
    content = b"\xfe" * begin + b"".join(HEAD.pack(len(body), mark, 1) + body for mark, body in things)
    raw = np.frombuffer(content, np.uint8)
    end = max(len(content) - cut, 0)
    lengths = np.ndarray((max(len(content) - 3, 0),), ">u4", raw, 0, (1,))
    found = alike(raw, begin, end, HEAD.size, 4, lambda at: at + HEAD.size + lengths[at]).tolist()
    expected = walked(content, begin, end)
    assert found == expected[: len(found)]
    assert bool(found) == bool(expected)
    if all(ONE not in body for _, body in things):
        assert found == expected, "nothing looks like a head that is none"
