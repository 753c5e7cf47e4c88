"""What tests of several adaptors use."""

from __future__ import annotations

from collections.abc import Iterator

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


@pytest.fixture
def shop(postgres_server: PostgresServer) -> Iterator[Shop]:
    """A schema of the PostgreSQL server, for its sink."""
    shop = Shop(PostgresTarget(postgres_server))
    yield shop
    for writer in shop.writers:
        writer.close()
