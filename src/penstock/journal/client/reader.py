"""A reader of one journal that goes on across fragments, brokers and outages (reference 23, RetryReader).

It is a stream of (offset, bytes). It ends at `end`, or, unless it blocks, at the write head. What it does not end
by is tried again from where it had come to, after the waits of `backoff`:

    an end offset reached                     the end
    OFFSET_NOT_YET_AVAILABLE, not blocking    the end
    SUSPENDED                                 JournalError
    JOURNAL_NOT_FOUND five times in a row     JournalError
    UNAUTHENTICATED                           UnauthenticatedError: the same token would be refused again
    an answer that is nonsense                ProtocolError
    bytes that are gone                       noted in `last_jump`, or OffsetJumpError if so asked; once each
    all else                                  tried again, up to `outage_limit` seconds if one is set

After an OffsetJumpError the reader may be read on: it continues behind the hole.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from penstock.base.errors import PenstockError
from penstock.journal.client import backoff, requests
from penstock.journal.client.answers import Progress
from penstock.journal.client.connection import LARGE_CHUNKS, bearer
from penstock.journal.client.direct import FETCH_ERRORS, DirectFragment
from penstock.journal.client.errors import (
    JournalError,
    OffsetJumpError,
    ProtocolError,
    UnauthenticatedError,
)
from penstock.journal.fragment import Fragment
from penstock.journal.protocol import ReadRequest, ReadResponse, Status

if TYPE_CHECKING:
    from penstock.journal.client.aio import AsyncClient

NOT_FOUND_LIMIT = 5
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read, and how."""

    journal: str
    begin: int = 0
    end: int = 0
    block: bool = False
    begin_mod_time: int = 0
    direct: bool = False
    """Fetch stored fragments from their store instead of through the broker."""
    file_root: Path | None = None
    """Where `file:` URLs of fragments are looked up, with `direct`."""
    raise_jumps: bool = False
    outage_limit: float | None = None
    """Seconds without an answer after which the reader gives up; None: never."""


class Reader:
    """An asynchronous iterator of (offset, bytes); close it when it is left early."""

    def __init__(self, client: AsyncClient, options: ReadOptions) -> None:
        self.options = options
        self._client = client
        self._using = ExitStack()
        requests.checked_read(self._request(options.begin))
        self._progress = Progress(options.journal, options.begin, options.end)
        self.last_jump: OffsetJumpError | None = None
        """The last hole that was jumped."""
        self.last_error: PenstockError | None = None
        """Why the reader is waiting to try again, while it is."""
        self._failures = 0
        self._silent_since: float | None = None
        self._call: grpc.aio.UnaryStreamCall[ReadRequest, ReadResponse] | None = None
        self._line = client.lines.home
        self._advanced = False
        self._direct: DirectFragment | None = None
        self._proxied_below = -1
        self._held: tuple[int, bytes] | None = None

    @property
    def offset(self) -> int:
        """Where the next byte is expected; -1 before the first answer to a read from the write head."""
        return self._progress.offset

    @property
    def write_head(self) -> int:
        """The write head, as the broker last told it."""
        return self._progress.metadata.write_head if self._progress.metadata else 0

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> tuple[int, bytes]:
        while True:
            if self._held is not None:
                held, self._held = self._held, None
                return held
            if self._progress.complete:
                await self.aclose()
                raise StopAsyncIteration
            try:
                content = await self._next()
            except BaseException:
                await self.aclose()
                raise
            if content is None:
                await self.aclose()
                raise StopAsyncIteration
            if content:
                self._held = (self.offset - len(content), content)
            jump, self._progress.jump = self._progress.jump, None
            if jump is not None:
                self.last_jump = jump
                if self.options.raise_jumps:
                    raise jump

    async def aclose(self) -> None:
        """End the call under way. Reading on begins a new one."""
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
            self._using.close()
        direct, self._direct = self._direct, None
        if direct is not None:
            direct.close()

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _next(self) -> bytes | None:
        """What came next: content, b"" if there was none in it, None at the end."""
        if self._direct is not None:
            return await self._next_of_fragment(self._direct)
        try:
            if self._call is None:
                self._open()
            assert self._call is not None
            response = await self._call.read()
            if not isinstance(response, ReadResponse):
                return await self._ended()
            if response.HasField("header"):
                self._client.observe(self.options.journal, response.header)
            content = self._progress.accept(response)
        except grpc.aio.AioRpcError as error:
            return await self._failed(self._client.gone(error, self._line, self.options.journal))
        except JournalError as error:
            return await self._failed(error)
        self._succeeded()
        if self._progress.at_head and not self.options.block:
            self._progress.require_no_hole()
            return None
        return content

    def _open(self) -> None:
        self._progress.metadata = None
        self._advanced = False
        request = self._request(self.offset)
        request.do_not_proxy = self.options.direct and self.offset >= self._proxied_below
        metadata = bearer(self._client.tokens.for_read(request.journal)) + LARGE_CHUNKS
        self._line = self._using.enter_context(self._client.member_line(request.journal).busy())
        self._call = self._line.calls.read(request, metadata=metadata)

    def _request(self, offset: int) -> ReadRequest:
        return ReadRequest(
            journal=self.options.journal,
            offset=offset,
            end_offset=self.options.end,
            block=self.options.block,
            begin_mod_time=self.options.begin_mod_time,
        )

    def _succeeded(self) -> None:
        self._advanced = True
        self._failures = 0
        self._silent_since = None
        self.last_error = None

    async def _ended(self) -> bytes:
        """The broker ended the stream: a fragment to be fetched, or a reason of its own, such as its shutdown."""
        metadata = self._progress.metadata
        advanced = self._advanced
        await self.aclose()
        if metadata is not None and metadata.fragment_url and self.options.direct:
            fragment = Fragment.from_proto(metadata.fragment)
            if fragment.contains(self.offset) and self.offset >= self._proxied_below:
                url, root = metadata.fragment_url, self.options.file_root
                self._direct = DirectFragment(fragment, url, self.offset, root)
                self._proxied_below = fragment.end
                return b""
        self._failures = 0
        if not advanced:
            await asyncio.sleep(backoff.delay(1))
        return b""

    async def _next_of_fragment(self, direct: DirectFragment) -> bytes:
        """More of a stored fragment. If that fails, the broker is asked for the rest of it."""
        try:
            chunk = await direct.next_chunk()
        except FETCH_ERRORS as error:
            _log.warning(
                "journal %s: reading a fragment from its store failed at offset %d, asking the broker: %s",
                self.options.journal, self.offset, error,
            )  # fmt: skip
            chunk = None
        if chunk is None:
            await self.aclose()
            return b""
        if self.options.end:
            chunk = chunk[: self.options.end - self.offset]
        self._progress.offset += len(chunk)
        return chunk

    async def _failed(self, error: PenstockError) -> bytes:
        """Wait until it is time to try again, or raise what ends the reader."""
        await self.aclose()
        self._failures += 1
        status = error.status if isinstance(error, JournalError) else Status.OK
        if isinstance(error, (UnauthenticatedError, ProtocolError)) or status == Status.SUSPENDED:
            raise error
        if status == Status.JOURNAL_NOT_FOUND and self._failures >= NOT_FOUND_LIMIT:
            raise error
        if status == Status.NOT_JOURNAL_BROKER and not self._client.follow_routes:
            self._proxied_below = 1 << 63  # this broker has to fetch it all for us
        now = asyncio.get_running_loop().time()
        if self._silent_since is None:
            self._silent_since = now
        limit = self.options.outage_limit
        if limit is not None and now - self._silent_since >= limit:
            raise error
        if self._failures == len(backoff.DELAYS):
            _log.warning(
                "journal %s: a read at offset %d keeps failing: %s", self.options.journal, self.offset, error
            )
        self.last_error = error
        await asyncio.sleep(backoff.delay(self._failures))
        return b""
