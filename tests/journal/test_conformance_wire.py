"""gRPC errors, their texts, and the limits of messages (reference 9 and 10)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import grpc
import grpc.aio
import pytest

from penstock.journal.auth import KeyedAuthorizer, Keys, sign
from penstock.journal.claims import Capability, Claims
from penstock.journal.labels import parse_selector
from penstock.journal.protocol import (
    AppendRequest,
    ApplyRequest,
    FragmentsRequest,
    FragmentStoreHealthRequest,
    Header,
    LabelSelector,
    ListRequest,
    ListResponse,
    ReadRequest,
    ReadResponse,
    ReplicateRequest,
    Status,
)
from penstock.journal.server import Options

from .brokers import in_loop, until
from .foreign import (
    JOURNAL,
    Foreign,
    dialed,
    journal,
    label_set,
    leaves_nothing,
    opened,
    refusal,
    refusal_of,
    served,
)

KEYS = Keys((b"secret",))
Call = Callable[[Foreign], object]


async def _one(request: object) -> AsyncIterator[object]:
    yield request


def _append(**fields: object) -> Call:
    return lambda foreign: foreign.stubs.append(_one(AppendRequest(**fields)))  # type: ignore[arg-type]


def _read(**fields: object) -> Call:
    return lambda foreign: foreign.stubs.read(ReadRequest(**fields))  # type: ignore[arg-type]


def _fragments(**fields: object) -> Call:
    return lambda foreign: foreign.stubs.list_fragments(FragmentsRequest(**fields))  # type: ignore[arg-type]


def _change(**fields: object) -> Call:
    change = ApplyRequest.Change(**fields)  # type: ignore[arg-type]
    return lambda foreign: foreign.stubs.apply(ApplyRequest(changes=[change]))


def _health(**fields: object) -> Call:
    request = FragmentStoreHealthRequest(**fields)  # type: ignore[arg-type]
    return lambda foreign: foreign.stubs.fragment_store_health(request)


def _list(selector: str) -> Call:
    return lambda foreign: foreign.stubs.list(ListRequest(selector=parse_selector(selector)))


def _replicate(**fields: object) -> Call:
    return lambda foreign: foreign.stubs.replicate(_one(ReplicateRequest(**fields)))  # type: ignore[arg-type]


REFUSED: list[tuple[Call, str]] = [
    (_append(journal="/invalid/name"), "Journal: cannot begin with '/' (/invalid/name)"),
    (_append(journal=JOURNAL, offset=-1), "Offset: "),
    (_append(journal=f"{JOURNAL};"), "Journal.Meta: "),
    (_append(journal=JOURNAL, union_registers=label_set(("b", "1"))), "UnionRegisters.Labels[0].Name: "),
    (_append(journal=JOURNAL, header=Header()), "Header.Route.Primary: "),
    (_read(journal="x"), "Journal: invalid length (1; expected 4 <= length <= 512)"),
    (_read(journal=JOURNAL, offset=-2), "Offset: "),
    (_read(journal=JOURNAL, offset=5, end_offset=4), "EndOffset: "),
    (
        _fragments(journal=JOURNAL, begin_mod_time=50, end_mod_time=40),
        "invalid EndModTime (40 must be after 50)",
    ),
    (_fragments(journal=JOURNAL, page_limit=10001), "PageLimit: "),
    (_fragments(journal=JOURNAL, next_page_token=-1), "NextPageToken: "),
    (
        _change(expect_mod_revision=1, delete="invalid journal name"),
        "Changes[0].Delete: not a valid token (invalid journal name)",
    ),
    (_change(expect_mod_revision=0, delete=JOURNAL), "Changes[0].ExpectModRevision: "),
    (_change(expect_mod_revision=-2, upsert=journal()), "Changes[0].ExpectModRevision: "),
    (_change(upsert=journal(), delete=JOURNAL), "Changes[0]: both Upsert and Delete"),
    (_change(), "Changes[0]: neither Upsert nor Delete"),
    (_change(upsert=journal(replication=6)), "Changes[0].Upsert.Replication: "),
    (_change(upsert=journal("../escape")), "Changes[0].Upsert.Name: "),
    (_health(fragment_store="ftp://host/"), "FragmentStore: "),
    (_health(fragment_store="file:///", check_delete_prefix="a/"), "CheckDeletePrefix: "),
    (_list("prefix=a/b"), "Selector.Include: expected trailing '/'"),
    (_replicate(content=b"x"), "expected a first proposal"),
    (_replicate(), "expected Content or Proposal"),
]


@pytest.mark.parametrize(("call", "complaint"), REFUSED, ids=[complaint for _, complaint in REFUSED])
def test_a_request_that_is_not_valid_is_an_error_with_its_text(
    tmp_path: Path, call: Call, complaint: str
) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            code, text = await refusal_of(partial(call, foreign))
            assert code is grpc.StatusCode.UNKNOWN
            assert complaint in text

    in_loop(test)


def test_a_header_of_another_cluster_or_for_another_broker_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            ours = (await foreign.append(JOURNAL)).header
            elsewhere, another = Header(), Header()
            elsewhere.CopyFrom(ours)
            elsewhere.etcd.cluster_id = 7
            another.CopyFrom(ours)
            another.process_id.suffix = "another"
            for header, complaint in (
                (elsewhere, "ClusterId doesn't match our own"),
                (another, "ProcessId doesn't match our own"),
            ):
                for call in (
                    _append(journal=JOURNAL, header=header),
                    _read(journal=JOURNAL, header=header),
                    _fragments(journal=JOURNAL, header=header),
                ):
                    code, text = await refusal_of(partial(call, foreign))
                    assert code is grpc.StatusCode.UNKNOWN
                    assert complaint in text
            anyone = Header()
            anyone.CopyFrom(ours)
            anyone.ClearField("process_id")
            for header in (ours, anyone):
                response = await foreign.append(AppendRequest(journal=JOURNAL, header=header), b"x")
                assert response.status == Status.OK

    in_loop(test)


def _token(capability: Capability, selector: str = "", lifetime: float = 60) -> str:
    claims = Claims(capability, parse_selector(selector) if selector else LabelSelector())
    return sign(KEYS, claims, now=time.time(), lifetime=lifetime)


NEEDED: list[tuple[Call, Capability]] = [
    (_append(journal=JOURNAL), Capability.APPEND),
    (_read(journal=JOURNAL), Capability.READ),
    (_fragments(journal=JOURNAL), Capability.READ),
    (_change(expect_mod_revision=-1, delete=JOURNAL), Capability.APPLY),
    (_health(fragment_store="file:///"), Capability.READ),
    (_list("name=a/journal"), Capability.LIST),
    (_replicate(content=b"x"), Capability.REPLICATE),
]


def test_each_call_needs_its_capability(tmp_path: Path) -> None:
    async def test() -> None:
        options = Options(authorizer=KeyedAuthorizer(KEYS))
        async with served(tmp_path, options=options) as running, dialed(running.address) as foreign:
            for call, _ in NEEDED:
                code, text = await refusal_of(partial(call, foreign))
                assert code is grpc.StatusCode.UNAUTHENTICATED
                assert text == "missing or empty Authorization token"
            for call, needed in NEEDED:
                token = _token(Capability.ALL & ~needed)
                code, text = await refusal_of(partial(_with, call, foreign, token))
                assert code is grpc.StatusCode.UNAUTHENTICATED
                assert text == f"authorization is missing required {needed.name} capability"

    in_loop(test)


def _with(call: Call, foreign: Foreign, token: str) -> object:
    """The same call with a token."""

    class Stubs:
        def __getattr__(self, name: str) -> object:
            method = getattr(foreign.stubs, name)
            return lambda *args: method(*args, metadata=(("authorization", f"Bearer {token}"),))

    class Tokened:
        stubs = Stubs()

    return call(Tokened())  # type: ignore[arg-type]


def test_apply_outside_the_selector_is_unauthenticated(tmp_path: Path) -> None:
    async def test() -> None:
        token = _token(Capability.ALL, "name=b/other")
        options = Options(authorizer=KeyedAuthorizer(KEYS))
        async with (
            served(tmp_path, options=options) as running,
            dialed(running.address, token=token) as foreign,
        ):
            await foreign.upsert(journal("b/other"))
            for call in (foreign.upsert(journal()), foreign.delete(JOURNAL)):
                code, text = await refusal(call)
                assert code is grpc.StatusCode.UNAUTHENTICATED
                assert text == f"not authorized to {JOURNAL}"

    in_loop(test)


def test_an_expired_token_ends_reads_and_watches_cleanly_and_appends_with_a_deadline(tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path, options=Options(authorizer=KeyedAuthorizer(KEYS))) as running:
            async with dialed(running.address, token=_token(Capability.ALL)) as owner:
                await owner.upsert(journal())
            async with dialed(running.address, token=_token(Capability.ALL, lifetime=1)) as foreign:
                append = foreign.stubs.append(metadata=foreign.metadata)
                await append.write(AppendRequest(journal=JOURNAL, min_etcd_revision=1 << 40))
                read = foreign.read(ReadRequest(journal=JOURNAL, block=True))
                watch = foreign.stubs.list(ListRequest(watch=True), metadata=foreign.metadata)
                assert await read == []
                snapshot = [response async for response in watch]
                assert len(snapshot) == 2
                assert await watch.code() is grpc.StatusCode.OK
                assert (await refusal(append))[0] is grpc.StatusCode.DEADLINE_EXCEEDED

    in_loop(test)


def test_reads_and_watches_that_are_cancelled_or_late_leave_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, running):
            waiting = running.broker._local._waits._waiting
            async with leaves_nothing():
                calls: list[grpc.aio.Call] = [
                    foreign.stubs.read(ReadRequest(journal=JOURNAL, block=True)),
                    foreign.stubs.list(ListRequest(watch=True)),
                    foreign.stubs.read(ReadRequest(journal=JOURNAL, min_etcd_revision=1 << 62)),
                ]
                late = [
                    foreign.stubs.read(ReadRequest(journal=JOURNAL, block=True), timeout=1.0),
                    foreign.stubs.list(ListRequest(watch=True), timeout=1.0),
                    foreign.stubs.read(ReadRequest(journal=JOURNAL, min_etcd_revision=1 << 62), timeout=1.0),
                ]
                await until(lambda: len(waiting) == 4)
                for call in late:
                    assert (await refusal(call))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
                for call in calls:
                    call.cancel()
            assert waiting == [], "nobody waits for a revision any more"

    in_loop(test)


def test_a_message_of_more_than_4_MiB_is_refused_and_rolled_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path, journal(length=1 << 30)) as (foreign, running):
            response = await foreign.append(JOURNAL, bytes((4 << 20) - 16))
            assert response.status == Status.OK
            code, details = await refusal(foreign.append(JOURNAL, b"half", bytes((4 << 20) + 1)))
            # The second is the client library's own word when its write comes after the server's answer.
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED or details == "Internal error from Core"
            await until(lambda: not running.broker._replicas[JOURNAL].pipeline_slot.owned)
            assert (await foreign.append(JOURNAL, b"x")).commit.begin == (4 << 20) - 16

    in_loop(test)


def test_content_comes_in_chunks_of_32736_bytes(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            content = bytes(range(256)) * 512
            await foreign.append(JOURNAL, content)
            responses = await foreign.read(JOURNAL)
            sizes = [len(response.content) for response in responses if response.content]
            assert sizes == [32736] * 4 + [len(content) - 4 * 32736]
            assert b"".join(response.content for response in responses) == content
            assert max(response.ByteSize() for response in responses) <= 32 << 10

    in_loop(test)


def test_a_slow_reader_blocks_only_its_own_stream(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path, journal(length=1 << 30)) as (foreign, _):
            for _ in range(4):
                await foreign.append(JOURNAL, bytes(2 << 20))
            async with leaves_nothing():
                slow = foreign.stubs.read(ReadRequest(journal=JOURNAL))
                first = await slow.read()
                assert isinstance(first, ReadResponse)
                assert first.status == Status.OK
                assert len(await foreign.content()) == 8 << 20
                assert (await foreign.append(JOURNAL, b"x")).status == Status.OK
                slow.cancel()

    in_loop(test)


def test_there_is_no_other_service(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            for path in (
                "/grpc.health.v1.Health/Check",
                "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                "/protocol.Journal/Nothing",
            ):
                call = foreign.channel.unary_unary(path, bytes, bytes)(b"", timeout=5)
                assert (await refusal(call))[0] is grpc.StatusCode.UNIMPLEMENTED

    in_loop(test)


def test_a_broker_that_stops_ends_reads_and_watches_cleanly(tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path) as running, dialed(running.address) as foreign:
            await foreign.upsert(journal())
            read = asyncio.ensure_future(foreign.read(ReadRequest(journal=JOURNAL, block=True)))
            watch = foreign.stubs.list(ListRequest(watch=True))
            assert [await watch.read(), await watch.read()][1] == ListResponse()
            await until(lambda: running.broker._replicas[JOURNAL]._changed is not None)
            running.broker.end_waits()
            assert await read == []
            assert await watch.read() is grpc.aio.EOF
            assert await watch.code() is grpc.StatusCode.OK

    in_loop(test)


def test_a_burst_of_calls_is_answered_to_the_last(tmp_path: Path) -> None:
    """More than gRPC lets wait by default, which cancels some of them."""

    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            answers = await asyncio.gather(*(foreign.fragments("no/such") for _ in range(2500)))
            assert {answer.status for answer in answers} == {Status.JOURNAL_NOT_FOUND}

    in_loop(test)
