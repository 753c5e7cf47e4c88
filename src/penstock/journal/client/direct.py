"""Reading a stored fragment from its store instead of through the broker (reference 23).

A fragment is fetched by its signed URL, decompressed, and cut to what is wanted. HTTP is plain GET: a GZIP
fragment is asked for with `Accept-Encoding: gzip` so that no store unpacks it on the way; of one whose store
does the unpacking (GZIP_OFFLOAD_DECOMPRESSION) the identity is asked for, and it is unpacked here only if the
answer says that it is still packed. `file:` URLs are looked up below a root that the caller gives.
The content must end exactly where the fragment does.
"""

from __future__ import annotations

import asyncio
import http.client
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from penstock.base.errors import CorruptError, PenstockError
from penstock.journal.codecs import decompressed_chunks
from penstock.journal.fragment import Codec, Fragment

CHUNK = 256 << 10
TIMEOUT = 60.0

FETCH_ERRORS = (OSError, http.client.HTTPException, PenstockError, ValueError)
"""What can go wrong with a URL; the broker can then be asked instead."""


class DirectFragment:
    """The bytes of a stored fragment from an offset on, a chunk at a time, fetched by a thread."""

    def __init__(self, fragment: Fragment, url: str, offset: int, file_root: Path | None) -> None:
        self._chunks = _content(fragment, url, offset, file_root)
        self._reading: asyncio.Task[bytes | None] | None = None

    async def next_chunk(self) -> bytes | None:
        """The next bytes; None at the end of the fragment. Raises one of `FETCH_ERRORS`."""
        self._reading = asyncio.create_task(asyncio.to_thread(next, self._chunks, None))
        # A thread cannot be cancelled: whoever waits may go, the read under way ends by itself.
        return await asyncio.shield(self._reading)

    def close(self) -> None:
        """Let the fragment go; at once, or when the read under way has ended."""
        if self._reading is not None and not self._reading.done():
            self._reading.add_done_callback(self._after)
        else:
            self._chunks.close()

    def _after(self, reading: asyncio.Task[bytes | None]) -> None:
        if not reading.cancelled():
            reading.exception()  # taken, so that nobody is told of an error that nobody waits for
        self._chunks.close()


def _content(
    fragment: Fragment, url: str, offset: int, file_root: Path | None
) -> Generator[bytes, None, None]:
    with _opened(url, fragment.codec, file_root) as (source, encoding):
        stored = iter(lambda: source.read(CHUNK), b"")
        position = fragment.begin
        for chunk in decompressed_chunks(fragment.codec, stored, encoding=encoding, where=_shown(url)):
            begin, position = position, position + len(chunk)
            if position > fragment.end:
                break
            if position > offset:
                yield chunk[max(0, offset - begin) :]
    if position != fragment.end:
        raise CorruptError(
            f"its content {'goes on beyond' if position > fragment.end else 'ends before'} offset {fragment.end}",
            where=_shown(url),
            position=min(position, fragment.end) - fragment.begin,
        )


@contextmanager
def _opened(url: str, codec: Codec, file_root: Path | None) -> Iterator[tuple[BinaryIO, str]]:
    """What the URL leads to, and its Content-Encoding."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        with _below(file_root, unquote(parts.path), url).open("rb") as file:
            yield file, "gzip"
        return
    if parts.scheme not in ("http", "https"):
        raise PenstockError(f"fragments cannot be fetched from {parts.scheme}: URLs")
    accept = "gzip" if codec is Codec.GZIP else "identity"
    request = urllib.request.Request(url, headers={"Accept-Encoding": accept})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        yield response, response.headers.get("Content-Encoding", "").strip().lower()


def _below(root: Path | None, path: str, url: str) -> Path:
    if root is None:
        raise PenstockError(f"{url} is a file of the broker's machine", hint="give `file_root`")
    file = (root / path.lstrip("/")).resolve()
    if not file.is_relative_to(root.resolve()):
        raise PenstockError(f"{url} leads out of {root}")
    return file


def _shown(url: str) -> str:
    """A URL for people: its query is a signature, which whoever reads it could use."""
    return url.partition("?")[0]
