"""A file that a task stages, compressed on the way if asked to: whole members or frames, nothing else."""

from __future__ import annotations

from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock.adaptors.formats.contents import Codec


class PartFile:
    """A new file; of nothing written nothing is made, not even the frame of a compressed file."""

    def __init__(self, path: Path, codec: Codec) -> None:
        self._codec = codec
        self._file = path.open("xb", buffering=0)
        self._stream: Any = None

    def write(self, content: memoryview) -> None:
        if not content:
            return
        if self._codec == "none":
            written(self._file, content)
            return
        if self._stream is None:
            import pyarrow as pa

            self._stream = pa.CompressedOutputStream(pa.PythonFile(self._file, mode="w"), self._codec)
        self._stream.write(content)

    def __enter__(self) -> PartFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()
        self._file.close()


def written(file: FileIO, content: memoryview) -> None:
    """Write all of it."""
    while content:
        content = content[file.write(content) or 0 :]


def compressed(content: bytes, codec: Codec) -> bytes:
    """One member or frame."""
    import pyarrow as pa

    if codec == "none":
        return content
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(content)
    whole: bytes = sink.getvalue().to_pybytes()
    return whole
