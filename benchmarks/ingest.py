"""The way into the log, measured: the same rows as `Message` objects and as packed columns, through `Ingest`.

    python benchmarks/ingest.py [--rows 1000000] [--batch 10000] [--rounds 3] [--json]

Rows of about 100 bytes with a key, from Arrow columns that are there already, into a log on an embedded broker: what it
costs to make the messages, lay them out, append and make them durable. CPU seconds are those of the whole process,
broker included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from penstock.adaptors.base import Batch, Source
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.commitlog import CommitLog
from penstock.log.message import Message, Resume
from penstock.log.packing import pack
from penstock.pipeline.ingest import Ingest
from penstock.pipeline.namespace import Namespace

NS = "public.orders"
NOW = 1_700_000_000_000_000

MakeBatch = Callable[[pa.Array, pa.Array], Batch]


def as_messages(data: pa.Array, keys: pa.Array) -> Batch:
    rows = zip(data.to_pylist(), keys.to_pylist(), strict=True)
    return Batch([Message(NS, text, ts=NOW, key=key) for text, key in rows], {NS: {"n": len(data)}})


def as_packed(data: pa.Array, keys: pa.Array) -> Batch:
    return Batch(positions={NS: {"n": len(data)}}, packed=[pack(NS, data, ts=NOW, keys=keys)])


class Columns(Source):
    """The same columns again and again."""

    def __init__(self, make: MakeBatch, rows: int, batch: int) -> None:
        self._make = make
        self._batches = rows // batch
        texts = [
            b'{"id":%d,"name":"customer %d","total":%d.50,"at":"2026-11-16"}' % (n, n, n)
            for n in range(batch)
        ]
        self._data = pa.array(texts, pa.binary())
        self._keys = pa.array([b'{"id":%d}' % n for n in range(batch)], pa.binary())

    def namespaces(self) -> Sequence[str]:
        return [NS]

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        for _ in range(self._batches):
            yield self._make(self._data, self._keys)


def measured(make: MakeBatch, rows: int, batch: int) -> tuple[float, float]:
    """Seconds, and CPU seconds, from the first batch to the last being durable."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        with EmbeddedBroker(place / "data") as broker, Client(broker.address) as client:
            log = CommitLog(client, "bench", place / "index", None, NOW)
            ingest = Ingest(Columns(make, rows, batch), Namespace(".*"), log, lambda: None)
            began, cpu = time.perf_counter(), time.process_time()
            ingest.start()
            ingest.done.wait()
            assert ingest.error is None, ingest.error
            assert log.point.offset == rows // batch * batch
            return time.perf_counter() - began, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cases: dict[str, MakeBatch] = {"messages": as_messages, "packed": as_packed}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(options.rounds):
        for name, make in cases.items():
            taken[name].append(measured(make, options.rows, options.batch))
    for name, times in taken.items():
        seconds, cpu = (statistics.median(column) for column in zip(*times, strict=True))
        told = {
            "case": name,
            "rows_per_second": options.rows / seconds,
            "cpu_us_per_row": 1e6 * cpu / options.rows,
        }
        print(json.dumps(told) if options.json else f"{name:10} {told['rows_per_second']:12,.0f} rows/s "
              f"{told['cpu_us_per_row']:8.2f} us of CPU a row")  # fmt: skip


if __name__ == "__main__":
    main()
