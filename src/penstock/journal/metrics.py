"""What a broker counts, as plain numbers; `prometheus.py` tells them under the reference's names.

Touched on the event loop's thread only. Nothing here costs more than an addition, so everything is counted always.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Timing:
    """Calls of one kind and the seconds they took."""

    calls: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.calls += 1
        self.seconds += seconds


@dataclass(slots=True)
class Metrics:
    """One broker's numbers since its start. Keys of the counters are tuples of label values."""

    started: Counter[str] = field(default_factory=Counter)
    """By operation (`Append`)."""
    completed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By operation and status: `ok`, a Status name, or `<error>`."""
    commits: int = 0
    commit_bytes: int = 0
    rollbacks: int = 0
    rollback_bytes: int = 0
    syncs: int = 0
    """Syncs of spools; `commits / syncs` is how many appends one of them served."""
    sync_seconds: float = 0.0
    spools_completed: int = 0
    spools_persisted: int = 0
    store_operations: dict[tuple[str, str, str], Timing] = field(default_factory=dict)
    """By store URL, operation (`get`, `put`, `list`, `remove`, `exists`) and status (`ok`, `error`, `denied`)."""
    store_put_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By store URL and content encoding."""
    store_listed: Counter[str] = field(default_factory=Counter)
    store_health_checks: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By store URL and status (`ok`, `error`)."""

    def store_operation(self, store: str, operation: str, status: str, seconds: float) -> None:
        self.store_operations.setdefault((store, operation, status), Timing()).add(seconds)
