"""A worker as a program: one batch by the coordinator of pipelines, with a file as its record of decisions.

    python -m tests.connector.working HOST:PORT RECORD BEGIN END

The messages are numbers, those from BEGIN up to END. Its steps: `vote` is entered when the data is sent, `decide` when
the vote was heard, `phase2` when the decision is on record, `told` when the sink has carried it out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from penstock.adaptors.base import Stage
from penstock.adaptors.connector import Connector
from penstock.adaptors.connector.sink import ConnectorPublisher, ConnectorStager
from penstock.base import faults
from penstock.base.disk import Disk
from penstock.functions.chain import Chain
from penstock.log.message import Mode, Op
from penstock.log.offsets import Lane
from penstock.log.record import Record
from penstock.pipeline.namespace import Namespace
from penstock.spark.single import batch_of

ROOT = Path(__file__).parents[2]
SINK = "p.out"
WORKER = f"{SINK}.0"


def lines(begin: int, end: int) -> bytes:
    """What the sink has of these messages."""
    return b"".join(b'{"n":%d}\n' % n for n in range(begin, end))


def decisions(record: Path) -> dict[str, Lane]:
    """What is on record."""
    return msgspec.json.decode(record.read_bytes(), type=dict[str, Lane]) if record.exists() else {}


def messages_of(record: Path) -> int:
    """How many messages are decided: the number stands in the transaction's id, as that of a checkpoint."""
    lane = decisions(record).get(WORKER)
    return int(lane.transaction.rpartition("c_id=")[2]) if lane is not None else 0


def started(
    address: tuple[str, int], record: Path, begin: int, end: int, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """A process that delivers these messages."""
    host, port = address
    command = [
        sys.executable,
        "-m",
        "tests.connector.working",
        f"{host}:{port}",
        str(record),
        str(begin),
        str(end),
    ]
    with (record.parent / "worker.log").open("ab") as log:
        return subprocess.Popen(command, env=os.environ | environment, stderr=log, cwd=ROOT)


def deliver(address: str, record: Path, begin: int, end: int) -> None:
    """Make good what a crash has left, then send these messages, decide, and tell."""
    settings = Connector(to=address)
    publisher, held = ConnectorPublisher(settings, SINK), decisions(record)
    plan = publisher.begin(held, lambda: None, (begin, end), 0)
    records = [Record(n, 0, Mode.COPY, Op.INSERT, "a", b'{"n":%d}' % n) for n in range(begin, end)]
    batch = Chain([]).apply(batch_of(records), Namespace(".*")).batch
    staged = ConnectorStager(settings, SINK).stage(Stage(Path(), "attempt", 0, plan, 0), iter([batch]))
    lanes = publisher.judge([staged])
    with faults.step("decide"):
        Disk().replace_file(record, msgspec.json.encode({**held, **lanes}))
    publisher.tell(lanes)
    with faults.step("told"):
        pass


if __name__ == "__main__":
    deliver(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
