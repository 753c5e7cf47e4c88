"""What stands in the way of writing a file, or into a directory; for `plan`, so nothing is changed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from penstock.adaptors.base import Finding


def obstacles_to_file(target: Path) -> Sequence[Finding]:
    """Of a file, which is made if it is missing; its directory is not."""
    if _is_there(target) and target.is_dir():
        return [Finding(f"{target} is a directory, not a file", fatal=True)]
    if _is_there(target) and not os.access(target, os.W_OK):
        return [Finding(f"{target} cannot be written: permission denied", fatal=True)]
    return obstacles(target.parent, made=False)


def obstacles(directory: Path, *, made: bool) -> Sequence[Finding]:
    """`made` says that the directory, and those above it, will be made if they are missing."""
    wanted = directory.absolute()
    there = next(path for path in (wanted, *wanted.parents) if _is_there(path))
    if not there.is_dir():
        return [Finding(f"{there} is not a directory", fatal=True)]
    if not os.access(there, os.X_OK | (os.W_OK if made or there == wanted else 0)):
        return [Finding(f"nothing can be written in the directory {there}: permission denied", fatal=True)]
    if there != wanted and not made:
        fix = f"mkdir -p {shlex.quote(str(wanted))}"
        return [Finding(f"the directory {wanted} is not there", fix=fix, fatal=True)]
    return ()


def _is_there(path: Path) -> bool:
    """Unlike the path's own method it does not raise where a directory above may not be searched."""
    return os.access(path, os.F_OK)
