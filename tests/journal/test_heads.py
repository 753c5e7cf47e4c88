"""Where many journals end, in one answer: what a broker that is alone tells, whom, and what it costs it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.base.disk import Disk
from penstock.journal import heads, labels
from penstock.journal.auth import FixedToken, KeyedAuthorizer, Keys, TokenSource, sign
from penstock.journal.broker import Broker, BrokerOptions
from penstock.journal.claims import EVERYTHING, Capability, Claims
from penstock.journal.client import AsyncClient, Client, NotOfferedError, UnauthenticatedError
from penstock.journal.datadir import DataDir
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.labels import parse_selector
from penstock.journal.protocol import (
    ApplyRequest,
    Head,
    HeadsRequest,
    JournalSpec,
    LabelSelector,
    LabelSet,
    RollRequest,
)
from penstock.journal.server import Options
from penstock.journal.tokens import ValidationError

from .brokers import JOURNAL, append, applied, create, delete, in_loop, listed, opened, persisted, until
from .client_servers import MemoryBroker
from .foreign import dialed, journal, served

KEYS = Keys((b"a secret that is long enough for HS256",))


async def told(broker: Broker, selector: str = "", claims: Claims = EVERYTHING) -> dict[str, int]:
    request = HeadsRequest(selector=parse_selector(selector))
    return {
        head.journal: head.write_head
        async for response in broker.heads(request, claims)
        for head in response.heads
    }


async def specified(broker: Broker, spec: JournalSpec) -> None:
    await applied(broker, ApplyRequest.Change(expect_mod_revision=-1, upsert=spec))
    await listed(broker, spec.name)


def test_the_heads_of_what_a_selector_matches(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            await specified(broker, journal("b/one", labels=(("kind", "log"),)))
            await specified(broker, journal("b/two"))
            assert await told(broker) == {JOURNAL: 0, "b/one": 0, "b/two": 0}
            await append(broker, b"some bytes", "b/one")
            await append(broker, b"more", "b/two")
            for selector, found in {
                "": {JOURNAL: 0, "b/one": 10, "b/two": 4},
                "kind": {"b/one": 10},
                "kind=log,name=b/two": {},
                "prefix=b/": {"b/one": 10, "b/two": 4},
                "name=b/two": {"b/two": 4},
                "!kind": {JOURNAL: 0, "b/two": 4},
            }.items():
                assert await told(broker, selector) == found, selector
            await append(broker, b"!", "b/two")
            assert await told(broker, "name=b/two") == {"b/two": 5}

    in_loop(test)


def test_what_matches_is_that_of_now(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            assert await told(broker, "kind") == {}
            await specified(broker, journal(labels=(("kind", "log"),)))
            assert await told(broker, "kind") == {JOURNAL: 0}
            await create(broker, "b/new")
            await listed(broker, "b/new")
            assert set(await told(broker)) == {JOURNAL, "b/new"}
            await specified(broker, journal(labels=(("another", "log"),)))
            assert await told(broker, "kind") == {}
            await delete(broker, JOURNAL)
            assert set(await told(broker)) == {"b/new"}

    in_loop(test)


def test_a_caller_is_told_of_journals_that_it_may_read(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            await create(broker, "b/other")
            await listed(broker, "b/other")
            claims = Claims(Capability.LIST | Capability.READ, parse_selector("name:prefix=b/"))
            assert await told(broker, "", claims) == {"b/other": 0}
            assert await told(broker, f"name={JOURNAL}", claims) == {}
            assert set(await told(broker)) == {JOURNAL, "b/other"}, "what others may not know counts for them"

    in_loop(test)


def test_what_nobody_may_read_or_is_suspended_is_left_out(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            await specified(broker, journal("b/in-only", flags=2))
            assert await told(broker) == {JOURNAL: 0}
            spec = journal()
            spec.suspend.level = JournalSpec.Suspend.FULL
            spec.suspend.offset = 7
            await specified(broker, spec)
            assert await told(broker) == {}
            await append(broker, b"resumed")
            assert await told(broker) == {JOURNAL: 14}

    in_loop(test)


def test_after_a_restart_a_head_is_told_when_it_is_known_and_is_what_it_was(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            for name, *parts in ((JOURNAL, b"stored", b"spooled"), ("b/stored", b"stored", b"")):
                await create(broker, name)
                await append(broker, parts[0], name)
                await broker.roll(RollRequest(journal=name), EVERYTHING)
                await append(broker, parts[1], name)
                await persisted(broker, name)
            before = await told(broker)
            assert before == {JOURNAL: 13, "b/stored": 6}
        directory, disk = DataDir(tmp_path), Disk()
        broker = Broker(directory, directory.create(disk), disk, BrokerOptions(pulse_interval=3600))
        try:
            assert await told(broker) == {}, "its stores have not been listed"
            await until(lambda: all(replica.listed for replica in broker.replicas()))
            assert await told(broker) == before
        finally:
            await broker.close()

    in_loop(test)


def test_many_come_in_messages_of_a_bounded_size() -> None:
    def sizes(count: int) -> list[int]:
        found = heads.messages(Head(journal=f"a/{number}", write_head=number) for number in range(count))
        return [len(message.heads) for message in found]

    assert [sizes(count) for count in (0, 1, 1000, 2001)] == [[], [1], [1000], [1000, 1000, 1]]


def test_asking_again_costs_no_look_at_specs_that_have_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def match(selector: LabelSelector, found: LabelSet) -> bool:
        looked.extend(labels.values_of(found, "name"))
        return matched(selector, found)

    async def test() -> None:
        async with opened(tmp_path) as broker:
            await create(broker, "b/other")
            await listed(broker, "b/other")
            monkeypatch.setattr(labels, "match", match)
            await told(broker)
            assert set(looked) == {JOURNAL, "b/other"}
            looked.clear()
            await append(broker, b"grows")
            assert (await told(broker))[JOURNAL] == 5
            assert looked == []
            await create(broker, "b/third")
            looked.clear()
            await told(broker)
            assert set(looked) == {"b/third"}

    matched = labels.match
    in_loop(test)


def test_of_questions_that_nobody_asks_any_more_nothing_is_remembered(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            for number in range(50):
                await told(broker, f"kind=number-{number}")
                assert await told(broker) == {JOURNAL: 0}
            assert len(broker._heads._questions) == heads._REMEMBERED

    in_loop(test)


def test_a_selector_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            with pytest.raises(ValidationError, match="expected trailing '/'"):
                await told(broker, "prefix=b")

    in_loop(test)


def test_it_takes_the_rights_to_list_and_to_read(tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path, options=Options(authorizer=KeyedAuthorizer(KEYS))) as running:
            everything = sign(KEYS, EVERYTHING, now=time.time(), lifetime=60)
            async with dialed(running.address, token=everything) as owner:
                await owner.upsert(journal(), journal("b/other"))
                await owner.append(JOURNAL, b"four")
            async with AsyncClient(running.address, tokens=TokenSource(KEYS)) as client:
                assert await client.heads(parse_selector(f"name={JOURNAL}")) == {JOURNAL: 4}
            for rights in (Capability.LIST, Capability.READ):
                token = sign(KEYS, Claims(rights, LabelSelector()), now=time.time(), lifetime=60)
                async with AsyncClient(running.address, tokens=FixedToken(token)) as client:
                    with pytest.raises(
                        UnauthenticatedError, match=r"missing required (LIST|READ) capability"
                    ):
                        await client.heads()

    in_loop(test)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with EmbeddedBroker(tmp_path) as broker, Client(broker.address) as client:
        yield client


def test_the_client_for_threads_asks_once_for_all(client: Client) -> None:
    for number in range(3):
        client.create(journal(f"log/{number}"))
        client.append(f"log/{number}", bytes(number))
    assert client.heads() == {"log/0": 0, "log/1": 1, "log/2": 2}
    assert client.heads(parse_selector("name=log/2")) == {"log/2": 2}
    assert client.heads(parse_selector("name=log/3")) == {}


@pytest.mark.parametrize("ours", [True, False])
def test_a_broker_that_does_not_know_the_call_says_so(ours: bool) -> None:
    """Of another make, or older."""

    async def test() -> None:
        async with MemoryBroker(ours=ours) as broker:
            async with AsyncClient(broker.address) as client:
                with pytest.raises(NotOfferedError):
                    await client.heads()
            with Client(broker.address) as threaded, pytest.raises(NotOfferedError):
                await asyncio.to_thread(threaded.heads)

    in_loop(test)
