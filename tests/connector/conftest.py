"""A sink that is a process, and its coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.connector.sinking import SinkProcess, Worker


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[SinkProcess]:
    made = SinkProcess(tmp_path)
    yield made
    made.kill()


@pytest.fixture
def worker(sink: SinkProcess) -> Worker:
    return Worker(sink)
