"""The receiving side of Replicate (reference 15), driven as a primary elsewhere would drive it.

The journal has had no append, so nobody holds its spool but the stream under test.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from penstock.journal.fragment import sum_to_proto
from penstock.journal.protocol import (
    AppendRequest,
    CompressionCodec,
    Fragment,
    Header,
    JournalSpec,
    LabelSet,
    ReplicateRequest,
    ReplicateResponse,
    Route,
    Status,
)

from .brokers import Gate, HookedDisk, in_loop, until
from .foreign import JOURNAL, SNAPPY, Foreign, Served, journal, label_set, leaves_nothing, opened, refusal
from .foreign_rules import check_fragment, check_header, check_label_set

NOTHING = label_set()
AA = label_set(("AA", "1"))


def fragment(
    begin: int, content: bytes = b"", codec: CompressionCodec = SNAPPY, name: str = JOURNAL
) -> Fragment:
    """A fragment of these bytes; an empty one has the sum of all zeros."""
    made = Fragment(journal=name, begin=begin, end=begin + len(content), compression_codec=codec)
    made.sum.CopyFrom(sum_to_proto(hashlib.sha1(content).digest() if content else bytes(20)))
    return made


class Primary:
    """One Replicate stream, and a look at every answer."""

    def __init__(self, foreign: Foreign, header: Header) -> None:
        self.call = foreign.stubs.replicate()
        self.header = header
        self._answered = False

    async def propose(self, proposal: Fragment, registers: LabelSet = NOTHING) -> ReplicateResponse:
        """A proposal that is to be acknowledged, and the answer."""
        request = ReplicateRequest(proposal=proposal, registers=registers, acknowledge=True)
        if not self._answered:
            request.header.CopyFrom(self.header)
            request.deprecated_journal = proposal.journal
        await self.call.write(request)
        return await self.answer()

    async def answer(self) -> ReplicateResponse:
        response = await self.call.read()
        assert isinstance(response, ReplicateResponse), "the stream has ended"
        assert response.HasField("header") != self._answered, "a header on the first answer, and on no other"
        if not self._answered:
            check_header(response.header)
        self._answered = True
        mismatch = response.status == Status.PROPOSAL_MISMATCH
        assert response.HasField("fragment") == response.HasField("registers") == mismatch
        if mismatch:
            check_fragment(response.fragment)
            check_label_set(response.registers)
        return response

    async def content(self, content: bytes, delta: int = 0) -> None:
        await self.call.write(ReplicateRequest(content=content, content_delta=delta))

    async def ended(self) -> None:
        """Half-close, and see the broker do the same."""
        await self.call.done_writing()
        assert await self.call.read() is grpc.aio.EOF
        assert await self.call.code() is grpc.StatusCode.OK


@asynccontextmanager
async def replicating(
    path: Path, *, disk: HookedDisk | None = None
) -> AsyncIterator[tuple[Primary, Foreign, Served]]:
    async with opened(path, journal(codec=SNAPPY), disk=disk) as (foreign, running):
        header = (await foreign.fragments(JOURNAL)).header
        yield Primary(foreign, header), foreign, running


def test_a_stream_synchronises_streams_and_commits(tmp_path: Path) -> None:
    async def test() -> None:
        async with replicating(tmp_path) as (primary, foreign, _):
            assert (await primary.propose(fragment(0))).status == Status.OK
            await primary.content(b"foo")
            await primary.content(b"bar", 3)
            assert (await primary.propose(fragment(0, b"foobar"), AA)).status == Status.OK
            await primary.content(b"!")
            assert (await primary.propose(fragment(0, b"foobar!"), AA)).status == Status.OK
            assert await foreign.content() == b"foobar!"
            (found,) = (await foreign.fragments(JOURNAL)).fragments
            assert found.spec == fragment(0, b"foobar!")
            await primary.ended()
            assert (await foreign.append(JOURNAL, b"?")).registers == AA
            assert await foreign.content() == b"foobar!?"

    in_loop(test)


def test_content_and_proposals_without_acknowledge_are_not_answered(tmp_path: Path) -> None:
    async def test() -> None:
        async with replicating(tmp_path) as (primary, foreign, _):
            await primary.propose(fragment(0))
            await primary.content(b"foo")
            await primary.call.write(ReplicateRequest(proposal=fragment(0, b"foo")))
            await primary.content(b"bar")
            # The next answer is that to the next acknowledged proposal.
            assert (await primary.propose(fragment(0, b"foobar"))).status == Status.OK
            await primary.ended()
            assert await foreign.content() == b"foobar"

    in_loop(test)


def test_a_proposal_of_what_is_adopted_rolls_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with replicating(tmp_path) as (primary, foreign, _):
            await primary.propose(fragment(0))
            await primary.content(b"foo")
            assert (await primary.propose(fragment(0, b"foo"))).status == Status.OK
            await primary.content(b"given up")
            assert (await primary.propose(fragment(0, b"foo"))).status == Status.OK
            await primary.content(b"bar")
            assert (await primary.propose(fragment(0, b"foobar"))).status == Status.OK
            await primary.ended()
            assert await foreign.content() == b"foobar"

    in_loop(test)


def test_an_empty_proposal_at_the_end_rolls_and_one_beyond_it_rolls_forward(tmp_path: Path) -> None:
    async def test() -> None:
        async with replicating(tmp_path) as (primary, foreign, running):
            await primary.propose(fragment(0))
            await primary.content(b"foo")
            await primary.propose(fragment(0, b"foo"), AA)
            # At the end: the registers must be what they are, whatever is proposed.
            mismatch = await primary.propose(fragment(3), NOTHING)
            assert (mismatch.status, mismatch.registers) == (Status.PROPOSAL_MISMATCH, AA)
            assert (await primary.propose(fragment(3), AA)).status == Status.OK
            await primary.content(b"lost with the roll")
            # Beyond it: who is ahead knows the registers, too.
            ahead = label_set(("BB", "2"))
            assert (await primary.propose(fragment(100), ahead)).status == Status.OK
            await primary.content(b"bar")
            assert (await primary.propose(fragment(100, b"bar"), ahead)).status == Status.OK
            await primary.ended()
            await until(lambda: not running.broker._replicas[JOURNAL]._persisting)
            found = [(one.spec.begin, one.spec.end) for one in (await foreign.fragments(JOURNAL)).fragments]
            assert found == [(0, 3), (100, 103)]
            assert (await foreign.append(JOURNAL)).registers == ahead

    in_loop(test)


@pytest.mark.parametrize(
    ("proposal", "registers"),
    [
        (fragment(0, b"fob"), NOTHING),
        (fragment(0, b"fo"), NOTHING),
        (fragment(1, b"oo"), NOTHING),
        (fragment(0, b"foo", CompressionCodec.GZIP), NOTHING),
        (fragment(0, b"foo", name="b/other"), NOTHING),
        (fragment(0), AA),
    ],
    ids=["sum", "end", "begin", "codec", "journal", "registers"],
)
def test_PROPOSAL_MISMATCH_tells_what_the_spool_has(
    tmp_path: Path, proposal: Fragment, registers: LabelSet
) -> None:
    async def test() -> None:
        async with replicating(tmp_path) as (primary, foreign, _):
            await primary.propose(fragment(0))
            await primary.content(b"foo")
            response = await primary.propose(proposal, registers)
            assert response.status == Status.PROPOSAL_MISMATCH
            assert (response.fragment, response.registers) == (fragment(0), NOTHING)
            # The stream lives on, so that the primary can roll.
            assert (await primary.propose(fragment(7))).status == Status.OK
            await primary.ended()
            assert (await foreign.append(JOURNAL)).commit.begin == 7

    in_loop(test)


def test_a_proposal_that_fails_unasked_breaks_the_stream(tmp_path: Path) -> None:
    async def test() -> None:
        async with replicating(tmp_path) as (primary, foreign, _):
            await primary.propose(fragment(0))
            await primary.content(b"foo")
            await primary.call.write(ReplicateRequest(proposal=fragment(0, b"bar")))
            assert (await refusal(primary.call.read()))[0] is grpc.StatusCode.UNKNOWN
            assert (await foreign.append(JOURNAL, b"x")).commit.begin == 0

    in_loop(test)


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (ReplicateRequest(content=b"bar", content_delta=4), "delta 4 where 3"),
        (ReplicateRequest(content=b"bar"), "delta 0 where 3"),
        (ReplicateRequest(content=b"bar", content_delta=3, acknowledge=True), "unexpected Acknowledge"),
        (ReplicateRequest(), "expected Content or Proposal"),
        (ReplicateRequest(proposal=Fragment()), "Proposal.Journal: "),
    ],
)
def test_what_breaks_a_stream_is_rolled_back(
    tmp_path: Path, request_: ReplicateRequest, complaint: str
) -> None:
    async def test() -> None:
        async with replicating(tmp_path) as (primary, foreign, running):
            await primary.propose(fragment(0))
            await primary.content(b"foo")
            await primary.call.write(request_)
            code, text = await refusal(primary.call.read())
            assert code is grpc.StatusCode.UNKNOWN
            assert complaint in text
            assert not running.broker._replicas[JOURNAL].spool_slot.owned
            assert (await foreign.append(JOURNAL, b"x")).commit.begin == 0
            assert await foreign.content() == b"x"

    in_loop(test)


def test_a_commit_is_acknowledged_only_once_it_is_on_the_disk(tmp_path: Path) -> None:
    async def test() -> None:
        disk, gate = HookedDisk(), Gate()
        async with replicating(tmp_path, disk=disk) as (primary, foreign, _):
            await primary.propose(fragment(0))
            await primary.content(b"foo")
            disk.before = lambda step, path: gate.wait() if step == "sync" else None
            answer = asyncio.ensure_future(primary.propose(fragment(0, b"foo")))
            assert await asyncio.to_thread(gate.reached.wait, 10)
            await asyncio.sleep(0.05)
            assert not answer.done()
            assert await foreign.content() == b"", "nor is it read before"
            disk.before = lambda step, path: None
            gate.open()
            assert (await answer).status == Status.OK
            assert await foreign.content() == b"foo"
            await primary.ended()

    in_loop(test)


@pytest.mark.parametrize("sent", range(4))
def test_a_stream_dropped_in_the_middle_is_rolled_back(tmp_path: Path, sent: int) -> None:
    async def test() -> None:
        async with replicating(tmp_path) as (primary, foreign, running):
            replica = running.broker._replicas[JOURNAL]
            async with leaves_nothing(spools=1):
                if sent:
                    await primary.propose(fragment(0))
                if sent > 1:
                    await primary.content(b"foo")
                    await until(lambda: replica.spool.delta == 3)
                if sent > 2:
                    await primary.propose(fragment(0, b"foo"))
                    await primary.content(b"half")
                    await until(lambda: replica.spool.delta == 4)
                primary.call.cancel()
                await until(lambda: not replica.spool_slot.owned)
                assert replica.spool.delta == 0
            kept = b"foo" if sent > 2 else b""
            assert (await foreign.append(JOURNAL, b"after")).commit.begin == len(kept)
            assert await foreign.content() == kept + b"after"

    in_loop(test)


def test_an_open_stream_keeps_everybody_else_from_the_spool(tmp_path: Path) -> None:
    async def test() -> None:
        async with replicating(tmp_path) as (primary, foreign, _):
            await primary.propose(fragment(0))
            appending = asyncio.ensure_future(foreign.append(JOURNAL, b"x"))
            second = Primary(foreign, primary.header)
            syncing = asyncio.ensure_future(second.propose(fragment(0)))
            await asyncio.sleep(0.1)
            assert not appending.done()
            assert not syncing.done()
            await primary.ended()
            if not appending.done() and (await syncing).status == Status.OK:
                await second.ended()
            assert (await appending).status == Status.OK
            syncing.cancel()
            second.call.cancel()

    in_loop(test)


def test_an_append_that_synchronised_the_spool_keeps_it(tmp_path: Path) -> None:
    """A pipeline of one is a lock as well: another primary waits, and does not write."""

    async def test() -> None:
        async with replicating(tmp_path) as (primary, foreign, running):
            await foreign.append(JOURNAL, b"ours")
            async with leaves_nothing():
                waiting = asyncio.ensure_future(primary.propose(fragment(0)))
                await asyncio.sleep(0.05)
                assert not waiting.done()
                primary.call.cancel()
                await asyncio.wait((waiting,))
            assert running.broker._replicas[JOURNAL].spool_slot.owned
            assert (await foreign.append(JOURNAL, b"x")).commit.begin == 4

    in_loop(test)


def test_WRONG_ROUTE_if_the_routes_are_not_equivalent(tmp_path: Path) -> None:
    async def test() -> None:
        async with replicating(tmp_path) as (primary, foreign, running):
            ours = primary.header
            other = Header()
            other.CopyFrom(ours)
            other.route.CopyFrom(Route(primary=-1))
            more = Header()
            more.CopyFrom(ours)
            more.route.members.add(zone="zz", suffix="other")
            more.route.endpoints.append("http://other:1")
            for header in (other, more):
                wrong = Primary(foreign, header)
                response = await wrong.propose(fragment(0))
                assert response.status == Status.WRONG_ROUTE
                assert response.header.route == ours.route
                assert await wrong.call.read() is grpc.aio.EOF
            # Endpoints do not count.
            moved = Header()
            moved.CopyFrom(ours)
            moved.route.endpoints[0] = "http://elsewhere:1"
            same = Primary(foreign, moved)
            assert (await same.propose(fragment(0))).status == Status.OK
            await same.ended()
            assert not running.broker._replicas[JOURNAL].spool_slot.owned

    in_loop(test)


def test_a_status_is_one_answer_with_our_header_and_the_end(tmp_path: Path) -> None:
    async def test() -> None:
        full = JournalSpec.Suspend(level=JournalSpec.Suspend.FULL)
        async with replicating(tmp_path) as (primary, foreign, _):
            await foreign.upsert(journal("full/journal", suspend=full))
            for name, status in (("no/such", Status.JOURNAL_NOT_FOUND), ("full/journal", Status.SUSPENDED)):
                asking = Primary(foreign, primary.header)
                response = await asking.propose(fragment(0, name=name))
                assert response.status == status
                assert response.header.process_id == primary.header.process_id
                assert await asking.call.read() is grpc.aio.EOF

    in_loop(test)


def test_the_first_message_is_a_proposal_with_header_and_acknowledge(tmp_path: Path) -> None:
    async def test() -> None:
        async with replicating(tmp_path) as (primary, foreign, _):
            header, elsewhere, another = primary.header, Header(), Header()
            elsewhere.CopyFrom(header)
            elsewhere.etcd.cluster_id ^= 1 << 8
            another.CopyFrom(header)
            another.process_id.suffix = "another"
            for first, complaint in (
                (None, "unexpected EOF"),
                (ReplicateRequest(content=b"x"), "expected a first proposal"),
                (ReplicateRequest(proposal=fragment(0), acknowledge=True), "expected a first proposal"),
                (ReplicateRequest(proposal=fragment(0), header=header), "Acknowledge"),
                (
                    ReplicateRequest(proposal=fragment(0), header=header, acknowledge=True, content=b"x"),
                    "Content",
                ),
                (
                    ReplicateRequest(
                        proposal=fragment(0), header=header, acknowledge=True, deprecated_journal="b/other"
                    ),
                    "DeprecatedJournal",
                ),
                (ReplicateRequest(proposal=fragment(0), header=elsewhere, acknowledge=True), "ClusterId"),
                (ReplicateRequest(proposal=fragment(0), header=another, acknowledge=True), "ProcessId"),
                (ReplicateRequest(proposal=fragment(0), header=Header(), acknowledge=True), "Header"),
            ):
                call = foreign.stubs.replicate(timeout=10)
                if first is not None:
                    await call.write(first)
                await call.done_writing()
                code, text = await refusal(call.read())
                assert code is grpc.StatusCode.UNKNOWN
                assert complaint in text
            assert (await foreign.append(JOURNAL, b"x")).status == Status.OK

    in_loop(test)


def test_the_revision_of_the_header_is_waited_for(tmp_path: Path) -> None:
    async def test() -> None:
        async with replicating(tmp_path) as (primary, foreign, running):
            primary.header.etcd.revision += 1
            waiting = asyncio.ensure_future(primary.propose(fragment(0)))
            await until(lambda: len(running.broker._local._waits._waiting) == 1)
            assert not waiting.done()
            await foreign.upsert(journal("b/other"))
            assert (await waiting).status == Status.OK
            await primary.ended()

    in_loop(test)


def test_a_journal_is_deleted_though_a_primary_keeps_its_stream_open(tmp_path: Path) -> None:
    async def test() -> None:
        async with replicating(tmp_path) as (primary, foreign, _):
            await primary.propose(fragment(0))
            await primary.content(b"foo")
            async with asyncio.timeout(5):
                await foreign.delete(JOURNAL)
                assert await primary.call.read() is grpc.aio.EOF
            await foreign.upsert(journal())
            assert (await foreign.append(JOURNAL, b"x")).commit.begin == 0

    in_loop(test)


def test_offsets_end_where_their_type_does(tmp_path: Path) -> None:
    """At the last offset there is no room for content; the journal says so, and stays sound."""

    async def test() -> None:
        last = (1 << 63) - 1
        async with replicating(tmp_path) as (primary, foreign, _):
            assert (await primary.propose(fragment(last - 3))).status == Status.OK
            await primary.content(b"foo")
            assert (await primary.propose(fragment(last - 3, b"foo"))).status == Status.OK
            await primary.content(b"!")
            code, text = await refusal(primary.call.read())
            assert code is grpc.StatusCode.UNKNOWN
            assert "offset" in text
            code, text = await refusal(foreign.append(JOURNAL, b"x"))
            assert code is grpc.StatusCode.UNKNOWN
            assert "offset" in text
            assert (await foreign.append(AppendRequest(journal=JOURNAL))).commit.end == last

    in_loop(test)
