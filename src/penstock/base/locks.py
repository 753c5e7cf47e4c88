"""Directories that one process has at a time. The lock goes with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from penstock.base.errors import InUseError


def lock_directory(directory: Path, refusal: str, hint: str) -> int:
    """Lock it by the file `.lock` in it; an `InUseError` if another has it. Closing the descriptor lets go of it."""
    descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise InUseError(refusal, hint=hint) from None
    return descriptor
