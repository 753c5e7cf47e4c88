"""What goes wrong in an immortal, by name.

A `DeterminismError` means that replay could not be trusted any more. It always ends the process: a machine that has
seen one handles nothing further, even if the handler that caused it catches the exception.
"""

from __future__ import annotations

import threading

from penstock.base.errors import PenstockError


class ImmortalError(PenstockError):
    """Base of the errors of immortals."""


class _Seen(threading.local):
    """The last one of this thread: a handler may catch it, and the machine is to know all the same."""

    error: DeterminismError | None = None


class DeterminismError(ImmortalError):
    """Something happened that replay would not repeat, or replay did not repeat what had happened."""

    seen = _Seen()

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.seen.error = self


class ProtocolError(ImmortalError):
    """The coordinator sent what the protocol does not allow at this point."""


class UpgradeRefusedError(ImmortalError):
    """The new class cannot go on where the old one is; nothing has changed yet."""


class UnkeptError(ImmortalError):
    """The state, or the record of an open handler, holds what cannot be written down, or not be read back then."""

    MEND = (
        "the log has every input since the last checkpoint: mend the class, and start the same version again"
    )


class RemoteError(ImmortalError):
    """The handler at the other side raised; `kind` is the name of what it raised, `text` its words."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}" if text else kind)
        self.kind = kind
        self.text = text


class OutboxFullError(ImmortalError):
    """More was emitted than the limit allows while nobody took it."""
