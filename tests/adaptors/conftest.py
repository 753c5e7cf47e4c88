"""What tests of several adaptors use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.base import secrets


@pytest.fixture
def forgets_secrets() -> Iterator[None]:
    """Passwords that a test registers are not masked in others."""
    yield
    secrets.forget_all()
