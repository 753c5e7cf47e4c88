"""A data directory and a runner that exist only in memory, behind the commands' own imports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner, Result

from penstock import pipeline as pipeline_room
from penstock.base.errors import UsageError
from penstock.cli import cli
from penstock.pipeline.definition import Pipeline
from penstock.pipeline.progress import NodeProgress, Progress, SinkSummary, Summary
from penstock.pipeline.records import LogEntry, NamespaceStatus, PipelineStatus, SinkStatus

Invoke = Callable[..., Result]

SHOP = """\
from penstock import Pipeline, adaptors as a, functions as f

shop = Pipeline("shop")
orders = shop.source("db", a.sqlite(uri="sqlite://shop.db"), ns="orders|items")
orders.save("audit", a.file(uri="file://audit.jsonl"))
orders.transform("slim", f.pick(fields=["id"])).save("ids", a.file(uri="file://ids.jsonl"), ns="^orders$")
"""


def sink_status(sink: str, watermark: int, end: int, namespaces: dict[str, int]) -> SinkStatus:
    return SinkStatus(
        sink=sink,
        watermark=watermark,
        generation=0,
        delivered=watermark,
        dropped=0,
        dead=0,
        lag=end - watermark,
        lag_bytes=None,
        updated_ts=None,
        namespaces=namespaces,
    )


class FakeDirectory:
    """What `penstock.pipeline.operations.Directory` promises, over lists."""

    def __init__(self, logs: dict[str, Sequence[LogEntry]], base: int = 0) -> None:
        self.logs = logs
        self.base = base

    def pipelines(self) -> list[str]:
        return list(self.logs)

    def oldest(self, pipeline: str) -> int:
        return self.base

    def current(self, pipeline: str) -> int:
        return self.base + len(self.logs[pipeline]) - 1

    def show(self, pipeline: str, first: int, last: int) -> Iterator[LogEntry]:
        if not self.base <= first <= last <= self.current(pipeline):
            raise UsageError(f"the log of '{pipeline}' holds {self.base} to {self.current(pipeline)}")
        yield from self.logs[pipeline][first - self.base : last - self.base + 1]

    def offsets(self, pipeline: str) -> Sequence[SinkStatus]:
        end = self.current(pipeline) + 1
        return [
            sink_status("audit", end, end, {"orders": end - 1, "items": self.base}),
            sink_status("ids", 0, end, {}),
        ]

    def status(self, pipeline: str) -> PipelineStatus:
        return PipelineStatus(
            pipeline=pipeline,
            running=False,
            pid=None,
            oldest=self.oldest(pipeline),
            next=self.current(pipeline) + 1,
            log_bytes=2048,
            namespaces={"orders": NamespaceStatus("complete", self.current(pipeline))},
            sinks=self.offsets(pipeline),
        )


def entries(count: int, base: int = 0) -> list[LogEntry]:
    return [
        LogEntry(base + n, 1_700_000_000_000_000 + n, "copy", "insert", "orders", None, f'{{"id":{n}}}')
        for n in range(count)
    ]


class FakeRunner:
    """What `penstock.pipeline.runner.run` promises; it reports what it is told to and keeps what it got."""

    def __init__(self) -> None:
        self.calls: list[dict[str, object]] = []
        self.summary = Summary(
            pipeline="shop",
            elapsed=3.25,
            read=10,
            log_next=10,
            sinks=[SinkSummary("audit", 10, 7, 2, 1, 0, 7, "file://audit.jsonl")],
            adds_up=True,
            exit_code=0,
        )
        self.error: BaseException | None = None

    def run(self, pipeline: Pipeline, *, report: Callable[[Progress], None], **arguments: object) -> Summary:
        self.calls.append({"pipeline": pipeline.name, **arguments})
        for phase in ("opening", "starting spark", "running"):
            node = NodeProgress(
                "audit", "sink", "file", "running", messages_in=10, delivered=7, dropped=2, dead=1
            )
            report(Progress("shop", 1.0, phase, 10, [node]))
        if self.error is not None:
            raise self.error
        return self.summary


def _stand_in(monkeypatch: pytest.MonkeyPatch, name: str, module: ModuleType) -> None:
    monkeypatch.setitem(sys.modules, f"penstock.pipeline.{name}", module)
    monkeypatch.setattr(pipeline_room, name, module, raising=False)


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Invoke:
    """Run a command in this process, in an empty current directory."""
    monkeypatch.chdir(tmp_path)
    for variable in ("PENSTOCK_DATA_DIR", "PENSTOCK_DEBUG"):
        monkeypatch.delenv(variable, raising=False)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli, list(arguments), prog_name="penstock")

    return run


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeDirectory:
    """The data directory `.penstock` of one pipeline, `shop`, with five messages."""
    fake = FakeDirectory({"shop": entries(5)})
    (tmp_path / ".penstock").mkdir()
    module = ModuleType("penstock.pipeline.operations")

    @contextmanager
    def open_directory(path: Path) -> Iterator[FakeDirectory]:
        assert path.is_dir()
        yield fake

    module.open_directory = open_directory  # type: ignore[attr-defined]
    _stand_in(monkeypatch, "operations", module)
    return fake


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    fake = FakeRunner()
    module = ModuleType("penstock.pipeline.runner")
    module.run = fake.run  # type: ignore[attr-defined]
    _stand_in(monkeypatch, "runner", module)
    return fake


@pytest.fixture
def shop_file(tmp_path: Path) -> Path:
    file = tmp_path / "shop.py"
    file.write_text(SHOP)
    return file
