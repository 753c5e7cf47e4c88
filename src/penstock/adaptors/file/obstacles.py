"""What stands in the way of a file that is to be written; for `plan`, so nothing is changed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from penstock.adaptors.base import Finding


def obstacles(target: Path, *, made: bool) -> Sequence[Finding]:
    """Of a file at `target`; `made` says that directories above it that are missing will be made."""
    above = target.absolute().parent
    if made:
        above = next(path for path in (above, *above.parents) if path.exists())
    if not above.exists():
        return [
            Finding(
                f"the directory {above} is not there", fix=f"mkdir -p {shlex.quote(str(above))}", fatal=True
            )
        ]
    if not above.is_dir():
        return [Finding(f"{above} is not a directory", fatal=True)]
    if not os.access(above, os.W_OK | os.X_OK):
        return [Finding(f"nothing can be written in the directory {above}: permission denied", fatal=True)]
    if target.exists() and not os.access(target, os.W_OK):
        return [Finding(f"{target} cannot be written: permission denied", fatal=True)]
    return ()
