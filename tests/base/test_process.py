"""A process is told apart from another one of the same number."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.base import process
from penstock.base.process import has_ended, identity

_TELL = "from penstock.base.process import identity; print(identity(), flush=True); input()"


def test_a_process_that_runs_has_not_ended() -> None:
    assert f":{os.getpid()}:" in identity()
    assert not has_ended(identity())


def test_a_killed_process_has_ended() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _TELL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    told = child.stdout.readline().strip()
    assert told
    assert not has_ended(told)
    child.kill()
    child.communicate()
    assert has_ended(told)


def test_a_number_that_was_used_again_is_another_process() -> None:
    here, _, start = identity().rpartition(":")
    assert has_ended(f"{here}:{int(start) - 1}")


def test_nothing_is_said_about_processes_of_other_machines() -> None:
    assert not has_ended("another-boot:4026531836:999999:1")
    assert not has_ended("")
    assert not has_ended("nonsense")


def test_a_process_that_is_hidden_from_us_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another user's is where `/proc` is mounted with `hidepid`: it looks as if it were not there."""
    of_init = f"{process._here()}:1:12345"

    def hidden(pid: int) -> str:
        raise FileNotFoundError(f"/proc/{pid}/stat")

    monkeypatch.setattr(process, "_start", hidden)
    assert not has_ended(of_init)
    assert not has_ended(identity() or f"{process._here()}:{os.getpid()}:1")


def test_numbers_of_another_namespace_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in a pid namespace of its own may still see the `/proc` of the one around it."""
    told = identity()
    process._here.cache_clear()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    try:
        assert identity() == ""
        assert not has_ended(f"{told.rpartition(':')[0]}:1")
    finally:
        process._here.cache_clear()
