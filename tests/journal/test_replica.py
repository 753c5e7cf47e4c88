"""A journal under stress from inside: cancelled appends, failing disks, deletion, threads that are slow."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.base.errors import CorruptError, PenstockError
from penstock.journal import append as append_module
from penstock.journal.append import AppendMachine, AppendStreamError
from penstock.journal.broker import Broker
from penstock.journal.datadir import DataDir
from penstock.journal.protocol import AppendRequest, ReadRequest, Status
from penstock.journal.replica import JournalFailedError
from penstock.journal.spoolfile import RegistersTooLargeError

from .brokers import (
    JOURNAL,
    Gate,
    HookedDisk,
    RefusedError,
    append,
    content,
    create,
    delete,
    in_loop,
    opened,
    persisted,
    read,
    replica,
    until,
)


class Streaming:
    """A client that sends when the test says so."""

    def __init__(self, broker: Broker, journal: str = JOURNAL) -> None:
        self._messages: asyncio.Queue[AppendRequest | None] = asyncio.Queue()
        self.machine = AppendMachine(AppendRequest(journal=journal), self._stream(), broker._replicas.get)
        self.task = asyncio.create_task(self.machine.run())

    async def _stream(self) -> AsyncIterator[AppendRequest]:
        while (message := await self._messages.get()) is not None:
            yield message

    def send(self, *chunks: bytes) -> None:
        for chunk in chunks:
            self._messages.put_nowait(AppendRequest(content=chunk))

    def commit(self) -> None:
        self._messages.put_nowait(AppendRequest())
        self._messages.put_nowait(None)


def spool_named(begin: int) -> str:
    return f"{begin:016x}.spool"


def test_an_append_cancelled_while_the_fragment_rolls_harms_no_later_one(tmp_path: Path) -> None:
    """The thread that makes the next file cannot be cancelled; nobody may append before it has ended."""

    async def test() -> None:
        gate = Gate()
        makers: list[threading.Thread] = []

        def slow(step: str, path: Path) -> None:
            if step == "open" and path.name == spool_named(1200):
                makers.append(threading.current_thread())
                if len(makers) == 1:
                    gate.wait()

        async with opened(tmp_path / "data", HookedDisk(slow)) as broker:
            await append(broker, b"a" * 1200)
            given_up = asyncio.create_task(append(broker, b"b" * 100))
            await until(gate.reached.is_set)
            given_up.cancel()
            later = asyncio.create_task(append(broker, b"c" * 100))
            await asyncio.sleep(0.1)
            gate.open()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            assert await later == (1200, 1300)
        async with opened(tmp_path / "data") as broker:
            assert await content(broker) == b"a" * 1200 + b"c" * 100

    in_loop(test)


def test_an_append_cancelled_while_it_waits_for_the_disk_is_in_the_journal(tmp_path: Path) -> None:
    async def test() -> None:
        gate = Gate()

        async with opened(tmp_path / "data", disk := HookedDisk()) as broker:
            await append(broker, b"before")
            disk.before = lambda step, path: gate.wait() if step == "sync" else None
            given_up = asyncio.create_task(append(broker, b"in doubt"))
            await until(gate.reached.is_set)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            later = asyncio.create_task(append(broker, b"after"))
            gate.open()
            assert await later == (14, 19)
            assert await content(broker) == b"beforein doubtafter"
            assert not replica(broker)._waiting

    in_loop(test)


def test_an_append_cancelled_in_its_stream_gives_the_pipeline_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            half = Streaming(broker)
            half.send(b"half of ")
            waiting = [asyncio.create_task(append(broker, b"%d" % i)) for i in range(3)]
            await until(lambda: replica(broker).spool.delta > 0)
            waiting[1].cancel()
            half.task.cancel()
            await asyncio.gather(half.task, waiting[1], return_exceptions=True)
            assert [await waiting[0], await waiting[2]] == [(0, 1), (1, 2)]
            assert await content(broker) == b"02"

    in_loop(test)


def test_a_roll_waits_for_the_flush_under_way(tmp_path: Path) -> None:
    async def test() -> None:
        gate = Gate()

        async with opened(tmp_path / "data", disk := HookedDisk()) as broker:
            await append(broker, b"a" * 600)
            disk.before = lambda step, path: gate.wait() if step == "sync" else None
            flushing = asyncio.create_task(append(broker, b"b" * 600))
            await until(gate.reached.is_set)
            rolling = asyncio.create_task(append(broker, b"c" * 600))
            await asyncio.sleep(0.05)
            assert replica(broker).spool.fragment.begin == 0
            gate.open()
            assert await flushing == (600, 1200)
            assert await rolling == (1200, 1800)
            assert replica(broker).spool.fragment.begin == 1200

    in_loop(test)


def test_registers_too_large_for_a_record_are_refused_and_the_journal_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            await append(broker, b"before", keep="me")
            with pytest.raises(RegistersTooLargeError):
                await append(broker, b"refused", **{f"name-{i}": "v" * 1000 for i in range(70)})
            assert await append(broker, b"after") == (6, 11)
            assert await content(broker) == b"beforeafter"
            assert [label.name for label in replica(broker).spool.registers.labels] == ["keep"]

    in_loop(test)


def test_any_failure_of_a_flush_reaches_those_who_wait(tmp_path: Path) -> None:
    async def test() -> None:
        def surprise(step: str, path: Path) -> None:
            if step == "sync":
                raise RuntimeError("not even an OSError")

        async with opened(tmp_path / "data", disk := HookedDisk()) as broker:
            await append(broker, b"before")
            disk.before = surprise
            with pytest.raises(JournalFailedError, match="not even an OSError"):
                await append(broker, b"in doubt")
            with pytest.raises(JournalFailedError):
                await append(broker, b"refused")
            assert await content(broker) == b"before"

    in_loop(test)


@pytest.mark.parametrize("step", ["make_dir", "open", "write", "sync", "sync_dir"])
def test_a_roll_that_fails_at_any_step_refuses_the_append_and_the_next_one_rolls(
    tmp_path: Path, step: str
) -> None:
    async def test() -> None:
        failures = []

        def fail(taken: str, path: Path) -> None:
            if taken == step and not failures and ("#" in path.parts or step == "make_dir"):
                failures.append(path)
                raise OSError(errno.ENOSPC, "No space left on device")

        before = b"" if step == "make_dir" else b"a" * 1200
        async with opened(tmp_path / "data", disk := HookedDisk()) as broker:
            if before:
                await append(broker, before)
            descriptors = open_files()
            disk.before = fail
            with pytest.raises(OSError, match="No space"):
                await append(broker, b"refused")
            assert len(failures) == 1
            assert open_files() == descriptors
            assert await append(broker, b"next") == (len(before), len(before) + 4)
            await persisted(broker)
            assert await content(broker) == before + b"next"
        async with opened(tmp_path / "data") as broker:
            assert await content(broker) == before + b"next"

    in_loop(test)


def open_files() -> set[str]:
    """What this process has open below a data directory."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if "/data/" in target:
            found.add(f"{fd} {target}")
    return found


@pytest.mark.parametrize("step", ["make_dir", "open", "write", "sync", "rename", "sync_dir", "remove"])
def test_storing_a_fragment_survives_a_failure_of_any_step(tmp_path: Path, step: str) -> None:
    async def test() -> None:
        failures: list[Path] = []

        def fail(taken: str, path: Path) -> None:
            place = "#" if step == "remove" else "fragments"
            if taken == step and place in path.parts and not failures:
                failures.append(path)
                raise OSError(errno.EIO, "Input/output error")

        async with opened(tmp_path / "data", disk := HookedDisk()) as broker:
            await append(broker, b"a" * 1200)
            disk.before = fail
            await append(broker, b"b" * 1200)
            await persisted(broker)
            await append(broker, b"c")
            await persisted(broker)
            assert len(failures) == 1
            assert await content(broker) == b"a" * 1200 + b"b" * 1200 + b"c"
            assert not [path for path in (tmp_path / "data/fragments").rglob("*partial*")]
        async with opened(tmp_path / "data") as broker:
            await persisted(broker)
            assert await content(broker) == b"a" * 1200 + b"b" * 1200 + b"c"
            assert len(list(broker._directory.spools(JOURNAL).iterdir())) == 1

    in_loop(test)


def test_fragments_that_are_slow_to_store_do_not_hold_appends_up(tmp_path: Path) -> None:
    async def test() -> None:
        gate = Gate()

        def slow(step: str, path: Path) -> None:
            if step == "rename" and "fragments" in path.parts:
                gate.wait()

        async with opened(tmp_path / "data", HookedDisk(slow)) as broker:
            for number in range(12):
                journal = f"slow/{number}"
                await create(broker, journal)
                await append(broker, b"x" * 1200, journal)
                await append(broker, b"y", journal)
            await until(gate.reached.is_set)
            async with asyncio.timeout(5):
                assert await append(broker, b"on time") == (0, 7)
            gate.open()

    in_loop(test)


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


def test_a_journal_deleted_and_made_again_keeps_what_was_acknowledged_meanwhile(tmp_path: Path) -> None:
    """The old replica must have let go of the files before the new one recovers from them."""

    async def test() -> None:
        gate = Gate()
        async with opened(tmp_path / "data", disk := HookedDisk()) as broker:
            await append(broker, b"first ")
            disk.before = lambda step, path: (
                gate.wait() if step == "sync" and not gate.reached.is_set() else None
            )
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
            assert not open_files() - {name for name in open_files() if "keyspace" in name}

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
        assert threading.active_count() == threads
        assert not open_files()
        async with opened(tmp_path / "data") as broker:
            found = await content(broker)
            assert len(found) >= 600 * len(landed)
            assert len(found) % 600 == 0

    in_loop(test)


def test_a_broker_that_cannot_open_lets_everything_go(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            await create(broker, "b/other")
            for journal in (JOURNAL, "b/other"):
                for chunk in (b"x" * 1200, b"y", b"z"):
                    await append(broker, chunk, journal)
                await persisted(broker, journal)
        damaged = tmp_path / "data/spools/b/other/#" / spool_named(1200)
        damaged.write_bytes(damaged.read_bytes()[:-2])
        threads = threading.active_count()
        with pytest.raises(CorruptError, match="borne out"):
            async with opened(tmp_path / "data"):
                pass
        gc.collect()
        assert threading.active_count() == threads
        assert not open_files()
        assert asyncio.all_tasks() == {asyncio.current_task()}

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


def test_a_client_that_trickles_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_module, "STALL_LIMIT", 0.3)

    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            slow = Streaming(broker)

            async def trickle() -> None:
                while not slow.task.done():
                    slow.send(b"x")
                    await asyncio.sleep(0.1)

            trickling = asyncio.create_task(trickle())
            with pytest.raises(AppendStreamError, match="minimum append data rate"):
                await slow.task
            await trickling
            assert await append(broker, b"after") == (0, 5)

    in_loop(test)


def test_a_stored_fragment_that_is_damaged_or_gone_ends_a_read_with_its_name(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            await append(broker, b"a" * 1200)
            await append(broker, b"b")
            await persisted(broker)
            [stored] = (tmp_path / "data/fragments" / JOURNAL).iterdir()
            stored.write_bytes(b"a" * 700)
            with pytest.raises(RefusedError, match=f"{stored.name}, byte 700: the file ends here"):
                await content(broker)
            stored.unlink()
            with pytest.raises(RefusedError, match=f"No such file.*{stored.name}"):
                await content(broker)

    in_loop(test)


def test_a_failed_apply_is_refused_in_words(tmp_path: Path) -> None:
    async def test() -> None:
        def fail(step: str, path: Path) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        async with opened(tmp_path / "data", disk := HookedDisk()) as broker:
            disk.before = fail
            with pytest.raises(RefusedError, match="No space left"):
                await create(broker, "b/other")
            disk.before = lambda step, path: None
            await create(broker, "b/other")
            assert await append(broker, b"x", "b/other") == (0, 1)

    in_loop(test)


def test_a_failed_journal_says_so_and_comes_back_with_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        def fail(step: str, path: Path) -> None:
            if step == "sync":
                raise OSError(errno.EIO, "Input/output error")

        async with opened(tmp_path / "data", disk := HookedDisk()) as broker:
            await append(broker, b"before")
            disk.before = fail
            results = await asyncio.gather(
                *(append(broker, b"%d" % i) for i in range(5)), return_exceptions=True
            )
            assert all(isinstance(result, PenstockError) for result in results)
            disk.before = lambda step, path: None
            with pytest.raises(JournalFailedError, match="nothing more is accepted"):
                await append(broker, b"refused")
            with pytest.raises(JournalFailedError):
                await append(broker, b"")
        async with opened(tmp_path / "data") as broker:
            assert (await content(broker)).startswith(b"before")
            await append(broker, b"after")

    in_loop(test)
