"""Appends to a journal from inside: cancelled, refused, failing at each step of the disk, held up by others."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from fnmatch import fnmatch
from pathlib import Path

import psutil
import pytest

from penstock.base.errors import PenstockError
from penstock.journal import localspool, spoollayout
from penstock.journal.append import AppendStreamError
from penstock.journal.batches import QUIET
from penstock.journal.broker import BrokerOptions
from penstock.journal.flow import FlowLimits
from penstock.journal.fragment import Codec
from penstock.journal.localspool import JournalFailedError
from penstock.journal.protocol import (
    AppendBatch,
    AppendBatchResult,
    AppendRequest,
    ApplyRequest,
    TrimRequest,
)
from penstock.journal.spoolrecord import RegistersTooLargeError
from penstock.journal.stores import FileStore
from penstock.log.commitlog import journal_spec

from .brokers import (
    CLAIMS,
    JOURNAL,
    Gate,
    HookedDisk,
    Streaming,
    append,
    applied,
    as_earlier,
    content,
    create,
    in_loop,
    open_files,
    opened,
    persisted,
    replica,
    spool_named,
    until,
)


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
            assert not replica(broker).local._waiting

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
            await append(broker, b"before", registers={"keep": "me"})
            with pytest.raises(RegistersTooLargeError):
                await append(broker, b"refused", registers={f"name-{i}": "v" * 1000 for i in range(70)})
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
        failures: list[Path] = []

        def fail(taken: str, path: Path) -> None:
            if taken == step and not failures and ("#" in path.parts or step == "make_dir"):
                failures.append(path)
                raise OSError(errno.ENOSPC, "No space left on device")

        before = b"" if step == "make_dir" else b"a" * 1200
        async with opened(tmp_path / "data", disk := HookedDisk()) as broker:
            await append(broker, before)
            descriptors = open_files(tmp_path)
            disk.before = fail
            with pytest.raises(OSError, match="No space"):
                await append(broker, b"refused")
            assert len(failures) == 1
            assert open_files(tmp_path) == descriptors
            assert await append(broker, b"next") == (len(before), len(before) + 4)
            await persisted(broker)
            assert await content(broker) == before + b"next"
        async with opened(tmp_path / "data") as broker:
            assert await content(broker) == before + b"next"

    in_loop(test)


AS_IT_IS = (
    ("rename", "*/#/*.whole.spool"),
    ("sync_dir", "*/#"),
    ("open", "*/#/*.whole.spool"),
    ("sync", "*/#/*.whole.spool"),
    ("make_dir", "*/fragments/*"),
    ("link", "*/fragments/*"),
    ("sync_dir", "*/fragments/*"),
    ("remove", "*/#/*"),
)
COPIED = (
    ("make_dir", "*/fragments/*"),
    ("open", "*/fragments/*"),
    ("write", "*/fragments/*"),
    ("sync", "*/fragments/*"),
    ("rename", "*/fragments/*"),
    ("sync_dir", "*/fragments/*"),
    ("remove", "*/#/*"),
)


@pytest.mark.parametrize(
    ("codec", "step", "where"),
    [*((Codec.NONE, *at) for at in AS_IT_IS), *((Codec.GZIP, *at) for at in COPIED)],
)
def test_storing_a_fragment_survives_a_failure_of_any_step(
    tmp_path: Path, codec: Codec, step: str, where: str
) -> None:
    """Of one that goes into the store as it is, and of one that is compressed."""

    async def test() -> None:
        failures: list[Path] = []
        closed: list[Path] = []

        def fail(taken: str, path: Path) -> None:
            if taken == "rename":
                closed.append(path)
            early = where == "*/#" and not closed  # the next spool is made first, in the same directory
            if taken == step and fnmatch(path, where) and not early and not failures:
                failures.append(path)
                raise OSError(errno.EIO, "Input/output error")

        async with opened(tmp_path / "data", disk := HookedDisk()) as broker:
            spec = journal_spec(JOURNAL, 1024, {})
            spec.fragment.compression_codec = codec.to_proto()
            await applied(broker, ApplyRequest.Change(expect_mod_revision=-1, upsert=spec))
            await append(broker, b"a" * 1200)
            disk.before = fail
            await append(broker, b"b" * 1200)
            await persisted(broker)
            await append(broker, b"c")
            await persisted(broker)
            assert len(failures) == 1
            assert await content(broker) == b"a" * 1200 + b"b" * 1200 + b"c"
            assert not list((tmp_path / "data/fragments").rglob("*partial*"))
        async with opened(tmp_path / "data") as broker:
            await persisted(broker)
            assert await content(broker) == b"a" * 1200 + b"b" * 1200 + b"c"
            assert len(list(broker.directory.spools(JOURNAL).iterdir())) == 1

    in_loop(test)


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
def test_where_files_have_no_second_names_fragments_are_copied(tmp_path: Path, number: int) -> None:
    async def test() -> None:
        def cannot(step: str, path: Path) -> None:
            if step == "link":
                raise OSError(number, "there are none here")

        async with opened(tmp_path / "data", HookedDisk(cannot)) as broker:
            await append(broker, b"a" * 1200)
            await append(broker, b"b")
            await persisted(broker)
            assert [entry.fragment.is_local for entry in replica(broker).index] == [False, True]
            assert await content(broker) == b"a" * 1200 + b"b"
            assert len(list(broker.directory.spools(JOURNAL).iterdir())) == 1

    in_loop(test)


def test_a_fragment_in_a_store_elsewhere_is_copied_from_the_spool_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(FileStore, "can_adopt", lambda store, file: False)

    async def test() -> None:
        steps: list[str] = []
        async with opened(tmp_path / "data", HookedDisk(lambda step, path: steps.append(step))) as broker:
            await append(broker, b"a" * 1200)
            await append(broker, b"b")
            await persisted(broker)
            assert await content(broker) == b"a" * 1200 + b"b"
        assert "link" not in steps
        assert steps.count("rename") == 2, "of the copy, and of the directory's version"

    in_loop(test)


@pytest.mark.parametrize("awaited", ["open", "sync", "link"])
def test_a_reader_finds_a_fragment_at_every_step_of_its_way_into_the_store(
    tmp_path: Path, awaited: str
) -> None:
    async def test() -> None:
        gate = Gate()

        def slow(step: str, path: Path) -> None:
            if step == awaited and (step == "link" or spoollayout.is_whole(path)):
                gate.wait()

        async with opened(tmp_path / "data", HookedDisk(slow)) as broker:
            await append(broker, b"a" * 1200)
            await append(broker, b"b")
            await until(gate.reached.is_set)
            for _ in range(2):
                assert await content(broker) == b"a" * 1200 + b"b"
            gate.open()
            await persisted(broker)
            assert await content(broker) == b"a" * 1200 + b"b"

    in_loop(test)


def test_a_fragment_that_is_trimmed_on_its_way_into_the_store_does_not_stay(tmp_path: Path) -> None:
    async def test() -> None:
        gate = Gate()

        def slow(step: str, path: Path) -> None:
            if step == "link":
                gate.wait()

        async with opened(tmp_path / "data", HookedDisk(slow)) as broker:
            await append(broker, b"a" * 1200)
            await append(broker, b"b")
            await until(gate.reached.is_set)
            await broker.trim(TrimRequest(journal=JOURNAL, offset=1200), CLAIMS)
            gate.open()
            await persisted(broker)
            assert await content(broker) == b"b"
            assert not list((tmp_path / "data/fragments" / JOURNAL).iterdir())
            assert len(list(broker.directory.spools(JOURNAL).iterdir())) == 1

    in_loop(test)


def test_spools_of_earlier_versions_are_read_gone_on_with_and_stored(tmp_path: Path) -> None:
    """One that is complete, and the one under construction, as they lay when the new version came."""

    async def test() -> None:
        async with opened(tmp_path / "data", HookedDisk(_never_stored)) as broker:
            await append(broker, b"a" * 1200, registers={"number": "1"})
            await append(broker, b"b", registers={"number": "2"})
            folder = broker.directory.spools(JOURNAL)
        for path in folder.iterdir():
            as_earlier(path)
            path.unlink()
        version = tmp_path / "data" / "VERSION"
        version.write_bytes(version.read_bytes().replace(b'"format":2', b'"format":1'))
        async with opened(tmp_path / "data") as broker:
            assert broker.directory.version().format == 2, "earlier versions would not find the new records"
            assert await content(broker) == b"a" * 1200 + b"b"
            assert await append(broker, b"c" * 1200) == (1201, 2401)
            assert [label.value for label in replica(broker).spool.registers.labels] == ["2"]
            await append(broker, b"d")
            await persisted(broker)
            assert [path.name for path in folder.iterdir()] == [spool_named(2401)]
            assert await content(broker) == b"a" * 1200 + b"b" + b"c" * 1200 + b"d"

    in_loop(test)


def _never_stored(step: str, path: Path) -> None:
    if step == "rename" and spoollayout.is_whole(path):
        raise OSError(errno.EIO, "Input/output error")


def test_fragments_that_are_slow_to_store_do_not_hold_appends_up(tmp_path: Path) -> None:
    async def test() -> None:
        gate = Gate()

        def slow(step: str, path: Path) -> None:
            if step == "link" and "fragments" in path.parts:
                gate.wait()

        async with opened(tmp_path / "data", disk := HookedDisk()) as broker:
            await append(broker, b"")  # the store has been found healthy
            disk.before = slow
            async with asyncio.timeout(10):
                for number in range(12):
                    journal = f"slow/{number}"
                    await create(broker, journal)
                    await append(broker, b"x" * 1200, journal)
                    await append(broker, b"y", journal)
                await until(gate.reached.is_set)
                assert await append(broker, b"on time") == (0, 7)
            gate.open()

    in_loop(test)


def test_a_client_that_trickles_is_dropped(tmp_path: Path) -> None:
    options = BrokerOptions(flow=FlowLimits(grace=0.3))

    async def test() -> None:
        async with opened(tmp_path / "data", options=options) as broker:
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


def taken(path: Path) -> int:
    """The room that a file has on the disk."""
    return path.stat().st_blocks * 512


def test_a_large_append_that_is_rolled_back_gives_its_room_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            await append(broker, b"kept")
            path = replica(broker).local.path
            assert path is not None
            committed = taken(path)
            given_up = Streaming(broker)
            given_up.send(*(bytes(1 << 20) for _ in range(4)))
            await until(lambda: taken(path) > committed + (3 << 20))
            given_up.task.cancel()
            await asyncio.gather(given_up.task, return_exceptions=True)
            assert taken(path) < committed + (1 << 20)
            assert await append(broker, b" and more") == (4, 13)
            assert await content(broker) == b"kept and more"

    in_loop(test)


def test_what_was_pipelined_behind_a_commit_that_was_given_up_is_not_tried(tmp_path: Path) -> None:
    """A sync fails for want of room; there is room again when the next append of the stream comes."""

    async def test() -> None:
        batches: asyncio.Queue[AppendBatch | None] = asyncio.Queue()

        async def sent() -> AsyncIterator[AppendBatch]:
            while (batch := await batches.get()) is not None:
                yield batch

        def send(*contents: bytes) -> None:
            appends = [AppendRequest(journal=JOURNAL, content=each) for each in contents]
            batches.put_nowait(AppendBatch(appends=appends))

        def full(step: str, path: Path) -> None:
            if step == "sync":
                raise OSError(errno.ENOSPC, "No space left on device")

        async with opened(tmp_path / "data", disk := HookedDisk()) as broker:
            results = broker.appends(sent(), CLAIMS)
            send(b"0000")
            assert (await anext(results)).results[0].response.commit.end == 4
            disk.before = full
            send(b"1111")
            assert "sync failed" in (await anext(results)).results[0].error
            disk.before = lambda step, path: None
            send(b"2222", b"3333")
            answered = [result async for batch in _until(results, 2) for result in batch.results]
            assert ["given up" in result.error for result in answered] == [True, True]
            assert await content(broker) == b"0000"
            batches.put_nowait(None)
            assert await append(broker, b"4444") == (4, 8)
            assert await content(broker) == b"00004444"

    in_loop(test)


def test_an_append_that_was_given_up_is_not_acknowledged_however_late_its_answer_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        batches: asyncio.Queue[AppendBatch | None] = asyncio.Queue()

        async def sent() -> AsyncIterator[AppendBatch]:
            while (batch := await batches.get()) is not None:
                yield batch

        def send(content: bytes) -> None:
            batches.put_nowait(AppendBatch(appends=[AppendRequest(journal=JOURNAL, content=content)]))

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        async with opened(tmp_path / "data") as broker:
            results = broker.appends(sent(), CLAIMS)
            send(b"0000")
            assert (await anext(results)).results[0].response.commit.end == 4
            with monkeypatch.context() as patched:
                patched.setattr(localspool, "_commit", full)
                send(b"1111")
                await until(lambda: replica(broker).local._failure is not None)
                for _ in range(localspool._REMEMBERED + 6):
                    with pytest.raises(JournalFailedError, match="the sync failed"):
                        await append(broker, b"others")
            [late] = (await anext(results)).results
            assert "given up" in late.error
            assert late.in_doubt
            batches.put_nowait(None)
            assert await append(broker, b"4444") == (4, 8)
            assert await content(broker) == b"00004444"

    in_loop(test)


def test_a_broker_that_stops_ends_a_stream_of_appends_once_all_of_it_is_answered(tmp_path: Path) -> None:
    async def test() -> None:
        gate = Gate()

        async def sent() -> AsyncIterator[AppendBatch]:
            yield AppendBatch(appends=[AppendRequest(journal=JOURNAL, content=b"last")] * 3)
            await asyncio.Event().wait()

        async with opened(tmp_path / "data", disk := HookedDisk()) as broker:
            await append(broker, b"before")
            disk.before = lambda step, path: gate.wait() if step == "sync" else None
            results = broker.appends(sent(), CLAIMS)
            answered = asyncio.ensure_future(anext(results))
            await until(gate.reached.is_set)
            broker.end_waits()
            await asyncio.sleep(3 * QUIET)
            assert not answered.done()
            gate.open()
            assert len((await answered).results) == 3
            assert [answer async for answer in results] == []

    in_loop(test)


async def _until(results: AsyncIterator[AppendBatchResult], count: int) -> AsyncIterator[AppendBatchResult]:
    while count > 0:
        batch = await anext(results)
        count -= len(batch.results)
        yield batch


def test_appends_that_wait_for_the_disk_do_not_hold_their_content(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(spoollayout, "FIRST_ROOM", 1 << 30)

    async def test() -> None:
        gate = Gate()

        async def sent() -> AsyncIterator[AppendBatch]:
            for _ in range(60):
                yield AppendBatch(appends=[AppendRequest(journal=JOURNAL, content=bytes(2 << 20))])

        async with opened(tmp_path / "data", disk := HookedDisk(), length=1 << 30) as broker:
            await append(broker, b"before")
            disk.before = lambda step, path: gate.wait() if step == "sync" else None
            before = psutil.Process().memory_info().rss
            results = asyncio.ensure_future(anext(broker.appends(sent(), CLAIMS)))
            await until(lambda: replica(broker).spool.end >= 6 + (60 << 21), 20)
            assert psutil.Process().memory_info().rss - before < 40 << 20
            gate.open()
            await results

    in_loop(test)


def test_a_descriptor_is_not_let_go_while_an_append_has_the_pipeline(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            await append(broker, b"x")
            journal = replica(broker)
            await journal.pipeline_slot.acquire()
            journal.park(1e12)
            assert any(".spool" in name for name in open_files(tmp_path))
            journal.pipeline_slot.release()
            journal.park(1e12)
            assert not any(".spool" in name for name in open_files(tmp_path))

    in_loop(test)
