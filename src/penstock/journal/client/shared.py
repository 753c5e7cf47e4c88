"""Small appends to one journal share a stream, whether many tasks make them at once or one makes them again and
again: what is added while a message is on its way goes with the next one.

Each is a transaction of its own and stands for itself (`AppendBatch.independent`). An append that comes out of the
blue is a call of its own, which costs several times as much; the stream is for those that come soon after it, and
ends when nobody came for a while.

Writing to a stream that is being refused hides why it is refused, and leaves what was written in doubt. So before
anything is at stake there is a connection, and the broker has been asked with an empty stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import grpc
import grpc.aio

from penstock.base.errors import PenstockError
from penstock.journal.client.connection import Metadata
from penstock.journal.client.errors import BrokerGoneError, ProtocolError, TimedOutError, translated
from penstock.journal.client.routes import Line, connected
from penstock.journal.protocol import (
    AppendBatch,
    AppendBatchResult,
    AppendRequest,
    AppendResponse,
    AppendResult,
)
from penstock.journal.wholes import Wholes

ANSWER_TIMEOUT = 60.0
"""Seconds without an answer to anything in flight after which a connection counts as lost."""

SMALL = 64 << 10
"""Appends up to this size share a stream."""
MESSAGE = 512 << 10
IN_FLIGHT = 4 << 20
IDLE = 5.0
LIFE = 300.0
"""Seconds after which a stream takes no more, so that its token is not older than that."""

MAX_RECENT = 4096
"""Of so many journals it is remembered when they were last appended to."""

_Waiting = tuple[AppendRequest, "asyncio.Future[AppendResponse]"]


class NotTakenError(PenstockError):
    """The broker takes no streams of batches; it has not seen the append."""


class Sharing:
    """The streams of one client, and which appends go over them."""

    def __init__(self) -> None:
        self.streams: dict[tuple[str, str], SharedAppends] = {}
        """By address and journal."""
        self._recent: dict[str, float] = {}
        """When the last append to each journal began."""

    def stream_for(
        self, line: Line, journal: str, size: int, metadata: Callable[[], Metadata]
    ) -> SharedAppends | None:
        """The stream that an append of this size goes over, if it does. `metadata` is what a new one begins with."""
        now = asyncio.get_running_loop().time()
        last = self._recent.get(journal)
        if last is None and len(self._recent) >= MAX_RECENT:
            self._recent.clear()  # some appends will be calls of their own
        self._recent[journal] = now
        if last is None or now - last > IDLE or size > SMALL or line.takes_batches is False:
            return None
        stream = self.streams.get((line.address, journal))
        if stream is None or stream.ended:
            for key in [key for key, other in self.streams.items() if other.ended]:
                del self.streams[key]
            stream = self.streams[line.address, journal] = SharedAppends(line, metadata())
        return stream

    async def close(self) -> None:
        for stream in list(self.streams.values()):
            await stream.close()


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
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + LIFE
        self._opened = False
        self.ended = False
        self._running = asyncio.create_task(self._run(), name=f"appends to {line.address}")

    async def append(self, request: AppendRequest, timeout: float) -> AppendResponse:  # noqa: ASYNC109
        """The broker's answer; the request has all of its content."""
        future: asyncio.Future[AppendResponse] = self._loop.create_future()
        self._queue.append((request, future))
        self._wake.set()
        # A timer costs a fraction of what `asyncio.timeout` does.
        timer = self._loop.call_later(timeout, self._expire, future)
        try:
            return await future
        finally:
            timer.cancel()

    def _expire(self, future: asyncio.Future[AppendResponse]) -> None:
        if future.done():
            return
        if self._opened:
            future.set_exception(TimedOutError(f"the broker at {self._line.address} did not answer in time"))
        else:
            future.set_exception(self._nobody())

    def _nobody(self) -> BrokerGoneError:
        return BrokerGoneError(
            f"no broker answers at {self._line.address}", hint="see whether it is running", harmless=True
        )

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.wait((self._running,))

    async def _run(self) -> None:
        failure: PenstockError = BrokerGoneError("the client was closed")
        try:
            with self._line.busy():
                await self._open()
                await self._exchange()
            failure = BrokerGoneError(f"the broker at {self._line.address} ended a stream of appends")
        except grpc.aio.AioRpcError as error:
            failure = translated(error, self._line.address)
        except PenstockError as error:
            failure = error
        finally:
            self.ended = True
            self._give_up(failure)

    async def _open(self) -> None:
        line = self._line
        if not await connected(line):
            raise self._nobody()
        line.takes_batches = await takes_batches(line, self._metadata)
        if not line.takes_batches:
            raise NotTakenError(f"the broker at {line.address} takes no streams of appends")
        self._opened = True

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
        if self._loop.time() >= self._until:
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
        if receiving.done():
            return None  # it has just ended, and what was not sent is in no doubt
        message = AppendBatch(independent=True)
        size = 0
        while self._queue and size < MESSAGE:
            request, future = self._queue.popleft()
            if future.done():  # nobody waits any more
                continue
            message.appends.append(request)
            self._flight.append((request, future))
            size += len(request.content)
        self._bytes += size
        return message

    async def _receive(
        self, call: grpc.aio.StreamStreamCall[AppendBatch | Wholes, AppendBatchResult]
    ) -> None:
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
                        future.set_exception(_broken_off(result))
                    else:
                        future.set_result(result.response)
                self._room.set()
        finally:
            self._wake.set()
            self._room.set()

    def _give_up(self, failure: PenstockError) -> None:
        """What was sent is in doubt; what was not can be tried again, unless the broker has said why it takes nothing.

        Each waiter gets an error of its own.
        """
        gone = self._opened or isinstance(failure, BrokerGoneError)
        for _, future in self._flight:
            if not future.done():
                future.set_exception(type(failure)(str(failure), hint=failure.hint))
        for _, future in self._queue:
            if not future.done():
                text, hint = str(failure), failure.hint
                future.set_exception(
                    BrokerGoneError(text, hint=hint, harmless=True)
                    if gone
                    else type(failure)(text, hint=hint)
                )
        self._flight.clear()
        self._queue.clear()


def _broken_off(result: AppendResult) -> PenstockError:
    if result.in_doubt:
        return BrokerGoneError(f"the broker broke an append off: {result.error}")
    return PenstockError(f"the broker refused: {result.error}")


async def takes_batches(line: Line, metadata: Metadata) -> bool:
    """Whether the broker takes streams of batches, by an empty one."""
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
