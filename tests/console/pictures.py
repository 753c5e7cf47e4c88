"""Pictures for the documents, by the tests that have the pages open: PENSTOCK_SCREENSHOTS=1 has them taken anew."""

from __future__ import annotations

import getpass
import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

WANTED = bool(os.environ.get("PENSTOCK_SCREENSHOTS"))
IMAGES = Path(__file__).parents[2] / "docs" / "images"
PICTURES = {
    "overview", "overview-dark", "phone", "sink", "log", "trace", "dead", "journals", "connectors", "immortals",
    "spark",
}  # fmt: skip

_DISGUISE = r"""([user, host]) => {
  const known = [
    [/(unix:\/\/localhost)?\/tmp\/pytest-\S*\/(data|journals)\b/g, "~/shop/.penstock"],
    [/\/tmp\/pytest-\S*\//g, "~/shop/"],
    [new RegExp(user, "g"), "anna@laptop"],
    [new RegExp(host, "g"), "laptop"],
  ];
  const disguise = () => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let text; (text = texts.nextNode()); ) {
      const told = known.reduce((said, [what, instead]) => said.replace(what, instead), text.data);
      if (told !== text.data) text.data = told;
    }
  };
  disguise();
  new MutationObserver(disguise).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""


def kept(page: Page, name: str) -> None:
    """A picture of the page as a newcomer would see it: with a person's directory, and not with that of a test."""
    if WANTED and name in PICTURES:
        host = socket.gethostname()
        page.evaluate(_DISGUISE, [f"{getpass.getuser()}@{host}", host])
        page.screenshot(path=IMAGES / f"console-{name}.png")


def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the charts of the last hour fill ten times as fast: a value stands for two seconds then."""
    clock = SimpleNamespace(time=lambda: 10 * time.time(), monotonic=time.monotonic)
    monkeypatch.setattr("penstock.console.lookout.time", clock)
