"""Ingest: the source's batches into the commit log, in a thread of its own.

The source runs ahead of the log by little (`readahead.py`): while one batch is being made durable, the next is read.
What the source hears back at the next start is in the log with the messages it covers, so a crash between the two
threads costs nothing but the work. Once a batch is durable the source is told, in the thread that made it so; a batch
that was in doubt and has landed after all it learns of by its positions, when it is read again.

While the log is at its limit, or the pipeline is strict and a sink still lacks something, the source waits: it is
not asked for more. A source that is away is read again from where the log stands, later each time, without end. So
it is when the broker is elsewhere and away, or its disk is full: where an append is in doubt the log is then claimed
anew, and its end found, before anything else.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from penstock.adaptors.base import Bad, Source
from penstock.base.errors import AwayError, PenstockError
from penstock.journal.client import BrokerGoneError, TimedOutError
from penstock.log.commitlog import CommitLog
from penstock.log.ownership import InDoubtError
from penstock.log.positions import LogPoint
from penstock.pipeline.clock import now_us
from penstock.pipeline.errortext import first_line, out_of_room
from penstock.pipeline.namespace import Namespace
from penstock.pipeline.readahead import Given, ReadAhead, together

log = logging.getLogger(__name__)

_DELAYS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_LOOK_AGAIN = 0.2

KeepBad = Callable[[Sequence[Bad]], int]
"""Keeps what cannot be a message among the dead letters; durable on return. Tells how much of it was new."""


def _nowhere(bad: Sequence[Bad]) -> int:
    raise PenstockError(f"{bad[0].place}: {bad[0].error}", hint="there is nowhere to keep it")


def _never_read(error: AwayError) -> AwayError:
    """For whoever ends a run in which the source did not answer: an empty run that looks well would hide it."""
    return AwayError(f"nothing was read, the source is away: {error.message}", hint=error.hint)


class Ingest:
    """One source being read. `error` is set if it ended badly, `done` once it has ended."""

    def __init__(
        self,
        source: Source,
        namespace: Namespace,
        log: CommitLog,
        hindrance: Callable[[], str | None],
        *,
        patient: bool = False,
        keep_bad: KeepBad = _nowhere,
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        """`hindrance` tells why nothing may be read now; None if nothing is in the way.

        `patient` waits for a broker that does not answer. `tell` is called, in another thread, when the first message
        is in the log and when there is nothing more to read.
        """
        self._patient = patient
        self._doubtful = False
        self._source = source
        self._namespace = namespace
        self._log = log
        self._hindrance = hindrance
        self._keep_bad = keep_bad
        self._tell = tell
        self._stop = threading.Event()
        self._halt = threading.Event()
        """Ends the reading that goes on: set with `_stop`, and when what was read cannot be logged."""
        self._begin = log.point.offset
        self._end = log.point
        self.bad = 0
        """How much was kept among the dead letters since the start, since it cannot be a message."""
        self.paused: str | None = None
        """Why nothing is read at the moment."""
        self.away: AwayError | None = None
        self.error: BaseException | None = None
        self.done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ingest", daemon=True)

    @property
    def end(self) -> LogPoint:
        """The end of the log, as far as this process has written it."""
        return self._end

    @property
    def given(self) -> LogPoint:
        """The end of what sinks can be given: before it while a transaction of the source has no end yet."""
        return min(self._log.closed, self._end)

    @property
    def read(self) -> int:
        """Messages logged since the start."""
        return self._end.offset - self._begin

    @property
    def state(self) -> str:
        if self.error is not None:
            return "stopped"
        if self.done.is_set():
            return "done"
        if self.away is not None:
            return "away"
        return "running" if self.paused is None else "paused"

    def start(self) -> None:
        self._thread.start()

    def stop(self, patience: float) -> None:
        """Ask the source to end, and wait for what it has handed over to be durable."""
        self._stop_reading()
        if self._thread.ident is not None:
            self._thread.join(patience)

    def give_up(self, reason: str) -> None:
        """End a reading that could go on only if somebody did something first."""
        self.error = PenstockError(
            f"the source was not read to its end: {reason}",
            hint="have that sink go on, or forget it with `penstock offset delete`, and run again",
        )
        self._stop_reading()

    def _stop_reading(self) -> None:
        self._stop.set()
        self._halt.set()

    def _run(self) -> None:
        failures = 0
        while True:
            before = self._end
            try:
                self._read()
            except AwayError as error:
                failures = 1 if self._end != before else failures + 1
                if self._wait_for_it(error, failures):
                    continue
                if not self.read:
                    self.error = self.error or _never_read(error)
            except (PenstockError, OSError) as error:
                # A claim alone moves the end, too, and may find room where a batch does not.
                failures = 1 if self._end.offset != before.offset else failures + 1
                away = self._lacking_log(error)
                if away is not None and self._wait_for_it(away, failures):
                    continue
                self.error = self.error or error
            except BaseException as error:  # noqa: BLE001 - handed to the runner, which reports it
                self.error = error
            self.done.set()
            self._tell()
            return

    def _lacking_log(self, error: PenstockError | OSError) -> AwayError | None:
        """What is waited for, if the log could take nothing and will again; None if waiting would not help."""
        unanswered = isinstance(error, (BrokerGoneError, TimedOutError, InDoubtError))
        self._doubtful = unanswered or self._log.ownership.in_doubt
        return AwayError(str(error)) if self._patient and unanswered else out_of_room(error)

    def _wait_for_it(self, error: AwayError, failures: int) -> bool:
        """Wait for a source that does not answer; False if the run ends meanwhile."""
        delay = _DELAYS[min(failures, len(_DELAYS)) - 1]
        log.warning("reading waits, tried again in %.1f s: %s", delay, first_line(error))
        self.away = error
        return not self._stop.wait(delay)

    def _read(self) -> None:
        if self._doubtful:
            self._end = self._log.renew(now_us())
            self._doubtful, self.away = False, None
        halt = self._halt = threading.Event()
        if self._stop.is_set():
            halt.set()
        # A source that waits for more would not hear of a failure before there is more.
        with ReadAhead(self._append, failed=halt.set) as ahead:
            if not self._may_read():
                return
            upcoming: int = self._log.point.offset
            within = self._log.is_open
            for batch in self._source.read(self._namespace.matches, self._log.resume(), halt):
                self.away = None
                # Here, since they have just been laid out: in the thread that appends they are far from the processor.
                rows = self._log.number(batch.packed, upcoming + len(batch.messages))
                upcoming += len(batch.messages) + sum(map(len, rows))
                ahead.give(Given(batch, rows, closes=within))
                within = batch.more
                if halt.is_set() or not self._may_read():
                    break
        if not halt.is_set() and self._log.is_open:
            raise PenstockError(
                "the source ended within a transaction, which no sink gets before the rest of it is in the log"
            )

    def _may_read(self) -> bool:
        """Wait until nothing is in the way of reading; False if the run ends meanwhile.

        Within a transaction there is no waiting: nobody can make room before its end is in the log.
        """
        while not self._log.is_open and (reason := self._hindrance()) is not None:
            self.paused = reason
            if self._halt.wait(_LOOK_AGAIN):
                return False
        self.paused = None
        return True

    def _append(self, given: Sequence[Given]) -> None:
        """Make it durable, as one batch: first what is bad in it, which its positions pass over, then the rest."""
        batch, rows, _ = together(given)
        if batch.bad:
            self.bad += self._keep_bad(batch.bad)
        now, before = now_us(), self.read
        self._end = self._log.append(
            batch.messages,
            batch.positions,
            batch.completed,
            now,
            batch.schemas,
            rows,
            more=batch.more,
        )
        if self.read and not before:
            self._tell()
        for one in given:
            self._source.logged(one.batch)
