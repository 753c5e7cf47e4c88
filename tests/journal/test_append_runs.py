"""Appends that go through the machine together leave everything as if each had gone alone."""

from __future__ import annotations

import errno
import hashlib
import os
import random
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.journal import batches, wholes
from penstock.journal.append import LARGE, RUN, AppendMachine, State
from penstock.journal.broker import Broker, BrokerOptions
from penstock.journal.flow import FlowLimits
from penstock.journal.fragment import sum_from_proto
from penstock.journal.labels import label_set, parse_selector
from penstock.journal.protocol import AppendBatch, AppendRequest, AppendResult, ApplyRequest, Status
from penstock.journal.wholes import Pieces, Whole

from .brokers import CLAIMS, JOURNAL, HookedDisk, append, applied, content, create, in_loop, opened, replica
from .foreign import journal

RESUME, KEEP = AppendRequest.SUSPEND_RESUME, AppendRequest.SUSPEND_NO_RESUME


def run_of(broker: Broker, *contents: bytes | Pieces) -> AppendMachine:
    return AppendMachine(AppendRequest(journal=JOURNAL), contents, broker._appending, CLAIMS)


async def answers(
    broker: Broker, messages: Sequence[Sequence[AppendRequest]], *, independent: bool = True
) -> list[AppendResult]:
    """What a stream of these messages is answered."""

    async def sent() -> AsyncIterator[AppendBatch]:
        for appends in messages:
            yield AppendBatch(appends=appends, independent=independent)

    return [result async for answer in broker.appends(sent(), CLAIMS) for result in answer.results]


def runs(requests: Sequence[AppendRequest]) -> list[list[Whole]]:
    return list(batches._runs([wholes.whole(request) for request in requests]))


def plain(*contents: bytes) -> list[AppendRequest]:
    return [AppendRequest(journal=JOURNAL, content=each) for each in contents]


def test_a_run_passes_the_states_once_and_each_append_has_its_own_span(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            await append(broker, b"before")
            commits = broker.metrics.commits
            machine = run_of(broker, b"one", b"three", b"seven..")
            states = []
            while machine.state is not State.FINISHED:
                states.append(machine.state)
                await machine.step()
            assert states.count(State.VALIDATE_PRECONDITIONS) == states.count(State.STREAM_CONTENT) == 1
            assert machine.taken == 3
            assert [(part.begin, part.end) for part in machine.commits] == [(6, 9), (9, 14), (14, 21)]
            assert machine.commits[1].sum == hashlib.sha1(b"three").digest()
            assert broker.metrics.commits == commits + 3
            assert await content(broker) == b"beforeonethreeseven.."

    in_loop(test)


def test_large_appends_and_content_in_pieces_go_as_a_run_too(tmp_path: Path) -> None:
    first, second, third = os.urandom(LARGE), os.urandom(3 * LARGE), os.urandom(10)

    async def test() -> None:
        async with opened(tmp_path, length=1 << 30) as broker:
            await append(broker, b"before")
            machine = run_of(broker, first, Pieces([second[:5], second[5:LARGE], second[LARGE:]]), third)
            await machine.run()
            ends = [6, 6 + LARGE, 6 + 4 * LARGE, 16 + 4 * LARGE]
            assert [(part.begin, part.end) for part in machine.commits] == list(pairwise(ends))
            sums = [hashlib.sha1(each).digest() for each in (first, second, third)]
            assert [part.sum for part in machine.commits] == sums
            assert await content(broker) == b"before" + first + second + third
            alone = run_of(broker, Pieces([first, second]))
            await alone.run()
            assert alone.commits[0].sum == hashlib.sha1(first + second).digest()

    in_loop(test)


def test_a_write_that_fails_in_the_midst_of_a_run_leaves_nothing_of_it(tmp_path: Path) -> None:
    disk = HookedDisk()
    writes = iter([False, True])

    def full(step: str, path: Path) -> None:
        if step == "write" and path.suffix == ".spool" and next(writes, False):
            raise OSError(errno.ENOSPC, "No space left on device")

    async def test() -> None:
        async with opened(tmp_path, disk=disk, length=1 << 30) as broker:
            await append(broker, b"before")
            disk.before = full
            with pytest.raises(OSError, match="No space left"):
                await run_of(broker, bytes(LARGE), Pieces([bytes(LARGE), bytes(LARGE)])).run()
            await append(broker, b"after")
            assert await content(broker) == b"beforeafter"

    in_loop(test)


def test_a_run_ends_with_the_append_that_fills_the_fragment(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path, length=1024) as broker:
            await append(broker, bytes(500))
            machine = run_of(broker, bytes(524), bytes(20), bytes(10))
            await machine.run()
            assert machine.taken == 2, "one of just the length grows once more"
            await run_of(broker, bytes(10)).run()
            assert replica(broker).local.fragment.begin == 1044

    in_loop(test)


@pytest.mark.parametrize(
    ("contents", "taken"),
    [
        ((bytes(RUN), b"x"), 1),
        ((bytes(RUN - 1), b"x", b"y"), 2),
        ((bytes(RUN * 2), b"x"), 1),
        ((b"x", bytes(RUN)), 1),
    ],
)
def test_a_run_has_no_more_content_than_one_large_append(
    tmp_path: Path, contents: tuple[bytes, ...], taken: int
) -> None:
    async def test() -> None:
        async with opened(tmp_path, length=1 << 30) as broker:
            machine = run_of(broker, *contents)
            await machine.run()
            assert machine.taken == len(machine.commits) == taken
            assert machine.commits[-1].end == sum(map(len, contents[:taken]))

    in_loop(test)


def test_appends_to_a_journal_with_a_rate_wait_each_for_itself(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path, length=1 << 20) as broker:
            slow = journal(max_append_rate=10_000)
            await applied(broker, ApplyRequest.Change(expect_mod_revision=-1, upsert=slow))
            machine = run_of(broker, bytes(10), bytes(10))
            await machine.run()
            assert machine.taken == 1

    in_loop(test)


def test_the_first_append_of_a_journal_has_a_fragment_of_its_own_in_a_run_as_well(tmp_path: Path) -> None:
    async def test() -> None:
        options = BrokerOptions(first_alone=True, pulse_interval=3600, flow=FlowLimits(grace=10))
        async with opened(tmp_path, length=1 << 20, options=options) as broker:
            results = await answers(broker, [plain(b"0", b"1", b"2", b"3")])
            assert [result.response.commit.begin for result in results] == [0, 1, 2, 3]
            found = [(entry.fragment.begin, entry.fragment.end) for entry in replica(broker).index]
            assert found == [(0, 1), (1, 4)]

    in_loop(test)


def test_if_a_run_cannot_be_written_each_append_is_tried_by_itself(tmp_path: Path) -> None:
    refusals = 0

    def full_once(step: str, path: Path) -> None:
        nonlocal refusals
        if step == "write" and refusals < 1:
            refusals += 1
            raise OSError(28, "No space left on device")

    async def test() -> None:
        async with opened(tmp_path, disk := HookedDisk()) as broker:
            await append(broker, b"before")
            disk.before = full_once
            results = await answers(broker, [plain(b"0", b"1", b"2")])
            assert refusals == 1
            assert [result.error for result in results] == ["", "", ""]
            assert await content(broker) == b"before012"

    in_loop(test)


def test_a_sync_that_fails_is_told_to_all_of_a_run(tmp_path: Path) -> None:
    def full(step: str, path: Path) -> None:
        if step == "sync":
            raise OSError(28, "No space left on device")

    async def test() -> None:
        async with opened(tmp_path, disk := HookedDisk()) as broker:
            await append(broker, b"before")
            disk.before = full
            results = await answers(broker, [plain(b"0", b"1", b"2")])
            assert ["sync failed" in result.error for result in results] == [True] * 3
            disk.before = lambda step, path: None
            assert await append(broker, b"after") == (6, 11)

    in_loop(test)


def test_what_goes_into_one_run() -> None:
    fenced = AppendRequest(journal=JOURNAL, content=b"x", check_registers=parse_selector("epoch=1"))
    others = [
        AppendRequest(journal="another/journal", content=b"x"),
        AppendRequest(journal=JOURNAL, content=b"x", suspend=KEEP),
        AppendRequest(journal=JOURNAL, content=b"x", do_not_proxy=True),
        fenced,
        AppendRequest(journal=JOURNAL, content=b"x", check_registers=parse_selector("epoch=2")),
        AppendRequest(journal=JOURNAL),
        AppendRequest(journal=JOURNAL, content=b"x", offset=3),
        AppendRequest(journal=JOURNAL, content=b"x", min_etcd_revision=3),
        AppendRequest(journal=JOURNAL, content=b"x", union_registers=label_set({"a": "b"})),
        AppendRequest(journal=JOURNAL, content=b"x", subtract_registers=label_set({"a": "b"})),
        AppendRequest(journal=JOURNAL, content=b"x", suspend=AppendRequest.SUSPEND_NOW),
    ]
    for other in others:
        for pair in ([plain(b"x")[0], other], [other, plain(b"x")[0]]):
            assert [len(run) for run in runs(pair)] == [1, 1], pair
    assert [len(run) for run in runs([fenced, fenced])] == [2]
    assert [len(run) for run in runs([fenced, others[4]])] == [1, 1]
    for alone in others[5:]:
        assert [len(run) for run in runs([alone, alone])] == [1, 1], alone
    many = plain(*[b"x"] * (batches.MAX_RUN + 1))
    assert [len(run) for run in runs(many)] == [batches.MAX_RUN, 1]


def _drawn(chance: random.Random, name: str) -> AppendRequest:
    """Mostly plain appends, some that check registers, change them, say where, or say nothing."""
    request = AppendRequest(journal=name, content=bytes([chance.randrange(256)]) * chance.randrange(1, 300))
    kind = chance.randrange(14)
    if kind == 0:
        request.content = b""
    elif kind in (1, 2, 3):
        request.check_registers.CopyFrom(parse_selector(f"epoch={chance.randrange(2)}"))
    elif kind == 4:
        request.union_registers.CopyFrom(label_set({"epoch": str(chance.randrange(2))}))
    elif kind == 5:
        request.offset = chance.randrange(1, 4000)
    elif kind == 6:
        request.suspend = KEEP
    elif kind == 7 and chance.random() < 0.3:
        request.subtract_registers.CopyFrom(label_set({"epoch": ""}))
        request.content = b""
    return request


@pytest.mark.parametrize("independent", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_appends_in_one_message_end_as_they_do_in_messages_of_their_own(
    tmp_path: Path, seed: int, independent: bool
) -> None:
    async def outcome(
        broker: Broker, name: str, size: int
    ) -> tuple[list[object], list[tuple[int, int]], bytes]:
        await create(broker, name, 1024)
        chance = random.Random(seed)
        requests = [_drawn(chance, name) for _ in range(80)]
        messages = [requests[at : at + size] for at in range(0, len(requests), size)]
        told: list[object] = []
        for result in await answers(broker, messages, independent=independent):
            response = result.response
            place = (response.commit.begin, response.commit.end, sum_from_proto(response.commit.sum))
            told.append(
                (result.error, response.status, place, str(response.registers), response.total_chunks)
            )
        fragments = [(entry.fragment.begin, entry.fragment.end) for entry in replica(broker, name).index]
        return told, fragments, await content(broker, name)

    async def test() -> None:
        async with opened(tmp_path) as broker:
            together = await outcome(broker, "a/together", 80)
            assert together == await outcome(broker, "a/apart", 1)
            assert len(together[0]) == 80
            if independent:
                assert {Status.OK, Status.REGISTER_MISMATCH} <= {row[1] for row in together[0]}  # type: ignore[index]
                assert len(together[1]) > 3

    in_loop(test)
