"""A browser for the module, and pages in it that tell what went wrong in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from tests.servers.chromium import running

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Visit = Callable[..., "Page"]

PATIENCE = 240
"""Seconds for what comes at once: only a machine with far too much to do needs them."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running() as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Open an address in a window of its own. A script that fails, or breaks the page's policy, fails the test."""
    contexts, faults = [], []

    def opened(address: str, *, width: int = 1280, height: int = 860, dark: bool = False) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            ignore_https_errors=True,
        )
        context.set_default_timeout(1000 * PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "console",
            lambda line: faults.append(line.text) if "Content Security Policy" in line.text else None,
        )
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not faults
