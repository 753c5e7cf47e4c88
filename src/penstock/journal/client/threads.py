"""The batching appender for threads: an `Appender` in an event loop of its own, in a thread of its own.

    with SyncAppender(client, "orders/log") as appender:
        for record in records:
            appender.add(record)     # waits when too much is pending
        appender.flush()

Promises, limits and errors are those of `Appender`. Several threads may add; records of one thread keep their order.
Callbacks run in the appender's thread: they must be quick, and not use the appender. The thread lives from `with` to
its end: do not fork in between.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from penstock.base.errors import UsageError
from penstock.journal.client.aio import AsyncClient
from penstock.journal.client.appender import MAX_BATCH, MAX_PENDING, OUTAGE_LIMIT, SPILL_LIMIT, Appender
from penstock.journal.client.batching import OnCommit
from penstock.journal.client.fencing import claim
from penstock.journal.client.sync import Client
from penstock.journal.protocol import LabelSelector

T = TypeVar("T")
_HANDOVER = 128 << 10
"""Bytes that are collected in the caller's thread before the appender's is told."""


class SyncAppender:
    """Appends records to one journal, from threads. Takes address, TLS and tokens from `client`.

    With `owner`, a text unique to this claimant, it claims the journal first, leaving `claim_record` in it.
    """

    def __init__(
        self,
        client: Client,
        journal: str,
        *,
        check: LabelSelector | None = None,
        owner: str | None = None,
        claim_record: bytes = b"",
        max_batch_bytes: int = MAX_BATCH,
        max_pending_bytes: int = MAX_PENDING,
        spill_dir: Path | None = None,
        spill_limit: int = SPILL_LIMIT,
        outage_limit: float = OUTAGE_LIMIT,
    ) -> None:
        self.journal = journal
        self._client = client
        self._owner = (owner, claim_record) if owner is not None else None
        self._check = check
        self._max_batch = max_batch_bytes
        self._max_pending = max_pending_bytes
        self._spill = (spill_dir, spill_limit)
        self._outage_limit = outage_limit
        self._lock = threading.Lock()
        self._records: list[bytes] = []
        self._bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._appender: Appender | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def add(self, record: bytes, on_commit: OnCommit | None = None) -> None:
        """Take a record; waits while too much is pending. Raises `AppenderFailedError` once it has given up."""
        if on_commit is not None:
            self._hand_over()
            self._do(self._add_one(record, on_commit))
            return
        with self._lock:
            self._records.append(record)
            self._bytes += len(record)
            full = self._bytes >= _HANDOVER
        if full:
            self._hand_over()

    def add_many(self, records: Sequence[bytes]) -> None:
        """Take records, in order."""
        self._hand_over()
        self._do(self._add_all(records))

    def flush(self) -> None:
        """Return when everything that was added before is durable."""
        self._hand_over()
        self._do(self._opened().flush())

    @property
    def added(self) -> int:
        """Records that were added, ever."""
        return self._opened().added + len(self._records)

    @property
    def committed(self) -> int:
        """Records that are acknowledged: those with the numbers below this."""
        return self._opened().committed

    def unacknowledged(self) -> Iterator[bytes]:
        """The records that are not acknowledged, in order; to be used after a failure."""
        yield from self._opened().unacknowledged()
        yield from self._records

    def __enter__(self) -> SyncAppender:
        if self._thread is not None:
            raise UsageError("an appender is opened once")
        opened: Future[None] = Future()
        self._thread = threading.Thread(
            target=asyncio.run, args=(self._run(opened),), name=f"appender of {self.journal}", daemon=True
        )
        self._thread.start()
        try:
            opened.result()
        except BaseException:
            self._thread.join()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.flush()
        finally:
            assert self._loop is not None
            assert self._stop is not None
            assert self._thread is not None
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    async def _run(self, opened: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        client = AsyncClient(self._client.address, tls=self._client.tls, tokens=self._client.tokens)
        try:
            async with client:
                self._appender = await self._made(client)
                await self._appender.__aenter__()
                opened.set_result(None)
                await self._stop.wait()
                await self._appender.close()
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error)
            else:
                raise

    async def _made(self, client: AsyncClient) -> Appender:
        directory, limit = self._spill
        owner = await claim(client, self.journal, *self._owner) if self._owner is not None else None
        return Appender(
            client,
            self.journal,
            check=self._check,
            owner=owner,
            max_batch_bytes=self._max_batch,
            max_pending_bytes=self._max_pending,
            spill_dir=directory,
            spill_limit=limit,
            outage_limit=self._outage_limit,
        )

    def _hand_over(self) -> None:
        """Give the appender what was collected. The lock is kept, so that what comes next comes after it."""
        with self._lock:
            if self._records:
                self._do(self._add_all(self._records))
                self._records, self._bytes = [], 0

    async def _add_all(self, records: Sequence[bytes]) -> None:
        appender = self._opened()
        await appender.ready()
        appender.add_many(records)

    async def _add_one(self, record: bytes, on_commit: OnCommit) -> None:
        appender = self._opened()
        await appender.ready()
        appender.add(record, on_commit)

    def _opened(self) -> Appender:
        if self._appender is None:
            raise UsageError("the appender is not open; use `with`")
        return self._appender

    def _do(self, coroutine: Coroutine[object, object, T]) -> T:
        if self._loop is None or self._thread is None or not self._thread.is_alive():
            coroutine.close()
            raise UsageError(f"journal {self.journal}: the appender is not open; use `with`")
        doing = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return doing.result()
        except BaseException:
            doing.cancel()  # whoever interrupted the wait must not find it done later
            raise
