"""Memory for processes through which much passes: what was used once stays at hand.

The C library of Linux gives a large block back to the system as soon as it is free, and takes the next one as fresh
pages, each of them a fault of its own and cleared by the kernel. Where messages pass by the megabyte that is a fifth
to a third of a process's work. So processes that serve keep what they have used, up to a limit. Who has told the
library otherwise, in the environment, is not contradicted.
"""

from __future__ import annotations

import ctypes
import os

KEPT = 128 << 20
"""Bytes at the end of the heap that stay when they are free."""

_LARGEST = 32 << 20
"""Blocks up to here come from the heap; the library takes no larger number."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_TOLD = ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


def keep_used() -> bool:
    """For the rest of this process; whether the library is one that knows this, and was not told otherwise."""
    if any(name in os.environ for name in _TOLD):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_TRIM_THRESHOLD, KEPT)) and bool(mallopt(_MMAP_THRESHOLD, _LARGEST))
