"""Messages in columns: the bytes of the same records sent one by one, whatever is cut where, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.connector.rig import Rig, rigged
from tests.connector.test_source import connector

from penstock.connector import frames as fr
from penstock.connector import link as link_module
from penstock.connector.columns import Columns, Numbers
from penstock.connector.frames import Unsendable
from penstock.connector.link import Link, TooLargeError
from penstock.connector.source import Record, Records, Stream, stream_id

STREAM = 0xFEDC_BA98_7654_3210

ids = st.integers(0, 2**64 - 1)
times = st.integers(-(2**63), 2**63 - 1)
records = st.lists(st.builds(Record, ids, st.binary(max_size=40), st.binary(max_size=9), times), max_size=40)


class Heard:
    """A writer that keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))

    async def drain(self) -> None:
        pass


def sent(given: Sequence[Record], credits: Sequence[int], limit: int = fr.MAX_FRAME) -> tuple[bytes, Link]:
    """What a link writes of records when credits come in such portions, and at the end as many as it takes."""

    async def test() -> tuple[bytes, Link]:
        heard = Heard()
        link = Link("w", cast(asyncio.StreamReader, None), cast(asyncio.StreamWriter, heard))
        at, portions = 0, iter(credits)
        while at < len(given):
            link.session.credits.grant(next(portions, len(given)))
            some = given[at : at + await link.credits(len(given) - at)]
            await link.send_messages(STREAM, some, limit)
            at += len(some)
        return b"".join(heard.writes), link

    return asyncio.run(test())


def columns_of(given: Sequence[Record]) -> Columns:
    """In the fewest columns that hold them."""
    keys = [record.key for record in given] if any(record.key for record in given) else None
    when = [record.time for record in given] if any(record.time for record in given) else None
    return Columns([record.id for record in given], [record.body for record in given], keys=keys, times=when)


@given(
    records,
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(1, 12), max_size=20),
    st.sampled_from([1, 50, 1 << 19]),
)
def test_columns_are_the_bytes_of_their_records_however_credits_cut_them(
    given: list[Record], keyed: bool, timed: bool, credits: list[int], one_write: int
) -> None:
    given = [
        Record(each.id, each.body, each.key if keyed else b"", each.time if timed else 0) for each in given
    ]
    before, link_module._ONE_WRITE = link_module._ONE_WRITE, one_write
    try:
        one_by_one, link = sent(given, credits)
        at_once, other = sent(columns_of(given), credits)
    finally:
        link_module._ONE_WRITE = before
    assert at_once == one_by_one
    assert at_once == b"".join(
        fr.encode(fr.Message(STREAM, each.id, each.time, each.key, each.body)) for each in given
    )
    assert other.session.last == link.session.last
    assert other.session.credits.held == link.session.credits.held


@given(records, st.integers(0, 40), st.integers(0, 40))
def test_columns_read_as_the_records_that_they_hold(given: list[Record], begin: int, end: int) -> None:
    columns = columns_of(given)
    assert list(columns) == given
    assert list(columns[begin:end]) == given[begin:end]
    assert b"".join(part.encoded(1) for part in columns.parts(begin)) == columns.encoded(1)


@pytest.mark.parametrize(
    "numbers",
    [
        range(5, 9),
        range(5, 13, 2),
        range(8, 4, -1),
        range(2**64 - 4, 2**64),
        range(2**63 - 4, 2**63),
        range(1, 2**63, 2**61),
        range(1, 3 * 2**61 + 2, 2**61),
        range(2**53 + 7, 2**53, -2),
        range(3, -1, -1),
        bytes(range(4)),
        bytearray(range(4)),
        [1, 2**63, 2**64 - 1, 0],
        np.arange(4),
        np.arange(4, dtype=np.uint64),
        np.arange(4, dtype=">u2"),
    ],
    ids=repr,
)
def test_ids_may_be_any_sequence_of_whole_numbers(numbers: Numbers) -> None:
    assert [record.id for record in Columns(numbers, [b""] * 4)] == [int(number) for number in numbers]


@pytest.mark.parametrize(
    ("numbers", "bodies", "told"),
    [
        ([1, 2], [b"a"], "1 bodies and 2 ids make no columns"),
        ([-1], [b"a"], "ids that are no whole numbers of 64 bits"),
        (range(-1, 0), [b"a"], "ids that are no whole numbers"),
        (np.array([-1]), [b"a"], "ids that are no whole numbers"),
        ([2**64], [b"a"], "ids that are no whole numbers"),
        ([1.5], [b"a"], "ids that are no whole numbers"),
        (np.array([1.0]), [b"a"], "ids that are no whole numbers"),
    ],
)
def test_what_fits_no_column_is_refused(numbers: Numbers, bodies: list[bytes], told: str) -> None:
    with pytest.raises(Unsendable, match=told):
        Columns(numbers, bodies)


@pytest.mark.parametrize("number", [0, 2**53 + 1, 2**63 - 1])
def test_a_range_of_one_number_may_have_any_step(number: int) -> None:
    assert Columns(range(number, number + 1, 2**63), [b""])[0].id == number


def test_a_write_is_no_longer_for_keys_than_for_bodies() -> None:
    """As for records one by one: some frames of large keys make a write, and so do many that have only a head."""
    keyed = Columns(range(100), [b""] * 100, keys=[bytes(60_000)] * 100)
    assert [len(part) for part in keyed.parts(500_000)] == [8] * 12 + [4]
    bare = Columns(range(100), [b""] * 100)
    assert max(len(part.encoded(1)) for part in bare.parts(1000)) <= 1000


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_keys_and_bodies_may_be_views(kind: type[bytes]) -> None:
    keys, bodies = [b"k", b""], [b"body", b"12"]
    viewed = Columns([1, 2], list(map(kind, bodies)), keys=list(map(kind, keys)))
    assert viewed.encoded(1) == Columns([1, 2], bodies, keys=keys).encoded(1)


def test_views_of_something_else_than_bytes_are_refused() -> None:
    wide = cast(bytes, memoryview(bytes(8)).cast("I"))
    with pytest.raises(Unsendable, match="are bytes"):
        Columns([1, 2], [b"", wide]).encoded(1)
    with pytest.raises(Unsendable, match="are bytes"):
        Columns([1, 2], [b"", b""], keys=[b"", wide]).encoded(1)


@pytest.mark.parametrize(
    ("large", "limit"),
    [
        (Record(7, bytes(74)), 100),
        (Record(7, bytes(69), b"12345"), 100),
        (Record(7, b"", bytes(65536)), fr.MAX_FRAME),
    ],
)
def test_a_message_that_fits_no_frame_is_named(large: Record, limit: int) -> None:
    fits = Record(6, bytes(73))
    given = [fits, large, large._replace(id=8)]
    if limit < 1000:
        assert len(sent(columns_of([fits, large._replace(body=large.body[1:])]), [], limit)[0]) == 2 * 104
    for each in (given, columns_of(given)):
        with pytest.raises(TooLargeError, match="message 7 is too large"):
            sent(each, [], limit)


def test_a_source_of_columns_arrives_whole_with_few_credits(tmp_path: Path) -> None:
    class Squares(Stream):
        name = "squares"
        at = 0

        def seek(self, point: int | None) -> None:
            self.at = point or 0

        def read(self) -> Records:
            numbers = range(self.at + 1, min(self.at + 41, 301))
            self.at += len(numbers)
            bodies, keys = [b"%d" % (n * n) for n in numbers], [b"k%d" % n for n in numbers]
            return Columns(numbers, bodies, keys=keys, times=[-n for n in numbers]) if numbers else None

    async def test(rig: Rig) -> None:
        worker = await rig.worker(credits=7)
        running = connector([worker.me.address], [Squares()])
        await running.serve()
        assert running.acked == {"squares": 300}
        found = [frame for frame in await rig.frames() if isinstance(frame, fr.Message)]
        assert [(each.stream, each.id, each.time, bytes(each.key), bytes(each.body)) for each in found] == [
            (stream_id("squares"), n, -n, b"k%d" % n, b"%d" % (n * n)) for n in range(1, 301)
        ]

    rigged(tmp_path / "d", test)
