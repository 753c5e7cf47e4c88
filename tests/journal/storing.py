"""A disk that fails at a step of the test's choice, and looks into a store."""

from __future__ import annotations

from pathlib import Path

from penstock.base.disk import Buffer, Disk, DiskFile
from penstock.journal.stores import FileStore

PATH = "foo/bar/date=1/part.raw"


class Power(BaseException):
    """The process is gone: nothing may catch this and go on."""


class StepFile(DiskFile):
    def write_at(self, data: Buffer, position: int) -> None:
        self.steps.take("write", self.path)
        super().write_at(data, position)

    def sync(self) -> None:
        self.steps.take("sync", self.path)
        super().sync()

    @property
    def steps(self) -> StepDisk:
        assert isinstance(self.disk, StepDisk)
        return self.disk


class StepDisk(Disk):
    """Records every step, and fails one of them: once, or from then on for ever as a killed process does."""

    def __init__(
        self, fail_at: int = -1, error: type[BaseException] = OSError, *, dead: bool = False
    ) -> None:
        self.taken: list[tuple[str, Path]] = []
        self._fail_at, self._error, self._dead = fail_at, error, dead

    def take(self, step: str, path: Path) -> None:
        now = len(self.taken)
        self.taken.append((step, path))
        if now == self._fail_at or (self._dead and 0 <= self._fail_at < now):
            raise self._error(f"{step} {path}")

    def open(self, path: Path, *, create: bool = False, mode: int = 0o640) -> DiskFile:
        self.take("open", path)
        file = super().open(path, create=create, mode=mode)
        return StepFile(self, path, file.fileno())

    def make_dir(self, path: Path, mode: int) -> None:
        self.take("make_dir", path)
        super().make_dir(path, mode)

    def rename(self, source: Path, target: Path) -> None:
        self.take("rename", target)
        super().rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self.take("link", target)
        super().link(source, target)

    def remove(self, path: Path) -> None:
        self.take("remove", path)
        super().remove(path)

    def sync_dir(self, path: Path) -> None:
        self.take("sync_dir", path)
        super().sync_dir(path)

    def steps(self) -> list[str]:
        return [step for step, _ in self.taken]


def files_below(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def read(store: FileStore, path: str) -> bytes:
    with store.open(path) as file:
        return file.read()
