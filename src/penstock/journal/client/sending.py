"""One connection's worth of an appender: batches out, answers in.

Brokers of ours get them through one `penstock.Local/Appends` stream, several in flight; they start in order, and
after one that is not OK the later ones are not tried. Other brokers, and batches too large for a message, get one
streamed append after another. A session ends by itself when there has been nothing to send for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import grpc.aio

from penstock.base.errors import PenstockError
from penstock.journal.client.aio import AsyncClient
from penstock.journal.client.batching import MESSAGE_LIMIT, Batch, Batches
from penstock.journal.client.connection import bearer
from penstock.journal.client.errors import (
    BrokerGoneError,
    JournalError,
    ProtocolError,
    TimedOutError,
)
from penstock.journal.client.routes import Line, connected
from penstock.journal.client.shared import ANSWER_TIMEOUT, LIFE, takes_batches
from penstock.journal.client.streamed import stream_append
from penstock.journal.client.stubs import AppendsCall
from penstock.journal.protocol import AppendBatchResult, AppendRequest, AppendResponse
from penstock.journal.wholes import Pieces, Whole, Wholes, parts_of

CONNECT_TIMEOUT = 10.0

MESSAGE = 512 << 10
"""What batches share a message up to."""

IDLE = 30.0
"""Seconds without anything to send after which the stream is ended."""


class BrokenError(Exception):
    """The session failed. `doubtful` is whether batches in flight may have landed."""

    def __init__(self, cause: PenstockError, *, doubtful: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.doubtful = doubtful


class _IdleError(Exception):
    pass


class Session:
    """Sends what there is to send. `landed` takes each answer, and raises a `JournalError` if it is not OK."""

    def __init__(
        self,
        client: AsyncClient,
        batches: Batches,
        first: AppendRequest,
        landed: Callable[[AppendResponse], None],
        wake: asyncio.Event,
        urgent: Callable[[], bool],
        cautious: bool,
    ) -> None:
        self._client = client
        self._batches = batches
        self._first = first
        self._landed = landed
        self._wake = wake
        self._urgent = urgent
        self._cautious = cautious
        self._flying = asyncio.Event()
        self._ending = False
        self._until = asyncio.get_running_loop().time() + LIFE

    async def run(self) -> None:
        """Return when there has been nothing to send for a while; raises `BrokenError`."""
        journal = self._first.journal
        line = self._client.primary_line(journal)
        with line.busy():
            try:
                await self._run(line)
            except JournalError as error:
                raise BrokenError(error, doubtful=False) from None  # what is behind it was not tried
            except BrokerGoneError as error:
                self._client.leave(line, journal)
                raise BrokenError(error, doubtful=not error.harmless) from None
            except PenstockError as error:
                raise BrokenError(error, doubtful=True) from None
            except OSError as error:
                raise BrokenError(
                    PenstockError(f"a spilled batch cannot be read: {error}"), doubtful=True
                ) from None

    async def _run(self, line: Line) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                there = await connected(line)
        except TimeoutError:
            there = False
        if not there:
            raise BrokerGoneError(f"no broker answers at {line.address}", harmless=True)
        if line.takes_batches is None or (line.takes_batches and self._cautious):
            metadata = bearer(self._client.tokens.for_append(self._first.journal))
            try:
                line.takes_batches = await takes_batches(line, metadata)
            except PenstockError as error:
                raise BrokenError(error, doubtful=False) from None
        if not line.takes_batches:
            await self._one_by_one(line)
            return
        try:
            await self._pipelined(line)
        except grpc.aio.AioRpcError as error:
            failure = self._client.gone(error, line, self._first.journal)
            raise BrokenError(failure, doubtful=True) from None

    async def _pipelined(self, line: Line) -> None:
        call = self._call(line)
        tasks = [asyncio.create_task(self._send(line, call)), asyncio.create_task(self._receive(call))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            call.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, _IdleError):
                raise outcome

    def _call(self, line: Line) -> AppendsCall:
        """A stream of appends; one without a socket if the broker is in this very event loop."""
        call = self._client.near_appends()
        if call is not None:
            return call
        return line.calls.appends(metadata=bearer(self._client.tokens.for_append(self._first.journal)))

    async def _send(self, line: Line, call: AppendsCall) -> None:
        """Returns when the stream takes no more; why, is found by whoever receives."""
        while True:
            batch = await self._next()
            if batch is None:
                return
            if batch.length > MESSAGE_LIMIT:
                self._landed(await self._alone(line, batch))
                continue
            message = await self._message(batch)
            self._flying.set()
            try:
                await call.write(message)
            except (asyncio.InvalidStateError, grpc.aio.UsageError, grpc.aio.AioRpcError):
                return

    async def _message(self, batch: Batch) -> Wholes:
        """A batch and those behind it, as far as one message is to carry them: fewer messages cost less."""
        appends: list[Whole] = []
        size = 0
        following: Batch | None = batch
        while following is not None:
            appends.append(Whole(self._first, await self._content(following)))
            size += following.length
            following = self._batches.take_queued(MESSAGE - size)
        return Wholes(appends, unsummed=True)

    async def _receive(self, call: AppendsCall) -> None:
        while True:
            await self._wait_for_flight()
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT):
                    answer = await call.read()
            except TimeoutError:
                raise TimedOutError(f"no answer to an append for {ANSWER_TIMEOUT:g} s") from None
            if not isinstance(answer, AppendBatchResult):
                raise BrokerGoneError("the broker ended a stream of appends")
            for result in answer.results:
                if not self._batches.flight:
                    raise ProtocolError("the broker answered an append that was not sent")
                if result.error:
                    raise PenstockError(f"the broker broke an append off: {result.error}")
                self._client.observe(self._first.journal, result.response.header)
                self._landed(result.response)
            self._wake.set()

    async def _wait_for_flight(self) -> None:
        """Until something is in flight, so that an answer is due."""
        while not self._batches.flight or self._batches.flight[0].length > MESSAGE_LIMIT:
            if self._ending and not self._batches.flight:
                raise _IdleError
            self._flying.clear()
            try:
                async with asyncio.timeout(IDLE):
                    await self._flying.wait()
            except TimeoutError:
                if not self._batches.flight:
                    self._ending = True  # from here on nothing is taken that would be left in flight
                    raise _IdleError from None

    async def _one_by_one(self, line: Line) -> None:
        while True:
            try:
                async with asyncio.timeout(IDLE) as idle:
                    batch = await self._next()
                    idle.reschedule(None)
            except TimeoutError:
                return
            if batch is None:
                return
            self._landed(await self._alone(line, batch))

    async def _alone(self, line: Line, batch: Batch) -> AppendResponse:
        """A batch as an append of its own."""
        metadata = bearer(self._client.tokens.for_append(self._first.journal))
        content = [memoryview(part) for part in parts_of(await self._content(batch))]
        response = await stream_append(line, self._first, content, ANSWER_TIMEOUT, metadata)
        self._client.observe(self._first.journal, response.header)
        return response

    async def _next(self) -> Batch | None:
        """The next batch, when there is one; None if the session is ending."""
        while not self._ending:
            if asyncio.get_running_loop().time() >= self._until:
                self._ending = True  # the next session has a new token
                self._flying.set()
                break
            batch = self._batches.take(urgent=self._urgent())
            if batch is not None:
                return batch
            self._wake.clear()
            await self._wake.wait()
        return None

    async def _content(self, batch: Batch) -> bytes | Pieces:
        if batch.content is None:
            assert batch.place is not None
            self._batches.moved_in(batch, await asyncio.to_thread(batch.place.load))
        assert batch.content is not None
        return batch.content
