"""What a spool in a cluster writes beside its content: the synchronisation that the content rests on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.base.disk import Disk
from penstock.journal.fragment import Codec, Fragment
from penstock.journal.localspool import LocalSpool, Workshop
from penstock.journal.metrics import Metrics
from penstock.journal.protocol import LabelSet
from penstock.journal.spool import empty_fragment
from penstock.journal.spoolfile import SpoolFile
from penstock.testing.powerloss import BrokenPromiseError, Mark, RecordingDisk, check, marked, sync_sites

JOURNAL = "a/journal"


class Seen:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.committed_to = 0
        self.complete: list[Fragment] = []

    def committed(self, fragment: Fragment, file: SpoolFile) -> None:
        self.committed_to = max(self.committed_to, fragment.end)

    def completed(self, file: SpoolFile, *, by_synchronising: bool = False) -> None:
        self.complete.append(file.fragment)

    def agreed(self) -> None:
        pass


def spawn(work: Awaitable[None], name: str) -> asyncio.Task[None]:
    async def run() -> None:
        await work

    return asyncio.create_task(run(), name=name)


def opened(disk: Disk, root: Path, threads: ThreadPoolExecutor, seen: Seen) -> LocalSpool:
    shop = Workshop(disk, threads, spawn, Metrics(), lambda: time.time_ns() // 1000)
    return LocalSpool(JOURNAL, root / "spools", shop, seen, clustered=True)


async def append(local: LocalSpool, content: bytes) -> None:
    await local.ready()
    local.content(content)
    await local.durable(local.adopt(LabelSet()))


def record(disk: RecordingDisk, root: Path) -> None:
    async def work() -> None:
        disk.make_dirs(root)
        with ThreadPoolExecutor(1) as threads:
            local = opened(disk, root, threads, Seen())
            for revision in (5, 7, 9):
                local.synchronised(revision)
                await append(local, b"%d" % revision)
                disk.mark(revision)
            local.abandon()

    asyncio.run(work())


def verify(root: Path, marks: Sequence[Mark]) -> None:
    async def work() -> None:
        with ThreadPoolExecutor(1) as threads:
            local = opened(Disk(), root, threads, Seen())
            for revision in marked(marks, int):
                assert local.epoch >= revision
                assert local.spool.end >= (revision - 3) // 2
            local.abandon()

    asyncio.run(work())


def test_content_is_never_without_what_it_rests_on() -> None:
    checked = check(record, verify, seed=1)
    label = "spoolrecovery.py:write_epoch Disk.replace_file"
    sites = [site for site in sync_sites(checked.log) if site.label == label]
    assert sites
    for site in sites:
        with pytest.raises(BrokenPromiseError):
            check(record, verify, seed=1, drop_sync=site)


def test_what_was_recovered_is_shown_to_nobody_before_it_is_released(tmp_path: Path) -> None:
    async def test() -> None:
        with ThreadPoolExecutor(1) as threads:
            local = opened(Disk(), tmp_path, threads, Seen())
            await append(local, b"first")
            await local.roll(Fragment(JOURNAL, 5, 5, bytes(20), local.fragment.codec), LabelSet())
            await append(local, b"second")
            local.abandon()
            seen = Seen()
            again = opened(Disk(), tmp_path, threads, seen)
            assert again.quarantined
            assert (again.spool.end, again.committed_end) == (11, 0)
            assert (seen.committed_to, seen.complete) == (0, [])
            again.release(gated=True)
            assert (seen.committed_to, [each.end for each in seen.complete]) == (11, [5])
            # From now on what is committed is shown by `publish`.
            await append(again, b"third")
            assert (seen.committed_to, again.committed_end) == (11, 11)
            assert again.file is not None
            again.publish(again.fragment, again.file)
            assert (seen.committed_to, again.committed_end) == (16, 16)
            again.abandon()

    asyncio.run(test())


def test_a_file_on_its_way_into_the_store_stays_when_the_one_behind_it_is_set_aside(tmp_path: Path) -> None:
    """A crash came meanwhile; its records were cut off, and nobody else says what the registers were."""

    async def test() -> None:
        with ThreadPoolExecutor(1) as threads:
            local = opened(Disk(), tmp_path, threads, Seen())
            await append(local, b"first")
            complete = local.file
            assert complete is not None
            await local.roll(Fragment(JOURNAL, 5, 5, bytes(20), local.fragment.codec), LabelSet())
            await append(local, b"false")
            complete.name_whole()
            complete.make_whole()
            local.abandon()
            again = opened(Disk(), tmp_path, threads, Seen())
            assert [file.fragment.end for file in again.files] == [5, 10]
            await again.set_aside(5)
            state = (again.spool.fragment, [file.fragment.end for file in again.files], again.quarantined)
            assert state == (empty_fragment(JOURNAL, 0, Codec.NONE), [5], True)
            once_more = opened(Disk(), tmp_path, threads, seen := Seen())
            files = [file.fragment.end for file in once_more.files]
            assert (once_more.spool.fragment, files, once_more.quarantined) == state
            once_more.release(gated=True)
            assert (seen.committed_to, [each.end for each in seen.complete]) == (5, [5])

    asyncio.run(test())


def test_what_is_set_aside_is_passed_over_and_the_spool_begins_anew(tmp_path: Path) -> None:
    async def test() -> None:
        with ThreadPoolExecutor(1) as threads:
            for number in range(2):
                local = opened(Disk(), tmp_path, threads, Seen())
                await append(local, b"false")
                moved = await local.set_aside()
                assert [path.suffix for path in moved] == [".aside"]
                assert (local.spool.end, local.files, local.quarantined) == (0, [], False)
                assert len(list((tmp_path / "spools").glob("*.aside"))) == number + 1
                await append(local, b"true")
                local.abandon()
                again = opened(Disk(), tmp_path, threads, Seen())
                assert again.spool.end == 4
                await again.set_aside()
                for path in (tmp_path / "spools").glob("*-2.aside"):
                    path.unlink()

    asyncio.run(test())
