"""A data directory to work on, and a runner that exists only in memory, behind the commands' own imports."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner, Result

from penstock import pipeline as pipeline_room
from penstock.cli import cli
from penstock.log.offsets import Commit
from penstock.pipeline.definition import Pipeline
from penstock.pipeline.progress import NodeProgress, Progress, SinkSummary, Summary

from .operating import Shop, message, orders

Invoke = Callable[..., Result]

SHOP = """\
from penstock import Pipeline, adaptors as a, functions as f

shop = Pipeline("shop")
orders = shop.source("db", a.sqlite(uri="sqlite://shop.db"), ns="orders|items")
orders.save("audit", a.file(uri="file://audit.jsonl"))
orders.transform("slim", f.pick(fields=["id"])).save("ids", a.file(uri="file://ids.jsonl"), ns="^orders$")
"""


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
        self.account: Summary | None = None
        """Of a run that ends by the error; None for one that has not begun."""

    def run(
        self,
        pipeline: Pipeline,
        *,
        report: Callable[[Progress], None],
        failed: Callable[[Summary], None],
        **arguments: object,
    ) -> Summary:
        self.calls.append({"pipeline": pipeline.name, **arguments})
        for phase in ("opening", "starting spark", "running"):
            node = NodeProgress(
                "audit", "sink", "file", "running", messages_in=10, delivered=7, dropped=2, dead=1
            )
            report(Progress("shop", 1.0, phase, 10, [node]))
        if self.account is not None:
            failed(self.account)
        if self.error is not None:
            raise self.error
        return self.summary


def _stand_in(monkeypatch: pytest.MonkeyPatch, name: str, module: ModuleType) -> None:
    monkeypatch.setitem(sys.modules, f"penstock.pipeline.{name}", module)
    monkeypatch.setattr(pipeline_room, name, module, raising=False)


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """Commands that set up logging do so for their process, which here is that of all tests."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Invoke:
    """Run a command in this process, in an empty current directory."""
    monkeypatch.chdir(tmp_path)
    for variable in ("PENSTOCK_DATA_DIR", "PENSTOCK_DEBUG"):
        monkeypatch.delenv(variable, raising=False)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli, list(arguments), prog_name="penstock")

    return run


@pytest.fixture(scope="session")
def five_messages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory to copy: pipeline `shop` with five messages, of which `audit` has all and `ids` none."""
    with pytest.MonkeyPatch.context() as patch:
        made = Shop(tmp_path_factory.mktemp("five"), patch)
        made.log([message("items", '{"id":0}'), *orders(5)[1:]])
        made.sink("audit", Commit(watermark=5, delivered=5), {"items": 0, "orders": 4})
        made.sink("ids", Commit())
    return made.data


@pytest.fixture
def shop(five_messages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A copy of it, `.penstock` in the current directory, beside a pipeline file."""
    shutil.copytree(five_messages, tmp_path / ".penstock")
    return Shop(tmp_path, monkeypatch)


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
