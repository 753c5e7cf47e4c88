"""What a caller may do: capabilities, and the journals it may do them to (reference 10).

Claims are what is left of an authorization once it has been verified (`auth.py`). A caller that needs none, on
the data directory's own socket or where no keys are set, has `EVERYTHING`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag

from penstock.journal import labels
from penstock.journal.protocol import JournalSpec, LabelSelector, LabelSet

LEEWAY = 5.0
"""Seconds by which the clocks of a signer and a broker may differ."""


class Capability(IntFlag):
    """Bits of the `cap` claim."""

    LIST = 1 << 1
    APPLY = 1 << 2
    READ = 1 << 3
    APPEND = 1 << 4
    REPLICATE = 1 << 5
    ALL = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Claims:
    """`selector` is matched against a journal's labels and its `name`; an empty one matches all."""

    capability: Capability
    selector: LabelSelector
    expires: float | None = None
    """Unix seconds at which the authorization ends, and with it the call; None: never."""

    def left(self, now: float) -> float | None:
        """Seconds until a call that begins now ends with its authorization; None: it does not.

        One that was let in though the authorization had ended, since clocks may differ, has what is left of that.
        """
        if self.expires is None:
            return None
        return self.expires - now if now < self.expires else max(0.0, self.expires + LEEWAY - now)

    @property
    def is_unlimited(self) -> bool:
        return not self.selector.include.labels and not self.selector.exclude.labels

    def allows(self, spec: JournalSpec) -> bool:
        return self.is_unlimited or labels.match(self.selector, labels.with_name(spec.labels, spec.name))

    def allows_name(self, journal: str) -> bool:
        """As `allows`, of a journal of which only the name counts."""
        return labels.match(self.selector, labels.with_name(LabelSet(), journal))


EVERYTHING = Claims(Capability.ALL, LabelSelector())
