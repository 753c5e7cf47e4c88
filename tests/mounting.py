"""Whether tests may have a file system of their own."""

from __future__ import annotations

import functools
import shutil
import subprocess


@functools.cache
def may_mount() -> bool:
    """Whether the kernel lets us have one."""
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return False
    probe = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs tmpfs /tmp"]
    return subprocess.run(probe, capture_output=True, timeout=30, check=False).returncode == 0
