"""What a worker counts, for `/metrics` and `connector status`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Since the worker started."""

    messages: int = 0
    bytes: int = 0
    dropped: int = 0
    """Messages that the log had already."""
    refused: int = 0
    """NOTIFYs."""
    faults: int = 0
    """Connections that were ended with an ERROR."""
    given_up: int = 0
    """Connectors that sent an ERROR themselves."""
    rollbacks: int = 0
    migrations: int = 0
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=20))
    """The last reasons for which a connection ended badly, oldest first."""

    def took(self, messages: int, size: int, dropped: int) -> None:
        self.messages += messages
        self.bytes += size
        self.dropped += dropped

    def fault(self, reason: str) -> None:
        self.faults += 1
        self.recent.append(reason[:500])

    def gave_up(self, instance: str, reason: str) -> None:
        self.given_up += 1
        self.recent.append(f"connector of {instance or 'no instance'}: {reason[:500]}")
