"""Errors from Spark and from workers, in one line that a person can use."""

from __future__ import annotations

import errno
import os
import re

from penstock.base.errors import AwayError, PenstockError
from penstock.base.secrets import mask
from penstock.journal.client import BrokerGoneError, TimedOutError

_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit): ")
_AWAY = re.compile(r"^penstock\.[\w.]+\.(?:AwayError|BrokerGoneError|TimedOutError): (.+)$", re.MULTILINE)
"""What says in a worker's traceback that a system does not answer; its type does not come through."""
_NO_ROOM = os.strerror(errno.ENOSPC)
"""What the operating system says of a full disk, to Java and to Python."""


def told(error: BaseException) -> PenstockError:
    """The error as one that can be told later: Spark's own can be read only while its JVM lives."""
    if isinstance(error, (BrokerGoneError, TimedOutError)):
        return AwayError(error.message, hint=error.hint)
    if isinstance(error, PenstockError):
        return error
    if away := _AWAY.findall(str(error)):
        return AwayError(mask(away[-1]))
    return out_of_room(error) or PenstockError(first_line(error))


def out_of_room(error: BaseException) -> AwayError | None:
    """The error as one that is over once somebody has made room; None if it is another."""
    return AwayError(f"a disk is full: {first_line(error)}") if _NO_ROOM in str(error) else None


def first_line(error: BaseException) -> str:
    """One line that tells a person what happened, secrets masked; of Spark's long texts the one that says why.

    A failure in a Python worker carries a traceback, whose last line is the error itself.
    """
    return mask(_first_line(error))


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    for at, line in enumerate(lines):
        if line.startswith("Traceback (most recent call last)"):
            raised = [text for text in lines[at + 1 :] if _RAISED.match(text)]
            return raised[0] if raised else lines[0]
    return lines[0]
