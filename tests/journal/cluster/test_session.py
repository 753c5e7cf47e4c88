"""A broker's session: when it is surely alive, when it is lost, and how it comes back."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.servers.cache import end_with_parent
from tests.servers.etcd import PASSWORD, EtcdServer
from tests.servers.proxy import Proxy, proxied

from penstock.journal.cluster.entries import LeasedEntry
from penstock.journal.cluster.etcd import EtcdClient
from penstock.journal.cluster.etcd_errors import EtcdError
from penstock.journal.cluster.etcd_values import Delete, Put
from penstock.journal.cluster.mirror import EtcdKeySpace, Health
from penstock.journal.cluster.session import Session, SessionState

from .etcds import run, until

KEY = "members/zone#me"


@asynccontextmanager
async def session_of(
    client: EtcdClient, prefix: str = "/p", *, ttl: int = 20, held_retry: float = 0.1
) -> AsyncIterator[Session]:
    """A session that runs; ended as by a crash unless the test leaves."""
    session = Session(client, prefix, KEY, b"first", ttl=ttl, held_retry=held_retry)
    running = asyncio.create_task(session.run())
    try:
        yield session
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def member(client: EtcdClient, prefix: str = "/p") -> LeasedEntry | None:
    for one in (await client.range(f"{prefix}/{KEY}".encode())).keys:
        return LeasedEntry(one.value, one.create_revision, one.mod_revision, one.lease)
    return None


async def gone(client: EtcdClient) -> None:
    """Wait until etcd has no member key of ours."""
    while await member(client) is not None:  # noqa: ASYNC110 - etcd brings it about
        await asyncio.sleep(0.002)


async def announced(client: EtcdClient, session: Session, prefix: str = "/p") -> LeasedEntry:
    """Our member key, as soon as it is there under the lease that the session has."""
    while True:
        entry = await member(client, prefix)
        if entry is not None and session.is_alive() and entry.lease == session.lease:
            return entry
        await asyncio.sleep(0.005)


def lost_at(session: Session) -> asyncio.Future[float]:
    """When it is told that it is lost."""
    lost: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def told(state: SessionState) -> None:
        if state is SessionState.LOST and not lost.done():
            lost.set_result(time.monotonic())

    session.on_state.append(told)
    return lost


def test_it_joins_with_a_lease_and_tells_the_revision(server: EtcdServer, prefix: str) -> None:
    async def main() -> None:
        async with EtcdClient([server.uri]) as client, session_of(client, prefix) as session:
            began = time.monotonic()
            assert (session.state, session.is_alive()) == (SessionState.JOINING, False)
            revision = await session.joined()
            assert session.is_alive()
            assert began + 20 <= session.deadline <= time.monotonic() + 20
            assert await member(client, prefix) == LeasedEntry(b"first", revision, revision, session.lease)

    run(main())


def test_the_value_changes_under_the_same_lease(server: EtcdServer, prefix: str) -> None:
    async def main() -> None:
        async with EtcdClient([server.uri]) as client, session_of(client, prefix) as session:
            made = await session.joined()
            changed = await session.update(b"exiting")
            assert changed > made
            assert await member(client, prefix) == LeasedEntry(b"exiting", made, changed, session.lease)
            session.touch()
            await until(lambda: session.revision > changed)
            entry = await member(client, prefix)
            assert entry == LeasedEntry(b"exiting", made, session.revision, session.lease)

    run(main())


def test_leaving_gives_the_lease_back_at_once(server: EtcdServer, prefix: str) -> None:
    async def main() -> None:
        async with EtcdClient([server.uri]) as client, session_of(client, prefix) as session:
            states = list[SessionState]()
            session.on_state.append(states.append)
            await session.joined()
            await session.leave()
            assert not session.is_alive()
            assert await member(client, prefix) is None
            assert states == [SessionState.ALIVE, SessionState.LEFT]
            with pytest.raises(EtcdError):
                await session.joined()

    run(main())


def test_a_key_of_another_lease_is_left_alone_until_it_goes(server: EtcdServer, prefix: str) -> None:
    async def main() -> None:
        async with EtcdClient([server.uri]) as client:
            twin = (await client.grant(60)).lease
            await client.commit(f"{prefix}/".encode(), [], [Put(KEY, b"twin", twin)])
            async with session_of(client, prefix) as session:
                await until(lambda: session.state is SessionState.HELD)
                await asyncio.sleep(0.3)
                entry = await member(client, prefix)
                assert entry is not None
                assert (entry.value, session.is_alive()) == (b"twin", False)
                await client.revoke(twin)
                await session.joined()
                entry = await member(client, prefix)
                assert entry is not None
                assert (entry.value, entry.lease) == (b"first", session.lease)

    run(main())


def test_the_lease_is_renewed_as_long_as_etcd_answers(server: EtcdServer, prefix: str) -> None:
    async def main() -> None:
        async with EtcdClient([server.uri]) as client, session_of(client, prefix, ttl=6) as session:
            states = list[SessionState]()
            revision = await session.joined()
            session.on_state.append(states.append)
            first = session.deadline
            await until(lambda: session.deadline > first + 0.5)
            assert session.is_alive()
            assert (states, session.revision) == ([], revision)

    run(main())


def test_the_deadline_counts_from_when_the_renewal_was_sent(own: EtcdServer) -> None:
    async def main(link: Proxy) -> None:
        async with EtcdClient([link.uri]) as client, session_of(client, ttl=2) as session:
            await session.joined()
            before = session.deadline
            await until(lambda: session.deadline > before)
            assert session.deadline <= time.monotonic() + 2 - 0.3

    with proxied(own.port, delay=0.15) as link:
        run(main(link))


def test_a_lease_that_is_not_renewed_is_lost_before_others_may_take_over(own: EtcdServer) -> None:
    async def main(link: Proxy) -> None:
        async with (
            EtcdClient([own.uri]) as direct,
            EtcdClient([link.uri], timeout=0.5) as client,
            session_of(client, ttl=1) as session,
        ):
            await session.joined()
            lost = lost_at(session)
            first = session.lease
            link.cut()
            await gone(direct)
            assert not session.is_alive()
            assert lost.result() < time.monotonic()
            link.heal()
            entry = await announced(direct, session)
            assert (entry.value, entry.lease != first) == (b"first", True)

    with proxied(own.port) as link:
        run(main(link))


def test_a_lease_that_outlived_etcds_trouble_goes_on(own: EtcdServer) -> None:
    """An etcd that starts again gives all leases their whole time."""

    async def main() -> None:
        # Long enough for the session to come back in time, however slow the machine.
        async with EtcdClient([own.uri], timeout=0.5) as client, session_of(client, ttl=5) as session:
            await session.joined()
            lease, before = session.lease, await announced(client, session)
            own.kill()
            await until(lambda: session.state is SessionState.LOST)
            assert not session.is_alive()
            await asyncio.to_thread(own.start)
            await until(session.is_alive)
            after = await announced(client, session)
            assert (after.lease, after.create_revision) == (lease, before.create_revision)

    run(main())


def test_a_lease_that_was_revoked_is_lost_and_replaced_with_the_last_value(
    server: EtcdServer, prefix: str
) -> None:
    async def main() -> None:
        async with EtcdClient([server.uri]) as client, session_of(client, prefix, ttl=2) as session:
            await session.joined()
            await session.update(b"exiting")
            states = list[SessionState]()
            # Whoever reacts by a change of the value must not have it announced under no lease.
            session.on_state += [states.append, lambda state: session.touch()]
            first = session.lease
            await client.revoke(first)
            await until(lambda: session.is_alive() and session.lease != first)
            assert (await announced(client, session, prefix)).value == b"exiting"
            assert states[0] is SessionState.LOST

    run(main())


def test_a_member_key_that_was_deleted_is_back_when_touched(server: EtcdServer, prefix: str) -> None:
    async def main() -> None:
        async with EtcdClient([server.uri]) as client, session_of(client, prefix) as session:
            revision = await session.joined()
            await client.commit(f"{prefix}/".encode(), [], [Delete(KEY)])
            session.touch()
            await until(lambda: session.revision > revision)
            entry = await member(client, prefix)
            assert entry is not None
            assert entry.lease == session.lease

    run(main())


def test_a_value_that_is_changed_during_an_outage_is_announced_after_it(own: EtcdServer) -> None:
    async def main(link: Proxy) -> None:
        async with (
            EtcdClient([own.uri]) as direct,
            EtcdClient([link.uri], timeout=0.3) as client,
            session_of(client) as session,
        ):
            await session.joined()
            link.cut()
            updating = asyncio.create_task(session.update(b"exiting"))
            await until(lambda: session.trouble is not None)
            assert not updating.done()
            link.heal()
            revision = await updating
            entry = await member(direct)
            assert entry is not None
            assert (entry.value, entry.mod_revision) == (b"exiting", revision)

    with proxied(own.port) as link:
        run(main(link))


_FROZEN = """
import asyncio, sys, time
from penstock.journal.cluster.etcd import EtcdClient
from penstock.journal.cluster.session import Session

async def main():
    async with EtcdClient([sys.argv[1]]) as client:
        session = Session(client, "/p", "members/zone#me", b"", ttl=1)
        running = asyncio.create_task(session.run())
        await session.joined()
        last = time.monotonic()
        session.on_state.append(lambda state: print(state.name, flush=True))
        print("READY", flush=True)
        while True:
            await asyncio.sleep(0)
            time.sleep(0.03)  # it is frozen here, so nothing runs before it looks
            now, alive = time.monotonic(), session.is_alive()
            if now - last > 1:  # as long as the lease
                print("ZOMBIE" if alive else "KNOWS", flush=True)
            last = now

asyncio.run(main())
"""


def test_a_process_that_was_frozen_beyond_its_lease_knows_at_once(own: EtcdServer) -> None:
    async def expired() -> None:
        async with EtcdClient([own.uri]) as client:
            await gone(client)

    with subprocess.Popen(
        [sys.executable, "-c", _FROZEN, own.uri],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=end_with_parent,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "READY\n"
            process.send_signal(signal.SIGSTOP)
            time.sleep(1.2)
            run(expired())
            process.send_signal(signal.SIGCONT)
            impatience = threading.Timer(30, process.kill)
            impatience.start()
            said = [process.stdout.readline().strip()]
            while said[-1] and {"KNOWS", "ALIVE"} - set(said):
                said.append(process.stdout.readline().strip())
            impatience.cancel()
        finally:
            process.kill()
    assert "ZOMBIE" not in said
    assert said.index("LOST") < said.index("ALIVE")


def test_brokers_agree_on_a_revision_after_one_of_them_has_missed_history(own: EtcdServer) -> None:
    """Its revision is that of its reading, which the others do not reach, but for the key that it touches."""

    async def main(link: Proxy) -> None:
        async with EtcdClient([own.uri]) as client, EtcdClient([link.uri]) as cut_off:
            ours, others = EtcdKeySpace(cut_off, "/p"), EtcdKeySpace(client, "/p")
            async with session_of(cut_off) as session:
                gaps = list[tuple[int, int]]()
                ours.on_gap += [session.touch, lambda: gaps.append((ours.revision, others.revision))]
                await ours.load(await session.joined())
                await others.load()
                following = [asyncio.create_task(one.run()) for one in (ours, others)]
                link.cut()
                made = await client.commit(b"/p/", [], [Put("items/a", b"")])
                await others.wait_for_revision(made.revision)
                await client.commit(b"/elsewhere/", [], [Put("b", b"")])
                await asyncio.to_thread(own.compact)
                await until(lambda: ours.health is Health.BEHIND)
                link.heal()
                await until(lambda: gaps)
                ((jumped_to, known_then),) = gaps
                assert known_then < jumped_to
                await others.wait_for_revision(jumped_to)
                await until(lambda: ours.revision == others.revision)
                assert dict(ours.under("")) == dict(others.under(""))
                for task in following:
                    task.cancel()
                await asyncio.gather(*following, return_exceptions=True)

    with proxied(own.port) as link:
        run(main(link))


def test_with_authentication_a_session_lives_through_a_restart(own: EtcdServer) -> None:
    async def main() -> None:
        async with EtcdClient([own.uri], user="root", password=PASSWORD) as client:
            space = EtcdKeySpace(client, "/p")
            async with session_of(client) as session:
                await space.load(await session.joined())
                following = asyncio.create_task(space.run())
                await asyncio.to_thread(own.restart)
                revision = await session.update(b"exiting")
                await space.wait_for_revision(revision)
                entry = space.get(KEY)
                assert entry is not None
                assert (entry.value, entry.lease) == (b"exiting", session.lease)
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    own.enable_authentication()
    run(main())
