"""What a journal's spool directory holds after a crash, and how a spool that proved false is set aside.

    BEGIN….spool     a fragment under construction, or not yet in the store (`spoollayout.py`)
    BEGIN….aside     a spool whose content the journal does not have at these offsets; nobody reads it but people
    synchronised     in a cluster: the revision, in decimal, of the last synchronisation that content rests on

A revision says which of two spools that tell different stories is right: that of the later synchronisation, since the
other broker was not part of it (reference 12: revisions order all changes of a route).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from penstock.base.disk import Disk
from penstock.base.errors import CorruptError
from penstock.journal.spool import Spool
from penstock.journal.spoolfile import SpoolFile
from penstock.journal.spoollayout import SUFFIX

ASIDE = ".aside"
_SYNCHRONISED = "synchronised"


def found(disk: Disk, directory: Path, journal: str) -> list[tuple[SpoolFile, Spool]]:
    """The spools in the directory, in order; files that never came to life are removed. Blocks.

    So is an empty one that begins before the end of the file before it: a roll failed after it had made it. Of the last
    one, which is under construction, it is believed that it was left settled; those before it are gone through.
    """
    if directory.is_dir():
        disk.sync_dir(directory)  # whoever made a file here may have died before that
    spools: list[tuple[SpoolFile, Spool]] = []
    end = 0
    try:
        paths = [path for path in disk.entries(directory) if path.suffix == SUFFIX]
        for path in paths:
            recovered = SpoolFile.recover(disk, path, journal, trust=path == paths[-1])
            if recovered is None:
                _remove_dead(disk, path)
            elif recovered[1].end < end and not recovered[1].fragment.length:
                recovered[0].close()
                _remove_dead(disk, path)
            else:
                spools.append(recovered)
                end = recovered[1].end
    except BaseException:
        for file, _ in spools:
            file.close()
        raise
    return spools


def set_aside(disk: Disk, files: Iterable[SpoolFile]) -> list[Path]:
    """Have the next recovery pass these files over; where they are now. Blocks.

    Not synced: one that comes back after a power cut is compared, and set aside, again.
    """
    moved: list[Path] = []
    for file in files:
        file.close()
        target = file.path.with_suffix(ASIDE)
        number = 1
        while target.exists():
            number += 1
            target = file.path.with_name(f"{file.path.stem}-{number}{ASIDE}")
        disk.rename(file.path, target)
        moved.append(target)
    return moved


def read_epoch(directory: Path) -> int:
    """The revision of the last synchronisation that content here rests on; 0 if there was none."""
    path = directory / _SYNCHRONISED
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return 0
    if not text.isdigit():
        raise CorruptError(
            "not a revision",
            where=str(path),
            position=0,
            hint="remove the file: the journal's spools here then count as older than all others",
        )
    return int(text)


def write_epoch(disk: Disk, directory: Path, epoch: int) -> None:
    """Durable on return; the directory is there, since content is. Blocks."""
    disk.replace_file(directory / _SYNCHRONISED, b"%d" % epoch)


def _remove_dead(disk: Disk, path: Path) -> None:
    with suppress(FileNotFoundError):
        disk.remove(path)
