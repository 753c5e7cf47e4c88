"""What was used once stays at hand: fewer page faults, the same memory in the end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from penstock.base.memory import keep_used
told = keep_used()
for _ in range(100):
    block = bytearray(4 << 20)
    block[:: 4096] = bytes(1024)
    del block
print(told, resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def faults(**told: str) -> tuple[bool, int]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **told},
        capture_output=True,
        text=True,
        check=True,
    )
    kept, count = done.stdout.split()
    return kept == "True", int(count)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux")
def test_blocks_that_come_and_go_are_made_of_the_same_pages() -> None:
    kept, few = faults()
    otherwise, many = faults(MALLOC_TRIM_THRESHOLD_="65536", MALLOC_MMAP_THRESHOLD_="65536")
    assert (kept, otherwise) == (True, False), "who has said something else is not contradicted"
    assert few < many / 5
