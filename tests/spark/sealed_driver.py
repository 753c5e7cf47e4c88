"""Runs a pipeline whose sink has a password, with everything on that Spark writes or shows of a run.

Prints what Spark's web page said while it ran. The password comes on standard input: it is nowhere else.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from penstock import Pipeline
from penstock import adaptors as a
from penstock.adaptors.base import Adaptor, Publisher, Sink, Stage, Staged, Stager
from penstock.adaptors.staging import Tally
from penstock.base.settings import setting
from penstock.pipeline.progress import Progress
from penstock.pipeline.runner import run

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Guarded(Adaptor):
    """Discards, but only for those who know the word."""

    name: ClassVar[str] = "guarded"
    description: ClassVar[str] = "for tests"
    writes: ClassVar[bool] = True
    password: str = setting("the word", secret=True)
    length: int = setting("how long it is", default=0)

    def sink(self) -> Sink:
        return GuardedSink(self)


class GuardedSink(Sink):
    def __init__(self, settings: Guarded) -> None:
        self._settings = settings
        self._within = a.discard().sink()
        self.order, self.guarantee = self._within.order, self._within.guarantee

    def stager(self) -> Stager:
        return GuardedStager(self._settings)

    def publisher(self) -> Publisher:
        return self._within.publisher()

    def staging(self, scratch: Path) -> Path:
        return scratch


class GuardedStager(Stager):
    def __init__(self, settings: Guarded) -> None:
        self._settings = settings

    def stage(self, stage: Stage, rows: Iterator[pa.RecordBatch]) -> Staged:
        assert len(self._settings.password) == self._settings.length, "the task has not got the password"
        tally = Tally(stage.skip_below)
        for batch in rows:
            tally.add(tally.fresh(batch))
        return tally.staged("counted", 1)


def main(place: Path, port: int, password: str) -> None:
    pages: dict[str, str] = {}

    def look(progress: Progress) -> None:
        base = f"http://127.0.0.1:{port}/api/v1/applications"
        try:
            with urllib.request.urlopen(base, timeout=5) as answer:
                application = json.load(answer)[0]["id"]
            for page in (
                "environment",
                "sql?details=true&planDescription=true",
                "jobs",
                "stages?details=true",
            ):
                with urllib.request.urlopen(f"{base}/{application}/{page}", timeout=5) as answer:
                    pages[page] = answer.read().decode()
        except OSError:
            return

    shop = Pipeline("shop")
    shop.source("in", a.generate(count=50, rate=20)).save("out", Guarded(password, len(password)))
    (place / "events").mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (place / "events").as_uri(),
        "spark.ui.enabled": "true",
        "spark.ui.port": str(port),
    }
    summary = run(shop, data_dir=place / "data", once=True, cores=1, settings=settings, report=look)
    told = {"exit": summary.exit_code, "delivered": summary.sinks[0].delivered, "pages": pages}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.stdin.readline().strip())
