"""A local place for batches that wait for a broker: temporary files without names, gone with the process.

Nothing here outlives a crash, and nothing here was acknowledged. Files are of moderate size and each is given back
as soon as its last batch has been sent, so a long backlog that is being worked off frees its disk as it goes.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import IO

SEGMENT = 64 << 20


class _Segment:
    def __init__(self, directory: Path) -> None:
        # Closed when its last batch has gone, long after this.
        self.file: IO[bytes] = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115
        self.size = 0
        self.kept = 0


class Spilled:
    """The content of one batch, in a file."""

    __slots__ = ("_length", "_position", "_segment", "_spill")

    def __init__(self, spill: Spill, segment: _Segment, position: int, length: int) -> None:
        self._spill = spill
        self._segment = segment
        self._position = position
        self._length = length

    def load(self) -> bytes:
        content = os.pread(self._segment.file.fileno(), self._length, self._position)
        while len(content) < self._length:
            more = os.pread(
                self._segment.file.fileno(), self._length - len(content), self._position + len(content)
            )
            if not more:
                raise OSError(f"a spill file of {self._segment.size} bytes ends at {self._position}")
            content += more
        return content

    def drop(self) -> None:
        self._spill._dropped(self._segment, self._length)


class Spill:
    """Up to `limit` bytes in temporary files of a directory."""

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory = directory
        self.limit = limit
        self.size = 0
        """Bytes that are kept at the moment."""
        self.works = True
        """Until a write has failed."""
        self._current: _Segment | None = None
        self._segments: list[_Segment] = []

    def has_room(self, length: int) -> bool:
        return self.size + length <= self.limit

    def keep(self, content: bytes) -> Spilled:
        """Write content to a file; OSError leaves everything as it was."""
        segment = self._current
        if segment is None or segment.size >= SEGMENT:
            segment = _Segment(self.directory)
            self._retire(self._current)
            self._segments.append(segment)
            self._current = segment
        position = segment.size
        view = memoryview(content)
        while view:
            written = os.pwrite(segment.file.fileno(), view, position + len(content) - len(view))
            view = view[written:]
        segment.size += len(content)
        segment.kept += len(content)
        self.size += len(content)
        return Spilled(self, segment, position, len(content))

    def close(self) -> None:
        for segment in self._segments:
            segment.file.close()
        self._segments.clear()
        self._current = None

    def _dropped(self, segment: _Segment, length: int) -> None:
        segment.kept -= length
        self.size -= length
        if segment is not self._current:
            self._retire(segment)
        elif not segment.kept:
            segment.file.truncate(0)
            segment.size = 0

    def _retire(self, segment: _Segment | None) -> None:
        if segment is not None and not segment.kept and segment in self._segments:
            self._segments.remove(segment)
            segment.file.close()
