"""The contract of an Append stream (reference 14), and its vectors (27), as a foreign client meets them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import grpc.aio
import pytest

from penstock.journal.broker import BrokerOptions
from penstock.journal.flow import FlowLimits
from penstock.journal.labels import parse_selector
from penstock.journal.protocol import (
    AppendRequest,
    AppendResponse,
    JournalSpec,
    LabelSet,
    ReadRequest,
    Status,
)

from .brokers import in_loop, until
from .foreign import JOURNAL, SNAPPY, Foreign, dialed, journal, label_set, opened, refusal, refusal_of, served
from .foreign_rules import checked, sum_of
from .test_conformance_status import put_fragment

EMPTY_SUM = hashlib.sha1().hexdigest()
FOOBAR = "8843d7f92416211de9ebb963ff4ce28125932878"


def test_vector_foo_bar_and_the_empty_message(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path, journal(codec=SNAPPY)) as (foreign, _):
            response = await foreign.append(JOURNAL, b"foo", b"bar")
            commit = response.commit
            assert (commit.journal, commit.begin, commit.end, sum_of(commit)) == (JOURNAL, 0, 6, FOOBAR)
            assert commit.sum.SerializeToString().hex() == "091d211624f9d743881181e24cff63b9ebe91d78289325"
            assert commit.compression_codec == SNAPPY
            assert (response.total_chunks, response.delayed_chunks) == (3, 0)
            assert response.HasField("registers")
            assert not response.registers.labels
            header = response.header
            assert (header.process_id.zone, header.process_id.suffix) == ("local", "broker")
            assert header.route.members[header.route.primary] == header.process_id

    in_loop(test)


def test_vector_registers(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):

            async def step(check: str, subtract: str, union: str) -> tuple[int, str]:
                first = AppendRequest(journal=JOURNAL)
                if check:
                    first.check_registers.CopyFrom(parse_selector(check))
                if subtract:
                    first.subtract_registers.CopyFrom(_labels(subtract))
                if union:
                    first.union_registers.CopyFrom(_labels(union))
                response = await foreign.append(first, b"x")
                found = [f"{label.name}={label.value}" for label in response.registers.labels]
                return response.status, " ".join(found)

            assert await step("", "", "AA=11 BB=22") == (Status.OK, "AA=11 BB=22")
            assert await step("AA in (11), BB", "AA=11 BB=XYZ", "CC=33") == (Status.OK, "BB=22 CC=33")
            assert await step("!AA, CC", "CC=33", "AA=44") == (Status.OK, "AA=44 BB=22")
            assert await step("AA = 55", "", "") == (Status.REGISTER_MISMATCH, "AA=44 BB=22")

    in_loop(test)


def _labels(text: str) -> LabelSet:
    return label_set(*((name, value) for name, _, value in (word.partition("=") for word in text.split())))


def test_the_commit_is_of_the_clients_own_bytes(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path, journal(codec=SNAPPY)) as (foreign, _):
            await foreign.append(JOURNAL, b"before")
            for begin, content in ((6, b"foobar"), (12, b"more")):
                commit = (await foreign.append(JOURNAL, content)).commit
                assert (commit.begin, commit.end) == (begin, begin + len(content))
                assert sum_of(commit) == hashlib.sha1(content).hexdigest()
                assert not commit.backing_store

    in_loop(test)


def test_an_empty_append_tells_the_head_and_has_the_sum_of_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            for head in (0, 3):
                response = await foreign.append(JOURNAL)
                assert (response.commit.begin, response.commit.end) == (head, head)
                assert sum_of(response.commit) == EMPTY_SUM
                assert response.total_chunks == 1
                await foreign.append(JOURNAL, b"abc")

    in_loop(test)


def test_a_meta_suffix_is_dropped_from_the_name(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            response = await foreign.append(f"{JOURNAL};some/meta", b"abc")
            assert response.commit.journal == JOURNAL
            responses = await foreign.read(f"{JOURNAL};other")
            assert b"".join(one.content for one in responses) == b"abc"
            assert responses[0].fragment.journal == JOURNAL
            assert (await foreign.fragments(JOURNAL)).fragments[0].spec.journal == JOURNAL

    in_loop(test)


COMMIT = AppendRequest()
BROKEN: list[tuple[str, list[AppendRequest], str]] = [
    ("no message", [], "append stream: unexpected EOF"),
    ("no intent", [AppendRequest(journal=JOURNAL)], "append stream: unexpected EOF"),
    (
        "content, no intent",
        [AppendRequest(journal=JOURNAL), AppendRequest(content=b"x")],
        "append stream: unexpected EOF",
    ),
    (
        "content after the intent",
        [AppendRequest(journal=JOURNAL), COMMIT, AppendRequest(content=b"x")],
        "append stream: expected EOF after empty Content chunk",
    ),
    (
        "two intents",
        [AppendRequest(journal=JOURNAL), AppendRequest(content=b"x"), COMMIT, COMMIT],
        "append stream: expected EOF after empty Content chunk",
    ),
    (
        "parameters twice",
        [AppendRequest(journal=JOURNAL), AppendRequest(journal=JOURNAL), COMMIT],
        "append stream: expected Content chunk",
    ),
    (
        "content and an offset",
        [AppendRequest(journal=JOURNAL), AppendRequest(content=b"x", offset=1), COMMIT],
        "append stream: expected Content chunk",
    ),
    (
        "an empty set of registers late",
        [AppendRequest(journal=JOURNAL), AppendRequest(union_registers=label_set()), COMMIT],
        "append stream: expected Content chunk",
    ),
    (
        "registers without content",
        [AppendRequest(journal=JOURNAL, union_registers=label_set(("AA", "1"))), COMMIT],
        "append stream: register modification requires non-empty Append",
    ),
    (
        "subtraction without content",
        [AppendRequest(journal=JOURNAL, subtract_registers=label_set(("AA", "1"))), COMMIT],
        "append stream: register modification requires non-empty Append",
    ),
    ("content at once", [AppendRequest(journal=JOURNAL, content=b"x"), COMMIT], "unexpected Content"),
    ("no journal", [COMMIT], "Journal: "),
]


@pytest.mark.parametrize(
    ("messages", "complaint"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
def test_a_stream_that_breaks_the_contract_is_rolled_back(
    tmp_path: Path, messages: list[AppendRequest], complaint: str
) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, running):
            await foreign.append(JOURNAL, b"before")
            code, text = await refusal_of(lambda: foreign.stubs.append(_each(messages), timeout=10))
            assert code is grpc.StatusCode.UNKNOWN
            assert complaint in text
            assert not running.broker._replicas[JOURNAL].pipeline_slot.owned
            after = await foreign.append(JOURNAL, b"after")
            assert (after.commit.begin, after.registers.labels[:]) == (6, [])
            assert await foreign.content() == b"beforeafter"

    in_loop(test)


async def _each(messages: list[AppendRequest]) -> AsyncIterator[AppendRequest]:
    for message in messages:
        yield message


@pytest.mark.parametrize("sent", range(4))
def test_a_cancelled_stream_is_rolled_back_wherever_it_was(tmp_path: Path, sent: int) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, running):
            await foreign.append(JOURNAL, b"before")
            replica = running.broker._replicas[JOURNAL]
            delta = 4 if sent > 1 else 0
            for _ in range(10):
                call = foreign.stubs.append()
                for message in [AppendRequest(journal=JOURNAL), AppendRequest(content=b"half"), COMMIT][
                    :sent
                ]:
                    await call.write(message)
                if sent:
                    await until(lambda: replica.pipeline_slot.owned and replica.spool.delta == delta)
                call.cancel()
                await until(lambda: not replica.pipeline_slot.owned)
            assert (await foreign.append(JOURNAL, b"after")).commit.begin == 6
            assert await foreign.content() == b"beforeafter"

    in_loop(test)


def test_a_deadline_of_the_client_rolls_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, running):
            call = foreign.stubs.append(timeout=0.2)
            await call.write(AppendRequest(journal=JOURNAL))
            await call.write(AppendRequest(content=b"half"))
            assert (await refusal(call))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
            await until(lambda: not running.broker._replicas[JOURNAL].pipeline_slot.owned)
            assert (await foreign.append(JOURNAL, b"whole")).commit.begin == 0

    in_loop(test)


def test_a_broken_connection_rolls_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, running):
            replica = running.broker._replicas[JOURNAL]
            async with dialed(running.address) as other:
                call = other.stubs.append()
                await call.write(AppendRequest(journal=JOURNAL))
                await call.write(AppendRequest(content=b"half"))
                await until(lambda: replica.spool.delta == 4)
            with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
                await call
            await until(lambda: not replica.pipeline_slot.owned)
            assert (await foreign.append(JOURNAL, b"whole")).commit.begin == 0

    in_loop(test)


def test_a_failing_status_is_told_while_the_client_still_sends(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            never = asyncio.Event()

            async def endless() -> AsyncIterator[AppendRequest]:
                yield AppendRequest(journal="no/such")
                yield AppendRequest(content=b"x")
                await never.wait()

            response = checked(await foreign.stubs.append(endless(), timeout=10))
            assert response.status == Status.JOURNAL_NOT_FOUND

    in_loop(test)


def test_a_client_that_is_too_slow_is_rolled_back(tmp_path: Path) -> None:
    async def test() -> None:
        options = BrokerOptions(flow=FlowLimits(grace=0.15), pulse_interval=3600)
        async with served(tmp_path, broker_options=options) as running, dialed(running.address) as foreign:
            await foreign.upsert(journal())
            waiting = foreign.stubs.append()
            for message in (AppendRequest(journal=JOURNAL), AppendRequest(content=b"half")):
                await waiting.write(message)
            code, text = await refusal(waiting)
            assert code is grpc.StatusCode.UNKNOWN
            assert text == "append stream: client stream didn't sustain the minimum append data rate"
            assert (await foreign.append(JOURNAL, b"whole")).commit.begin == 0

    in_loop(test)


def test_a_max_append_rate_delays_chunks_and_counts_them(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path, journal(max_append_rate=30_000)) as (foreign, _):
            began = asyncio.get_running_loop().time()
            response = await foreign.append(JOURNAL, *[bytes(30_000)] * 2)
            # A second's worth is there from the start; the last chunk waits for another second.
            assert (response.total_chunks, response.delayed_chunks) == (3, 1)
            assert 0.9 < asyncio.get_running_loop().time() - began < 5

    in_loop(test)


@pytest.mark.parametrize("appends", [300, pytest.param(3000, marks=pytest.mark.soak)])
def test_appends_of_many_at_once_lie_side_by_side(tmp_path: Path, appends: int) -> None:
    """Over several connections, pipelined, each of several chunks: adjacent, none within another."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            foreign, running = await stack.enter_async_context(opened(tmp_path, journal(length=1 << 16)))
            clients = [await stack.enter_async_context(dialed(running.address)) for _ in range(4)]
            contents = [b"<%04d>" % i * (1 + i % 40) for i in range(appends)]

            async def one(i: int) -> tuple[int, int, bytes]:
                half = len(contents[i]) // 2
                response = await clients[i % 4].append(JOURNAL, contents[i][:half], contents[i][half:])
                assert sum_of(response.commit) == hashlib.sha1(contents[i]).hexdigest()
                return response.commit.begin, response.commit.end, contents[i]

            spans = sorted(await asyncio.gather(*(one(i) for i in range(len(contents)))))
            reached = 0
            for begin, end, content in spans:
                assert begin == reached
                reached = begin + len(content)
                assert end == reached
            assert await foreign.content() == b"".join(content for _, _, content in spans)

    in_loop(test)


def test_a_barrier_under_load_has_every_append_acknowledged_before_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, running), dialed(running.address) as other:
            acknowledged = 0

            async def load() -> None:
                nonlocal acknowledged
                for _ in range(40):
                    acknowledged = max(acknowledged, (await foreign.append(JOURNAL, b"x" * 100)).commit.end)

            async def barriers() -> None:
                while acknowledged < 16_000:
                    before = acknowledged
                    head = (await other.append(JOURNAL)).commit.end
                    assert head >= before
                    (response,) = await other.read(ReadRequest(journal=JOURNAL, offset=-1))
                    assert response.write_head >= head, "what a barrier told is committed"

            await asyncio.gather(*(load() for _ in range(4)), barriers())

    in_loop(test)


def test_a_barrier_of_a_read_only_journal_tells_where_its_store_ends(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path, journal("b/other")) as (foreign, running):
            root = running.broker.directory.fragments
            put_fragment(root, 10, b"hello")
            await foreign.upsert(journal(flags=JournalSpec.O_RDONLY))
            response = await foreign.append(JOURNAL)
            assert (response.status, response.commit.begin, response.commit.end) == (Status.OK, 15, 15)
            assert await foreign.content(offset=10) == b"hello"
            assert len(list((root / JOURNAL).iterdir())) == 1

    in_loop(test)


def test_a_journals_first_append_is_a_fragment_of_its_own(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            for content in (b"first", b"second", b"third"):
                await foreign.append(JOURNAL, content)
            found = [(f.spec.begin, f.spec.end) for f in (await foreign.fragments(JOURNAL)).fragments]
            assert found == [(0, 5), (5, 16)]

    in_loop(test)


def test_many_journals_are_written_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        names = [f"many/{i:02d}" for i in range(30)]
        async with opened(tmp_path, *map(journal, names)) as (foreign, _):

            async def one(name: str, i: int) -> AppendResponse:
                return await foreign.append(name, b"%d" % i)

            await asyncio.gather(*(one(name, i) for name in names for i in range(8)))
            for name in names:
                assert sorted(await foreign.content(name)) == sorted(b"01234567")

    in_loop(test)


def test_a_fresh_client_sees_what_was_acknowledged_after_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        registers = label_set(("epoch", "7"))
        async with opened(tmp_path, journal(codec=SNAPPY)) as (foreign, _):
            await foreign.append(AppendRequest(journal=JOURNAL, union_registers=registers), b"abc")
        async with served(tmp_path) as running, dialed(running.address) as again:
            await _read_back(again)
            assert (await again.append(JOURNAL)).registers == registers

    in_loop(test)


async def _read_back(foreign: Foreign) -> None:
    assert await foreign.content() == b"abc"
    assert (await foreign.specs())[JOURNAL].route.endpoints[0].startswith("http://127.0.0.1:")
