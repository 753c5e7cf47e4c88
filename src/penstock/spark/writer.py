"""Writing a journal from Spark: a whole batch is one append, and a repeated batch is none.

Tasks stage their rows, as the bytes that are to be appended, in files below the staging directory. The commit then
takes these steps, in the driver's process:

1. look at the journal's registers; `spark-QUERY` holds the number of the last batch of this query that landed;
2. if that is this batch or a later one, it is in the journal already: done;
3. append all staged files in one transaction, checked against the register as it was seen, which also sets it to
   this batch's number; so a driver that was killed after its append finds that out at 2, and of two drivers of one
   query only one gets through;
4. after a time-out or a lost connection, begin again at 1: an append in doubt has landed by then, or fails its check.

A batch write (`df.write`) has no number; with `txnAppId` and `txnVersion` it gets one, without them it is appended as
often as it is run. An append is streamed from the files, so memory does not depend on its size. Each attempt of a task
stages under a name of its own; only what the commit is told of is appended, and the rest is removed with it.
"""

from __future__ import annotations

import logging
import mmap
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.base import faults
from penstock.base.errors import PenstockError, UsageError
from penstock.journal import labels
from penstock.journal.client import BrokerGoneError, Client, RegisterMismatchError, TimedOutError
from penstock.journal.datadir import DataDir
from penstock.journal.protocol import LabelSelector, LabelSet
from penstock.log.journals import KIND_LABEL, journal_labels
from penstock.spark.options import Content, SourceOptions, Transaction
from penstock.spark.rowtext import Rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

_PREFIX = "spark-"
_TIMEOUT = 60.0
_SLOWEST = 1_000_000
"""Bytes a second that an append is given time for, beyond the time-out."""

_ATTEMPTS = 5
_PAUSE = 0.5


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """What one task has staged: a file, how long it is, and whose batch it is for."""

    path: Path
    size: int
    query: str | None = None


class _Writer:
    """What both writers share. Pickled: holds options and nothing live."""

    def __init__(self, options: SourceOptions, schema: StructType, *, overwrite: bool) -> None:
        if options.pipeline is not None or options.content is Content.RECORDS:
            raise UsageError(
                "data source penstock: a commit log cannot be written to, it has one owner: its pipeline's run",
                hint="write to a journal of its own (option 'journal'), and let a pipeline read that",
            )
        if options.content is Content.CONNECTOR:
            raise UsageError(
                "data source penstock: the journal of a connector is written by its worker alone",
                hint="write to a journal of its own, or send through a worker (`penstock.connector.source`)",
            )
        if overwrite:
            raise UsageError(
                "data source penstock: a journal is only ever appended to",
                hint='use .mode("append"), or the output mode "append" of a stream',
            )
        self._options = options
        self._rows = Rows(schema, options.content)
        self._staging = staging_directory(options)

    def _stage(self, directory: Path, batches: Iterator[pa.RecordBatch], query: str | None) -> Staged:
        """Write the rows of a task to a file of its own; nothing is left of it if that fails."""
        from pyspark import TaskContext

        context = TaskContext.get()
        part = f"{context.partitionId():05d}-{context.attemptNumber()}" if context is not None else "00000-0"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = directory / f"{part}-{uuid.uuid4().hex[:8]}"
        try:
            with faults.step("sink stage"), path.open("xb", buffering=0) as file:
                for batch in batches:
                    for piece in self._rows.encode(batch):
                        _write_all(file.fileno(), piece)
                size = file.tell()
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return Staged(path, size, query)

    def _append(self, messages: Sequence[WriterCommitMessage | None], number: Transaction | None) -> None:
        staged = [message for message in messages if isinstance(message, Staged) and message.size]
        if not staged:
            return
        client = self._options.access.client()
        _refuse_owned(client, self._options.journal)
        with ExitStack() as stack, faults.step("sink append"):
            pieces = [stack.enter_context(_mapped(part)) for part in staged]
            append_once(client, self._options.journal, pieces, number)
        with faults.step("sink appended"):
            pass


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A streaming write. Spark makes a new one for every batch, and another one for its commit."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        from pyspark import TaskContext

        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        if query is None or batch is None:
            raise PenstockError(
                "Spark does not tell the query's id, without which a repeated batch cannot be recognised"
            )
        return self._stage(self._staging / query / batch, iterator, query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        query = next((message.query for message in messages if isinstance(message, Staged)), None)
        if query is None:
            return
        self._append(messages, Transaction(query, batchId))
        _remove_batches(self._staging / query, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove what was staged. What a commit has appended before it failed stays: it is in the journal."""
        for message in messages:
            if isinstance(message, Staged):
                message.path.unlink(missing_ok=True)
                with suppress(OSError):
                    message.path.parent.rmdir()


class BatchWriter(_Writer, DataSourceArrowWriter):
    """A batch write. The same object, pickled, serves its tasks and its commit."""

    def __init__(self, options: SourceOptions, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        self._directory = self._staging / uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return self._stage(self._directory, iterator, None)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._append(messages, self._options.transaction)
        shutil.rmtree(self._directory, ignore_errors=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


def staging_directory(options: SourceOptions) -> Path:
    """Where tasks stage and the commit finds it: a directory that all of them see."""
    if options.staging is not None:
        return options.staging
    if options.data_dir is not None:
        return DataDir(options.data_dir).scratch / "sink"
    raise UsageError(
        "data source penstock: option 'stagingDir' is missing",
        hint="a directory that the driver and all executors see, for rows on their way into one append",
    )


def append_once(
    client: Client, journal: str, pieces: Sequence[memoryview], number: Transaction | None
) -> bool:
    """Append in one transaction; with a number, unless that or a later one has landed. Whether it did."""
    size = sum(map(len, pieces))
    timeout = _TIMEOUT + size / _SLOWEST
    if number is None:
        client.append(journal, pieces, timeout=timeout)
        return True
    name = _PREFIX + number.app
    union = labels.label_set({name: str(number.version)})
    for attempt in range(_ATTEMPTS):
        try:
            seen = _register(client.append(journal, ()).registers, name)
            if seen is not None and seen >= number.version:
                log.info("journal %s: batch %d of %s has landed before", journal, number.version, number.app)
                return False
            client.append(journal, pieces, check=_as_seen(name, seen), union=union, timeout=timeout)
            return True
        except RegisterMismatchError:
            continue  # what was in doubt has landed, or another driver of this query was faster
        except (BrokerGoneError, TimedOutError):
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE * (1 << attempt))
    raise PenstockError(
        f"journal {journal}: others keep appending as {number.app}",
        hint="two drivers run with the same checkpoint or txnAppId: stop one",
    )


def _as_seen(name: str, value: int | None) -> LabelSelector:
    if value is None:
        return LabelSelector(exclude=labels.label_set({name: ""}))
    return LabelSelector(include=labels.label_set({name: str(value)}))


def _register(registers: LabelSet, name: str) -> int | None:
    for value in labels.values_of(registers, name):
        return int(value)
    return None


def _refuse_owned(client: Client, journal: str) -> None:
    """The journals of a pipeline have an owner, and bytes that are no records would damage them."""
    found = journal_labels(client, journal)
    if found is None:
        raise UsageError(
            f"there is no journal {journal}", hint="make it first, with `penstock journals apply`"
        )
    if KIND_LABEL in found:
        raise UsageError(
            f"journal {journal} belongs to a pipeline, which alone may write to it",
            hint="write to a journal of its own, and let a pipeline read that",
        )


class _mapped:  # noqa: N801 - reads as a clause at its uses
    """A staged file as a buffer. Its pages come from the file as they are sent."""

    def __init__(self, staged: Staged) -> None:
        self._staged = staged

    def __enter__(self) -> memoryview:
        with self._staged.path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if len(self._map) != self._staged.size:
            raise PenstockError(
                f"{self._staged.path} has {len(self._map)} bytes, {self._staged.size} were staged",
                hint="something else writes to the staging directory",
            )
        self._view = memoryview(self._map)
        return self._view

    def __exit__(self, *details: object) -> None:
        with suppress(BufferError):  # a failed call may still hold on to it; then it goes with that
            self._view.release()
            self._map.close()


def _write_all(fd: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(fd, piece) :]


def _remove_batches(directory: Path, last: int) -> None:
    """Remove what was staged for a query up to this batch, what lost attempts left behind included."""
    with suppress(FileNotFoundError):
        for entry in directory.iterdir():
            if entry.name.isdigit() and int(entry.name) <= last:
                shutil.rmtree(entry, ignore_errors=True)
