"""Ingest: the source's batches into the commit log, in a thread of its own.

The source runs ahead of the log by one batch at most: while one is being made durable, the next is read. What
the source hears back at the next start is in the log with the messages it covers, so a crash between the two
threads costs nothing but the work.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from penstock.adaptors.base import Batch, Source
from penstock.log.commitlog import CommitLog
from penstock.log.positions import LogPoint
from penstock.pipeline.namespace import Namespace


class Ingest:
    """One source being read. `error` is set if it ended badly, `done` once it has ended."""

    def __init__(self, source: Source, namespace: Namespace, log: CommitLog) -> None:
        self._source = source
        self._namespace = namespace
        self._log = log
        self._stop = threading.Event()
        self._begin = log.point.offset
        self._end = log.point
        self.error: BaseException | None = None
        self.done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ingest", daemon=True)

    @property
    def end(self) -> LogPoint:
        """The end of the log, as far as this process has written it."""
        return self._end

    @property
    def read(self) -> int:
        """Messages logged since the start."""
        return self._end.offset - self._begin

    def start(self) -> None:
        self._thread.start()

    def stop(self, patience: float) -> None:
        """Ask the source to end, and wait for what it has handed over to be durable."""
        self._stop.set()
        self._thread.join(patience)

    def _run(self) -> None:
        try:
            self._read()
        except BaseException as error:  # noqa: BLE001 - handed to the runner, which reports it
            self.error = error
        finally:
            self.done.set()

    def _read(self) -> None:
        pending: Future[None] | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="append") as appender:
            try:
                for batch in self._source.read(self._namespace.matches, self._log.resume(), self._stop):
                    if pending is not None:
                        pending.result()
                    pending = appender.submit(self._append, batch)
                    if self._stop.is_set():
                        break
            finally:  # what a source gave before it failed counts
                if pending is not None:
                    pending.result()

    def _append(self, batch: Batch) -> None:
        now = time.time_ns() // 1000
        self._end = self._log.append(batch.messages, batch.positions, batch.completed, now)
