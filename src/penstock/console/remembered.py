"""An answer that took some reading, kept for as long as nothing can have changed."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.console.reaching import Reaching
from penstock.console.views import Json
from penstock.pipeline.operations import Directory


class Remembered:
    """May be used by several threads."""

    def __init__(self, reaching: Reaching, nothing: Json) -> None:
        """`nothing` is the answer where there is nothing yet."""
        self._reaching = reaching
        self._nothing = nothing
        self._lock = threading.Lock()
        self._known: tuple[object, object, Json] | None = None

    def get(self, read: Callable[[Directory], Json], question: object = None) -> Json:
        """The last answer if it was to the same question and still holds, else what is read now."""
        if not self._reaching.exists:
            return self._nothing
        before = self._reaching.changed()
        with self._lock:
            known = self._known
        if before is not None and known is not None and known[:2] == (before, question):
            return known[2]
        with self._reaching.looking() as directory:
            answer = read(directory)
        # Of what was read while somebody else had the journals, nobody knows for how long it holds.
        if before is not None and self._reaching.changed() == before:
            with self._lock:
                self._known = (before, question, answer)
        return answer

    def forget(self) -> None:
        """Something was changed from here: the next answer is read."""
        with self._lock:
            self._known = None
