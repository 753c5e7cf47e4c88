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


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    if not may_mount():
        pytest.skip("no file system of our own may be mounted here")
    place = tmp_path_factory.mktemp("small")
    script = [sys.executable, "-m", "tests.adaptors.full_disk", str(place)]
    mount = 'mount -t tmpfs -o size=4m tmpfs "$1" && shift && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", mount, "sh", str(place), *script]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("sink", ["parquet", "raw", "gzip", "csv"])
def test_a_sink_whose_disk_is_full_is_away_and_loses_nothing(
    told: dict[str, dict[str, object]], sink: str
) -> None:
    found = told[sink]
    assert NO_ROOM in str(found["staging"])
    assert NO_ROOM in str(found["publishing"])
    assert (found["held"], found["found"]) == (0, ROWS)


def test_a_full_scratch_directory_is_away_for_sinks_that_send(told: dict[str, dict[str, object]]) -> None:
    assert NO_ROOM in str(told["parts"]["staging"])
    assert told["parts"]["found"] == ROWS
