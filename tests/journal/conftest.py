"""An embedded broker and its client, and a store, for the tests of the journal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.base.disk import Disk
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.stores import FileStore
from penstock.log.commitlog import journal_spec

from .brokers import JOURNAL


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    """With one journal, `JOURNAL`."""
    with Client(broker.address) as client:
        client.create(journal_spec(JOURNAL, 1 << 20, {}))
        yield client


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of `store`."""
    root = tmp_path / "store"
    root.mkdir()
    return root


@pytest.fixture
def store(root: Path) -> FileStore:
    return FileStore("file:///", root, Disk())
