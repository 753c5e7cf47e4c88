"""Promises against power loss: record a run once, lose the power everywhere, and see whether they hold.

`check` opens the code under test on the disks that the run may leave. `every_sync_matters` turns the question
round: it disregards the syncs of one place after the other and wants the check to fail each time, so that no
sync is there by superstition and none can get lost unnoticed.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from penstock.testing.powerloss.events import Log, Mark, Site, sync_sites
from penstock.testing.powerloss.images import Image, images
from penstock.testing.powerloss.model import Content, Replay
from penstock.testing.powerloss.recorder import RecordingDisk

Record = Callable[[RecordingDisk, Path], None]
Verify = Callable[[Path, Sequence[Mark]], None]

_MEMORY = Path("/dev/shm")
_ROOM = 1 << 30
_PIECE = 1 << 20
_SEEDS = 5
"""How often a failure without a sync is looked for."""
_numbers = itertools.count(1)
_INTERRUPTS = (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)


class BrokenPromiseError(AssertionError):
    """`verify` failed on `image`; its error is the cause. `dropped` is the sync site disregarded, if any."""

    def __init__(self, image: Image, seed: int, dropped: Site | None, cause: BaseException) -> None:
        self.image = image
        self.seed = seed
        self.dropped = dropped
        at = (
            f"#{image.cut - 1} {image.event}, at {image.event.site}"
            if image.event
            else "before the first step"
        )
        last = f", the last {image.marks[-1].value!r}" if image.marks else ""
        drop = f", drop_sync={dropped!r}" if dropped else ""
        files = [
            f"{node.path} ({node.content.size} bytes)" for node in image.nodes if node.content is not None
        ]
        lines = [
            f"a promise is broken after power loss at cut {image.cut}, seed {seed}",
            f"  last step  {at}",
            f"  choice     {image.choice}",
            f"  promises   {len(image.marks)}{last}",
            f"  on disk    {', '.join(files[:12]) or 'no files'}{' …' if len(files) > 12 else ''}",
            *([f"  dropped    the syncs at {dropped}"] if dropped else []),
            f"  cause      {type(cause).__name__}: {cause}",
            f"  again      check(…, seed={seed}, cuts=[{image.cut}]{drop})",
        ]
        super().__init__("\n".join(lines))


@dataclass(frozen=True, slots=True)
class Checked:
    """A check that passed: the recording, and the number of images on which the promises held."""

    log: Log
    images: int


def check(
    record: Record,
    verify: Verify,
    *,
    seed: int,
    cuts: Collection[int] | None = None,
    per_cut: int = 12,
    prepare: Callable[[Path], None] | None = None,
    untracked: Collection[str] = (),
    entries_in_order: bool = False,
    drop_sync: Site | None = None,
    keep: Path | None = None,
) -> Checked:
    """Run `record` once, then `verify` on every image of it; the first failure is a `BrokenPromiseError`.

    `record` gets a disk and the directory it records. `verify` gets a directory of its own, which it may
    change, and the marks made before the cut; whatever it raises is a broken promise. `prepare` fills the
    directory beforehand; that counts as durable (`Image.build` of another run is a fine one: power loss
    during recovery from power loss). `untracked` are patterns of paths that the code under test keeps
    beside the disk, such as lock files; they are in no image, and any other such file is an error.
    A failing image is left in `keep` if given. `drop_sync` is for `RecordingDisk`; for the rest see `images`.
    """
    with _scratch() as scratch:
        log = _record(record, scratch / "record", prepare, untracked, drop_sync)
        found = images(log, seed=seed, cuts=cuts, per_cut=per_cut, entries_in_order=entries_in_order)
        return Checked(log, _verify_all(found, verify, scratch, seed, drop_sync, keep))


def every_sync_matters(
    record: Record | Sequence[Record],
    verify: Verify,
    *,
    seed: int,
    exempt: Collection[str] = (),
    cuts: Collection[int] | None = None,
    per_cut: int = 12,
    prepare: Callable[[Path], None] | None = None,
    untracked: Collection[str] = (),
    entries_in_order: bool = False,
) -> dict[Site, BrokenPromiseError]:
    """Check that the promises hold, and that without the syncs of any one site they would not.

    Several recordings count together: a site matters if any of them fails without it; so a run that goes well
    and others that are killed half-way can share the proof. Returns the failure found for each site, and raises
    an AssertionError that lists the sites without one. `exempt` are patterns for `Site.label`, such as
    `spool.py:Spool.close`; one that fits no site is an error. Each recording judges all variants of itself:
    they differ by the dropped sync only, whatever threads do.
    """
    records = [record] if callable(record) else list(record)
    with _scratch() as scratch:
        logs = [
            _record(each, scratch / f"record {number}", prepare, untracked)
            for number, each in enumerate(records)
        ]

        def look(log: Log, drop: Site | None, seed: int = seed) -> None:
            found = images(
                log, seed=seed, cuts=cuts, per_cut=per_cut, drop=drop, entries_in_order=entries_in_order
            )
            _verify_all(found, verify, scratch, seed, drop, None)

        sites = _not_exempt(sorted({site for log in logs for site in sync_sites(log)}), exempt)
        for log in logs:
            look(log, None)
        failures: dict[Site, BrokenPromiseError] = {}
        for site in sites:
            # A loss that few images show may be missed by one seed; a sync that is needless is missed by all.
            for number, log in itertools.product(range(_SEEDS), logs):
                if site not in sync_sites(log):
                    continue
                try:
                    look(log, site, seed + number)
                except BrokenPromiseError as failure:
                    failures[site] = failure
                    break
    needless = [site for site in sites if site not in failures]
    if needless:
        raise AssertionError(
            "no failure found without the syncs at\n"
            + "\n".join(f"  {site}  [{site.label}]" for site in needless)
            + "\nremove them, or make and verify the promise that needs them, or exempt them"
        )
    return failures


def _record(
    record: Record,
    root: Path,
    prepare: Callable[[Path], None] | None,
    untracked: Collection[str],
    drop_sync: Site | None = None,
) -> Log:
    if prepare is None:
        root.mkdir()
    else:
        prepare(root)
    disk = RecordingDisk(root, drop_sync=drop_sync)
    record(disk, root)
    log = disk.log
    beside = [
        path
        for path in sorted(_beside(log, root))
        if not any(fnmatchcase(path, pattern) for pattern in untracked)
    ]
    if beside:
        raise AssertionError(
            f"changed beside the disk under recording: {', '.join(beside)}; let the code under test use the "
            f"Disk it is given, or name the paths in `untracked` if no promise rests on them"
        )
    return log


def _beside(log: Log, root: Path) -> Iterator[str]:
    """Paths that are not on the disk as the log says they should be."""
    replay = Replay(log)
    for index, event in enumerate(log.events):
        replay.step(index, event)
    expected = {node.path: node.content for node in replay.tree({atom.key: True for atom in replay.atoms()})}
    for at, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = Path(at, name)
            text = path.relative_to(root).as_posix()
            if path.is_dir() or path.is_file():
                known = text in expected
                if not (known and _holds(path, expected.pop(text))):
                    yield text
    yield from expected


def _holds(path: Path, content: Content | None) -> bool:
    if content is None or path.is_dir():
        return content is None and path.is_dir()
    if path.stat().st_size != content.size:
        return False
    # In pieces, since a file allocated ahead may be far larger than what was written to it.
    with path.open("rb") as file:
        for position in itertools.count(0, _PIECE):
            piece = file.read(_PIECE)
            if piece != content.data[position : position + _PIECE].ljust(len(piece), b"\0"):
                return False
            if len(piece) < _PIECE:
                break
    return True


def _verify_all(
    found: Iterable[Image], verify: Verify, scratch: Path, seed: int, dropped: Site | None, keep: Path | None
) -> int:
    count = 0
    for image in found:
        # Every image gets a path of its own: code under test may remember what it saw at a path.
        at = scratch / str(next(_numbers))
        image.build(at)
        try:
            verify(at, image.marks)
        except _INTERRUPTS:
            raise
        except BaseException as error:  # pytest's failures are not Exceptions
            if keep is not None:
                image.build(keep)
            raise BrokenPromiseError(image, seed, dropped, error) from error
        finally:
            shutil.rmtree(at)
        count += 1
    return count


def _not_exempt(sites: Sequence[Site], exempt: Collection[str]) -> list[Site]:
    idle = [pattern for pattern in exempt if not any(fnmatchcase(site.label, pattern) for site in sites)]
    if idle:
        known = ", ".join(sorted({site.label for site in sites}))
        raise AssertionError(f"exempt patterns that fit no sync: {', '.join(idle)}; there are: {known}")
    return [site for site in sites if not any(fnmatchcase(site.label, pattern) for pattern in exempt)]


@contextmanager
def _scratch() -> Iterator[Path]:
    """A temporary directory, in memory if there is room: thousands of images are built and removed again."""
    roomy = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM
    with tempfile.TemporaryDirectory(prefix="powerloss-", dir=_MEMORY if roomy else None) as name:
        yield Path(os.path.realpath(name))
