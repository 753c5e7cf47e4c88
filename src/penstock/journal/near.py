"""Appends of the very process that the broker is in, without the way over its socket.

Whoever runs a pipeline is the broker of its data directory, and writes most of what is in it. Such an append is handed
to the broker's event loop as it is: it is not cut into messages, no socket copies it, and nobody asks for its sum. What
it is checked against, when it counts and how it can fail is the same as over the socket.

`NearAppends` is for other threads than the broker's, one append at a time; `NearCall` for the batching appender in the
broker's own event loop. Either way content is written to disk from where the caller has it, who leaves it alone: also
where an append was given up, it may be read for another moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import CancelledError

from penstock.base.errors import PenstockError
from penstock.journal.broker import Broker
from penstock.journal.claims import EVERYTHING
from penstock.journal.client import BrokerGoneError, TimedOutError
from penstock.journal.protocol import AppendBatchResult, AppendRequest, AppendResponse, Status
from penstock.journal.wholes import Pieces, Wholes
from penstock.journal.wire import leaves_doubt

_APPEND = "Append"
_APPENDS = "Appends"


class NearAppends:
    """The appends of other threads of this process to a broker in an event loop of its own."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._loop = loop

    def __call__(self, first: AppendRequest, pieces: Sequence[memoryview], timeout: float) -> AppendResponse:
        """Append all of it in one transaction, and wait until it is durable; errors are those of a client."""
        work = self._append(first, Pieces(pieces))
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise BrokerGoneError("the broker of this process has stopped", harmless=True) from None
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise TimedOutError("the broker of this process did not answer in time") from None
        except CancelledError:
            raise BrokerGoneError("the broker of this process stops") from None
        except (PenstockError, OSError) as error:
            if leaves_doubt(error):
                raise BrokerGoneError(f"the broker of this process does not answer ({error})") from None
            raise PenstockError(f"the broker refused: {error}") from None

    async def _append(self, first: AppendRequest, content: Pieces) -> AppendResponse:
        metrics = self._broker.metrics
        metrics.started[_APPEND] += 1
        outcome = "<error>"
        try:
            response = await self._broker.append_near(first, content)
            outcome = "ok" if response.status == Status.OK else Status.Name(response.status)
        finally:
            metrics.completed[_APPEND, outcome] += 1
        return response


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
