"""What `plan` tells about an outside system, of a source or of a sink."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about the outside system that a person should know before a run.

    `fix` is the statement or command that mends it, word for word, where there is one. What is `fatal` keeps a run
    from working at all.
    """

    what: str
    fix: str | None = None
    fatal: bool = False
