"""Every example runs, and does what it says."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from penstock.pipeline.definition import load_pipeline
from penstock.pipeline.runner import run

EXAMPLES = Path(__file__).parents[1] / "examples"


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_has_a_test_here() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} == {"shop"}


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
