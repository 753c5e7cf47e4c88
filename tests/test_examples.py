"""Every example runs, and does what it says; so do those of the tutorial and of the page on the journal client."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession
from tests.immortal.pairs import Pair, running

from penstock.journal.embedded import EmbeddedBroker
from penstock.pipeline import frames
from penstock.pipeline.cases import check_case, find_cases, load_cases
from penstock.pipeline.definition import load_pipeline
from penstock.pipeline.runner import run

EXAMPLES = Path(__file__).parents[1] / "examples"
CLIENT_PAGE = Path(__file__).parents[1] / "docs" / "journal-client.md"
TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_has_a_test_here() -> None:
    examples = {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    assert examples == {"connector", "immortal-bank", "journal", "shop"}


@pytest.mark.spark
def test_the_shop(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shop = module_of(EXAMPLES / "shop" / "make_shop.py")
    monkeypatch.setattr(shop, "FIRST_ORDERS", 500)
    monkeypatch.setattr(shop, "ORDERS_A_DAY", 100)
    orders = 0
    for day in (500, 100):
        shop.main(Path("shop.db"))
        orders += day
        summary = run(
            load_pipeline(EXAMPLES / "shop" / "pipeline.py"), data_dir=Path("data"), once=True, spark=spark
        )
        assert (summary.exit_code, summary.adds_up) == (0, True)
        audit = [json.loads(line) for line in Path("audit.jsonl").read_text().splitlines()]
        placed = [line["data"] for line in audit if line["ns"] == "orders"]
        assert [order["id"] for order in placed] == list(range(1, orders + 1))
        big = [json.loads(line) for line in Path("big_orders.jsonl").read_text().splitlines()]
        wanted = [order for order in placed if order["total"] > 300]
        assert big == [{name: order[name] for name in ("id", "customer", "total")} for order in wanted]
        assert big


@pytest.mark.spark
def test_the_immortal_bank(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bank is killed while the pipeline feeds it, started again, and the books are right."""
    monkeypatch.chdir(tmp_path)
    make = module_of(EXAMPLES / "immortal-bank" / "make_transfers.py")
    Path("transfers.jsonl").write_text("".join(f"{line}\n" for line in make.transfers(2000)))
    pair = Pair(
        str(tmp_path / "bank-data"), tmp_path, "bank", "Bank", apps=EXAMPLES / "immortal-bank" / "bank.py"
    )
    monkeypatch.setenv("BANK_ADDRESS", f"127.0.0.1:{pair.port}")
    file = EXAMPLES / "immortal-bank" / "bank_pipeline.py"
    with running(pair):
        pair.ready()

        def kill() -> None:
            pair.wait_for("transfers", 1)
            pair.kill("both")
            pair.start()

        killing = threading.Thread(target=kill)
        killing.start()
        summary = run(load_pipeline(file, "bank"), data_dir=Path("data"), once=True, spark=spark)
        killing.join()
        assert (summary.exit_code, summary.adds_up) == (0, True)
        pair.ready()
        assert pair.ask(lambda outside: outside.call("audit", [])) == [2000, 0]
        summary = run(load_pipeline(file, "report"), data_dir=Path("data2"), once=True, spark=spark)
        assert (summary.exit_code, summary.adds_up) == (0, True)
    balances = [json.loads(line) for line in Path("balances.jsonl").read_text().splitlines()]
    assert [line["transfer"] for line in balances] == [number for number in range(1, 2001) for _ in range(2)]
    last = {line["name"]: line["balance"] for line in balances}
    assert sum(last.values()) == 0


def test_the_shop_in_yaml_is_the_shop_in_python() -> None:
    python, yaml = (load_pipeline(EXAMPLES / "shop" / name) for name in ("pipeline.py", "pipeline.yaml"))
    assert yaml.settings == python.settings
    assert yaml.source_node == python.source_node
    for one, other in zip(yaml.sink_nodes, python.sink_nodes, strict=True):
        assert (one.name, one.ns, one.adaptor) == (other.name, other.ns, other.adaptor)
        steps = [(step.name, step.ns, step.function) for step in one.steps if step.name != "big"]
        assert steps == [(step.name, step.ns, step.function) for step in other.steps if step.name != "big"]
        assert [step.name for step in one.steps] == [step.name for step in other.steps]


@pytest.mark.spark
@pytest.mark.parametrize("name", ["pipeline.py", "pipeline.yaml"])
def test_the_cases_of_the_shop(name: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_session", lambda pipeline, stack: spark)
    pipeline = load_pipeline(EXAMPLES / "shop" / name)
    with frames.frame_courses(pipeline, lambda: None) as courses:
        for case in load_cases(find_cases(EXAMPLES / "shop" / name)).cases:
            result = check_case(case, pipeline, courses)
            assert result.passed, (case.name, result.problem, result.differences)


def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cases pass with the first pipeline, and fail with the second as the page shows."""
    page = TUTORIAL.read_text()
    first, second = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    [cases] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "shop.test.yaml").write_text(cases)
    monkeypatch.chdir(tmp_path)

    def failures(text: str) -> list[str]:
        (tmp_path / "shop.py").write_text(text)
        pipeline = load_pipeline(tmp_path / "shop.py")
        with frames.frame_courses(
            pipeline, lambda: pytest.fail("the page says that Spark is not started")
        ) as courses:
            results = [
                check_case(case, pipeline, courses) for case in load_cases(tmp_path / "shop.test.yaml").cases
            ]
        return [
            f"{line.sign} {line.text}"
            for result in results
            for lines in result.differences.values()
            for line in lines
            if line.sign != " "
        ]

    assert failures(first) == []
    mended = first.partition("(\n    orders.transform")[0] + second
    told = failures(mended)
    assert told == ["- error wants a number", '+ {"id":3,"total":1000}']
    assert all(line in page for line in told)


def test_the_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = module_of(EXAMPLES / "journal" / "example.py")
    with EmbeddedBroker(tmp_path) as broker:
        asyncio.run(journal.main(broker.address))
    written, read, refused, end = capsys.readouterr().out.splitlines()
    assert written.startswith(f"written: {journal.READINGS + 1} records, durable up to offset ")
    assert read == f"read:    {journal.READINGS + 1} records, while they were written"
    assert refused.startswith(
        "refused: journal sensors/attic was claimed by another owner (epoch 2, tuesday/2;"
    )
    assert end == """the end: ['{"owner":"tuesday"}', '{"reading":0}']"""


def test_the_page_on_the_client_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A block of Python with a block of output behind it is a program; the first of the page is what they share."""
    page = CLIENT_PAGE.read_text()
    (frame,) = re.findall(r"`frame\.py`.*?```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "frame.py").write_text(frame)
    monkeypatch.syspath_prepend(tmp_path)
    programs = re.findall(r"```python\n([^`]*)```\n\n```\n([^`]*)```", page)
    assert len(programs) == 9
    try:
        for number, (program, output) in enumerate(programs):
            file = tmp_path / f"program{number}.py"
            file.write_text(program)
            module_of(file)
            assert capsys.readouterr().out == output
    finally:
        sys.modules.pop("frame", None)
