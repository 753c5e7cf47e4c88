"""The batching appender: order, acknowledgements, back-pressure, outages, and when it gives up."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.base.errors import UsageError
from penstock.journal import labels
from penstock.journal.client import (
    Appended,
    Appender,
    AppenderFailedError,
    AppenderFullError,
    AsyncClient,
    Client,
    Pending,
    SyncAppender,
    claim,
    sending,
)
from penstock.journal.client import sending as sending_module
from penstock.journal.client.batching import GIVES_UP, MESSAGE_LIMIT
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.protocol import LabelSelector, Status
from penstock.log.commitlog import journal_spec

from .brokers import until
from .client_servers import (
    JOURNAL,
    MemoryBroker,
    lands,
    lost_after_landing,
    lost_before_landing,
    run,
    status,
)


def numbered(count: int, size: int = 16, begin: int = 0) -> list[bytes]:
    return [b"%0*d" % (size, number) for number in range(begin, begin + count)]


async def add_all(appender: Appender, records: list[bytes]) -> None:
    for record in records:
        await appender.ready()
        appender.add(record)


@asynccontextmanager
async def appending(broker: MemoryBroker, **options: Any) -> AsyncIterator[Appender]:
    async with AsyncClient(broker.address) as client, Appender(client, JOURNAL, **options) as appender:
        yield appender


def test_records_added_while_a_batch_is_under_way_share_the_next_one() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, appending(broker) as appender:
            records = numbered(1000)
            for record in records[:500]:
                appender.add(record)
            await asyncio.sleep(0)
            appender.add_many(records[500:])
            await appender.flush()
            assert bytes(broker.content) == b"".join(records)
            assert len(broker.appends) <= 3
            assert appender.committed == appender.added == 1000
            assert broker.calls == ["Appends"]

    run(test())


def test_each_record_is_told_where_it_landed() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, appending(broker, max_batch_bytes=50) as appender:
            told: list[tuple[int, int]] = []
            handles = []
            for record in numbered(20, 10):
                appender.add(record, lambda landed: told.append((landed.begin, landed.end)))
                handles.append(appender.append(b"h" * 5))
            places = [await handle for handle in handles]
            assert [(place.begin, place.end) for place in places] == [
                (15 * i + 10, 15 * i + 15) for i in range(20)
            ]
            await appender.flush()
            assert told == [(15 * i, 15 * i + 10) for i in range(20)]
            assert handles[0].done

    run(test())


def test_a_callback_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(landed: Appended) -> None:
        raise ValueError("mine")

    async def test() -> None:
        async with MemoryBroker() as broker, appending(broker) as appender:
            appender.add(b"one", fail)
            await appender.flush()
            appender.add(b"two")
            await appender.flush()
            assert bytes(broker.content) == b"onetwo"

    run(test())
    assert "a callback on commit failed" in caplog.text


def test_a_broker_without_the_batch_call_gets_one_append_after_another() -> None:
    async def test() -> None:
        async with MemoryBroker(ours=False) as broker, appending(broker, max_batch_bytes=100) as appender:
            records = numbered(50)
            appender.add_many(records)
            await appender.flush()
            assert bytes(broker.content) == b"".join(records)
            assert set(broker.calls) == {"Append"}
            appender.add(b"more")
            await appender.flush()
            assert bytes(broker.content).endswith(b"more")

    run(test())


def test_a_record_larger_than_a_message_is_streamed_between_the_others() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, appending(broker, max_batch_bytes=100) as appender:
            large = b"L" * (MESSAGE_LIMIT + 5)
            for record in (b"x" * 100, large, b"y" * 100, b"z"):
                appender.add(record)
            await appender.flush()
            assert bytes(broker.content) == b"x" * 100 + large + b"y" * 100 + b"z"
            assert sorted(broker.calls) == ["Append", "Appends"]

    run(test())


@pytest.mark.parametrize("ours", [True, False])
def test_after_a_lost_connection_all_is_sent_again_in_order_and_at_least_once(ours: bool) -> None:
    async def test() -> None:
        async with MemoryBroker(ours=ours) as broker:
            broker.outcomes.extend([lands, lost_after_landing, lost_before_landing])
            async with appending(broker, max_batch_bytes=32) as appender:
                records = numbered(10)
                appender.add_many(records)
                await appender.flush()
            pairs = [b"".join(records[at : at + 2]) for at in range(0, 10, 2)]
            # In one message they share their fate: the answer to the first is lost with that to the second.
            assert broker.appends == [pairs[0], pairs[1], *(pairs if ours else pairs[1:])]

    run(test())


@pytest.mark.parametrize("ours", [True, False])
def test_with_an_owner_each_record_lands_exactly_once_whatever_is_lost(ours: bool) -> None:
    async def test() -> None:
        async with MemoryBroker(ours=ours) as broker, AsyncClient(broker.address) as client:
            owner = await claim(client, JOURNAL, "one", b"<claim>")
            broker.outcomes.extend([lands, lost_after_landing])  # batches
            broker.outcomes.extend([lands, lost_after_landing])  # the barrier, and the new claim
            broker.outcomes.extend([lands, lands, lost_before_landing])  # barrier, claim, batch
            async with Appender(client, JOURNAL, owner=owner, max_batch_bytes=32) as appender:
                records = numbered(10)
                appender.add_many(records)
                await appender.flush()
                assert appender.owner is not None
                assert appender.owner.epoch == 4
            content = bytes(broker.content)
            assert content.replace(b"<claim>", b"") == b"".join(records)
            assert content.count(b"<claim>") == 4

    run(test())


def test_an_owner_that_was_replaced_stops_and_says_so() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            owner = await claim(client, JOURNAL, "one", b"<1>")
            async with Appender(client, JOURNAL, owner=owner) as appender:
                appender.add(b"mine")
                await appender.flush()
                await claim(client, JOURNAL, "two", b"<2>")
                appender.add(b"late")
                with pytest.raises(
                    AppenderFailedError, match=r"claimed by another owner .*two/2; ours is one/1"
                ):
                    await appender.flush()
                with pytest.raises(AppenderFailedError):
                    appender.add(b"later")
                assert list(appender.unacknowledged()) == [b"late"]
            assert bytes(broker.content) == b"<1>mine<2>"

    with pytest.raises(AppenderFailedError):
        run(test())


@pytest.mark.parametrize("value", Status.values())
@pytest.mark.parametrize("checked", [False, True])
def test_statuses_that_no_waiting_mends_end_it_at_once_and_others_do_not(value: int, checked: bool) -> None:
    if value == Status.OK:
        return
    check = LabelSelector(include=labels.label_set({"ready": "yes"})) if checked else None

    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            broker.outcomes.append(status(value))
            appender = Appender(client, JOURNAL, check=check)
            await appender.__aenter__()
            appender.add(b"record")
            if value in GIVES_UP and not checked:
                with pytest.raises(AppenderFailedError, match=Status.Name(value)) as caught:
                    await appender.flush()
                assert (caught.value.first, caught.value.count, caught.value.in_doubt) == (0, 1, 0)
                assert not broker.appends
            else:
                await appender.flush()
                assert broker.appends == [b"record"]
            await appender.close()

    run(test())


def test_an_outage_is_ridden_out_with_records_in_files(tmp_path: Path) -> None:
    async def test() -> None:
        broker = MemoryBroker()
        records = numbered(3000, 100)
        async with broker:
            address = broker.address
        async with AsyncClient(address) as client:
            limits = {"max_batch_bytes": 1000, "max_pending_bytes": 4000}
            async with Appender(client, JOURNAL, spill_dir=tmp_path, outage_limit=15, **limits) as appender:  # type: ignore[arg-type]
                for record in records:
                    appender.add(record)
                    await appender.ready()
                assert appender.pending_bytes == 300_000
                assert appender._batches.memory <= 5000
                async with MemoryBroker(port=broker.port) as back:
                    await appender.flush()
                    assert bytes(back.content) == b"".join(records)
                assert appender._spill is not None
                assert appender._spill.size == 0

    run(test())


def test_an_outage_beyond_its_limit_fails_and_says_which_records_are_not_acknowledged() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            appender = Appender(client, JOURNAL, outage_limit=0.3)
            await appender.__aenter__()
            appender.add_many(numbered(7))
            await appender.flush()
            broker.outcomes.extend([lost_before_landing] * 1000)
            lost = appender.append(b"lost")
            appender.add(b"lost too")
            with pytest.raises(
                AppenderFailedError,
                match=r"gave up after 0\.3 s .*2 records from number 7 on are not acknowledged, "
                "the first 2 of which may have landed",
            ) as caught:
                await appender.flush()
            assert (caught.value.first, caught.value.count, caught.value.in_doubt) == (7, 2, 2)
            with pytest.raises(AppenderFailedError):
                await lost
            with pytest.raises(AppenderFailedError):
                await appender.ready()
            assert list(appender.unacknowledged()) == [b"lost", b"lost too"]
            await appender.close()

    run(test())


def test_more_than_may_be_spilled_in_an_outage_fails(tmp_path: Path) -> None:
    async def test() -> None:
        async with MemoryBroker() as gone:
            address = gone.address
        async with AsyncClient(address) as client:
            appender = Appender(
                client,
                JOURNAL,
                max_batch_bytes=100,
                max_pending_bytes=200,
                spill_dir=tmp_path,
                spill_limit=1000,
            )
            await appender.__aenter__()
            appender.add(b"first")
            await until(lambda: appender._trouble_since is not None)
            records = numbered(50, 100)
            with pytest.raises(AppenderFailedError, match="the broker is away, and more than 1000 bytes"):
                await add_all(appender, records)
            kept = list(appender.unacknowledged())
            assert 10 < len(kept) < 20
            assert kept == [b"first", *records][: len(kept)]
            await appender.close()
            appender.discard()

    run(test())


def test_without_files_ready_waits_and_add_refuses_at_twice_the_limit() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            async with Appender(client, JOURNAL, max_batch_bytes=100, max_pending_bytes=1000) as appender:
                with pytest.raises(AppenderFullError):
                    deque(map(appender.add, numbered(100, 100)))
                taken = appender.added
                assert 19 <= taken <= 21
                await appender.ready()
                assert appender.pending_bytes < 1000
                await appender.flush()
                appender.add(b"again")
            assert len(broker.content) == taken * 100 + 5

    run(test())


def test_a_full_disk_brings_back_pressure_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            options = {"max_batch_bytes": 100, "max_pending_bytes": 1000}
            async with Appender(client, JOURNAL, spill_dir=tmp_path, **options) as appender:  # type: ignore[arg-type]
                monkeypatch.setattr("penstock.journal.client.spill.os.pwrite", full)
                records = numbered(15, 100)
                for record in records:
                    appender.add(record)
                assert appender._spill is not None
                assert not appender._spill.works
                await appender.flush()
            assert bytes(broker.content) == b"".join(records)

    run(test())


def test_a_refused_token_is_tried_until_the_limit_and_nothing_is_in_doubt() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            broker.refuses = grpc.StatusCode.UNAUTHENTICATED
            appender = Appender(client, JOURNAL, outage_limit=0.2)
            await appender.__aenter__()
            appender.add(b"x")
            with pytest.raises(AppenderFailedError, match="refused the authorization") as caught:
                await appender.flush()
            assert caught.value.in_doubt == 0
            await appender.close()

    run(test())


def test_a_stream_that_nobody_uses_is_ended_and_a_new_one_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending_module, "IDLE", 0.1)

    async def test() -> None:
        async with MemoryBroker() as broker, appending(broker) as appender:
            appender.add(b"one")
            await appender.flush()
            await asyncio.sleep(0.3)
            appender.add(b"two")
            await appender.flush()
            assert broker.calls == ["Appends", "Appends"]
            assert bytes(broker.content) == b"onetwo"

    run(test())


def test_an_answer_that_never_comes_counts_as_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending_module, "ANSWER_TIMEOUT", 0.2)

    async def test() -> None:
        async with MemoryBroker() as broker, appending(broker) as appender:
            broker.hangs = 1
            appender.add(b"one")
            await appender.flush()
            assert broker.calls == ["Appends", "Appends"]
            assert bytes(broker.content) == b"one"

    run(test())


def test_leaving_by_an_error_does_not_wait_and_closing_says_what_is_lost() -> None:
    handles: list[Pending] = []

    async def leave(broker: MemoryBroker) -> None:
        async with appending(broker) as appender:
            handles.append(appender.append(b"x"))
            await asyncio.sleep(0)
            raise ZeroDivisionError

    async def test() -> None:
        async with MemoryBroker() as broker:
            broker.outcomes.extend([lost_before_landing] * 1000)
            with pytest.raises(ZeroDivisionError):
                await leave(broker)
            with pytest.raises(AppenderFailedError, match="the appender was closed"):
                await handles[0]

    run(test())


def test_an_appender_is_used_within_its_block_and_limits_make_sense() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            appender = Appender(client, JOURNAL)
            with pytest.raises(UsageError, match="not open"):
                appender.add(b"x")
            async with appender:
                appender.add(b"x")
            with pytest.raises(UsageError, match="closed"):
                appender.add(b"x")
            with pytest.raises(UsageError, match="max_batch_bytes"):
                Appender(client, JOURNAL, max_batch_bytes=10, max_pending_bytes=5)

    run(test())


def test_threads_share_an_appender_over_the_embedded_brokers_socket(
    broker: EmbeddedBroker, client: Client
) -> None:
    client.create(journal_spec("from/threads", 1 << 20, {}))
    told: list[Appended] = []

    def produce(appender: SyncAppender, name: int) -> None:
        for number in range(5000):
            appender.add(b"%d:%06d\n" % (name, number))

    with SyncAppender(client, "from/threads", max_pending_bytes=1 << 20) as appender:
        threads = [threading.Thread(target=produce, args=(appender, name)) for name in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        appender.add(b"last\n", told.append)
        appender.flush()
        assert appender.committed == appender.added == 15001
    lines = client.read_bytes("from/threads", 0, 0).splitlines()
    for name in range(3):
        own = [line for line in lines if line.startswith(b"%d:" % name)]
        assert own == [b"%d:%06d" % (name, number) for number in range(5000)]
    assert lines[-1] == b"last"
    assert told[0].end == client.head("from/threads")


def test_an_owner_of_threads_claims_first(client: Client) -> None:
    client.create(journal_spec("owned/one", 1 << 20, {}))
    with SyncAppender(client, "owned/one", owner="a", claim_record=b"<a>") as appender:
        appender.add(b"record")
    assert client.read_bytes("owned/one", 0, 0) == b"<a>record"


def test_what_fails_when_a_thread_opens_is_raised_there(client: Client) -> None:
    appender = SyncAppender(client, "no/such/journal", owner="a", claim_record=b"<a>")
    with pytest.raises(Exception, match="JOURNAL_NOT_FOUND"), appender:
        pass
    with pytest.raises(UsageError, match="not open"):
        appender.add_many([b"x"])


SERVE = """
import sys, time
from pathlib import Path
from penstock.journal.embedded import EmbeddedBroker
broker = EmbeddedBroker(Path(sys.argv[1]))
print(broker.address, flush=True)
time.sleep(600)
"""


class Process:
    """A broker in a process of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-c", SERVE, str(self._path)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def kill_and_start(self) -> None:
        self.kill()
        self.start()


@pytest.mark.parametrize("fenced", [True, False])
def test_a_broker_that_is_killed_under_load_has_every_record_in_order(tmp_path: Path, fenced: bool) -> None:
    records = [b"%07d\n" % number for number in range(12_000)]
    broker = Process(tmp_path / "data")

    async def produce() -> None:
        async with AsyncClient(broker.address) as client:
            await client.create(journal_spec(JOURNAL, 1 << 16, {}))
            owner = await claim(client, JOURNAL, "producer", b"-------\n") if fenced else None
            limits = {"max_batch_bytes": 500, "max_pending_bytes": 20_000}
            async with Appender(client, JOURNAL, owner=owner, **limits) as appender:  # type: ignore[arg-type]
                restart = None
                for at in range(0, len(records), 50):
                    appender.add_many(records[at : at + 50])
                    await appender.ready()
                    if at == 6000:
                        restart = asyncio.create_task(asyncio.to_thread(broker.kill_and_start))
                assert restart is not None
                await restart

    try:
        run(produce())
        with Client(broker.address) as client:
            lines = client.read_bytes(JOURNAL, 0, 0).splitlines(keepends=True)
    finally:
        broker.kill()
    landed = [line for line in lines if not line.startswith(b"-")]
    if fenced:
        assert landed == records
        assert len(lines) > len(records) + 1, "the claim was not renewed, so nothing was in doubt"
    else:
        assert list(dict.fromkeys(landed)) == records


@pytest.mark.parametrize("ours", [True, False])
def test_a_session_under_constant_load_is_replaced_and_nothing_comes_twice(
    monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    monkeypatch.setattr(sending, "LIFE", 0.05)

    async def test() -> None:
        async with MemoryBroker(ours=ours) as broker, appending(broker, max_batch_bytes=64) as appender:
            records = numbered(3000)
            for at in range(0, len(records), 10):
                appender.add_many(records[at : at + 10])
                await appender.ready()
                await asyncio.sleep(0.001)
            await appender.flush()
            assert b"".join(broker.appends) == b"".join(records)

    run(test())
