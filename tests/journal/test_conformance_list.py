"""Listing and watching journals, and applying changes, as a foreign client sees them (reference 20)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc.aio
import pytest

from penstock.journal.labels import parse_selector
from penstock.journal.protocol import (
    AppendRequest,
    ApplyRequest,
    Header,
    JournalSpec,
    ListRequest,
    ListResponse,
    ReadRequest,
    Status,
)

from .brokers import in_loop, until
from .foreign import JOURNAL, Foreign, journal, opened
from .foreign_rules import check_snapshot, checked


@pytest.mark.parametrize(
    ("count", "sizes"), [(0, [0]), (25, [25]), (26, [25, 1]), (50, [25, 25]), (60, [25, 25, 10])]
)
def test_a_list_comes_in_messages_of_25_without_an_empty_one_at_the_end(
    tmp_path: Path, count: int, sizes: list[int]
) -> None:
    async def test() -> None:
        async with opened(tmp_path, journal("z/zz")) as (foreign, _):
            if count:
                await foreign.upsert(*(journal(f"many/{i:02d}") for i in range(count)))
            responses = await foreign.snapshot(ListRequest(selector=parse_selector("prefix=many/")))
            assert [len(response.journals) for response in responses] == sizes
            for response in responses[1:]:
                assert response == ListResponse(journals=response.journals)

    in_loop(test)


def test_journals_are_matched_by_name_prefix_and_label(tmp_path: Path) -> None:
    async def test() -> None:
        specs = (
            journal("a/one", labels=[("kind", "x")]),
            journal("a/two", labels=[("kind", "y"), ("size", "")]),
            journal("b/three", labels=[("kind", "x"), ("kind", "y")]),
        )
        async with opened(tmp_path, *specs) as (foreign, _):
            for selector, names in (
                ("name=a/one", ["a/one"]),
                ("prefix=a/", ["a/one", "a/two"]),
                ("prefix=a/,kind=x", ["a/one"]),
                ("kind in (x, y)", ["a/one", "a/two", "b/three"]),
                ("kind=x,kind!=y", ["a/one"]),
                ("size", ["a/two"]),
                ("!size", ["a/one", "b/three"]),
                ("kind:prefix=x", ["a/one", "b/three"]),
                ("name=no/such", []),
            ):
                responses = await foreign.snapshot(ListRequest(selector=parse_selector(selector)))
                found = [one.spec.name for response in responses for one in response.journals]
                assert found == names, selector

    in_loop(test)


async def a_snapshot(watch: object) -> list[ListResponse]:
    """The next snapshot of a watch, up to the empty message that ends it."""
    responses: list[ListResponse] = []
    while True:
        response = await watch.read()  # type: ignore[attr-defined]
        assert isinstance(response, ListResponse), "the watch has ended"
        if not response.ByteSize():
            check_snapshot(responses)
            return responses
        responses.append(response)


def names(responses: list[ListResponse]) -> list[str]:
    return [found.spec.name for response in responses for found in response.journals]


def test_a_watch_ends_each_snapshot_with_an_empty_message_and_sends_the_next_when_matches_change(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with opened(tmp_path, journal("a/one"), journal("b/one")) as (foreign, running):
            watch = foreign.stubs.list(ListRequest(selector=parse_selector("prefix=a/"), watch=True))
            assert names(await a_snapshot(watch)) == ["a/one"]
            # Neither what does not match, nor a change of routes, is worth a snapshot.
            await foreign.upsert(journal("b/two"))
            await running.broker.announce("http://localhost:1")
            await foreign.append("a/one", b"x")
            await foreign.upsert(journal("a/two"))
            second = await a_snapshot(watch)
            assert names(second) == ["a/one", "a/two"]
            assert second[0].journals[0].route.endpoints[0] == "http://localhost:1"
            await foreign.upsert(journal("a/one", length=4096))
            assert (await a_snapshot(watch))[0].journals[0].spec.fragment.length == 4096
            await foreign.delete("a/one")
            last = await a_snapshot(watch)
            assert names(last) == ["a/two"]
            await foreign.delete("a/two")
            assert names(await a_snapshot(watch)) == []
            watch.cancel()

    in_loop(test)


def test_a_watch_of_nothing_sends_the_header_and_the_empty_message(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            watch = foreign.stubs.list(ListRequest(selector=parse_selector("name=no/such"), watch=True))
            (only,) = await a_snapshot(watch)
            assert (len(only.journals), only.status) == (0, Status.OK)
            watch.cancel()

    in_loop(test)


def test_a_resumed_watch_waits_for_a_later_revision_and_then_always_sends(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, running):
            (known,) = await foreign.snapshot()
            request = ListRequest(
                selector=parse_selector(f"name={JOURNAL}"), watch=True, watch_resume=known.header
            )
            watch = foreign.stubs.list(request)
            resumed = asyncio.ensure_future(a_snapshot(watch))
            await until(lambda: len(running.broker._local._waits._waiting) == 1)
            assert not resumed.done()
            await foreign.upsert(journal("b/unrelated"))
            (first,) = await resumed
            assert names([first]) == [JOURNAL]
            assert first.header.etcd.revision > known.header.etcd.revision
            watch.cancel()
            # A revision that has passed is no reason to wait.
            watch = foreign.stubs.list(request)
            assert names(await a_snapshot(watch)) == [JOURNAL]
            watch.cancel()

    in_loop(test)


def test_a_resumed_watch_with_a_broken_header_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            watch = foreign.stubs.list(ListRequest(watch=True, watch_resume=Header()))
            with pytest.raises(grpc.aio.AioRpcError, match="WatchResume"):
                await watch.read()

    in_loop(test)


def test_apply_is_read_by_the_next_call_and_tells_its_revision(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            for i in range(5):
                applied = await foreign.upsert(journal(f"new/{i}"))
                response = await foreign.append(f"new/{i}", b"x")
                assert response.status == Status.OK
                assert response.header.etcd.revision == applied.header.etcd.revision
                listed = (await foreign.specs())[f"new/{i}"]
                assert listed.mod_revision == listed.create_revision == applied.header.etcd.revision

    in_loop(test)


def test_a_change_of_nothing_is_no_change(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            known = (await foreign.append(JOURNAL)).header.etcd.revision
            assert (await foreign.apply()).status == Status.OK
            assert (await foreign.delete("no/such")).status == Status.OK
            assert (await foreign.append(JOURNAL)).header.etcd.revision == known

    in_loop(test)


def test_a_spec_is_kept_as_it_was_given(tmp_path: Path) -> None:
    """A client that edits what it was listed must get back what it gave, the suspension included."""

    async def test() -> None:
        spec = journal(length=123456, labels=[("kind", "x")], max_append_rate=99)
        spec.fragment.flush_interval.FromSeconds(3600)
        spec.fragment.retention.FromSeconds(7200)
        spec.fragment.path_postfix_template = 'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}'
        spec.flags = JournalSpec.O_RDWR
        spec.suspend.level = JournalSpec.Suspend.PARTIAL
        spec.suspend.offset = 17
        async with opened(tmp_path, spec) as (foreign, _):
            assert (await foreign.specs())[JOURNAL].spec == spec

    in_loop(test)


def test_a_deleted_journal_is_gone_at_once_and_keeps_its_data(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            await foreign.append(JOURNAL, b"abc")
            blocked = asyncio.ensure_future(foreign.read(ReadRequest(journal=JOURNAL, offset=3, block=True)))
            await asyncio.sleep(0.05)
            assert (await foreign.delete(JOURNAL)).status == Status.OK
            assert await blocked == [], "the loss of the journal ends a read without an error"
            assert (await foreign.append(JOURNAL, b"x")).status == Status.JOURNAL_NOT_FOUND
            await foreign.upsert(journal())
            assert await foreign.content() == b"abc"
            assert (await foreign.append(JOURNAL, b"d")).commit.begin == 3

    in_loop(test)


def test_a_delete_does_not_wait_for_a_client_that_sends_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, running):
            streaming = foreign.stubs.append()
            await streaming.write(AppendRequest(journal=JOURNAL))
            await streaming.write(AppendRequest(content=b"half"))
            await until(lambda: running.broker._replicas[JOURNAL].spool.delta == 4)
            async with asyncio.timeout(5):
                await foreign.delete(JOURNAL)
            await _ended(streaming)
            await foreign.upsert(journal())
            assert (await foreign.append(JOURNAL, b"x")).commit.begin == 0

    in_loop(test)


async def _ended(streaming: object) -> None:
    """Rolled back, by an error or by the status that says why."""
    try:
        response = checked(await streaming)  # type: ignore[misc]
    except grpc.aio.AioRpcError:
        return
    assert response.status == Status.JOURNAL_NOT_FOUND


def test_many_apply_at_once_and_one_wins_each_revision(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            known = (await foreign.specs())[JOURNAL].mod_revision

            async def one(i: int) -> int:
                change = ApplyRequest.Change(expect_mod_revision=known, upsert=journal(length=2000 + i))
                return (await foreign.apply(change)).status

            statuses = await asyncio.gather(*(one(i) for i in range(12)))
            assert sorted(statuses) == [Status.OK] + [Status.ETCD_TRANSACTION_FAILED] * 11
            winner = statuses.index(Status.OK)
            assert (await foreign.specs())[JOURNAL].spec.fragment.length == 2000 + winner

    in_loop(test)


def test_the_route_of_a_listed_journal_is_dialable(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            (endpoint,) = (await foreign.specs())[JOURNAL].route.endpoints
            assert endpoint.startswith("http://")
            async with grpc.aio.insecure_channel(endpoint.removeprefix("http://")) as channel:
                assert (await Foreign(channel).append(JOURNAL, b"x")).status == Status.OK

    in_loop(test)
