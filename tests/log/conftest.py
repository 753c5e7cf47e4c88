"""A broker and its client for the tests of the logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    with Client(broker.address) as client:
        yield client
