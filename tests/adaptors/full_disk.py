"""Sinks on a file system that is really full, for a process that has one of its own (`test_full_disk.py`).

    python -m tests.adaptors.full_disk DIRECTORY [DATA]

Each sink meets a full disk twice: while a task stages, and while the runner publishes. Prints what it said, and what
its target holds once there was room again. With DATA, a directory with room, a whole run meets a full target.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from penstock import adaptors as a
from penstock.adaptors.base import Sink, SinkPosition, Stage, Staged
from penstock.adaptors.parts import PartStager, read_parts
from penstock.base.errors import AwayError
from penstock.log.schema import Field, Kind, Schema
from penstock.testing.adaptors.delivery import GivenSchemas

ROWS = 2000
KNOWN = {"orders": Schema((Field("id", Kind.INT), Field("note", Kind.STRING)), ("id",))}


@contextmanager
def full(top: Path) -> Iterator[None]:
    """No room for anything, to the last byte."""
    ballast = top / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    try:
        yield
    finally:
        ballast.unlink()


def rows() -> Iterator[pa.RecordBatch]:
    """Rows that no compression makes much smaller."""
    texts = [json.dumps({"id": number, "note": os.urandom(60).hex()}) for number in range(ROWS)]
    yield pa.record_batch(
        {
            "offset": pa.array(range(ROWS), pa.int64()),
            "ts": pa.array([0] * ROWS, pa.int64()).cast(pa.timestamp("us", "UTC")),
            "mode": ["copy"] * ROWS,
            "op": ["insert"] * ROWS,
            "ns": ["orders"] * ROWS,
            "key": pa.array([None] * ROWS, pa.string()),
            "old_key": pa.array([None] * ROWS, pa.string()),
            "data": texts,
            "origin": ["orders"] * ROWS,
        }
    )


@dataclass
class Case:
    """A sink; `found` counts the rows in its target, `schemas` is what the log knows."""

    sink: Sink
    found: Callable[[], int]
    schemas: dict[str, Schema]


def cases(top: Path) -> dict[str, Case]:
    def counted(name: str, form: str) -> Callable[[], int]:
        return lambda: int(ds.dataset(top / name, format=form).to_table().num_rows)

    lake, raw = (a.file(uri=f"file://{top}/{name}/", format="parquet") for name in ("lake", "raw"))
    gzip, csv = (a.file(uri=f"file://{top}/{name}") for name in ("out.jsonl.gz", "out.csv"))
    return {
        "parquet": Case(lake.sink(), counted("lake", "parquet"), KNOWN),
        "raw": Case(raw.sink(), counted("raw", "parquet"), {}),
        "gzip": Case(gzip.sink(), counted("out.jsonl.gz", "json"), {}),
        "csv": Case(csv.sink(), counted("out.csv", "csv"), {}),
    }


def said(work: Callable[[], object]) -> str:
    """What an `AwayError` says, if the work ends with one."""
    try:
        work()
    except AwayError as error:
        return error.message
    return ""


def stage(case: Case, name: str) -> Staged:
    directory = case.sink.staging(Path("/nowhere")) / name
    return case.sink.stager().stage(Stage(directory, name, 0), rows())


def told(top: Path, case: Case) -> dict[str, object]:
    case.sink.use(GivenSchemas(case.schemas), "p.s")
    start = SinkPosition("log", 1, 0)
    publisher = case.sink.publisher()
    publisher.open(start)
    with full(top):
        staging = said(lambda: stage(case, "first"))
    report = stage(case, "second")
    with full(top):
        publishing = said(lambda: publisher.publish([report], SinkPosition("log", 1, ROWS)))
    publisher.close()
    again = case.sink.publisher()
    held = again.open(start)
    again.publish([stage(case, "third")], SinkPosition("log", 1, ROWS))
    again.close()
    return {
        "staging": staging,
        "publishing": publishing,
        "held": held.watermark if held is not None else None,
        "found": case.found(),
    }


def parts(top: Path) -> dict[str, object]:
    """Of sinks that send over a network: their parts are in the scratch directory of the run."""
    with full(top):
        staging = said(lambda: PartStager().stage(Stage(top / "scratch", "first", 0), rows()))
    done = PartStager().stage(Stage(top / "scratch", "second", 0), rows())
    return {"staging": staging, "found": sum(batch.num_rows for batch in read_parts([done]))}


PIPELINE = """
from penstock import Pipeline, adaptors as a
p = Pipeline("p")
p.source("in", a.generate(count={rows})).save("out", a.file(uri="file://{top}/lake/", format="parquet"))
"""


def run(top: Path, data: Path) -> dict[str, object]:
    """A run whose target is full when it comes, until `status` has said so."""
    (data / "p.py").write_text(PIPELINE.format(rows=ROWS, top=top))
    command = [sys.executable, "-m", "penstock", "run", "p.py", "--once", "--http", "off", "--data-dir", "d"]
    with full(top), (data / "output").open("wb") as output:
        process = subprocess.Popen(command, cwd=data, stdout=output, stderr=subprocess.STDOUT)
        sink: dict[str, str | None] = {}
        while process.poll() is None and sink.get("state") != "away":
            time.sleep(0.2)
            published = data / "d" / "runs" / "p.json"
            nodes = json.loads(published.read_bytes())["progress"]["nodes"] if published.exists() else []
            sink = next((node for node in nodes if node["node"] == "out"), sink)
    code = process.wait(timeout=300)
    found = ds.dataset(top / "lake", format="parquet").to_table().num_rows if code == 0 else None
    return {"state": sink.get("state"), "error": sink.get("error"), "code": code, "found": found}


if __name__ == "__main__":
    place = Path(sys.argv[1])
    if len(sys.argv) > 2:
        results = {"run": run(place, Path(sys.argv[2]))}
    else:
        results = {name: told(place, case) for name, case in cases(place).items()}
        results["parts"] = parts(place)
    sys.stdout.write(json.dumps(results))
