"""Streams of what cannot be read twice: what has come is kept until it is durable, and given again if need be."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from penstock.connector.columns import Columns
from penstock.connector.stream import CannotSeekError, Records, Stream

_OVERHEAD: Final = 64
"""What a body that is kept takes of memory besides its bytes, about."""


class Kept(Stream):
    """For what cannot be read twice: bodies are numbered as they come, and kept until they are durable."""

    def __init__(self, name: str, limit: int = 64 << 20) -> None:
        self.name = name
        self.limit = limit
        self.kept: deque[bytes] = deque()
        """The last of them has the number before `_next`."""
        self.size = 0
        self._unread = 0
        """How many of those kept have to be given (again)."""
        self._durable = 0
        self._next: int | None = None
        self.over = False
        """Nothing more comes."""

    def put(self, body: bytes) -> int | None:
        """Take a message; its id, or None if there is no room, or no worker has told yet where to go on."""
        if self._next is None or self.size + len(body) + _OVERHEAD > self.limit:
            return None
        self.keep(self._next, [body])
        return self._next - 1

    @property
    def unsettled(self) -> bool:
        """Whether something has come that is not durable."""
        return bool(self.kept)

    def keep(self, first: int, bodies: Sequence[bytes]) -> None:
        """Take messages with the ids from `first` on, whether there is room or not."""
        self.kept.extend(bodies)
        self.size += _weight(bodies)
        self._next = first + len(bodies)
        self._unread += len(bodies)

    def seek(self, point: int | None) -> None:
        known = point or 0
        if known < self._durable:
            raise CannotSeekError(
                f"stream '{self.name}' keeps what is not durable, from {self._durable + 1} on, and was asked for "
                f"{known + 1}"
            )
        if self._next is not None and known >= self._next:
            raise CannotSeekError(
                f"the log has stream '{self.name}' up to message {known}, and this sender gave none behind "
                f"{self._next - 1}: another sends it, too",
                hint="give each sender a stream of another name",
            )
        self.ack(known)
        self._next = max(self._next or 0, known + 1)
        self._unread = len(self.kept)

    def read(self) -> Records:
        if not self._unread or self._next is None:
            return None if self.over else []
        bodies = list(islice(self.kept, len(self.kept) - self._unread, None))
        self._unread = 0
        return Columns(range(self._next - len(bodies), self._next), bodies)

    def ack(self, point: int) -> None:
        if self._next is not None:
            first = self._next - len(self.kept)
            gone = [self.kept.popleft() for _ in range(first, min(point + 1, self._next))]
            self.size -= _weight(gone)
        self._durable = max(self._durable, point)
        self._unread = min(self._unread, len(self.kept))


def _weight(bodies: Sequence[bytes]) -> int:
    """What they take of memory, about."""
    return sum(map(len, bodies)) + _OVERHEAD * len(bodies)
