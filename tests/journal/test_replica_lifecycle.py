"""The life of a journal at its broker: deleted, made again, closed, damaged, behind its store."""

from __future__ import annotations

import asyncio
import errno
import gc
import hashlib
import threading
from pathlib import Path

import pytest

from penstock.base.errors import CorruptError, PenstockError
from penstock.journal import stored
from penstock.journal.broker import Broker
from penstock.journal.datadir import DataDir
from penstock.journal.fragment import Fragment
from penstock.journal.protocol import (
    AppendRequest,
    ApplyRequest,
    JournalSpec,
    ListRequest,
    ReadRequest,
    Status,
)
from penstock.journal.stores import FragmentStore, Listed
from penstock.log.commitlog import journal_spec

from .brokers import (
    CLAIMS,
    JOURNAL,
    Gate,
    HookedDisk,
    Streaming,
    append,
    applied,
    content,
    create,
    delete,
    in_loop,
    open_files,
    opened,
    persisted,
    read,
    replica,
    spool_named,
    until,
)


def test_a_deleted_journal_ends_its_readers_and_refuses_its_appends(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            await append(broker, b"abc")
            blocked = asyncio.create_task(read(broker, ReadRequest(journal=JOURNAL, offset=3, block=True)))
            streaming, queued = Streaming(broker), Streaming(broker)
            streaming.send(b"half")
            await until(lambda: replica(broker).spool.delta > 0)
            deleting = asyncio.create_task(delete(broker, JOURNAL))
            assert await blocked == []
            streaming.send(b"more")
            for client in (streaming, queued):
                client.commit()
                await client.task
                assert client.machine.status == Status.JOURNAL_NOT_FOUND
            await deleting
            await create(broker, JOURNAL)
            assert await content(broker) == b"abc"

    in_loop(test)


def test_an_append_that_comes_to_its_turn_after_the_deletion_makes_no_file(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            await append(broker, b"a" * 1200)
            slot = replica(broker).pipeline_slot
            await slot.acquire()
            try:
                queued = Streaming(broker)
                queued.send(b"would begin the next fragment")
                queued.commit()
                await asyncio.sleep(0.01)
                deleting = asyncio.create_task(delete(broker, JOURNAL))
                await until(lambda: JOURNAL not in broker._replicas)
            finally:
                slot.release()
            await queued.task
            await deleting
            assert queued.machine.status == Status.JOURNAL_NOT_FOUND
            assert [path.name for path in broker.directory.spools(JOURNAL).iterdir()] == [spool_named(0)]

    in_loop(test)


def test_a_journal_deleted_and_made_again_keeps_what_was_acknowledged_meanwhile(tmp_path: Path) -> None:
    """The old replica must have let go of the files before the new one recovers from them."""

    async def test() -> None:
        gate = Gate()

        def slow_commit(step: str, path: Path) -> None:
            if step == "write" and threading.current_thread().name.startswith("commit"):
                gate.wait()

        async with opened(tmp_path / "data", disk := HookedDisk()) as broker:
            await append(broker, b"first ")
            disk.before = slow_commit
            adopted = asyncio.create_task(append(broker, b"second "))
            await until(gate.reached.is_set)
            deleting = asyncio.create_task(delete(broker, JOURNAL))
            making = asyncio.create_task(create(broker, JOURNAL))
            await asyncio.sleep(0.05)
            gate.open()
            await asyncio.gather(deleting, making)
            assert await adopted == (6, 13)
            assert await append(broker, b"third") == (13, 18)
            assert await content(broker) == b"first second third"

    in_loop(test)


def test_a_journal_is_not_let_go_while_a_fragment_of_it_is_being_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread reads from a file that must not be closed, and its number given to another, under it."""

    async def test() -> None:
        gate = Gate()

        def slow(step: str, path: Path) -> None:
            if step == "link":
                gate.wait()

        async with opened(tmp_path / "data", HookedDisk(slow)) as broker:
            await append(broker, b"a" * 1200)
            await append(broker, b"b")
            await until(gate.reached.is_set)
            deleting = asyncio.create_task(delete(broker, JOURNAL))
            await asyncio.sleep(0.1)
            assert not deleting.done()
            gate.open()
            await deleting
            await create(broker, JOURNAL)
            await persisted(broker)
            assert await content(broker) == b"a" * 1200 + b"b"
        assert not caplog.records

    in_loop(test)


def test_an_apply_whose_client_hangs_up_is_carried_out_whole(tmp_path: Path) -> None:
    async def test() -> None:
        gate = Gate()
        async with opened(tmp_path / "data", disk := HookedDisk()) as broker:
            await append(broker, b"abc")
            disk.before = lambda step, path: gate.wait() if step == "sync" else None
            adopted = asyncio.create_task(append(broker, b"def"))
            await until(gate.reached.is_set)
            disk.before = lambda step, path: None
            deleting = asyncio.create_task(delete(broker, JOURNAL))
            await asyncio.sleep(0.05)
            deleting.cancel()
            gate.open()
            await adopted
            await asyncio.gather(deleting, return_exceptions=True)
            assert JOURNAL not in broker._replicas
            assert not open_files(tmp_path) - {name for name in open_files(tmp_path) if "keyspace" in name}

    in_loop(test)


def test_closing_while_appends_run_leaves_no_task_thread_or_file(tmp_path: Path) -> None:
    async def test() -> None:
        threads = threading.active_count()
        async with opened(tmp_path / "data") as broker:
            appends = [asyncio.create_task(append(broker, b"%03d" % i * 200)) for i in range(20)]
            streaming = Streaming(broker)
            streaming.send(b"half")
            await appends[5]
            streaming.task.cancel()
        results = await asyncio.gather(*appends, return_exceptions=True)
        landed = [result for result in results if isinstance(result, tuple)]
        assert len(landed) >= 6
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert threading.active_count() <= threads
        assert not open_files(tmp_path)
        async with opened(tmp_path / "data") as broker:
            found = await content(broker)
            assert len(found) >= 600 * len(landed)
            assert len(found) % 600 == 0

    in_loop(test)


def test_a_damaged_journal_is_refused_by_name_and_the_others_are_served(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            await create(broker, "b/other")
            for journal in (JOURNAL, "b/other"):
                for chunk in (b"x" * 1200, b"y", b"z"):
                    await append(broker, chunk, journal)
                await persisted(broker, journal)
        damaged = tmp_path / "data/spools/b/other/#" / spool_named(1200)
        damaged.write_bytes(b"?" + damaged.read_bytes()[1:])
        async with opened(tmp_path / "data") as broker:
            with pytest.raises(CorruptError, match="borne out"):
                await append(broker, b"refused", "b/other")
            with pytest.raises(CorruptError, match="borne out"):
                await content(broker, "b/other")
            assert await content(broker) == b"x" * 1200 + b"yz"
            assert damaged.exists()

    in_loop(test)


def test_a_journal_whose_spool_cannot_be_read_is_refused_by_name_and_the_others_are_served(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            await create(broker, "b/other")
            await append(broker, b"fine")
            await append(broker, b"unreadable", "b/other")

        def fail(step: str, path: Path) -> None:
            if step == "open" and "b" in path.parts:
                raise OSError(errno.EIO, "Input/output error")

        async with opened(tmp_path / "data", HookedDisk(fail)) as broker:
            with pytest.raises(PenstockError, match="b/other: its spools cannot be read"):
                await append(broker, b"x", "b/other")
            assert await content(broker) == b"fine"

    in_loop(test)


def test_a_broker_that_cannot_open_lets_everything_go(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            await append(broker, b"x")
        threads = threading.active_count()

        def fail(step: str, path: Path) -> None:
            if step == "make_dir" or (step == "sync_dir" and path.name == "data"):
                raise OSError(errno.EIO, "Input/output error")

        directory = DataDir(tmp_path / "data")
        with pytest.raises(OSError, match="Input/output"):
            Broker(directory, directory.version(), HookedDisk(fail))
        gc.collect()
        assert threading.active_count() <= threads
        assert not open_files(tmp_path)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    in_loop(test)


def test_no_journal_is_opened_again_while_the_broker_closes(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            await append(broker, b"x")
            slot = replica(broker).pipeline_slot
            await slot.acquire()
            closing = asyncio.create_task(broker.close())
            await asyncio.sleep(0.01)
            spec = journal_spec(JOURNAL, 2048, {})
            change = ApplyRequest.Change(expect_mod_revision=-1, upsert=spec)
            await broker.apply(ApplyRequest(changes=[change]), CLAIMS)
            assert not broker._replicas
            slot.release()
            await closing

    in_loop(test)


def test_a_spool_that_somebody_took_away_ends_a_read_with_its_name(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            await append(broker, b"here today")
            path = replica(broker).local.path
            assert path is not None
            path.rename(tmp_path / "elsewhere")
            with pytest.raises(CorruptError, match=path.name):
                await content(broker)
            (tmp_path / "elsewhere").rename(path)
            assert await content(broker) == b"here today"

    in_loop(test)


def test_a_journal_is_not_fully_suspended_while_its_first_append_waits_for_the_disk(tmp_path: Path) -> None:
    async def test() -> None:
        gate = Gate()
        async with opened(tmp_path / "data", disk := HookedDisk()) as broker:
            disk.before = lambda step, path: (
                gate.wait()
                if step == "sync" and threading.current_thread().name.startswith("commit")
                else None
            )
            first = asyncio.create_task(append(broker, b"content"))
            await until(gate.reached.is_set)
            request = AppendRequest(journal=JOURNAL, suspend=AppendRequest.SUSPEND_NOW)
            suspending = asyncio.create_task(broker.append_whole(request, CLAIMS))
            await asyncio.sleep(0.05)
            gate.open()
            assert await first == (0, 7)
            assert (await suspending).status == Status.SUSPENDED
            assert replica(broker).spec.suspend.level == JournalSpec.Suspend.PARTIAL
            assert await content(broker) == b"content"

    in_loop(test)


def test_a_spool_that_got_lost_is_noticed_and_the_head_can_be_reset(tmp_path: Path) -> None:
    """The store reaches further than the spools: an append goes on behind it if its offset says so, or not."""

    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            await append(broker, b"a" * 1200)
            await append(broker, b"b")
            await persisted(broker)
        for spool in DataDir(tmp_path / "data").spools(JOURNAL).iterdir():
            spool.unlink()
        async with opened(tmp_path / "data") as broker:
            for offset, status in ((0, Status.INDEX_HAS_GREATER_OFFSET), (7, Status.WRONG_APPEND_OFFSET)):
                with pytest.raises(AssertionError, match=Status.Name(status)):
                    await append(broker, b"x", offset=offset)
            assert await append(broker, b"c", offset=1200) == (1200, 1201)
            assert await append(broker, b"d") == (1201, 1202)
            assert await content(broker) == b"a" * 1200 + b"cd"
        async with opened(tmp_path / "data") as broker:
            assert await content(broker) == b"a" * 1200 + b"cd"

    in_loop(test)


def test_an_empty_spool_that_the_store_has_overtaken_is_let_go(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            await append(broker, b"a" * 1200)
            given_up = Streaming(broker)
            given_up.send(b"begins the next fragment, and nothing comes of it")
            await until(lambda: replica(broker).spool.delta > 0)
            given_up.task.cancel()
            await persisted(broker)
        further = Fragment(JOURNAL, 1200, 1300, hashlib.sha1(b"b" * 100).digest())
        (tmp_path / "data/fragments" / further.content_path).write_bytes(b"b" * 100)
        async with opened(tmp_path / "data") as broker:
            assert await append(broker, b"c", offset=1300) == (1300, 1301)
            assert await content(broker) == b"a" * 1200 + b"b" * 100 + b"c"
            assert [path.name for path in broker.directory.spools(JOURNAL).iterdir()] == [spool_named(1300)]
            assert len([name for name in open_files(tmp_path) if ".spool" in name]) == 1

    in_loop(test)


def test_a_stored_fragment_that_is_damaged_or_gone_ends_a_read_with_its_name(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            await append(broker, b"a" * 1200)
            await append(broker, b"b")
            await persisted(broker)
            [stored] = (tmp_path / "data/fragments" / JOURNAL).iterdir()
            stored.write_bytes(b"a" * 700)
            with pytest.raises(PenstockError, match=f"{stored.name}, byte 700: the content ends here"):
                await content(broker)
            stored.unlink()
            with pytest.raises(FileNotFoundError, match=f"No such file.*{stored.name}"):
                await content(broker)

    in_loop(test)


def test_a_fragment_that_is_stored_while_the_store_is_listed_twice_at_once_stays_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a crash, when what was left is compared with the store, while the store is listed in any case."""

    async def test() -> None:
        listed, slow = threading.Event(), threading.Event()
        list_now = stored._list

        def list_slowly(store: FragmentStore, journal: str) -> list[Listed]:
            found = list_now(store, journal)
            if not listed.is_set():
                listed.set()
                assert slow.wait(60)
            return found

        async with opened(tmp_path / "data") as broker:
            await append(broker, b"a" * 1200)
            monkeypatch.setattr(stored, "_list", list_slowly)
            first = asyncio.create_task(replica(broker).refresh())
            await until(listed.is_set)
            second = asyncio.create_task(replica(broker).refresh())
            await asyncio.sleep(0.05)
            await append(broker, b"b")
            await persisted(broker)
            slow.set()
            await asyncio.gather(first, second)
            assert await content(broker) == b"a" * 1200 + b"b"

    in_loop(test)


def test_who_lets_a_journal_without_a_store_go_does_not_wait_for_it_to_be_stored(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            spec = journal_spec("no/store", 1024, {})
            del spec.fragment.stores[:]
            await applied(broker, ApplyRequest.Change(expect_mod_revision=-1, upsert=spec))
            for _ in range(2):
                await append(broker, b"a" * 1200, "no/store")
            assert len(replica(broker, "no/store")._persisting) == 1
            async with asyncio.timeout(10):
                await replica(broker, "no/store").persisted()

    in_loop(test)


def test_a_failed_apply_is_refused_in_words(tmp_path: Path) -> None:
    async def test() -> None:
        def fail(step: str, path: Path) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        async with opened(tmp_path / "data", disk := HookedDisk()) as broker:
            disk.before = fail
            with pytest.raises(OSError, match="No space left"):
                await create(broker, "b/other")
            disk.before = lambda step, path: None
            await create(broker, "b/other")
            assert await append(broker, b"x", "b/other") == (0, 1)

    in_loop(test)


def test_a_listing_under_way_is_not_disturbed_by_a_deletion(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            for number in range(60):
                await create(broker, f"many/{number:02d}")
            listing = broker.list(ListRequest(), CLAIMS)
            names = [journal.spec.name for journal in (await anext(listing)).journals]
            await delete(broker, "many/59")
            names += [journal.spec.name async for response in listing for journal in response.journals]
            assert names == [JOURNAL, *(f"many/{number:02d}" for number in range(60))]

    in_loop(test)
