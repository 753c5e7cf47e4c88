"""Directories and files that one process has at a time. The lock goes with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from penstock.base.errors import InUseError

PATIENCE = 2.0
"""Seconds for which somebody is waited for who may have a file for a moment only."""
_POLL = 0.02


def lock_directory(directory: Path, refusal: str, hint: str) -> int:
    """Lock it by the file `.lock` in it; an `InUseError` if another has it. Closing the descriptor lets go of it."""
    descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise InUseError(refusal, hint=hint) from None
    return descriptor


def lock_soon(descriptor: int) -> None:
    """Lock a file, waiting for whoever has it for a moment; `BlockingIOError` if somebody has it for longer."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_POLL)
        else:
            return
