"""What an operator can ask of a data directory, whether its pipeline runs or not. Starts no Spark.

If a process owns the directory its broker is asked; otherwise this process owns it for a moment. Nothing is
created by asking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.base.errors import UsageError, did_you_mean
from penstock.journal import labels
from penstock.journal.client import Client
from penstock.journal.datadir import DataDir
from penstock.journal.embedded import connect
from penstock.log import offsets
from penstock.log.commitlog import (
    KIND_LABEL,
    PIPELINE_LABEL,
    SINK_LABEL,
    LogReader,
    journal_labels,
    log_journal,
)
from penstock.log.message import MODE_WORDS
from penstock.log.positions import LogCache, LogState
from penstock.log.record import Record
from penstock.pipeline.records import LogEntry, NamespaceStatus, PipelineStatus, SinkStatus


@contextmanager
def open_directory(path: Path) -> Iterator[Directory]:
    """Look into a data directory, which must be there."""
    directory = DataDir(path)
    directory.version()
    owner = directory.owner()
    with connect(path) as client:
        yield Directory(directory, client, owner.pid if owner else None)


class Directory:
    """An open data directory. Each call answers for the moment of the call."""

    def __init__(self, directory: DataDir, client: Client, owner: int | None) -> None:
        self._directory = directory
        self._client = client
        self._owner = owner

    def pipelines(self) -> list[str]:
        """The pipelines that have a commit log here."""
        found = self._client.list(labels.parse_selector(f"{KIND_LABEL}=log"))
        return sorted(labels.values_of(journal.spec.labels, PIPELINE_LABEL)[0] for journal in found)

    def status(self, pipeline: str) -> PipelineStatus:
        state = self._reader(pipeline).state()
        return PipelineStatus(
            pipeline=pipeline,
            running=self._owner is not None,
            pid=self._owner,
            oldest=max(state.oldest, 0),
            next=state.next,
            log_bytes=state.byte,
            namespaces={
                ns: NamespaceStatus(MODE_WORDS[known.mode], known.offset)
                for ns, known in sorted(state.namespaces.items())
            },
            sinks=self._sinks(pipeline, state),
        )

    def oldest(self, pipeline: str) -> int:
        """The first message that the log still has; -1 if it has none."""
        found = self._reader(pipeline).oldest()
        return -1 if found is None else found

    def current(self, pipeline: str) -> int:
        """The last message of the log; -1 if it has none."""
        return self._reader(pipeline).state().next - 1

    def show(self, pipeline: str, first: int, last: int) -> Iterator[LogEntry]:
        """Messages `first` to `last`, both included; refuses a range that the log does not hold."""
        reader = self._reader(pipeline)
        state = reader.state()
        oldest = max(state.oldest, 0)
        if not oldest <= first <= last < state.next:
            held = f"{oldest} to {state.next - 1}" if state.next else "no messages"
            asked = f"{first}" if first == last else f"{first} to {last}"
            raise UsageError(f"the log of '{pipeline}' holds {held}, asked for {asked}")
        for record in reader.show(first, last):
            yield _entry(record)

    def offsets(self, pipeline: str) -> Sequence[SinkStatus]:
        """Every sink that has an offset log, by name."""
        return self._sinks(pipeline, self._reader(pipeline).state())

    def _sinks(self, pipeline: str, state: LogState) -> list[SinkStatus]:
        selector = labels.parse_selector(f"{KIND_LABEL}=offsets,{PIPELINE_LABEL}={pipeline}")
        found = []
        reader = self._reader(pipeline)
        for journal in self._client.list(selector):
            sink = labels.values_of(journal.spec.labels, SINK_LABEL)[0]
            held = offsets.load(self._client, pipeline, sink)
            found.append(
                SinkStatus(
                    sink=sink,
                    watermark=held.commit.watermark,
                    generation=held.commit.generation,
                    delivered=held.commit.delivered,
                    dropped=held.commit.dropped,
                    dead=held.commit.dead,
                    lag=max(state.next - held.commit.watermark, 0),
                    lag_bytes=_lag_bytes(reader, held.commit.watermark, state),
                    updated_ts=held.updated,
                    namespaces=dict(sorted(held.namespaces.items())),
                )
            )
        return sorted(found, key=lambda status: status.sink)

    def _reader(self, pipeline: str) -> LogReader:
        journal = log_journal(pipeline)
        if journal_labels(self._client, journal) is None:
            known = self.pipelines()
            raise UsageError(
                f"no pipeline '{pipeline}' in {self._directory.path}{did_you_mean(pipeline, known)}"
            )
        return LogReader(self._client, journal, LogCache(self._directory.index, journal))


def _lag_bytes(reader: LogReader, watermark: int, state: LogState) -> int:
    """The bytes of the log that a sink has still to take."""
    return 0 if watermark >= state.next else state.byte - reader.seek(watermark).byte


def _entry(record: Record) -> LogEntry:
    return LogEntry(
        offset=record.offset,
        ts=record.ts,
        mode=record.mode.word,
        op=record.op.word,
        ns=record.ns,
        key=record.key.decode() if record.key is not None else None,
        data=record.data.decode(),
    )
