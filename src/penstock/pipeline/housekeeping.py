"""Upkeep of a pipeline's log while it runs, in a thread of its own: compaction, the size limit (DESIGN 2, 9).

The log is compacted up to the earliest watermark of all sinks that have an offset log, removed ones included until
an operator forgets them; a detached sink does not count. It happens once in the interval, and at once when the log is
at its limit: then the source pauses until there is room, and `readers` says who is in the way.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from penstock.base.units import rough_size
from penstock.journal import labels
from penstock.journal.client import Client
from penstock.log import offsets
from penstock.log.commitlog import CommitLog
from penstock.log.compaction import compact
from penstock.log.journals import KIND_LABEL, PIPELINE_LABEL, SINK_LABEL
from penstock.log.keeping import keep
from penstock.log.message import MessageOffset
from penstock.log.offsets import Commit
from penstock.pipeline.clock import now_us
from penstock.pipeline.errortext import first_line
from penstock.pipeline.settings import PipelineSettings

log = logging.getLogger(__name__)

_LOOK_EVERY = 0.5
_AFTER_ERROR = 5.0


class Housekeeping:
    """Looks after one commit log from `start` to `stop`. `sinks` gives what the run's own sinks have now."""

    def __init__(
        self,
        commit_log: CommitLog,
        pipeline: str,
        settings: PipelineSettings,
        sinks: Callable[[], Mapping[str, Commit]],
    ) -> None:
        self._log = commit_log
        self._pipeline = pipeline
        self._settings = settings
        self._sinks = sinks
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)
        self._compacted = float("-inf")  # the first look compacts what earlier runs have left
        self._tried_at: MessageOffset | None = None
        self._measured = commit_log.point.byte, commit_log.reader.size()

    @property
    def size(self) -> int:
        """Bytes that the log holds: as last measured, and what was appended since."""
        end, size = self._measured
        return size + self._log.point.byte - end

    def start(self) -> None:
        self._thread.start()

    def stop(self, patience: float) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(patience)

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_EVERY):
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - without upkeep the log would fill, and nobody know why
                log.warning("upkeep of the log, tried again: %s", first_line(error))
                self._stop.wait(_AFTER_ERROR)

    def _look(self) -> None:
        self._measure()
        interval_is_over = time.monotonic() - self._compacted >= self._settings.compaction_interval
        if interval_is_over or self.size >= self._settings.log_limit:
            self._compact()

    def _measure(self) -> None:
        self._measured = self._log.point.byte, self._log.reader.size()

    def _compact(self) -> None:
        earliest = self._earliest()
        full = self.size >= self._settings.log_limit
        if full and earliest == self._tried_at:
            return  # nobody has moved since
        if full:
            self._log.reader.client.roll(self._log.journal)
        done = compact(
            self._log,
            earliest,
            # At the limit what was kept for looking back goes first.
            keep_bytes=None if full else self._settings.retain_bytes,
            keep_seconds=None if full else self._settings.retain_age,
            now=now_us(),
        )
        self._tried_at, self._compacted = earliest, time.monotonic()  # one that failed is tried again
        keep(self._log.reader.client, self._pipeline, self._settings.store, self._settings.replication)
        if done.bytes_freed:
            log.info("compaction freed %s, kept %d messages", rough_size(done.bytes_freed), done.kept)
        self._measure()

    def _earliest(self) -> MessageOffset:
        held = [commit.watermark for commit in self._commits().values() if not commit.detached]
        return MessageOffset(min(held, default=self._log.point.offset))

    def _commits(self) -> dict[str, Commit]:
        """What every sink has that holds the log: those of the run, and removed ones that nobody has forgotten."""
        own = self._sinks()
        client = self._log.reader.client
        others = [sink for sink in _sinks(client, self._pipeline) if sink not in own]
        return {**{sink: offsets.load(client, self._pipeline, sink).commit for sink in others}, **own}

    def full(self) -> str | None:
        """Why the log takes no more for now; None if it does.

        With every sink at the end nobody holds the log: the next segment that closes makes room.
        """
        if self.size < self._settings.log_limit:
            return None
        holding = {sink: commit for sink, commit in self._commits().items() if not commit.detached}
        if not holding:
            return None
        last, commit = min(holding.items(), key=lambda item: item[1].watermark)
        missing = self._log.point.offset - commit.watermark
        if not missing:
            return None
        return (
            f"the log is at its limit ({rough_size(self.size)} of {rough_size(self._settings.log_limit)}); "
            f"sink '{last}' holds it with {missing} messages to take"
        )


def _sinks(client: Client, pipeline: str) -> list[str]:
    """Every sink that has an offset log."""
    selector = labels.parse_selector(f"{KIND_LABEL}=offsets,{PIPELINE_LABEL}={pipeline}")
    return [labels.values_of(found.spec.labels, SINK_LABEL)[0] for found in client.list(selector)]
