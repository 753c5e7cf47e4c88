"""What tests of several adaptors use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.adaptors.postgres_sink_shop import Shop
from tests.adaptors.postgres_target import PostgresTarget
from tests.servers.postgres import PostgresServer

from penstock.base import secrets


@pytest.fixture
def forgets_secrets() -> Iterator[None]:
    """Passwords that a test registers are not masked in others."""
    yield
    secrets.forget_all()


@pytest.fixture(params=["tables", "files"])
def shop(request: pytest.FixtureRequest, postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Shop]:
    """A schema of the PostgreSQL server, for its sink; whose tasks stage at the server, or also in files."""
    shop = Shop(PostgresTarget(postgres_server), tmp_path if request.param == "files" else None)
    yield shop
    for writer in shop.writers:
        writer.close()
