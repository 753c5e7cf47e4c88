"""Reads as a foreign client sees them (reference 20): metadata, chunks, jumps, and where a stream ends."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import grpc
import pytest

from penstock.journal.auth import KeyedAuthorizer, Keys, sign
from penstock.journal.claims import Capability, Claims
from penstock.journal.fragment import Fragment
from penstock.journal.protocol import (
    CompressionCodec,
    FragmentsRequest,
    LabelSelector,
    ReadRequest,
    ReadResponse,
    RollRequest,
    Status,
)
from penstock.journal.server import Options

from .brokers import in_loop, until
from .foreign import JOURNAL, Foreign, Served, dialed, journal, opened, served
from .test_conformance_status import put_fragment

HOUR = 3600


async def stored(foreign: Foreign, running: Served, *contents: bytes) -> None:
    """Each content a fragment of its own, in the store."""
    for content in contents:
        await foreign.append(JOURNAL, content)
        await foreign.stubs.roll(RollRequest(journal=JOURNAL))
    await until(lambda: not running.broker._replicas[JOURNAL]._persisting)


def shape(responses: list[ReadResponse]) -> list[str]:
    """What a stream was, a word a message."""
    return [
        response.content.decode()
        if response.content
        else f"[{response.fragment.begin}-{response.fragment.end})"
        if response.HasField("fragment")
        else Status.Name(response.status)
        for response in responses
    ]


def test_a_read_is_metadata_and_content_a_fragment_and_ends_with_the_status(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, running):
            await stored(foreign, running, b"abc", b"defg")
            await foreign.append(JOURNAL, b"hi")
            responses = await foreign.read(JOURNAL)
            assert shape(responses) == [
                "[0-3)",
                "abc",
                "[3-7)",
                "defg",
                "[7-9)",
                "hi",
                "OFFSET_NOT_YET_AVAILABLE",
            ]
            assert (responses[-1].offset, responses[-1].write_head) == (9, 9)
            assert [bool(response.fragment_url) for response in responses[::2]] == [True, True, False, False]

    in_loop(test)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"offset": 1}, ["[0-3)", "bc", "[3-7)", "defg", "OFFSET_NOT_YET_AVAILABLE"]),
        ({"offset": 4}, ["[3-7)", "efg", "OFFSET_NOT_YET_AVAILABLE"]),
        ({"offset": 7}, ["OFFSET_NOT_YET_AVAILABLE"]),
        ({"offset": -1}, ["OFFSET_NOT_YET_AVAILABLE"]),
        ({"end_offset": 2}, ["[0-3)", "ab"]),
        ({"end_offset": 3}, ["[0-3)", "abc"]),
        ({"end_offset": 5}, ["[0-3)", "abc", "[3-7)", "de"]),
        ({"end_offset": 7, "block": True}, ["[0-3)", "abc", "[3-7)", "defg"]),
        ({"offset": 3, "end_offset": 3}, ["[3-7)"]),
        ({"metadata_only": True}, ["[0-3)"]),
        ({"metadata_only": True, "offset": 5}, ["[3-7)"]),
        ({"metadata_only": True, "offset": -1}, ["OFFSET_NOT_YET_AVAILABLE"]),
        ({"do_not_proxy": True}, ["[0-3)"]),  # in the store: the client is to fetch it
    ],
)
def test_where_a_read_begins_and_ends(tmp_path: Path, fields: dict[str, int], expected: list[str]) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, running):
            await stored(foreign, running, b"abc", b"defg")
            request = ReadRequest(journal=JOURNAL, **fields)  # type: ignore[arg-type]
            assert shape(await foreign.read(request)) == expected

    in_loop(test)


def test_a_local_fragment_is_streamed_though_the_client_wants_no_proxy(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            await foreign.append(JOURNAL, b"abc")
            responses = await foreign.read(ReadRequest(journal=JOURNAL, do_not_proxy=True))
            assert shape(responses) == ["[0-3)", "abc", "OFFSET_NOT_YET_AVAILABLE"]

    in_loop(test)


def test_a_blocked_reader_gets_fresh_metadata_for_each_extension(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, running):
            await stored(foreign, running, b"abc")
            reading = asyncio.ensure_future(
                foreign.read(ReadRequest(journal=JOURNAL, offset=-1, block=True, end_offset=7))
            )
            for content in (b"de", b"fg"):
                await asyncio.sleep(0.05)
                await foreign.append(JOURNAL, content)
            assert shape(await reading) == ["[3-5)", "de", "[3-7)", "fg"]

    in_loop(test)


def test_a_read_below_the_first_fragment_jumps_to_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path, journal("b/other")) as (foreign, running):
            put_fragment(running.broker.directory.fragments, 100, b"hello")
            await foreign.upsert(journal())
            for offset in (0, 50, 99):
                responses = await foreign.read(ReadRequest(journal=JOURNAL, offset=offset))
                assert shape(responses) == ["[100-105)", "hello", "OFFSET_NOT_YET_AVAILABLE"]
                assert responses[0].offset == 100

    in_loop(test)


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        (7 * HOUR, ["[0-3)", "abc", "[10-15)", "hello", "OFFSET_NOT_YET_AVAILABLE"]),
        (5 * HOUR, ["[0-3)", "abc", "OFFSET_NOT_YET_AVAILABLE"]),
    ],
)
def test_a_hole_is_jumped_once_what_follows_it_is_old(tmp_path: Path, age: int, expected: list[str]) -> None:
    async def test() -> None:
        async with opened(tmp_path, journal("b/other")) as (foreign, running):
            root = running.broker.directory.fragments
            for begin, content in ((0, b"abc"), (10, b"hello")):
                put_fragment(root, begin, content)
            then = time.time() - age
            for path in (root / JOURNAL).iterdir():
                os.utime(path, (then, then))
            await foreign.upsert(journal())
            responses = await foreign.read(JOURNAL)
            assert shape(responses) == expected
            assert responses[-1].write_head == 15

    in_loop(test)


def test_persisted_fragments_older_than_asked_for_are_skipped(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, running):
            await stored(foreign, running, b"abc", b"defg", b"hi")
            now = int(time.time())
            ages = {0: 3 * HOUR, 3: 2 * HOUR, 7: 0}
            for path in (running.broker.directory.fragments / JOURNAL).iterdir():
                then = now - ages[int(path.name[:16], 16)]
                os.utime(path, (then, then))
            await running.broker._replicas[JOURNAL].refresh()
            for since, expected in (
                (now - 4 * HOUR, "abcdefghi"),
                (now - 2 * HOUR, "defghi"),
                (now - HOUR, "hi"),
                (now + HOUR, ""),
            ):
                responses = await foreign.read(ReadRequest(journal=JOURNAL, begin_mod_time=since))
                assert b"".join(response.content for response in responses).decode() == expected
                assert (responses[-1].offset, responses[-1].write_head) == (9, 9), "what is skipped counts"
            for begin, end, expected_begins in (
                (0, 0, [0, 3, 7]),
                (now - 2 * HOUR, 0, [3, 7]),
                (0, now - 2 * HOUR, [0, 3]),  # inclusive (quirk 4)
                (now - 2 * HOUR, now - 2 * HOUR, [3]),
            ):
                request = FragmentsRequest(journal=JOURNAL, begin_mod_time=begin, end_mod_time=end)
                page = await foreign.fragments(request)
                assert [found.spec.begin for found in page.fragments] == expected_begins

    in_loop(test)


@pytest.mark.parametrize("codec", ["NONE", "GZIP", "ZSTANDARD", "SNAPPY"])
def test_stored_fragments_are_decompressed_by_the_broker(tmp_path: Path, codec: str) -> None:
    async def test() -> None:
        spec = journal()
        spec.fragment.compression_codec = CompressionCodec.Value(codec)  # type: ignore[assignment]
        async with opened(tmp_path, spec) as (foreign, running):
            content = bytes(range(256)) * 300
            await stored(foreign, running, content)
            responses = await foreign.read(ReadRequest(journal=JOURNAL, offset=70_000))
            assert b"".join(response.content for response in responses) == content[70_000:]
            first = responses[0]
            assert CompressionCodec.Name(first.fragment.compression_codec) == codec
            assert first.fragment.backing_store == "file:///"
            (path,) = (running.broker.directory.fragments / JOURNAL).iterdir()
            assert first.fragment_url == f"file:///{JOURNAL}/{path.name}"

    in_loop(test)


def test_a_token_that_expires_while_its_reader_is_slow_ends_the_read_cleanly(tmp_path: Path) -> None:
    keys = Keys((b"secret",))

    def token(lifetime: float) -> str:
        claims = Claims(Capability.ALL, LabelSelector())
        return sign(keys, claims, now=time.time(), lifetime=lifetime)

    async def test() -> None:
        options = Options(authorizer=KeyedAuthorizer(keys))
        async with served(tmp_path, options=options) as running:
            async with dialed(running.address, token=token(60)) as owner:
                await owner.upsert(journal(length=1 << 30))
                await owner.append(JOURNAL, *[bytes(1 << 20)] * 24)
            async with dialed(running.address, token=token(1)) as foreign:
                call = foreign.stubs.read(ReadRequest(journal=JOURNAL, block=True), metadata=foreign.metadata)
                size = 0
                await call.read()
                await asyncio.sleep(1.2)  # blocked by flow control when the token expires
                while isinstance(response := await call.read(), ReadResponse):
                    size += len(response.content)
                assert await call.code() is grpc.StatusCode.OK
                assert 0 < size < 24 << 20, "it was cut"

    in_loop(test)


@pytest.mark.parametrize("codec", ["NONE", "GZIP"])
def test_an_empty_file_in_the_store_is_no_fragment_whatever_its_name_says(tmp_path: Path, codec: str) -> None:
    async def test() -> None:
        spec = journal()
        spec.fragment.compression_codec = CompressionCodec.Value(codec)  # type: ignore[assignment]
        async with opened(tmp_path, spec) as (foreign, running):
            await foreign.append(JOURNAL, b"hello")
            (own,) = (await foreign.fragments(JOURNAL)).fragments
            path = tmp_path / "fragments" / Fragment.from_proto(own.spec).content_path
            path.parent.mkdir(parents=True)
            path.touch()
            await running.broker._replicas[JOURNAL].refresh()
            assert await foreign.content() == b"hello"
            await stored(foreign, running, b"more")
            await running.broker._replicas[JOURNAL].refresh()
            assert path.stat().st_size
            assert await foreign.content() == b"hellomore"

    in_loop(test)
