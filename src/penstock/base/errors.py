"""Errors that a person will read.

Every error of Penstock is a `PenstockError`. Its message says what was expected and what came; its
`hint`, where there is one, says what to do next. `exit_code` is what a command ends with when the
error reaches the top:

    1  the work failed            2  the request was wrong (arguments, settings, pipeline file)
    3  a sink stopped at a message and wants an operator
    4  the data directory belongs to another process
    5  data on disk is damaged, of a newer format than this version reads, or was taken away
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not what was wanted: no JSON, no UTF-8, nested beyond any honest text."""


class PenstockError(Exception):
    """Base of all errors; `hint` tells what to do next."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(PenstockError):
    """What was asked for cannot be: unknown setting, bad pipeline file, missing argument."""

    exit_code = 2


class RefusedError(PenstockError):
    """A sink refused a message and stopped before it."""

    exit_code = 3


class AwayError(PenstockError):
    """An outside system does not answer; nothing is wrong with the messages. Tried again, later each time."""


class InUseError(PenstockError):
    """Another process owns the data directory."""

    exit_code = 4


class CorruptError(PenstockError):
    """Bytes that should be ours do not read as such; carries where."""

    exit_code = 5

    def __init__(self, what: str, *, where: str, position: int, hint: str | None = None) -> None:
        super().__init__(f"{where}, byte {position}: {what}", hint=hint)
        self.where = where
        self.position = position


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A suggestion to append to an error: `; did you mean 'fields'?`, or the list of what there is."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; known: {', '.join(names)}" if names else ""
