"""Log lines for programs and for people."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from penstock.base import secrets
from penstock.base.logs import set_up

log = logging.getLogger("penstock.somewhere")


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level
    secrets.forget_all()


def test_json_lines_say_when_who_and_what(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("info", "json")
    log.debug("not this")
    log.warning("sink %s: away", "audit")
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert told["time"].endswith("Z")
    assert (told["level"], told["logger"], told["message"]) == (
        "warning",
        "penstock.somewhere",
        "sink audit: away",
    )


def test_a_traceback_is_part_of_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("warning", "json")
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("it failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError: broken" in json.loads(line)["traceback"]


@pytest.mark.parametrize("form", ["json", "text"])
def test_secrets_are_masked(capsys: pytest.CaptureFixture[str], form: str) -> None:
    secrets.register("opensesame")
    set_up("warning", form)  # type: ignore[arg-type]
    log.warning("cannot log in as bob:opensesame at postgres://bob:hunter2hunter2@db/shop")
    shown = capsys.readouterr().err
    assert "opensesame" not in shown
    assert "hunter2" not in shown
    assert "bob" in shown


def test_no_line_of_a_text_that_is_logged_begins_as_an_entry_does(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("info", "text")
    try:
        raise ValueError("bad\n2026-01-01 forged")
    except ValueError:
        log.exception("peer: %s", "away\n2026-01-01 forged \x1b[31m")
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.endswith("peer: away")
    assert rest[0] == r"    2026-01-01 forged \x1b[31m"
    assert all(line.startswith("    ") for line in rest)
