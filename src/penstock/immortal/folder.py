"""The folder in which bindings look for an instance's files (reference 11.1), where there is a directory of logs.

    LOGS/INSTANCE_VERSION/serverchkpt<n>, serverlog<n>

Logs and checkpoints are in journals; here is an empty file for each checkpoint that can be recovered from, and for the
log from there on. The Node binding wants to see the one that it is to be re-run from. And it deletes the folder to have
its instance begin anew (`deleteLogs`), which is what AMBROSIA does where there is none: so a folder that was shown once
and is gone means just that. It is therefore durable before it is said to have been shown, and before an instance that
has begun anew takes its first call. So are the files in it: an empty folder the Node binding takes for a leftover, and
deletes it unasked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from pathlib import Path

from penstock.base.disk import Disk
from penstock.base.errors import PenstockError
from penstock.immortal import about
from penstock.immortal.checkpoints import Catalogue
from penstock.immortal.journals import steadily
from penstock.immortal.place import Place

_log = logging.getLogger(__name__)
_OURS = re.compile(r"server(log|chkpt)\d+")


class Folder:
    """Of one instance, for all of its versions."""

    def __init__(self, place: Place, instance: str, logs: Path, disk: Disk | None = None) -> None:
        self._place = place
        self._instance = instance
        self._logs = logs
        self._disk = disk or Disk()

    def path(self, version: int) -> Path:
        return self._logs / f"{self._instance}_{version}"

    async def was_deleted(self, version: int) -> bool:
        """Whether somebody wants the instance to begin anew."""
        path = self.path(version)
        return await self._shown() == str(path) and not path.exists()

    async def _shown(self) -> str:
        client, instance = self._place.client, self._instance
        known = await steadily(self._place.reach, lambda: about.read(client, instance))
        return known.shown.path if known.shown is not None else ""

    async def show(self, there: Catalogue) -> None:
        """Have a file for each checkpoint, and none for those that are gone."""
        assert there.last is not None
        try:
            await asyncio.to_thread(self._show, there)
        except OSError as error:
            raise PenstockError(f"the folder of {self._instance} cannot be made: {error}") from None
        path = str(self.path(there.last.version))
        if await self._shown() != path:
            client, said = self._place.client, about.Shown(path, time.time())
            await steadily(self._place.reach, lambda: about.say(client, self._instance, said))

    def _show(self, there: Catalogue) -> None:
        wanted: dict[Path, set[str]] = {}
        for entry in there.entries:
            names = wanted.setdefault(self.path(entry.version), set())
            names.update((f"serverchkpt{entry.number}", f"serverlog{entry.number}"))
        for path, names in wanted.items():
            self._disk.make_dirs(path)
            was_empty = not any(path.iterdir())
            try:
                self._fill(path, names)
            except OSError as error:
                if was_empty:
                    raise
                _log.warning("the files in %s are not those of now: %s", path, error)

    def _fill(self, path: Path, names: set[str]) -> None:
        there = {entry.name for entry in path.iterdir()}
        for name in names - there:
            self._disk.open(path / name, create=True).close()
        self._disk.sync_dir(path)  # before any is removed, so that at no time there is none
        for name in there - names:
            if _OURS.fullmatch(name):
                with contextlib.suppress(FileNotFoundError):
                    self._disk.remove(path / name)
