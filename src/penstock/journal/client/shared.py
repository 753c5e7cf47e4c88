"""Small appends of many tasks to one journal share a stream: what is added while a message is on its way goes with
the next one.

Each is a transaction of its own and stands for itself (`AppendBatch.independent`). Whoever is alone with its append
sends it alone; the stream is for those who come while another is under way, and ends when nobody came for a while.
"""

from __future__ import annotations

import asyncio
from collections import deque

import grpc
import grpc.aio

from penstock.base.errors import PenstockError
from penstock.journal.client.connection import Metadata
from penstock.journal.client.errors import BrokerGoneError, ProtocolError, translated
from penstock.journal.client.routes import Line
from penstock.journal.protocol import AppendBatch, AppendBatchResult, AppendRequest, AppendResponse

ANSWER_TIMEOUT = 60.0
"""Seconds without an answer to anything in flight after which a connection counts as lost."""

SMALL = 64 << 10
"""Appends up to this size share a stream."""
MESSAGE = 512 << 10
IN_FLIGHT = 4 << 20
IDLE = 5.0
LIFE = 300.0
"""Seconds after which a stream takes no more, so that its token is not older than that."""

_Waiting = tuple[AppendRequest, "asyncio.Future[AppendResponse]"]


class SharedAppends:
    """One stream. Ends by itself; whoever finds it `ended` opens another."""

    def __init__(self, line: Line, metadata: Metadata) -> None:
        self._line = line
        self._metadata = metadata
        self._queue: deque[_Waiting] = deque()
        self._flight: deque[_Waiting] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._until = asyncio.get_running_loop().time() + LIFE
        self.ended = False
        self._running = asyncio.create_task(self._run(), name=f"appends to {line.address}")

    async def append(self, request: AppendRequest) -> AppendResponse:
        """The broker's answer; the request has all of its content."""
        future: asyncio.Future[AppendResponse] = asyncio.get_running_loop().create_future()
        self._queue.append((request, future))
        self._wake.set()
        return await future

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.wait((self._running,))

    async def _run(self) -> None:
        failure: PenstockError = BrokerGoneError("the client was closed")
        try:
            with self._line.busy():
                await self._exchange()
            failure = BrokerGoneError(f"the broker at {self._line.address} ended a stream of appends")
        except grpc.aio.AioRpcError as error:
            failure = translated(error, self._line.address)
        except PenstockError as error:
            failure = error
        finally:
            self.ended = True
            self._give_up(failure)

    async def _exchange(self) -> None:
        call = self._line.calls.appends(metadata=self._metadata)
        receiving = asyncio.create_task(self._receive(call))
        try:
            while (message := await self._next_message(receiving)) is not None:
                await call.write(message)
            await call.done_writing()
            await receiving
        except (asyncio.InvalidStateError, grpc.aio.UsageError):
            await receiving  # which knows why no more is taken
        finally:
            receiving.cancel()
            call.cancel()
            await asyncio.wait((receiving,))

    async def _next_message(self, receiving: asyncio.Task[None]) -> AppendBatch | None:
        """All that waits, as far as it fits; None when the stream is to end."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._until:
            self.ended = True  # whoever comes opens another stream; this one sends what it has taken
        while not self._queue or self._bytes >= IN_FLIGHT:
            if receiving.done() or (self.ended and not self._queue):
                return None
            waited = self._room if self._queue else self._wake
            waited.clear()
            try:
                async with asyncio.timeout(IDLE):
                    await waited.wait()
            except TimeoutError:
                if not self._queue and not self._flight:
                    self.ended = True
                    return None
        message = AppendBatch(independent=True)
        size = 0
        while self._queue and size < MESSAGE:
            request, future = self._queue.popleft()
            if future.cancelled():
                continue
            message.appends.append(request)
            self._flight.append((request, future))
            size += len(request.content)
        self._bytes += size
        return message

    async def _receive(self, call: grpc.aio.StreamStreamCall[AppendBatch, AppendBatchResult]) -> None:
        try:
            while isinstance(answer := await call.read(), AppendBatchResult):
                for result in answer.results:
                    if not self._flight:
                        raise ProtocolError("the broker answered an append that was not sent")
                    request, future = self._flight.popleft()
                    self._bytes -= len(request.content)
                    if future.done():
                        continue
                    if result.error:
                        future.set_exception(PenstockError(f"the broker refused: {result.error}"))
                    else:
                        future.set_result(result.response)
                self._room.set()
        finally:
            self._wake.set()
            self._room.set()

    def _give_up(self, failure: PenstockError) -> None:
        """What was sent is in doubt; what was not can be tried again."""
        for _, future in self._flight:
            if not future.done():
                future.set_exception(_copy(failure, harmless=False))
        for _, future in self._queue:
            if not future.done():
                future.set_exception(_copy(failure, harmless=True))
        self._flight.clear()
        self._queue.clear()


def _copy(failure: PenstockError, *, harmless: bool) -> PenstockError:
    """Each waiter gets an error of its own."""
    if isinstance(failure, BrokerGoneError) or harmless:
        return BrokerGoneError(str(failure), harmless=harmless)
    return PenstockError(str(failure))


async def takes_batches(line: Line, metadata: Metadata) -> bool:
    """Whether the broker takes streams of batches, by an empty one.

    Writing to a stream that is being refused hides why it is refused, and leaves what was written in doubt; so the
    question is put without anything at stake, at first and after every failure.
    """
    call = line.calls.appends(metadata=metadata)
    try:
        await call.done_writing()
        async with asyncio.timeout(ANSWER_TIMEOUT):
            await call.read()
    except TimeoutError:
        raise BrokerGoneError(f"no broker answers at {line.address}", harmless=True) from None
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return False
        raise translated(error, line.address) from None
    finally:
        call.cancel()
    return True
