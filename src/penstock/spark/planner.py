"""What the planners of all kinds of journals have in common."""

from __future__ import annotations

import functools
import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from pyspark.sql.datasource import InputPartition

from penstock.base.errors import UsageError
from penstock.journal.client import Client, Halt
from penstock.journal.datadir import DataDir
from penstock.spark import ranges
from penstock.spark.endsearch import Limits
from penstock.spark.options import DataLossError, SourceOptions
from penstock.spark.ranges import JournalRange, LocalFile, locate

log = logging.getLogger(__name__)

SMALL_BATCH = 4 << 20
"""Below this many bytes a second partition costs more than it saves."""

Place = dict[str, int]


MUCH = 4 << 20
"""Bytes that show that a journal is being filled rather than fed."""
ENOUGH = 64 << 20
"""Bytes of a batch that nobody waits for more of: what more saves is less than what its tasks could do meanwhile."""
REST = 0.15
"""Seconds after which one looks whether it still is."""
STEADY = 1 / 16
"""Of `MUCH`, what must have come by then."""


class Plan(Protocol):
    """What both readers ask. `heads` are places, too: the ends of what there is to read."""

    def start(self) -> Place:
        """Where a stream begins."""

    def heads(self) -> Place:
        """How far it goes at the moment."""

    def more(self, start: Place) -> Place:
        """The same, once there is more than at `start`; waits a while for that."""

    def next(self, start: Place, heads: Place, limits: Limits) -> Place:
        """The end of the next micro-batch; `start` if there is nothing yet."""

    def ranges(self, start: Place, end: Place) -> list[InputPartition]:
        """The ranges of a micro-batch."""

    def batch(self) -> Sequence[InputPartition]:
        """The ranges of a batch read."""


class Planner(ABC):
    """The plan of one journal. Lives in Spark's planning process."""

    def __init__(self, options: SourceOptions, *, stream: bool) -> None:
        self.options = options
        self.stream = stream
        self.patience = options.wait
        """Seconds for which `wait` does."""
        self.halt = Halt()
        """Lets go whoever waits here."""
        self.hurry = Halt()
        """Ends the waiting for more where there is something already."""
        self._located: tuple[int, int, list[LocalFile]] = (0, 0, [])
        self._lacking_since: float | None = None
        self._seen: tuple[int, float] = (-1, 0.0)
        """A head of the journal, and since when it is known to be that."""

    @abstractmethod
    def start(self) -> Place:
        """Where a stream begins."""

    @abstractmethod
    def latest(self, start: Place, head: int, limits: Limits) -> Place:
        """The end of the next micro-batch, at most at `head`; `start` if there is nothing yet."""

    @abstractmethod
    def ranges(self, start: Place, end: Place) -> list[InputPartition]:
        """The ranges of a micro-batch."""

    @abstractmethod
    def batch(self) -> list[InputPartition]:
        """The ranges of a batch read."""

    def heads(self) -> Place:
        return {"byte": self.head()}

    def more(self, start: Place) -> Place:
        return {"byte": self.gather(start["byte"], self.wait(start["byte"]))}

    def next(self, start: Place, heads: Place, limits: Limits) -> Place:
        return self.latest(start, max(heads["byte"], start["byte"]), limits)

    @functools.cached_property
    def client(self) -> Client:
        directory = self.options.data_dir
        if directory is not None and self.options.serves_itself:
            _require_served(DataDir(directory))
        return self.options.access.client()

    def head(self) -> int:
        return self.client.head(self.options.journal)

    def wait(self, beyond: int) -> int:
        """The head, as soon as it is past `beyond`; waits in the broker rather than in a loop.

        `beyond` was the head once. A broker that is behind may say less for a while; a journal that was set back would
        have the query wait until other bytes are there, and go on in the midst of them.
        """
        head = self.client.wait(self.options.journal, beyond, self.patience, self.halt)
        now = time.monotonic()
        self._lacking_since = None if head >= beyond else self._lacking_since or now
        if self._lacking_since is not None and now - self._lacking_since > ranges.PATIENCE:
            raise ranges.set_back(self.options.journal, head, beyond)
        return head

    def gather(self, begin: int, head: int) -> int:
        """The head, once what is coming quickly has come, so that a batch from `begin` on is worth its cost.

        A small batch costs as much as some megabytes of a large one. So where much is there already and more comes, it
        waits: until that is enough, `gather` seconds are over, or the journal rests. What trickles in waits for
        nothing, nor does the next batch of a journal that has rested while the last one was at work.
        """
        seen, since = self._seen
        if head != seen or time.monotonic() - since < REST:
            head = self._grown(begin, head)
        if head != seen:
            self._seen = head, time.monotonic()
        return head

    def _grown(self, begin: int, head: int) -> int:
        full = begin + min(self.options.max_bytes, ENOUGH)
        deadline = time.monotonic() + self.options.gather
        while head - begin >= MUCH and head < full and not self.hurry.asked:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            beyond = min(head + MUCH, full) - 1
            later = self.client.wait(self.options.journal, beyond, min(REST, left), self.hurry)
            if later - head < MUCH * STEADY:
                return max(later, head)
            head = later
        return head

    def _loss(self, begin: int, end: int) -> None:
        """The bytes between are gone and were asked for."""
        if self.options.fails_on_data_loss(stream=self.stream):
            raise DataLossError(self.options.journal, begin, end)
        log.warning(
            "journal %s: bytes %d to %d are gone; going on at %d", self.options.journal, begin, end, end
        )

    def _range(self, begin: int, end: int) -> JournalRange:
        """A range with the files it lies in; those of a range that was looked up before are known already."""
        known_begin, known_end, files = self._located
        if begin < known_begin or end > known_end:
            files = locate(self.options.access, self.options.journal, begin, end)
            self._located = (begin, end, files)
        within = [file for file in files if file.begin < end and file.end > begin]
        return JournalRange(self.options.journal, begin, end, within)

    def _between(self, borders: Sequence[int]) -> list[InputPartition]:
        """A range between each two borders."""
        self._range(borders[0], borders[-1])
        return [self._range(begin, end) for begin, end in itertools.pairwise(borders)]

    def _parts(self, size: int) -> int:
        return max(1, min(self.options.partitions, size // SMALL_BATCH))


def _require_served(directory: DataDir) -> None:
    directory.version()
    if directory.owner() is None:
        raise UsageError(
            f"nobody serves the data directory {directory.path} at the moment",
            hint=f"`penstock broker serve --data-dir {directory.path}` does, and so does a running pipeline",
        )
