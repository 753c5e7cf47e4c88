"""Read and ListFragments as the reference has them (20), and what becomes of readers that wait, dawdle or leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from penstock.journal import read as read_module
from penstock.journal.broker import Broker
from penstock.journal.fragment import Fragment
from penstock.journal.protocol import (
    FragmentsRequest,
    FragmentsResponse,
    ReadRequest,
    Status,
)
from penstock.log.commitlog import journal_spec

from .brokers import (
    CLAIMS,
    JOURNAL,
    Gate,
    HookedDisk,
    append,
    content,
    in_loop,
    opened,
    persisted,
    read,
    replica,
    until,
)

A, B, C = b"a" * 1200, b"b" * 1200, b"c" * 300


async def three_fragments(broker: Broker) -> None:
    """Two in the store, and the third being written; [0, 1200), [1200, 2400), [2400, 2700)."""
    for chunk in (A, B, C):
        await append(broker, chunk)
    await persisted(broker)


def looking(test: Callable[[Broker], Awaitable[None]], path: Path) -> None:
    """Run a test on a broker that holds three fragments."""

    async def run() -> None:
        async with opened(path / "data") as broker:
            await three_fragments(broker)
            await test(broker)

    in_loop(run)


def test_a_read_is_metadata_then_chunks_fragment_by_fragment_and_ends_at_the_head(tmp_path: Path) -> None:
    async def test(broker: Broker) -> None:
        answers = await read(broker, ReadRequest(journal=JOURNAL, offset=100))
        told = [answer for answer in answers if not answer.content]
        assert [(answer.status, answer.offset, answer.write_head) for answer in told] == [
            (Status.OK, 100, 2700),
            (Status.OK, 1200, 2700),
            (Status.OK, 2400, 2700),
            (Status.OFFSET_NOT_YET_AVAILABLE, 2700, 2700),
        ]
        assert [answer.HasField("header") for answer in answers] == [True] + [False] * (len(answers) - 1)
        assert [bool(answer.fragment_url) for answer in told] == [True, True, False, False]
        position = 100
        for answer in answers:
            if answer.content:
                assert answer.offset == position
                assert not answer.HasField("fragment")
                position += len(answer.content)
        assert b"".join(answer.content for answer in answers) == (A + B + C)[100:]

    looking(test, tmp_path)


def test_chunks_are_kept_below_their_limit(tmp_path: Path) -> None:
    async def test(broker: Broker) -> None:
        await append(broker, b"x" * 100_000)
        answers = await read(broker, ReadRequest(journal=JOURNAL, offset=2400))
        sizes = [len(answer.content) for answer in answers if answer.content]
        assert max(sizes) <= read_module.CHUNK
        assert sum(sizes) == 100_300

    looking(test, tmp_path)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        # offset -1 is the write head
        (ReadRequest(offset=-1), [("OFFSET_NOT_YET_AVAILABLE", 2700, b"")]),
        (ReadRequest(offset=-1, metadata_only=True), [("OFFSET_NOT_YET_AVAILABLE", 2700, b"")]),
        (ReadRequest(offset=9999), [("OFFSET_NOT_YET_AVAILABLE", 9999, b"")]),
        # metadata only: one message, no content
        (ReadRequest(offset=5, metadata_only=True), [("OK", 5, b"")]),
        (ReadRequest(offset=2500, metadata_only=True), [("OK", 2500, b"")]),
        # an end: inside a fragment, at its end, across two, at the very offset, beyond the head
        (ReadRequest(offset=10, end_offset=15), [("OK", 10, b""), ("OK", 10, b"a" * 5)]),
        (ReadRequest(offset=1190, end_offset=1200), [("OK", 1190, b""), ("OK", 1190, b"a" * 10)]),
        (
            ReadRequest(offset=1199, end_offset=1201),
            [("OK", 1199, b""), ("OK", 1199, b"a"), ("OK", 1200, b""), ("OK", 1200, b"b")],
        ),
        (ReadRequest(offset=10, end_offset=10), [("OK", 10, b"")]),
        (
            ReadRequest(offset=2699, end_offset=9000),
            [("OK", 2699, b""), ("OK", 2699, b"c"), ("OFFSET_NOT_YET_AVAILABLE", 2700, b"")],
        ),
        # not proxied: a stored fragment is named, the reader fetches it; a local one is streamed
        (ReadRequest(offset=0, do_not_proxy=True), [("OK", 0, b"")]),
        (
            ReadRequest(offset=2690, do_not_proxy=True),
            [("OK", 2690, b""), ("OK", 2690, b"c" * 10), ("OFFSET_NOT_YET_AVAILABLE", 2700, b"")],
        ),
        # only what is newer than this: stored fragments that are older are passed over
        (
            ReadRequest(offset=0, begin_mod_time=1 << 40, end_offset=2402),
            [("OK", 2400, b""), ("OK", 2400, b"cc")],
        ),
    ],
)
def test_the_table_of_reads(
    tmp_path: Path, request_: ReadRequest, expected: list[tuple[str, int, bytes]]
) -> None:
    async def test(broker: Broker) -> None:
        request = ReadRequest(journal=JOURNAL)
        request.MergeFrom(request_)
        answers = await read(broker, request)
        found = [(Status.Name(answer.status), answer.offset, answer.content) for answer in answers]
        assert found == expected

    looking(test, tmp_path)


def test_a_stored_fragment_is_told_with_a_url_and_a_local_one_without(tmp_path: Path) -> None:
    async def test(broker: Broker) -> None:
        [stored] = await read(broker, ReadRequest(journal=JOURNAL, metadata_only=True))
        assert stored.fragment_url == f"file:///{Fragment.from_proto(stored.fragment).content_path}"
        assert stored.fragment.backing_store == "file:///"
        [local] = await read(broker, ReadRequest(journal=JOURNAL, offset=2400, metadata_only=True))
        assert (local.fragment_url, local.fragment.backing_store) == ("", "")

    looking(test, tmp_path)


def test_a_hole_at_the_front_is_jumped_over(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            await three_fragments(broker)
        first = min((tmp_path / "data/fragments" / JOURNAL).iterdir())
        first.unlink()
        async with opened(tmp_path / "data") as broker:
            answers = await read(broker, ReadRequest(journal=JOURNAL, offset=7))
            assert answers[0].offset == 1200
            assert b"".join(answer.content for answer in answers) == B + C

    in_loop(test)


def test_a_hole_before_a_young_fragment_is_waited_at_and_an_old_one_jumped_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fragment in the middle may still turn up, unless what follows it has been there for long."""

    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            await three_fragments(broker)
            await append(broker, b"d" * 1200)
            await append(broker, b"e")
            await persisted(broker)
        middle = sorted((tmp_path / "data/fragments" / JOURNAL).iterdir())[1]
        middle.unlink()
        async with opened(tmp_path / "data") as broker:
            answers = await read(broker, ReadRequest(journal=JOURNAL, offset=0))
            assert b"".join(answer.content for answer in answers) == A
            assert answers[-1].status == Status.OFFSET_NOT_YET_AVAILABLE
            monkeypatch.setattr(read_module, "JUMP_AGE", -1)
            answers = await read(broker, ReadRequest(journal=JOURNAL, offset=0))
            assert b"".join(answer.content for answer in answers) == A + C + b"d" * 1200 + b"e"

    in_loop(test)


def test_a_reader_that_waits_before_a_local_fragment_goes_on_when_it_is_stored(tmp_path: Path) -> None:
    async def test() -> None:
        gate = Gate()

        def slow(step: str, path: Path) -> None:
            if step == "link" and "fragments" in path.parts:
                gate.wait()

        async with opened(tmp_path / "data") as broker:
            await append(broker, A)
            await append(broker, b"b")
            await persisted(broker)
        [stored] = (tmp_path / "data/fragments" / JOURNAL).iterdir()
        async with opened(tmp_path / "data", HookedDisk(slow)) as broker:
            await append(broker, B)
            await append(broker, C)  # rolls: [1200, 2401) is on its way into the store
            await until(gate.reached.is_set)
            del replica(broker).index._entries[0]  # as a pruned front would be after a refresh
            stored.unlink()
            request = ReadRequest(journal=JOURNAL, offset=0, block=True, end_offset=1201)
            waiting = asyncio.create_task(read(broker, request))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            gate.open()
            answers = await waiting
            assert b"".join(answer.content for answer in answers) == b"b"

    in_loop(test)


def test_a_read_between_a_sync_and_its_showing_is_told_of_no_hole(tmp_path: Path) -> None:
    async def test(broker: Broker) -> None:
        local, index = replica(broker).local, replica(broker).index
        assert local.file is not None
        index.discard(local.fragment)  # as it is while only the thread knows that it is synced
        local._flushing = True
        reading = asyncio.create_task(read(broker, ReadRequest(journal=JOURNAL, offset=2400)))
        await asyncio.sleep(0.01)
        replica(broker).committed(local.fragment, local.file)
        local._flushing = False
        [metadata, chunk, end] = await reading
        assert (metadata.write_head, chunk.content) == (2700, C)
        assert (end.status, end.offset) == (Status.OFFSET_NOT_YET_AVAILABLE, 2700)

    looking(test, tmp_path)


def test_a_reader_at_the_head_follows_through_rolls_and_storing(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            request = ReadRequest(journal=JOURNAL, block=True, end_offset=30 * 400)
            following = [asyncio.create_task(read(broker, request)) for _ in range(3)]
            for number in range(30):
                await append(broker, b"%04d" % number * 100)
                if number % 7 == 0:
                    await persisted(broker)
            expected = b"".join(b"%04d" % number * 100 for number in range(30))
            for answers in await asyncio.gather(*following):
                assert b"".join(answer.content for answer in answers) == expected

    in_loop(test)


def test_a_reader_whose_file_goes_into_the_store_under_it_goes_on_there(tmp_path: Path) -> None:
    async def test() -> None:
        gate = Gate()

        def slow(step: str, path: Path) -> None:
            if step == "link" and "fragments" in path.parts:
                gate.wait()

        async with opened(tmp_path / "data", HookedDisk(slow), length=100_000) as broker:
            await append(broker, b"x" * 150_000)
            await append(broker, b"y")
            answers = broker.read(ReadRequest(journal=JOURNAL), CLAIMS)
            got = [await anext(answers)]
            assert not got[0].fragment.backing_store
            gate.open()
            await persisted(broker)
            got += [answer async for answer in answers]
            assert b"".join(answer.content for answer in got) == b"x" * 150_000 + b"y"
            assert any(answer.fragment.backing_store for answer in got)

    in_loop(test)


@pytest.mark.parametrize("flags", [1, 2])
def test_read_only_and_write_only_journals(tmp_path: Path, flags: int) -> None:
    async def test(broker: Broker) -> None:
        spec = journal_spec(JOURNAL, 1024, {})
        spec.flags = flags
        replica(broker).spec = spec
        if flags == 1:
            with pytest.raises(AssertionError, match="NOT_ALLOWED"):
                await append(broker, b"x")
            assert await append(broker, b"") == (2700, 2700)
            assert await content(broker) == A + B + C
        else:
            [answer] = await read(broker, ReadRequest(journal=JOURNAL))
            assert answer.status == Status.NOT_ALLOWED

    looking(test, tmp_path)


async def listed(broker: Broker, **fields: object) -> FragmentsResponse:
    return await broker.list_fragments(FragmentsRequest(journal=JOURNAL, **fields), CLAIMS)  # type: ignore[arg-type]


def spans(response: FragmentsResponse) -> list[tuple[int, int]]:
    return [(fragment.spec.begin, fragment.spec.end) for fragment in response.fragments]


ALL = [(0, 1200), (1200, 2400), (2400, 2700)]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 0])
def test_fragments_are_listed_in_pages_each_once(tmp_path: Path, limit: int) -> None:
    async def test(broker: Broker) -> None:
        found: list[tuple[int, int]] = []
        token, pages = 0, 0
        while True:
            response = await listed(broker, page_limit=limit, next_page_token=token)
            found += spans(response)
            pages += 1
            token = response.next_page_token
            if not token:
                break
            assert len(response.fragments) == limit
        assert found == ALL
        assert pages == {1: 3, 2: 2}.get(limit, 1)

    looking(test, tmp_path)


def test_fragments_are_chosen_by_age_and_signed_if_asked(tmp_path: Path) -> None:
    async def test(broker: Broker) -> None:
        now = int(time.time())
        assert spans(await listed(broker, begin_mod_time=now - 3600)) == ALL
        assert spans(await listed(broker, begin_mod_time=now + 3600)) == ALL[2:]
        assert spans(await listed(broker, end_mod_time=now + 3600)) == ALL[:2]
        assert spans(await listed(broker, end_mod_time=now - 3600)) == []
        assert [fragment.signed_url for fragment in (await listed(broker)).fragments] == ["", "", ""]
        ttl = Duration()
        ttl.FromTimedelta(timedelta(minutes=1))
        signed = [fragment.signed_url for fragment in (await listed(broker, signatureTTL=ttl)).fragments]
        assert [bool(url) for url in signed] == [True, True, False]

    looking(test, tmp_path)
