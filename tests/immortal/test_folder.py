"""The folder in which bindings look for an instance's files, and by whose deletion they have it begin anew."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.immortal.test_startups import broker, has_checkpoints, instance, scenario

from penstock.base.disk import Disk, DiskFile
from penstock.base.errors import PenstockError
from penstock.immortal import checkpoints
from penstock.immortal.checkpoints import Catalogue, Entry
from penstock.immortal.coordinator import Options
from penstock.immortal.folder import Folder
from penstock.immortal.place import Place
from penstock.testing.powerloss import BrokenPromiseError, Mark, RecordingDisk, check, sync_sites

__all__ = ["broker"]


def test_who_deletes_the_folder_of_an_instance_has_it_begin_anew(broker: str, tmp_path: Path) -> None:
    async def test(place: Place, options: Options) -> None:
        options = replace(options, folder=tmp_path, keep=2)
        folder = tmp_path / f"{options.name}_0"

        def shown() -> list[str]:
            return sorted(entry.name for entry in folder.iterdir())

        async with instance(place, options) as one:
            await one.seen("control 11", "record 0")
            assert shown() == ["serverchkpt1", "serverlog1"]
            one.add(5)
            await one.until(lambda: "record 1" in one.lb.seen)
        (folder / "serverlog1").unlink()  # a file that is missing is of no concern
        for number in (2, 3):
            async with instance(place, options) as again:
                await again.until(lambda: "control 11" in again.lb.seen)
                assert again.app.state["sum"] == 5
                await has_checkpoints(place, options, number)
        shutil.rmtree(folder)
        async with instance(place, options) as anew:
            await anew.seen("control 11", "record 0")
            assert (anew.app.state["sum"], anew.app.state["firsts"]) == (0, 1)
            assert shown() == ["serverchkpt1", "serverlog1"]
            there = await checkpoints.catalogue(place.client, options.name)
            assert [entry.number for entry in there.entries] == [1]
        async with instance(place, options) as after:
            await after.seen("checkpoint", "record 0", "control 11")

    scenario(broker, test, "shown")


def test_replicas_and_those_who_say_so_recover_without_a_folder(broker: str, tmp_path: Path) -> None:
    async def test(place: Place, options: Options) -> None:
        options = replace(options, folder=tmp_path)
        async with instance(place, options) as one:
            await one.seen("control 11", "record 0")
        shutil.rmtree(tmp_path / f"{options.name}_0")
        for careful in (replace(options, active=True), replace(options, create="N")):
            async with instance(place, careful) as two:
                await two.until(lambda: "checkpoint" in two.lb.seen)

    scenario(broker, test, "careful")


def test_a_folder_that_was_shown_survives_power_loss_with_a_file_in_it() -> None:
    """Without it the instance would begin anew, and the Node binding deletes one that is empty."""

    def entry(number: int) -> Entry:
        return Entry(number, 0, 0, 0, 0, 0, 0, 0.0, "")

    def record(disk: RecordingDisk, root: Path) -> None:
        nobody: Any = None
        folder = Folder(nobody, "a", root / "logs", disk)
        for number in (1, 2):
            folder._show(Catalogue([entry(number)]))
            disk.mark("shown")

    def verify(root: Path, marks: Sequence[Mark]) -> None:
        assert not marks or any((root / "logs" / "a_0").iterdir())

    checked = check(record, verify, seed=1)
    made, filled = (site for site in sync_sites(checked.log) if "Folder." in site.label)
    for site in (made, filled):
        with pytest.raises(BrokenPromiseError):
            check(record, verify, seed=1, drop_sync=site)


def test_a_folder_that_cannot_be_filled_is_not_shown(tmp_path: Path) -> None:
    class FullDisk(Disk):
        def open(self, path: Path, *, create: bool = False, mode: int = 0o640) -> DiskFile:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    nobody: Any = None
    there = Catalogue([Entry(1, 0, 0, 0, 0, 0, 0, 0.0, "")])
    with pytest.raises(PenstockError, match=r"folder of a cannot be made: .*No space left"):
        asyncio.run(Folder(nobody, "a", tmp_path, FullDisk()).show(there))
    (tmp_path / "a_0" / "serverchkpt7").touch()
    Folder(nobody, "a", tmp_path, FullDisk())._show(there)  # what is there keeps it from being empty
