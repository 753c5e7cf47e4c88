"""Appends of the very process that the broker is in, without the way over its socket.

Whoever runs a pipeline is the broker of its data directory, and writes most of what is in it. Such an append is handed
to the broker's event loop as it is: it is not cut into messages, no socket copies it, and nobody asks for its sum. What
it is checked against, when it counts and how it can fail is the same as over the socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import CancelledError

from penstock.base.errors import PenstockError
from penstock.journal.broker import Broker
from penstock.journal.client import BrokerGoneError, TimedOutError
from penstock.journal.protocol import AppendRequest, AppendResponse, Status
from penstock.journal.wire import leaves_doubt

_APPEND = "Append"


class NearAppends:
    """The appends of other threads of this process to a broker in an event loop of its own."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._loop = loop

    def __call__(self, first: AppendRequest, pieces: Sequence[memoryview], timeout: float) -> AppendResponse:
        """Append all of it in one transaction, and wait until it is durable; errors are those of a client."""
        work = self._append(first, b"".join(pieces))
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

    async def _append(self, first: AppendRequest, content: bytes) -> AppendResponse:
        metrics = self._broker.metrics
        metrics.started[_APPEND] += 1
        outcome = "<error>"
        try:
            response = await self._broker.append_near(first, content)
            outcome = "ok" if response.status == Status.OK else Status.Name(response.status)
        finally:
            metrics.completed[_APPEND, outcome] += 1
        return response
