"""Sinks of files on a disk that is full: away, as long as it is; and then every row once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.adaptors.full_disk import ROWS
from tests.mounting import may_mount

NO_ROOM = "No space left on device"


Told = dict[str, dict[str, object]]


def with_a_small_disk(place: Path, *more: Path, timeout: float = 120.0) -> Told:
    """What sinks tell in a process that has a file system of 4 MiB at `place`."""
    if not may_mount():
        pytest.skip("no file system of our own may be mounted here")
    script = [sys.executable, "-m", "tests.adaptors.full_disk", str(place), *map(str, more)]
    mount = 'mount -t tmpfs -o size=4m tmpfs "$1" && shift && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", mount, "sh", str(place), *script]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: Told = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return with_a_small_disk(tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize("sink", ["parquet", "raw", "gzip", "csv"])
def test_a_sink_whose_disk_is_full_is_away_and_loses_nothing(told: Told, sink: str) -> None:
    found = told[sink]
    assert NO_ROOM in str(found["staging"])
    assert NO_ROOM in str(found["publishing"])
    assert (found["held"], found["found"]) == (0, ROWS)


def test_a_full_scratch_directory_is_away_for_sinks_that_send(told: Told) -> None:
    assert NO_ROOM in str(told["parts"]["staging"])
    assert told["parts"]["found"] == ROWS


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_run_whose_target_is_full_says_so_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    small, data = tmp_path / "small", tmp_path / "data"
    small.mkdir()
    data.mkdir()
    found = with_a_small_disk(small, data, timeout=500.0)["run"]
    assert NO_ROOM in str(found.pop("error"))
    assert found == {"state": "away", "code": 0, "found": ROWS}
