"""The page from elsewhere: over TLS, with a secret, as one who may change things and as one who may look."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.journal.authority import Authority

from penstock.base import secrets
from penstock.console.access import OPERATOR, VIEWER, credential
from penstock.console.serving import Door

from .conftest import Visit
from .places import console, stuck
from .test_page import accessible, confirmed, expect

pytestmark = pytest.mark.xdist_group("chromium")

ANNA, VIC = "correct-horse-battery", "looking-only-please"


def test_from_elsewhere_one_logs_in_over_tls(tmp_path: Path, visit: Visit) -> None:
    shop, pair = stuck(tmp_path), Authority(tmp_path, "ca").pair("console")
    users = [credential("anna", OPERATOR, ANNA), credential("vic", VIEWER, VIC)]
    with console(shop.data, Door("0.0.0.0:0", users, False, pair.cert_file, pair.key_file)) as listening:
        at = listening.replace("0.0.0.0", "127.0.0.1")
        assert at.startswith("https://")
        page = visit(f"{at}/")

        def log_in(secret: str) -> None:
            page.get_by_label("Token or password").fill(secret)
            page.get_by_role("button", name="Log in").click()

        expect(page.get_by_role("heading", name="Penstock"))
        accessible(page)
        log_in("guess-guess-guess")
        expect(page.get_by_role("alert"), "That is not a token or password of this console")
        accessible(page)

        log_in(VIC)
        expect(page.locator("#bar"), "vic (looks only)")
        expect(page.locator(".node.bad"), "sales")
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Strict")
        page.goto(f"{at}/#/p/shop/sink/sales")
        page.get_by_role("button", name="Pause", exact=True).click()
        dialog = page.get_by_role("dialog")
        expect(dialog, "You may look here, and change nothing")
        assert dialog.get_by_role("button", name="Pause", exact=True).is_disabled()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url(re.compile("/login$"))

        log_in(ANNA)
        expect(page.locator("#bar"), "anna")
        page.goto(f"{at}/#/p/shop/sink/sales")
        confirmed(page, "Pause", "takes nothing more until it is resumed", do="Pause")
        expect(page.locator(".chip"), "paused")
    assert [(entry.action, entry.who) for entry in shop.audit()] == [("pause", "anna (console)")]
    secrets.forget_all()
