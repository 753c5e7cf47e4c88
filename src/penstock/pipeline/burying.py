"""The dead letters of a run: what its sinks and functions refuse, and what its source cannot make messages of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from penstock.adaptors.base import Bad, Refusal
from penstock.base.secrets import mask
from penstock.journal.client import Client
from penstock.log.deadletters import DeadLetters, Death, Misfit
from penstock.log.keeping import keep
from penstock.log.ownership import FencedError
from penstock.log.reader import LogReader
from penstock.pipeline.clock import now_us
from penstock.pipeline.definition import Pipeline


class Burials:
    """May be used by several threads. The journal is made when the first message dies."""

    def __init__(self, client: Client, pipeline: Pipeline, reader: LogReader) -> None:
        self._client = client
        self._pipeline = pipeline
        self._reader = reader
        self._letters: DeadLetters | None = None
        self._lock = threading.Lock()

    def bury(self, sink: str, generation: int, refusals: Sequence[Refusal]) -> None:
        """Keep messages of the log that a sink or a function of its branch refused."""
        deaths = [Death(r.offset, r.ns, r.node, mask(r.error)) for r in refusals]
        self._again(lambda letters: letters.add(sink, generation, deaths, self._reader, now_us()))

    def keep_bad(self, bad: Sequence[Bad]) -> int:
        """Keep what the source found that cannot be a message; how much of it was new."""
        misfits = [Misfit(one.ns, mask(one.place), mask(one.error), one.content) for one in bad]
        source = self._pipeline.source_node.name
        return self._again(lambda letters: letters.add_misfits(source, misfits, now_us()))

    def _again(self, keep: Callable[[DeadLetters], int]) -> int:
        """An operator who works on a sink that stands still may have claimed the letters meanwhile: claim them back."""
        try:
            return keep(self._owned())
        except FencedError:
            with self._lock:
                self._letters = None
            return keep(self._owned())

    def _owned(self) -> DeadLetters:
        """Sinks meet the same message at the same time, and one owner is enough."""
        with self._lock:
            if self._letters is None:
                self._letters = DeadLetters(self._client, self._pipeline.name, now_us())
                settings = self._pipeline.settings
                keep(self._client, self._pipeline.name, settings.store, settings.replication)
            return self._letters
