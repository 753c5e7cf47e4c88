"""Large copies: the ranges of a source read by several hands at once, in order, and without running ahead.

    for packed in copier.run(tasks, stop): ...

The tasks of a source become tasks of Spark, each a job of its own in the pool `copy`, which shares the cores fairly
with the sinks' queries. A task is read from a file of the run's scratch directory, since it holds settings
(`sealed.py`), and writes its rows into another one there: a *chunk*. Chunks are handed on in the order of the tasks
and removed; no more than a few of them wait. Until Spark is up, and the sinks' queries with it, the ranges are read
here, so that a copy neither waits for it nor holds it up; these wait in memory. A worker that dies has its task run
again by Spark; what an adaptor says (`AwayError`, `UsageError`) is a result and ends the copy at once.

Where executors are on other machines they share no directory with the runner: then ranges are read in threads of it.
"""

from __future__ import annotations

import itertools
import shutil
import struct
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.adaptors.away import os_error
from penstock.adaptors.base import Copier, CopyTask
from penstock.base.disk import Buffer
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.base.secrets import mask
from penstock.log.packing import Packed
from penstock.spark.sealed import discreet, private_file, seal, unsealed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POOL = "copy"
WAITING = 2
"""Ranges that may be done, and wait for those before them, beside the ones that are being read."""

_LOOK = 0.1
_PART = struct.Struct("<qqq")
"""Before each piece of a chunk: the lengths of the name, of the records, and of their starts."""


class Told(msgspec.Struct):
    """What reading a range came to: nothing, or the adaptor's error."""

    error: str = ""
    text: str = ""
    hint: str | None = None

    def check(self) -> None:
        """Raise the error, as `CopyTask.read` did."""
        if self.error:
            kind = {"AwayError": AwayError, "UsageError": UsageError}.get(self.error, PenstockError)
            raise kind(self.text, hint=self.hint)


@dataclass(frozen=True, slots=True)
class Done:
    """A range that was read: its rows, or the chunk that holds them."""

    told: Told
    chunk: Path
    here: Sequence[Packed] | None = None

    def rows(self) -> Sequence[Packed]:
        """Raises what the adaptor said. The chunk is gone then."""
        self.told.check()
        if self.here is not None:
            return self.here
        found = list(read_chunk(self.chunk))
        self.chunk.unlink()
        return found


class ParallelCopier(Copier):
    """Reads ranges in Spark where `session` gives one, and in threads of this process until then.

    `wants` is called when there is something to read: somebody should start Spark. `session` answers None while there
    is none; a copier without it never uses Spark.
    """

    def __init__(
        self,
        scratch: Path,
        at_once: int,
        session: Callable[[], SparkSession | None] = lambda: None,
        wants: Callable[[], None] = lambda: None,
    ) -> None:
        self._scratch = scratch
        self._at_once = max(1, at_once)
        self._session = session
        self._wants = wants

    def run(self, tasks: Iterable[CopyTask], stop: threading.Event) -> Iterator[Sequence[Packed]]:
        directory = self._scratch / uuid.uuid4().hex
        waiting: deque[Future[Done]] = deque()
        halt = threading.Event()
        pool = ThreadPoolExecutor(self._at_once, thread_name_prefix="copy")
        try:
            for task in itertools.chain(tasks, itertools.repeat(None)):
                if stop.is_set():
                    return
                if task is not None:
                    self._wants()
                    waiting.append(self._begun(pool, task, directory, halt))
                    if len(waiting) < self._at_once + WAITING:
                        continue
                elif not waiting:
                    return
                done = _awaited(waiting.popleft(), stop)
                if done is None:
                    return
                yield done.rows()
        finally:
            halt.set()
            for future in waiting:
                future.cancel()
            self._cancel(directory.name)
            pool.shutdown(wait=False, cancel_futures=True)
            threading.Thread(target=_clear, args=(pool, directory), name="copy ends", daemon=True).start()

    def _begun(
        self, pool: ThreadPoolExecutor, task: CopyTask, directory: Path, halt: threading.Event
    ) -> Future[Done]:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return pool.submit(self._read, task, directory / uuid.uuid4().hex, directory.name, halt)

    def _read(self, task: CopyTask, chunk: Path, group: str, halt: threading.Event) -> Done:
        if halt.is_set():
            return Done(Told(), chunk, ())
        spark = self._session()
        if spark is None:
            return _here(task, chunk)
        return Done(_in_spark(spark, task, chunk, group), chunk)

    def _cancel(self, group: str) -> None:
        spark = self._session()
        if spark is not None:
            # Also those that a thread is just about to submit; no other run has this group.
            context = spark.sparkContext._jsc.sc()
            _ignoring_its_end(lambda: context.cancelJobGroupAndFutureJobs(group))


def _here(task: CopyTask, chunk: Path) -> Done:
    """One range read into memory."""
    try:
        return Done(Told(), chunk, list(task.read()))
    except (OSError, PenstockError) as error:
        return Done(_failed(error), chunk)


def _in_spark(spark: SparkSession, task: CopyTask, chunk: Path, group: str) -> Told:
    """One range as one job of one task."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    sealed = private_file(chunk.with_name(f"{chunk.name}.task"), seal(task))
    context = spark.sparkContext
    context.setJobGroup(group, "copy", interruptOnCancel=True)
    context.setLocalProperty("spark.scheduler.pool", POOL)
    work = RangeTask(sealed, chunk)
    try:
        (told,) = context.parallelize([0], 1).mapPartitions(work).collect()
    except (Py4JError, PySparkException, OSError) as error:
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise PenstockError(f"a range of the copy could not be read: {mask(last)}") from None
    finally:
        sealed.unlink(missing_ok=True)
    return msgspec.json.decode(told, type=Told)


@dataclass(frozen=True)
class RangeTask:
    """What Spark gets of a range: two paths."""

    sealed: Path
    chunk: Path

    def __call__(self, _: Iterable[int]) -> Iterator[bytes]:
        task: CopyTask = unsealed(self.sealed.read_bytes())
        with discreet():
            told = read_range(task, self.chunk)
        yield msgspec.json.encode(told)


def read_range(task: CopyTask, chunk: Path) -> Told:
    """Read a range into its chunk, which is there when it is whole; several attempts may do so at once."""
    aside = chunk.with_name(f"{chunk.name}.{uuid.uuid4().hex}")
    try:
        with aside.open("xb") as file:
            for packed in task.read():
                for piece in _pieces(packed):
                    file.write(piece)
        aside.rename(chunk)
    except (OSError, PenstockError) as error:
        return _failed(error)
    finally:
        aside.unlink(missing_ok=True)
    return Told()


def _failed(error: OSError | PenstockError) -> Told:
    if isinstance(error, OSError):  # the disk of the chunk, if nobody has told of it in better words
        error = os_error("a range was not copied", error, PenstockError)
    kind = next((kind for kind in (AwayError, UsageError) if isinstance(error, kind)), PenstockError)
    return Told(kind.__name__, error.message, error.hint)


def _pieces(packed: Packed) -> tuple[Buffer, ...]:
    name, starts = packed.ns.encode(), packed.starts.tobytes()
    return _PART.pack(len(name), len(packed.content), len(starts)), name, packed.content, starts


def read_chunk(chunk: Path) -> Iterator[Packed]:
    """The rows of a chunk."""
    import numpy as np

    with chunk.open("rb") as file:
        while head := file.read(_PART.size):
            name, content, starts = _PART.unpack(head)
            ns = file.read(name).decode()
            records = bytearray(content)
            file.readinto(records)
            yield Packed(ns, records, np.frombuffer(file.read(starts), np.int64))


def _awaited(future: Future[Done], stop: threading.Event) -> Done | None:
    """What a range came to; None if it is no longer wanted."""
    while True:
        try:
            return future.result(timeout=_LOOK)
        except TimeoutError:
            if future.done():  # it ended just now, or the error is the task's own
                return future.result()
            if stop.is_set():
                return None


def _ignoring_its_end(ask: Callable[[], None]) -> None:
    from py4j.protocol import Py4JError

    try:
        ask()
    except (Py4JError, OSError):
        return  # Spark has ended, and with it the tasks


def _clear(pool: ThreadPoolExecutor, directory: Path) -> None:
    """Remove what is left when nobody writes there any more."""
    pool.shutdown(wait=True)
    shutil.rmtree(directory, ignore_errors=True)
