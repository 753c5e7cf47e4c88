"""The batching appender: many small records, few appends, several under way, in order.

    async with Appender(client, "orders/log", spill_dir=Path("/var/tmp")) as appender:
        for record in records:
            appender.add(record)          # cheap: no waiting, no promise yet
            await appender.ready()        # back-pressure, now and then
        await appender.flush()            # everything so far is durable

Records that are added while earlier batches are under way share the next batch, which is one append: all of it or
nothing. `append` gives a handle to wait for, `add` takes a callback; both tell where the record landed.

**What is promised.** Records land in the order in which they were added, and a record that was acknowledged is
durable. Without an owner each lands *at least once*: after a lost connection the batches whose answers are missing
are sent again, so a batch may be in the journal twice. With an `owner` (`fencing.claim`) each lands *exactly once*:
after a lost connection the claim is renewed, and where the new claim landed tells which batches had; only the others
are sent again. While such an appender is open, nothing else may append under its claim.

**When it gives up.** On the statuses of `batching.GIVES_UP`, at once; given `check` without an owner, it waits even
for those, since registers change. On anything else it tries again, with the waits of `backoff`, until there has been
no success for `outage_limit` seconds. Then, and when more than `spill_limit` bytes would wait, everything raises
`AppenderFailedError`, which says which records are not acknowledged; `unacknowledged` gives them back.

**What waits, and where.** Up to `max_pending_bytes` in memory; there `ready` waits. With a `spill_dir`, what is
beyond goes to temporary files there, and during an outage `ready` does not wait, so that a producer can go on.
Without one, or if its disk is full, `add` refuses records at twice `max_pending_bytes`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from penstock.base.errors import PenstockError, UsageError
from penstock.journal.client import answers, backoff, requests
from penstock.journal.client.aio import AsyncClient
from penstock.journal.client.answers import Appended
from penstock.journal.client.batching import Batch, Batches, OnCommit, gives_up
from penstock.journal.client.errors import (
    AppenderFailedError,
    AppenderFullError,
    JournalError,
    ProtocolError,
    RegisterMismatchError,
)
from penstock.journal.client.fencing import FencedError, InDoubtError, Ownership, RegistersLostError
from penstock.journal.client.sending import BrokenError, Session
from penstock.journal.client.spill import Spill
from penstock.journal.protocol import AppendRequest, AppendResponse, LabelSelector
from penstock.journal.wholes import parts_of

MAX_BATCH = 512 << 10
MAX_PENDING = 16 << 20
SPILL_LIMIT = 1 << 30
OUTAGE_LIMIT = 60.0
WINDOW = 8
WINDOW_BYTES = 4 << 20
"""Batches in flight: as many as that, or as are that long together."""

_FINAL = (FencedError, InDoubtError, RegistersLostError, ProtocolError, UsageError)
_log = logging.getLogger(__name__)


class Pending:
    """A record on its way. Awaiting it gives where it landed, with the registers after its batch.

    Do not rely on its `sum`: brokers of other makes give that of the batch, ours give zeros and hash only once.
    """

    __slots__ = ("_appender", "_batch", "_begin", "_end")

    def __init__(self, appender: Appender, batch: Batch, begin: int, end: int) -> None:
        self._appender = appender
        self._batch = batch
        self._begin = begin
        self._end = end

    @property
    def done(self) -> bool:
        return self._batch.outcome is not None

    def __await__(self) -> Generator[object, None, Appended]:
        if self._batch.outcome is None:
            yield from self._appender._landing_of(self._batch).__await__()
        assert self._batch.outcome is not None
        return _part(self._batch.outcome, self._begin, self._end)


class Appender:
    """Appends records to one journal. An asynchronous context: leaving it flushes, unless an error leaves it.

    For one event loop; `threads.SyncAppender` is for threads.
    """

    def __init__(
        self,
        client: AsyncClient,
        journal: str,
        *,
        check: LabelSelector | None = None,
        owner: Ownership | None = None,
        max_batch_bytes: int = MAX_BATCH,
        max_pending_bytes: int = MAX_PENDING,
        spill_dir: Path | None = None,
        spill_limit: int = SPILL_LIMIT,
        outage_limit: float = OUTAGE_LIMIT,
    ) -> None:
        if owner is not None and (check is not None or owner.journal != journal):
            raise UsageError("an appender with an owner is checked against the owner's epoch, of its journal")
        if not 0 < max_batch_bytes <= max_pending_bytes:
            raise UsageError("expected 0 < max_batch_bytes <= max_pending_bytes")
        self.journal = journal
        self.owner = owner
        self._client = client
        self._check = check
        self._batches = Batches(max_batch_bytes, max(WINDOW, WINDOW_BYTES // max_batch_bytes))
        self._take = self._batches.add
        self._max_pending = max_pending_bytes
        self._outage_limit = outage_limit
        self._spill = Spill(spill_dir, spill_limit) if spill_dir is not None else None
        self._end = owner.end if owner is not None else 0
        self._refusal: PenstockError | None = UsageError("the appender is not open; use `async with`")
        self._failure: AppenderFailedError | None = None
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._flushing: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._landing: dict[Batch, asyncio.Future[None]] = {}
        self._running: asyncio.Task[None] | None = None
        self._failures = 0
        self._trouble_since: float | None = None
        self._unsettled = False
        requests.checked_append(self._first())

    # Adding.

    def add(self, record: bytes, on_commit: OnCommit | None = None) -> None:
        """Take a record; it is on its way when this returns, and durable when `on_commit` is called.

        Never waits. Raises `AppenderFailedError` once the appender has given up, and `AppenderFullError` when too
        much is waiting; the record was then not taken.
        """
        if self._refusal is not None:
            raise self._refusal
        if on_commit is not None:
            batch = self._batches.open
            batch.callbacks.append((batch.length, batch.length + len(record), on_commit))
        if self._take(record):
            self._grown()

    def add_many(self, records: Sequence[bytes]) -> None:
        """Take records, in order; cheaper than one by one. All of them are taken, or none."""
        if self._refusal is not None:
            raise self._refusal
        for _ in self._batches.add_many(records):
            self._grown()
        self._grown()

    def append(self, record: bytes) -> Pending:
        """Take a record; await what this returns to know where it landed."""
        if self._refusal is not None:
            raise self._refusal
        batch = self._batches.open
        begin = batch.length
        if self._batches.add(record):
            self._grown()
        return Pending(self, batch, begin, begin + len(record))

    async def ready(self) -> None:
        """Return when there is room for more; soon if there is. What waits to be sent gets its turn."""
        if self._batches.queue:
            await asyncio.sleep(0)
        while self._failure is None and self._batches.pending_bytes >= self._max_pending:
            if self._trouble_since is not None and self._can_spill():
                return
            self._room.clear()
            await self._room.wait()
        if self._failure is not None:
            raise self._failure

    async def flush(self) -> None:
        """Return when everything that was added before is durable."""
        if self._failure is not None:
            raise self._failure
        added = self._batches.added
        if self._batches.committed >= added:
            return
        done = asyncio.get_running_loop().create_future()
        self._flushing.append((added, done))
        self._wake.set()
        await done

    @property
    def added(self) -> int:
        """Records that were added, ever."""
        return self._batches.added

    @property
    def committed(self) -> int:
        """Records that are acknowledged: those with the numbers below this."""
        return self._batches.committed

    @property
    def pending_bytes(self) -> int:
        """Bytes that are not acknowledged, in memory and in files."""
        return self._batches.pending_bytes

    def unacknowledged(self) -> Iterator[bytes]:
        """The records that are not acknowledged, in order; to be used after a failure, before `close`."""
        return self._batches.unacknowledged()

    # Opening and closing.

    async def __aenter__(self) -> Appender:
        if self._running is not None:
            raise UsageError("an appender is opened once")
        self._refusal = None
        self._running = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.flush()
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop at once. What is not acknowledged then never will be, and may have landed if it was under way."""
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running
        if self._failure is None and self._batches.pending_records:
            self._batches.broken(doubtful=True)
            self._fail("the appender was closed")
        if self._failure is None:
            self._refusal = UsageError(f"journal {self.journal}: the appender is closed")
            self.discard()

    def discard(self) -> None:
        """Give the disk back that a failed appender keeps for `unacknowledged`."""
        if self._spill is not None:
            self._spill.close()

    # The work.

    def _grown(self) -> None:
        """A batch was begun, or is full."""
        if self._batches.is_full and (batch := self._batches.seal()) is not None:
            if self._batches.memory > self._max_pending:
                self._move_out(batch)
            if self._batches.memory >= 2 * self._max_pending and self._refusal is None:
                self._refusal = AppenderFullError(
                    f"journal {self.journal}: {self._batches.pending_bytes} bytes are waiting",
                    hint="wait for `ready` before adding more, or give a `spill_dir` with room",
                )
        self._wake.set()

    def _can_spill(self) -> bool:
        return self._spill is not None and self._spill.works

    def _move_out(self, batch: Batch) -> None:
        spill = self._spill
        if spill is None or not spill.works or batch.content is None:
            return
        if not spill.has_room(batch.length):
            if self._trouble_since is not None:
                self._fail(f"the broker is away, and more than {spill.limit} bytes are waiting")
            return
        try:
            self._batches.moved_out(batch, spill.keep(b"".join(parts_of(batch.content))))
        except OSError as error:
            spill.works = False
            _log.warning("journal %s: cannot spill to %s: %s", self.journal, spill.directory, error)

    async def _run(self) -> None:
        try:
            while self._failure is None:
                while not self._batches.pending_records:
                    self._wake.clear()
                    await self._wake.wait()
                await self._attempt()
        except Exception as error:
            self._batches.broken(doubtful=True)
            self._fail(f"an error of the appender itself ({error!r})")
            raise

    async def _attempt(self) -> None:
        """Send until nothing is left, or until it fails; then wait for the next attempt."""
        try:
            if self._unsettled:
                await self._settle()
            session = Session(
                self._client,
                self._batches,
                self._first(),
                self._landed,
                self._wake,
                self._urgent,
                cautious=self._failures > 0,
            )
            await session.run()
        except BrokenError as error:
            self._batches.broken(doubtful=error.doubtful)
            self._unsettled = self._unsettled or (self.owner is not None and error.doubtful)
            await self._after(error.cause)
        except PenstockError as error:
            await self._after(error)

    async def _after(self, error: PenstockError) -> None:
        """Give up, or wait."""
        if isinstance(error, RegisterMismatchError) and self.owner is not None:
            error = self.owner.fenced(error.registers)
        checked = self._check is not None
        if isinstance(error, _FINAL) or (
            isinstance(error, JournalError) and gives_up(error.status, checked=checked)
        ):
            self._fail(str(error), error)
            return
        left = self._patience()
        if left <= 0:
            self._fail(f"gave up after {self._outage_limit:g} s without success ({error})", error)
            return
        self._failures += 1
        self._room.set()  # whoever waits for room may spill now
        refused = isinstance(error, JournalError)
        await asyncio.sleep(min(backoff.delay(self._failures, refused=refused), left))

    def _patience(self) -> float:
        """Seconds that are left of the outage, which begins now if there was none."""
        now = asyncio.get_running_loop().time()
        if self._trouble_since is None:
            self._trouble_since = now
        return self._trouble_since + self._outage_limit - now

    async def _settle(self) -> None:
        """Claim anew, and find out which of the batches in doubt had landed before that."""
        assert self.owner is not None
        owner = await self.owner.renewed(timeout=max(1.0, self._patience()))
        landed = owner.earlier_end - self._end
        begin = self._end
        settled = self._batches.settle(landed) if landed >= 0 else None
        if settled is None:
            raise ProtocolError(
                f"journal {self.journal}: {landed} bytes at {self._end} are not what this owner appended",
                hint="something else appends under its claim, or without checking it",
            )
        for batch in settled:
            landed_at = Appended(begin, begin + batch.length, self.owner.registers)
            begin = landed_at.end
            self._notify(batch, landed_at)
        self.owner, self._end, self._unsettled = owner, owner.end, False

    def _first(self) -> AppendRequest:
        """The parameters of each append."""
        check = self._check if self.owner is None else self.owner.check
        return requests.append(self.journal, check, None, None, 0, AppendRequest.SUSPEND_RESUME)

    def _urgent(self) -> bool:
        return bool(self._flushing)

    def _landed(self, response: AppendResponse) -> None:
        """The broker's answer to the oldest batch in flight. Raises what it says if that is not OK."""
        length = self._batches.flight[0].length
        landed = answers.appended(self.journal, response, length)
        if self.owner is not None:
            self.owner.require_registers(landed.registers)
            self._end = landed.end
        self._failures = 0
        self._trouble_since = None
        self._notify(self._batches.landed(), landed)

    def _notify(self, batch: Batch, landed: Appended) -> None:
        batch.outcome = landed
        waiting = self._landing.pop(batch, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
        for begin, end, on_commit in batch.callbacks:
            try:
                on_commit(_part(landed, begin, end))
            except Exception:  # noqa: BLE001 - a callback's fault is not the appender's, and must not stop it
                _log.exception("journal %s: a callback on commit failed", self.journal)
        while self._flushing and self._flushing[0][0] <= self._batches.committed:
            _, done = self._flushing.popleft()
            if not done.done():
                done.set_result(None)
        if isinstance(self._refusal, AppenderFullError) and self._batches.memory < self._max_pending:
            self._refusal = None
        if self._batches.pending_bytes < self._max_pending:
            self._room.set()

    def _landing_of(self, batch: Batch) -> asyncio.Future[None]:
        """Done when the batch has landed; shared by all who wait for one of its records."""
        if self._failure is not None:
            raise self._failure
        landing = self._landing.get(batch)
        if landing is None:
            landing = self._landing[batch] = asyncio.get_running_loop().create_future()
        # One who stops waiting must not take it from the others.
        return asyncio.shield(landing)

    def _fail(self, cause: str, error: BaseException | None = None) -> None:
        batches = self._batches
        failure = AppenderFailedError(
            self.journal, cause, batches.committed, batches.pending_records, batches.doubtful
        )
        failure.__cause__ = error
        self._failure = self._refusal = failure
        for _, done in self._flushing:
            if not done.done():
                done.set_exception(failure)
        self._flushing.clear()
        for landing in self._landing.values():
            landing.set_exception(failure)
            landing.exception()  # perhaps nobody waits any more
        self._landing.clear()
        self._room.set()
        self._wake.set()


def _part(landed: Appended, begin: int, end: int) -> Appended:
    return Appended(landed.begin + begin, landed.begin + end, landed.registers, landed.sum)
