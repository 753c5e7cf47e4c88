"""The client of asyncio: what it tries again and what it does not, tokens, watches, the embedded broker."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from itertools import islice
from pathlib import Path

import grpc
import pytest

from penstock.base.errors import PenstockError, UsageError
from penstock.journal import labels
from penstock.journal.auth import FixedToken
from penstock.journal.client import (
    AsyncClient,
    BrokerGoneError,
    Client,
    JournalError,
    ProtocolError,
    RegisterMismatchError,
    StoreUnhealthyError,
    TimedOutError,
    UnauthenticatedError,
)
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.protocol import (
    AppendRequest,
    AppendResponse,
    ApplyRequest,
    Header,
    LabelSelector,
    ListResponse,
    Route,
    Status,
)
from penstock.journal.tls import ClientTls, ServerTls
from penstock.log.commitlog import journal_spec

from .authority import Authority
from .client_servers import (
    JOURNAL,
    AbortError,
    MemoryBroker,
    code,
    lands,
    lost_after_landing,
    lost_before_landing,
    run,
    status,
    stops_after_landing,
)

RETRIED = {
    Status.NOT_JOURNAL_PRIMARY_BROKER,
    Status.NO_JOURNAL_PRIMARY_BROKER,
    Status.INSUFFICIENT_JOURNAL_BROKERS,
}


class Secret:
    """A token for each kind of call."""

    def for_list(self, selector: LabelSelector) -> str:
        return "list-token"

    def for_apply(self) -> str:
        return "apply-token"

    def for_read(self, journal: str) -> str:
        return f"read-token-{journal}"

    def for_heads(self, selector: LabelSelector) -> str:
        return "heads-token"

    def for_append(self, journal: str) -> str:
        return f"append-token-{journal}"

    def for_health(self) -> str:
        return "health-token"

    def for_maintenance(self, journal: str) -> str:
        return "maintenance-token"


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("value", [value for value in Status.values() if value != Status.OK])
def test_an_append_is_tried_again_on_exactly_three_statuses(value: int, ours: bool) -> None:
    async def test() -> None:
        async with MemoryBroker(ours=ours) as broker, AsyncClient(broker.address) as client:
            broker.outcomes.extend([status(value), status(value)])
            if value in RETRIED:
                landed = await client.append(JOURNAL, b"abc")
                assert (landed.begin, landed.end) == (0, 3)
                assert not broker.outcomes
            else:
                with pytest.raises(JournalError, match=Status.Name(value)) as caught:
                    await client.append(JOURNAL, b"abc")
                assert caught.value.status == value
                assert caught.value.hint or value in (
                    Status.OFFSET_NOT_YET_AVAILABLE, Status.WRONG_ROUTE, Status.PROPOSAL_MISMATCH
                )  # fmt: skip
                assert len(broker.outcomes) == 1
                assert not broker.appends

    run(test())


def test_statuses_have_errors_of_their_own_where_they_carry_more() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            broker.registers = labels.label_set({"epoch": "7"})
            with pytest.raises(RegisterMismatchError) as mismatch:
                await client.append(
                    JOURNAL, b"x", check=LabelSelector(include=labels.label_set({"epoch": "6"}))
                )
            assert labels.values_of(mismatch.value.registers, "epoch") == ["7"]
            broker.outcomes.append(status(Status.FRAGMENT_STORE_UNHEALTHY))
            with pytest.raises(StoreUnhealthyError):
                await client.append(JOURNAL, b"x")
            broker.outcomes.append(status(Status.NO_JOURNAL_PRIMARY_BROKER))
            with pytest.raises(JournalError, match="NO_JOURNAL_PRIMARY_BROKER"):
                await client.append(JOURNAL, b"x", retry=False)

    run(test())


@pytest.mark.parametrize("size", [10, 3 << 20])
@pytest.mark.parametrize("outcome", [lost_after_landing, lost_before_landing, stops_after_landing])
def test_an_append_whose_answer_is_lost_is_not_tried_again_and_said_to_be_in_doubt(
    outcome: object, size: int
) -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            broker.outcomes.extend([outcome, lands])  # type: ignore[list-item]
            with pytest.raises(BrokerGoneError) as caught:
                await client.append(JOURNAL, bytes(size))
            assert not caught.value.harmless
            assert len(broker.outcomes) == 1

    run(test())


def test_without_a_connection_an_append_is_tried_until_there_is_one() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker:
            pass
        async with AsyncClient(broker.address) as client:
            with pytest.raises(BrokerGoneError, match="no broker answers") as caught:
                await client.append(JOURNAL, b"abc", timeout=0.3)
            assert caught.value.harmless
            appending = asyncio.create_task(client.append(JOURNAL, b"abc"))
            await asyncio.sleep(0.2)
            async with MemoryBroker(port=broker.port) as back:
                assert (await appending).end == 3
                assert back.appends == [b"abc"]

    run(test())


def test_content_that_is_streamed_is_whole_or_not_at_all() -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"some"
        raise ZeroDivisionError

    async def good() -> AsyncIterator[bytes]:
        yield b"some"
        yield b""
        yield bytes(2 << 20)

    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            with pytest.raises(ZeroDivisionError):
                await client.append(JOURNAL, failing())
            landed = await client.append(JOURNAL, good())
            assert landed.end == (2 << 20) + 4
            assert broker.appends == [b"some" + bytes(2 << 20)]
            broker.outcomes.append(status(Status.NOT_JOURNAL_PRIMARY_BROKER))
            with pytest.raises(JournalError, match="NOT_JOURNAL_PRIMARY_BROKER"):
                await client.append(JOURNAL, good())

    run(test())


def test_an_answer_that_says_landed_but_not_where_is_refused() -> None:
    def nowhere(broker: MemoryBroker, first: AppendRequest, content: bytes) -> AppendResponse:
        return AppendResponse(header=broker.header)

    def short(broker: MemoryBroker, first: AppendRequest, content: bytes) -> AppendResponse:
        return broker.land(first, content[:-1])

    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            broker.outcomes.extend([nowhere, short])
            with pytest.raises(ProtocolError, match="not where"):
                await client.append(JOURNAL, b"abc")
            with pytest.raises(ProtocolError, match=r"3 bytes were appended.*0 to 2"):
                await client.append(JOURNAL, b"abc")

    run(test())


def test_each_call_carries_its_token_and_no_error_shows_it() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address, tokens=Secret()) as client:
            await client.append(JOURNAL, b"abc")
            await client.append(JOURNAL, bytes(2 << 20))
            assert await client.read_bytes(JOURNAL, 0, 3) == b"abc"
            assert [sent["authorization"] for sent in broker.metadata] == [
                f"Bearer append-token-{JOURNAL}", f"Bearer append-token-{JOURNAL}", f"Bearer read-token-{JOURNAL}"
            ]  # fmt: skip
            broker.outcomes.append(code(grpc.StatusCode.UNAUTHENTICATED))
            with pytest.raises(UnauthenticatedError) as caught:
                await client.append(JOURNAL, b"abc")
            assert caught.value.exit_code == 2
            assert "token-" not in f"{caught.value}{caught.value.__context__}{client!r}"

    run(test())


def test_a_token_that_cannot_be_sent_is_refused_without_being_shown() -> None:
    class Broken(Secret):
        def for_append(self, journal: str) -> str:
            return "secret\ntoken"

    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address, tokens=Broken()) as client:
            with pytest.raises(UsageError) as caught:
                await client.append(JOURNAL, b"abc")
            assert "secret" not in str(caught.value)

    run(test())


def snapshot(revision: int, *names: str) -> list[ListResponse]:
    """One of a watch, in several messages."""
    etcd = Header.Etcd(cluster_id=1, member_id=2, revision=revision, raft_term=3)
    header = Header(route=Route(primary=-1), etcd=etcd)
    journals = [ListResponse.Journal(spec=journal_spec(name, 1024, {}), mod_revision=1) for name in names]
    return [
        ListResponse(header=header, journals=journals[:1]),
        *(ListResponse(journals=[journal]) for journal in journals[1:]),
        ListResponse(),
    ]


def test_a_watch_goes_on_after_it_broke_and_resumes_behind_the_last_snapshot() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            half = snapshot(7, "a/one", "a/two", "a/three")[:2]
            broker.lists.extend(
                [
                    [*snapshot(5, "a/one"), *snapshot(6), *half, AbortError(grpc.StatusCode.UNAVAILABLE)],
                    snapshot(7, "a/one", "a/two", "a/three"),
                ]
            )
            seen = []
            async for journals in client.watch():
                seen.append([journal.spec.name for journal in journals])
                if len(seen) == 3:
                    break
            assert seen == [["a/one"], [], ["a/one", "a/two", "a/three"]]
            assert [request.watch_resume.etcd.revision for request in broker.list_requests] == [0, 6]
            assert all(request.watch for request in broker.list_requests)

    run(test())


def test_a_watch_ends_with_what_is_no_interruption() -> None:
    async def first(client: AsyncClient) -> None:
        async for _ in client.watch():
            pass

    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            broker.lists.append([AbortError(grpc.StatusCode.UNAUTHENTICATED)])
            with pytest.raises(UnauthenticatedError):
                await first(client)
            broker.lists.append([*snapshot(5, "a/one"), *snapshot(4, "a/one")])
            with pytest.raises(ProtocolError, match="revision 4 after 5"):
                await first(client)

    run(test())


def test_the_client_for_threads_watches_and_lists_the_same_way(
    broker: EmbeddedBroker, client: Client
) -> None:
    assert [journal.spec.name for journal in client.list()] == [JOURNAL]

    async def test() -> None:
        async with MemoryBroker() as fake:
            fake.lists.append([*snapshot(5, "a/one"), *snapshot(6, "a/one", "a/two")])

            def watch() -> list[int]:
                with Client(fake.address) as watching:
                    return [len(journals) for journals in islice(watching.watch(timeout=60.0), 2)]

            assert await asyncio.to_thread(watch) == [1, 2]

    run(test())


def test_all_calls_over_the_embedded_brokers_socket(broker: EmbeddedBroker) -> None:
    async def test() -> None:
        async with AsyncClient(broker.address) as client:
            assert await client.create(journal_spec(JOURNAL, 1024, {}))
            assert not await client.create(journal_spec(JOURNAL, 1024, {}))
            first = await client.append(JOURNAL, b"x" * 1200, union=labels.label_set({"epoch": "1"}))
            assert first.sum == hashlib.sha1(b"x" * 1200).digest()
            await client.append(JOURNAL, [b"y" * 600, bytearray(b"z" * 600)])
            assert await client.head(JOURNAL) == 2400
            assert await client.begin(JOURNAL) == 0
            assert await client.read_bytes(JOURNAL, 1190, 1210) == b"x" * 10 + b"y" * 10
            assert await client.wait(JOURNAL, 1200, 5) == 2400
            assert await client.wait(JOURNAL, 2400, 0.1) == 2400
            assert [fragment.spec.begin async for fragment in client.fragments(JOURNAL)] == [0, 1200]
            assert [journal.spec.name for journal in await client.list()] == [JOURNAL]
            assert (await client.metadata(JOURNAL, 1200)).fragment.begin == 1200
            assert (await client.metadata(JOURNAL)).status == Status.OFFSET_NOT_YET_AVAILABLE
            barrier = await client.append(JOURNAL, ())
            assert (barrier.begin, barrier.end) == (2400, 2400)
            assert (await client.locate(JOURNAL, 0, 2400))[0].begin == 0
            with pytest.raises(JournalError, match="JOURNAL_NOT_FOUND"):
                await client.head("no/such/journal")
            with pytest.raises(TimedOutError):
                await client.metadata(JOURNAL, 2400, block=True, timeout=0.1)

    run(test())


def test_changes_are_split_into_transactions(broker: EmbeddedBroker) -> None:
    def made(*names: str) -> list[ApplyRequest.Change]:
        return [
            ApplyRequest.Change(expect_mod_revision=0, upsert=journal_spec(name, 1024, {})) for name in names
        ]

    async def test() -> None:
        async with AsyncClient(broker.address) as client:
            assert await client.apply(made("a/one", "a/two", "a/three"), max_txn_size=2)
            assert not await client.apply(made("b/one", "a/three", "b/two"))
            assert not await client.apply(made("b/one", "a/three", "b/two"), max_txn_size=1)
            names = [journal.spec.name for journal in await client.list()]
            assert names == ["a/one", "a/three", "a/two", "b/one"]

    run(test())


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("unix:", "names no socket"),
        ("ftp://host:1", "no address of a broker"),
        ("host", "no address of a broker"),
        ("host:0", "no address of a broker"),
        ("host:port", "no address of a broker"),
        ("http://host:80/path", "no address of a broker"),
        ("http://user:secret@host:80", "no address of a broker"),
    ],
)
def test_addresses_that_are_none_are_refused(address: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Client(address)


def test_a_broker_is_reached_by_every_form_of_its_address(broker: EmbeddedBroker, tmp_path: Path) -> None:
    path = broker.address.removeprefix("unix:")
    for address in (f"unix:{path}", f"unix://{path}", f"unix://localhost{path}"):
        with Client(address) as client:
            assert client.list() == []

    async def test() -> None:
        async with MemoryBroker() as fake:
            for address in (fake.address, f"http://{fake.address}", f"http://{fake.address}/"):
                async with AsyncClient(address) as client:
                    await client.append(JOURNAL, b"x")

    run(test())


def test_a_call_that_a_broker_does_not_offer_is_said_so(client: Client) -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            with pytest.raises(PenstockError, match="does not offer this call"):
                await client.roll(JOURNAL)

    run(test())


def test_tls_is_spoken_when_asked_for_and_never_dropped(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    pair = authority.pair("broker")
    server = ServerTls(pair.cert_file, pair.key_file)
    trusting = ClientTls(authority.ca_file)

    async def test() -> None:
        async with MemoryBroker(credentials=server.grpc_credentials()) as broker:
            for address in (f"https://{broker.address}", broker.address):
                async with AsyncClient(address, tls=trusting, tokens=FixedToken("secret")) as client:
                    await client.append(JOURNAL, b"x")
            assert broker.metadata[0]["authorization"] == "Bearer secret"
            async with AsyncClient(f"https://{broker.address}") as stranger:
                with pytest.raises(BrokerGoneError):
                    await stranger.append(JOURNAL, b"x", timeout=0.5)
            with pytest.raises(UsageError, match="without TLS, but TLS was asked for"):
                AsyncClient(f"http://{broker.address}", tls=trusting)

            def from_a_thread() -> None:
                with Client(f"https://{broker.address}", tls=trusting, tokens=FixedToken("secret")) as client:
                    client.append(JOURNAL, b"x")
                    assert "secret" not in repr(client)

            await asyncio.to_thread(from_a_thread)
            assert bytes(broker.content) == b"xxx"

    run(test())
