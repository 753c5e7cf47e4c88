"""Calls of the very process that the broker is in, without the way over its socket.

Whoever runs a pipeline is the broker of its data directory, and writes most of what is in it. An append is handed to
the broker's event loop as it is: it is not cut into messages, no socket copies it, and nobody asks for its sum. So are
questions that are answered at once, of which a small batch has several. What a call is checked against, when it counts
and how it can fail is the same as over the socket.

`NearBroker` is for other threads than the broker's, one append at a time; `NearCall` for the batching appender in the
broker's own event loop. Either way content is written to disk from where the caller has it, who leaves it alone: also
where an append was given up, it may be read for another moment.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from typing import Generic, TypeVar

from penstock.base.errors import PenstockError
from penstock.journal.broker import Broker
from penstock.journal.claims import EVERYTHING, Claims
from penstock.journal.client import BrokerGoneError, TimedOutError
from penstock.journal.client.connection import Metadata
from penstock.journal.client.stubs import Answering, Many, One, Stubs
from penstock.journal.protocol import AppendBatchResult, AppendRequest, AppendResponse, ReadRequest, Status
from penstock.journal.wholes import Pieces, Wholes
from penstock.journal.wire import leaves_doubt

_LOOK = 0.5
_SMALL = 1 << 20
"""Bytes that one may have at once; more comes over the socket, as fast as it is taken."""
_APPEND = "Append"
_APPENDS = "Appends"

Q = TypeVar("Q")
A = TypeVar("A")


class NearBroker:
    """The calls of other threads of this process to a broker in an event loop of its own."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._loop = loop

    def append(self, first: AppendRequest, pieces: Sequence[memoryview], timeout: float) -> AppendResponse:
        """Append all of it in one transaction, and wait until it is durable; errors are those of a client."""
        content = Pieces(pieces)
        return self.result(_APPEND, lambda: self._broker.append_near(first, content), timeout)

    def shortened(self, far: Stubs) -> Stubs:
        """The calls of a channel to this broker, of which those that are answered at once do without it."""
        return _NearStubs(far, self, self._broker)

    def result(self, operation: str, ask: Callable[[], Awaitable[A]], timeout: float | None) -> A:
        """What comes of it in the broker's event loop."""
        counted = self._counted(operation, ask)
        try:
            future = asyncio.run_coroutine_threadsafe(counted, self._loop)
        except RuntimeError:
            counted.close()
            raise BrokerGoneError("the broker of this process has stopped", harmless=True) from None
        try:
            return self._awaited(future, timeout)
        except TimeoutError:
            future.cancel()
            raise TimedOutError("the broker of this process did not answer in time") from None
        except CancelledError:
            raise BrokerGoneError("the broker of this process stops") from None
        except (PenstockError, OSError) as error:
            if leaves_doubt(error):
                raise BrokerGoneError(f"the broker of this process does not answer ({error})") from None
            raise PenstockError(f"the broker refused: {error}") from None

    def _awaited(self, future: Future[A], timeout: float | None) -> A:
        """What came just when the loop ended may never have begun there, and nobody tells."""
        deadline = time.monotonic() + timeout if timeout is not None else math.inf
        while True:
            try:
                return future.result(max(0.0, min(_LOOK, deadline - time.monotonic())))
            except TimeoutError:
                if future.done() or time.monotonic() >= deadline:
                    raise
                if self._loop.is_closed():
                    raise CancelledError from None

    async def _counted(self, operation: str, ask: Callable[[], Awaitable[A]]) -> A:
        metrics = self._broker.metrics
        metrics.started[operation] += 1
        outcome = "<error>"
        try:
            response = await ask()
            last = response[-1] if isinstance(response, list) and response else response
            status = getattr(last, "status", Status.OK)
            outcome = "ok" if status == Status.OK else Status.Name(status)
        finally:
            metrics.completed[operation, outcome] += 1
        return response


class _NearStubs(Stubs):
    """Lists that are no watches, reads of a little, fragments, and where bytes are."""

    def __init__(self, far: Stubs, near: NearBroker, broker: Broker) -> None:
        vars(self).update(vars(far))
        self._near = near
        self.list_fragments = self._one("ListFragments", broker.list_fragments)
        self.locate = self._one("Locate", broker.locate)
        self.list = self._many("List", broker.list, far.list, lambda request: not request.watch)
        self.read = self._many("Read", broker.read, far.read, _is_small)

    def _one(self, operation: str, method: Callable[[Q, Claims], Awaitable[A]]) -> One[Q, A]:
        def call(request: Q, /, timeout: float | None = None, metadata: Metadata | None = None) -> A:
            return self._near.result(operation, lambda: method(request, EVERYTHING), timeout)

        return call

    def _many(
        self,
        operation: str,
        method: Callable[[Q, Claims], AsyncIterator[A]],
        far: Many[Q, A],
        at_once: Callable[[Q], bool],
    ) -> Many[Q, A]:
        """Those questions that are answered `at_once` do without the socket."""

        def call(
            request: Q, /, timeout: float | None = None, metadata: Metadata | None = None
        ) -> Answering[A]:
            if not at_once(request):
                return far(request, timeout=timeout, metadata=metadata)
            return _Answers(self._near.result(operation, lambda: _all(method(request, EVERYTHING)), timeout))

        return call


def _is_small(request: ReadRequest) -> bool:
    return not request.block and (request.metadata_only or 0 < request.end_offset - request.offset <= _SMALL)


async def _all(answers: AsyncIterator[A]) -> list[A]:
    return [answer async for answer in answers]


class _Answers(Generic[A]):
    """What a call of many answers is to its caller."""

    def __init__(self, answers: list[A]) -> None:
        self._answers = answers

    def __iter__(self) -> Iterator[A]:
        return iter(self._answers)

    def cancel(self) -> bool:
        return False


class NearCall:
    """A stream of appends to a broker in this event loop. As over a socket, a task answers it until it is cancelled."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sent: asyncio.Queue[Wholes] = asyncio.Queue()
        self._answers: asyncio.Queue[AppendBatchResult | PenstockError | None] = asyncio.Queue()
        self._end: PenstockError | None = BrokerGoneError(
            "the broker of this process broke off a stream of appends"
        )
        """How the stream ends, unless it ends otherwise."""
        self._serving = asyncio.create_task(self._serve(), name="near appends")
        # Not by the task itself: one that is cancelled before its first step takes none.
        self._serving.add_done_callback(lambda _: self._answers.put_nowait(self._end))

    async def write(self, request: Wholes, /) -> None:
        """Hand over a message; how much is under way is the appender's to bound."""
        self._sent.put_nowait(request)

    async def read(self) -> AppendBatchResult | None:
        """The next answer; None at the end. Raises what the stream broke off with."""
        answer = await self._answers.get()
        if not isinstance(answer, AppendBatchResult):
            self._answers.put_nowait(answer)
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    def cancel(self) -> bool:
        return self._serving.cancel()

    async def _messages(self) -> AsyncIterator[Wholes]:
        """What was sent. Messages that wait go together, so that their appends may be one run."""
        following: Wholes | None = None
        while True:
            message, following = following or await self._sent.get(), None
            appends = list(message.appends)
            while following is None and not self._sent.empty():
                following = self._sent.get_nowait()
                if (following.independent, following.unsummed) == (message.independent, message.unsummed):
                    appends += following.appends
                    following = None
            yield Wholes(appends, message.independent, message.unsummed)

    async def _serve(self) -> None:
        metrics = self._broker.metrics
        metrics.started[_APPENDS] += 1
        outcome = "<error>"
        try:
            async for answer in self._broker.appends(self._messages(), EVERYTHING):
                self._answers.put_nowait(answer)
            outcome, self._end = "ok", None
        except (PenstockError, OSError) as error:
            self._end = (
                BrokerGoneError(f"the broker of this process does not answer ({error})")
                if leaves_doubt(error)
                else PenstockError(f"the broker refused: {error}")
            )
        finally:
            metrics.completed[_APPENDS, outcome] += 1
