"""A browser for tests: Debian's Chromium with fonts of its own, driven by Playwright."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.servers.cache import UnavailableError, missing
from tests.servers.debian import Tree, unpacked

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_PACKAGES = ("chromium", "fonts-inter", "fonts-jetbrains-mono")

_FONTS = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <dir>{root}/usr/share/fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
"""


@contextmanager
def running() -> Iterator[Browser]:
    """One browser; ends with the block."""
    from playwright.sync_api import sync_playwright

    try:
        tree = unpacked("chromium", _PACKAGES)
    except UnavailableError as error:
        missing("Chromium", error)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(tree.path("usr/lib/chromium/chromium")),
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
            env={**_environment(tree)},
        )
        try:
            yield browser
        finally:
            browser.close()


def _environment(tree: Tree) -> dict[str, str | float | bool]:
    """With the libraries and fonts of the tree, so that pages look the same on every machine."""
    fonts = tree.root / "fonts.conf"
    if not fonts.exists():
        fonts.write_text(_FONTS.format(root=tree.root))
    # Some libraries keep others in a directory of their own, where only an installed one would look.
    inner = sorted({str(path.parent) for path in tree.root.glob("usr/lib/*-linux-gnu*/*/*.so*")})
    libraries = ":".join([tree.libraries(), *inner])
    return {**os.environ, "LD_LIBRARY_PATH": libraries, "FONTCONFIG_FILE": str(fonts)}
