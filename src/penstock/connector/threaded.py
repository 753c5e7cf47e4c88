"""What the directory of workers asks of a broker: three calls, which both clients of the journals can answer.

`AsyncClient` does so as it is. Who has the client for threads, since the broker or another loop of gRPC is in the same
process (a pipeline, a command beside it), has it called in a thread: gRPC does not like two loops in one process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol, TypeVar

from penstock.base.disk import Buffer
from penstock.journal.client import Appended, Client
from penstock.journal.protocol import JournalSpec, LabelSelector, LabelSet, ListResponse

_PATIENCE: Final = 5.0
"""Seconds for an append: nobody waits longer for the directory, at the end of a run least of all."""

Found = list[ListResponse.Journal]
T = TypeVar("T")


class Journals(Protocol):
    """Of either client."""

    async def list(self, selector: LabelSelector | None = None) -> Found: ...

    async def create(self, spec: JournalSpec) -> bool: ...

    async def append(
        self,
        journal: str,
        content: Buffer | Sequence[Buffer],
        *,
        union: LabelSet | None = None,
        subtract: LabelSet | None = None,
    ) -> Appended: ...


class Threaded:
    """One call after the other: what was given up by who waited for it is over before the next one begins."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="directory")

    async def list(self, selector: LabelSelector | None = None) -> Found:
        return await self._called(partial(self._client.list, selector))

    async def create(self, spec: JournalSpec) -> bool:
        return await self._called(partial(self._client.create, spec))

    async def append(
        self,
        journal: str,
        content: Buffer | Sequence[Buffer],
        *,
        union: LabelSet | None = None,
        subtract: LabelSet | None = None,
    ) -> Appended:
        append = self._client.append
        return await self._called(
            partial(append, journal, content, union=union, subtract=subtract, timeout=_PATIENCE)
        )

    def close(self) -> None:
        """No more calls; one that is under way ends by itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _called(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
