"""The checkpoint of a query that ticks, begun here.

For each file and directory that Hadoop makes on a local disk it runs a process, `chmod`, which takes as long as a small
batch. What a query finds there it does not make: of nine such processes before a first batch two are left. Spark reads
its `metadata` as it would after a restart.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import msgspec


def begun(checkpoint: Path) -> Path:
    """The directory of a query that has not run yet; nothing may be there."""
    for log in ("offsets", "commits"):
        (checkpoint / log).mkdir(parents=True)
    (checkpoint / "metadata").write_bytes(msgspec.json.encode({"id": str(uuid.uuid4())}))
    return checkpoint
