"""Processes told apart for good: a number is used again, and another machine has one like it.

    identity    BOOT:NAMESPACE:PID:START, of the machine's boot, the process's pid namespace, its number, its start

Who reads the identity of a process that could only be on this machine, in this namespace, can tell that it has
ended. Of any other process nothing can be told from here; nor of one that is there but whose `/proc` is hidden from us
(mounted with `hidepid`), or if `/proc` is that of another pid namespace, whose numbers mean other processes.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


def identity() -> str:
    """Of this process; empty where the system does not tell."""
    try:
        return f"{_here()}:{os.getpid()}:{_start(os.getpid())}"
    except OSError:
        return ""


def has_ended(identity: str) -> bool:
    """Whether the process of this identity is known to run no more."""
    here, _, rest = identity.rpartition(":")
    here, _, number = here.rpartition(":")
    try:
        if not number.isdigit() or here != _here():
            return False
        return _start(int(number)) != rest
    except FileNotFoundError:
        return not _is_there(int(number))
    except OSError:
        return False


def _is_there(pid: int) -> bool:
    """Asked of the kernel itself, which tells also of processes that `/proc` does not show."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@cache
def _here() -> str:
    if str(Path("/proc/self").readlink()) != str(os.getpid()):
        raise OSError("/proc is that of another pid namespace")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{Path('/proc/self/ns/pid').stat().st_ino}"


def _start(pid: int) -> str:
    """When it began, in ticks since the boot. The name, in brackets before it, may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
