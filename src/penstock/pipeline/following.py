"""The log as it grows: what `tap` and `xlog show --follow` read.

While somebody serves the journals (a run, a broker) the connection is kept, and waiting is the broker's. While
nobody does, nothing can be appended, and the data directory must stay free for whoever wants to run: it is let go
between looks, and opened again when it has an owner.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from penstock.base.errors import PenstockError
from penstock.journal.datadir import DataDir
from penstock.log.message import ByteOffset
from penstock.log.positions import LogPoint
from penstock.log.reader import LogReader
from penstock.log.record import Record
from penstock.pipeline.operations import Directory

Opening = Callable[[], AbstractContextManager[Directory]]

_PIECE = 1000
_WAIT = 1.0
_LOOK_EVERY = 0.3
_LOOKS = 20


def follow(opening: Opening, pipeline: str, start: int | None, *, wait: bool) -> Iterator[list[Record]]:
    """Messages from offset `start` on (None: those to come), in pieces; with `wait` for ever, else up to the end."""
    at: LogPoint | None = None
    while True:
        with opening() as directory:
            try:
                if at is None:
                    yield from _compacted(directory, pipeline, start)
                    at = _beginning(directory.reader(pipeline), start)
                for piece, end in _grown(directory, pipeline, at):
                    at = LogPoint(at.offset, end)
                    yield piece
                    if not piece and not wait:
                        return
                    if not piece and not _served(directory):
                        break
            except PenstockError:
                if not _owner_has_gone(directory):
                    raise
                continue  # it may have logged more before it went
            alone = directory.directory
        if alone is not None:
            _until_used(alone)


def _beginning(reader: LogReader, start: int | None) -> LogPoint:
    return reader.state().point if start is None else reader.at_or_after(start)


def _compacted(directory: Directory, pipeline: str, start: int | None) -> Iterator[list[Record]]:
    """What is left of messages that went through compaction, from `start` on."""
    if start is None:
        return
    reader = directory.reader(pipeline)
    first = reader.first().offset
    if start < first:
        yield list(reader.compacted(max(start, 0), first - 1))


def _grown(directory: Directory, pipeline: str, at: LogPoint) -> Iterator[tuple[list[Record], ByteOffset]]:
    """Pieces of the log from a place on, each with where it ends; an empty one whenever there is nothing new."""
    reader = directory.reader(pipeline)
    byte = int(at.byte)
    while True:
        head = directory.client.head(reader.journal)
        piece: list[Record] = []
        for place, record in reader.records(ByteOffset(byte), ByteOffset(head)):
            if len(piece) >= _PIECE:
                yield piece, ByteOffset(place)
                piece = []
            if not record.control:
                piece.append(record)
        byte = head
        if piece:
            yield piece, ByteOffset(byte)
        yield [], ByteOffset(byte)
        directory.client.wait(reader.journal, byte, _WAIT)


def _served(directory: Directory) -> bool:
    """Whether somebody else serves the journals, so that they may grow while we look."""
    return directory.directory is None or directory.owner is not None


def _owner_has_gone(directory: Directory) -> bool:
    """Whether a call failed because the run ended that served it; its lock goes a moment after its broker."""
    if directory.directory is None:
        return False
    for _ in range(_LOOKS):
        if directory.directory.owner() != directory.owner:
            return True
        time.sleep(_LOOK_EVERY)
    return False


def _until_used(directory: DataDir) -> None:
    """Wait until somebody owns the directory, or has owned it meanwhile: taking and leaving the lock are seen."""
    before = _lock_time(directory)
    while directory.owner() is None and _lock_time(directory) == before:
        time.sleep(_LOOK_EVERY)


def _lock_time(directory: DataDir) -> int:
    try:
        return (directory.path / "LOCK").stat().st_mtime_ns
    except FileNotFoundError:
        return 0
