"""`penstock cluster up` and `status`, and what an operator is told before a write head is reset."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.servers.cache import end_with_parent

from penstock.cli import cli

pytestmark = pytest.mark.xdist_group("cluster")

SPECS = """\
name: shop/
replication: 1
fragment: {length: 1024, compression_codec: NONE, stores: ["file:///"], refresh_interval: 1s}
children:
  - name: shop/items
  - name: shop/orders
"""


@pytest.fixture(autouse=True)
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(cli, list(arguments), prog_name="penstock", input=input)


def ok(*arguments: str, input: str | None = None) -> str:
    result = run(*arguments, input=input)
    assert result.exit_code == 0, result.output
    return result.stdout


@contextmanager
def up(place: Path, brokers: int) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A cluster on this machine, and what it says of itself."""
    command = [
        sys.executable,
        "-m",
        "penstock",
        "cluster",
        "up",
        "--brokers",
        str(brokers),
        "--port",
        "0",
        "--json",
    ]
    process = subprocess.Popen(
        command, cwd=place, stdout=subprocess.PIPE, text=True, preexec_fn=end_with_parent
    )
    assert process.stdout is not None
    told: dict[str, Any] = {}
    try:
        line = process.stdout.readline()
        assert line, "it did not start"
        told = json.loads(line)
        yield process, told
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)
        process.stdout.close()
        deadline = time.monotonic() + 60
        while left := [broker["id"] for broker in told.get("brokers", ()) if runs(broker["pid"])]:
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(0.05)


def runs(pid: int) -> bool:
    """Whether there is such a process; one that has ended may still wait for somebody to take note."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


def until_well(etcd: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while True:
        result = run("cluster", "status", "--etcd", etcd, "--json")
        if result.exit_code == 0:
            found: dict[str, Any] = json.loads(result.stdout)
            return found
        assert time.monotonic() < deadline, result.output
        time.sleep(0.1)


def test_a_cluster_is_up_and_says_how_it_is_and_recovers_with_guidance(tmp_path: Path) -> None:
    with up(tmp_path, 2) as (_, told):
        etcd, broker = told["etcd"], f"http://{told['brokers'][0]['grpc']}"
        ok("journals", "apply", "--broker", broker, input=SPECS)
        found = until_well(etcd)
        assert [member["id"] for member in found["members"]] == ["broker-1", "broker-2"]
        assert [journal["name"] for journal in found["journals"]] == ["shop/items", "shop/orders"]
        ok("journals", "append", "--broker", broker, "-l", "name=shop/items", input="hello")
        ok("journals", "roll", "--broker", broker, "shop/items")
        table = ok("cluster", "status", "--etcd", etcd, "--all")
        assert "2 of 2 journals are well; 2 brokers" in table
        assert "shop/items" in table
        explained = ok("journals", "reset-head", "-l", "name=shop/items", "--explain", "--broker", broker)
        assert "No reset is needed" in explained
        stored = tmp_path / ".penstock-cluster/store/shop/items"
        deadline = time.monotonic() + 60
        while not stored.exists() or not any(path.suffix == ".raw" for path in stored.iterdir()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    # Both disks are lost, and all that is left is the store.
    for name in ("broker-1", "broker-2"):
        shutil.rmtree(tmp_path / ".penstock-cluster" / name)
    with up(tmp_path, 2) as (process, told):
        broker = f"http://{told['brokers'][0]['grpc']}"
        until_well(told["etcd"])
        refused = run("journals", "append", "--broker", broker, "-l", "name=shop/items", input="more")
        assert "INDEX_HAS_GREATER_OFFSET" in refused.output
        reset = ("journals", "reset-head", "-l", "name=shop/items", "--explain", "--broker", broker)
        asked = run(*reset, input="n\n")
        assert asked.exit_code != 0
        assert "What could be lost" in asked.output
        assert "goes on at 5" in asked.output
        assert "the write head is 5" in ok(*reset, "--yes")
        assert "the write head is 5" in ok("journals", "history", "shop/items", "--broker", broker)
        ok("journals", "append", "--broker", broker, "-l", "name=shop/items", input="more")
        assert ok("journals", "read", "--broker", broker, "-l", "name=shop/items") == "hellomore"
        process.kill()  # what it started ends with it


def test_options_of_a_cluster_without_one_are_refused() -> None:
    result = run("broker", "serve", "--limit", "5")
    assert result.exit_code == 2
    assert "--limit is for a broker in a cluster" in result.output


def test_no_etcd_is_told_as_such() -> None:
    result = run("cluster", "status", "--etcd", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert "etcd" in result.output


def test_a_place_that_cannot_be_made_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("a file")
    result = run("cluster", "up", "--dir", "mine/cluster")
    assert result.exit_code == 2
    assert "Not a directory" in result.output
    assert "--dir" in result.output
