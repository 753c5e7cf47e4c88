"""etcd for the tests of the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.etcd import EtcdServer, running


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """Shared by all: each test has a prefix of its own, and no test breaks it."""
    with running(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def own(tmp_path: Path) -> Iterator[EtcdServer]:
    """A member to be broken."""
    with running(tmp_path / "etcd") as server:
        yield server


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"/{request.node.name}"
