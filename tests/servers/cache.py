"""Where servers for tests are kept: `$XDG_CACHE_HOME/penstock/servers`, or below `~/.cache`.

What is made here is made once for a machine. It is made under a temporary name and renamed when whole, so what an
interrupted download left is never used; of two processes that want the same, the second waits for the first.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

_PR_SET_PDEATHSIG = 1


class UnavailableError(Exception):
    """A server cannot be had here; says why."""


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The directory `name` of the cache; if it is not there yet, `make` is given an empty one to fill."""
    place = _root() / name
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with _locked(place.with_name(f".{name}.lock")):
        if place.is_dir():
            return place
        growing = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=place.parent))
        try:
            growing.chmod(0o755)
            make(growing)
            growing.rename(place)
        finally:
            shutil.rmtree(growing, ignore_errors=True)
    return place


def end_with_parent() -> None:
    """For `preexec_fn`: a server is not left behind by a test process that is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def missing(server: str, error: Exception) -> NoReturn:
    """Skip the test that wanted the server; where all must be there, in CI, fail it."""
    reason = f"there is no {server} here: {error}"
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / "servers"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
