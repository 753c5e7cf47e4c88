"""The power-loss harness: what survives if the power goes at any step of a run, and is it what was promised?

Code that promises durability takes a `Disk`. Given a `RecordingDisk` it works as usual, every step is written
down, and the test marks the promises as they are made. From the log the disks are rebuilt that the contract
of `penstock.base.disk` allows at each step: writes lost, torn or reordered, files grown without data, names
old, new or missing. `check` verifies the promises on them; `every_sync_matters` proves each sync needed.

    def record(disk, root):
        wal = Wal(disk, root / "wal")
        for number in range(5):
            wal.append(b"%d" % number)
            disk.mark(number)                     # from here on it is promised

    def verify(root, marks):
        assert Wal(Disk(), root / "wal").numbers()[: len(marks)] == marked(marks, int)

    check(record, verify, seed=1)
    every_sync_matters(record, verify, seed=1)
"""

from penstock.testing.powerloss.check import BrokenPromiseError, Checked, check, every_sync_matters
from penstock.testing.powerloss.events import Event, Log, Mark, Site, marked, sync_sites
from penstock.testing.powerloss.images import Image, images
from penstock.testing.powerloss.recorder import ProcessKilledError, RecordingDisk

__all__ = [
    "BrokenPromiseError",
    "Checked",
    "Event",
    "Image",
    "Log",
    "Mark",
    "ProcessKilledError",
    "RecordingDisk",
    "Site",
    "check",
    "every_sync_matters",
    "images",
    "marked",
    "sync_sites",
]
