"""Where the messages of an instance go: what a worker needs of a log, and the journal that is one.

`InstanceLog` is the contract. Records become durable in the order in which they were added; `on_durable` is called
then, and never for anything else. When a log fails, nothing that was not called durable counts: `on_failure` is called
once, and the worker sends all sessions away to come back and read the points of reference anew.

`JournalLog` claims the journal of the instance, reads the points of reference from it, and appends under that claim, so
that another worker's claim fences it (`penstock.journal.client.Appender` with an owner: each record lands once).
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, NamedTuple, cast

from penstock.base import faults
from penstock.base.errors import PenstockError
from penstock.connector import frames as fr
from penstock.connector import records
from penstock.connector.intake import Run
from penstock.connector.records import Point, Points, Walk
from penstock.connector.registry import Owner
from penstock.connector.threaded import Journals
from penstock.journal import labels
from penstock.journal.client import Appender, AppenderFailedError, AsyncClient, Ownership, Pending, claim
from penstock.journal.fragment import Codec
from penstock.journal.protocol import JournalSpec

log = logging.getLogger(__name__)

FRAGMENT: Final = 64 << 20
SNAPSHOT_EVERY: Final = 16 << 20
"""Bytes after which the points of reference are written again."""
BATCH: Final = 2 << 20
PENDING: Final = 128 << 20
"""Half of what the appender refuses; sessions are held back long before."""
OnDurable = Callable[[], None]
OnFailure = Callable[[PenstockError], None]


class PointsLostError(PenstockError):
    """The journal no longer tells how far its streams are."""

    def __init__(self, journal: str, begin: int) -> None:
        super().__init__(
            f"journal {journal} begins at byte {begin}, behind its last points of reference: nobody knows which "
            "messages it had (`penstock connector recover` tells it)",
            hint="`penstock connector recover` if you know how far its streams are, or another instance name; and see "
            "that retention leaves it its last 16 MiB",
        )


class InstanceLog(ABC):
    """A log of one instance, open."""

    points: Points
    """What it held when it was opened."""

    def partition_of(self, stream: int) -> int:
        """In which of its parts a stream is, or will be; a run of messages is of one of them."""
        return 0

    def has_room_for(self, stream: int, name: str) -> bool:
        """Whether a stream may be opened under this name."""
        return True

    @abstractmethod
    def messages(self, run: Run, on_durable: OnDurable) -> None:
        """Take the new messages of a run."""

    @abstractmethod
    def opened(self, stream: int, name: str) -> None:
        """A stream was opened under a name that the log does not have."""

    @abstractmethod
    def ended(self, stream: int, on_durable: OnDurable) -> None:
        """A stream has ended."""

    @property
    @abstractmethod
    def pending_bytes(self) -> int:
        """Bytes that nobody was told to be durable; 0 only once `on_durable` was called for everything."""

    @abstractmethod
    async def flush(self) -> None:
        """Return when all that was added before is durable and told to be; raises what the log failed with."""

    @abstractmethod
    async def close(self) -> None:
        """Let it go; what is not durable then is not promised to anybody."""


class _Added(NamedTuple):
    """What the log was given: where it is on its way, how long it is, and whom to tell."""

    pending: Pending | None
    size: int
    on_durable: OnDurable | None


class JournalLog(InstanceLog):
    """A journal, claimed. Made by `open_journal`."""

    def __init__(
        self,
        client: AsyncClient,
        owner: Ownership,
        points: Points,
        on_failure: OnFailure,
        outage_limit: float,
    ) -> None:
        self.journal = owner.journal
        self.points = points
        self._ahead: Points = dict(points)
        """As `points`, with all that was added since: what the next snapshot says."""
        self._snapshot_size = len(records.points(points))
        self._since = SNAPSHOT_EVERY
        self._on_failure = on_failure
        self._appender = Appender(
            client,
            owner.journal,
            owner=owner,
            max_batch_bytes=BATCH,
            max_pending_bytes=PENDING,
            outage_limit=outage_limit,
        )
        self._landing: asyncio.Queue[_Added] = asyncio.Queue()
        self._untold = 0
        self._flushing: set[asyncio.Future[None]] = set()
        self._settling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._appender.__aenter__()
        self._settling = asyncio.create_task(self._settle())
        self._snapshot()

    def messages(self, run: Run, on_durable: OnDurable) -> None:
        # One record, so that it is taken whole or not at all; views will do, since the appender only joins them.
        pieces = run.pieces
        self._add(cast("bytes", pieces[0]) if len(pieces) == 1 else b"".join(pieces), on_durable)
        for stream, last in run.lasts.items():
            known = self._ahead.get(stream)
            self._ahead[stream] = Point(last, False, known.name if known is not None else "")

    def has_room_for(self, stream: int, name: str) -> bool:
        """A journal whose snapshot is longer than any frame may be could not be opened again."""
        return self._snapshot_size + self._growth(stream, name) <= records.MAX_RECORD

    def _growth(self, stream: int, name: str) -> int:
        known = self._ahead.get(stream)
        return records.point_size(name) - (0 if known is None else records.point_size(known.name))

    def opened(self, stream: int, name: str) -> None:
        self._add(fr.encode(fr.Notify(stream, name, 0)), None)
        self._snapshot_size += self._growth(stream, name)
        self._ahead[stream] = self._ahead.get(stream, Point())._replace(name=name)

    def ended(self, stream: int, on_durable: OnDurable) -> None:
        self._add(fr.encode(fr.EosMessage(stream)), on_durable)
        self._ahead[stream] = self._ahead.get(stream, Point())._replace(ended=True)

    @property
    def pending_bytes(self) -> int:
        return self._untold

    async def flush(self) -> None:
        told = asyncio.get_running_loop().create_future()
        self._landing.put_nowait(_Added(None, 0, lambda: None if told.done() else told.set_result(None)))
        self._flushing.add(told)
        try:
            await self._appender.flush()
            await told
        finally:
            self._flushing.discard(told)

    async def close(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
        await self._appender.close()
        self._give_up(PenstockError(f"journal {self.journal} was let go"))

    def _add(self, record: bytes, on_durable: OnDurable | None) -> None:
        """Raises what the appender refuses a record with; nothing has changed then."""
        if self._since >= SNAPSHOT_EVERY:
            self._snapshot()
        self._put(record, on_durable)
        self._since += len(record)

    def _snapshot(self) -> None:
        self._put(records.points(self._ahead), None)
        self._since = 0

    def _put(self, record: bytes, on_durable: OnDurable | None) -> None:
        self._landing.put_nowait(_Added(self._appender.append(record), len(record), on_durable))
        self._untold += len(record)

    async def _settle(self) -> None:
        """Tell of what has landed, in order, until it fails."""
        try:
            while True:
                added = await self._landing.get()
                if added.pending is not None and not added.pending.done:
                    await self._landed(added.pending)
                self._untold -= added.size
                if added.on_durable is not None:
                    added.on_durable()
                del added  # what it tells of was received, and need not be kept until more comes
        except AppenderFailedError as error:
            self._failed(error)
        except Exception as error:
            log.exception("journal %s: what is durable could not be told", self.journal)
            self._failed(PenstockError(f"an error of the worker itself: {error!r}"))

    async def _landed(self, pending: Pending) -> None:
        with faults.step("connector-append"):
            await pending

    def _failed(self, error: PenstockError) -> None:
        self._give_up(error)
        self._on_failure(error)

    def _give_up(self, error: PenstockError) -> None:
        for told in self._flushing:
            if not told.done():
                told.set_exception(error)
                told.exception()  # perhaps it waits for the appender, and hears of it there


async def open_journal(
    client: AsyncClient, spec: JournalSpec, me: Owner, on_failure: OnFailure, outage_limit: float
) -> JournalLog:
    """Claim the journal, making it first if there is none, and find how far its streams are."""
    await ensure(client, spec)
    with faults.step("connector-claim"):
        owner = await claim(client, spec.name, me.token(), records.claim(me.name))
    points = await points_of(client, spec.name, owner.claimed_at)
    opened = JournalLog(client, owner, points, on_failure, outage_limit)
    await opened.start()
    return opened


async def points_of(client: AsyncClient, journal: str, end: int) -> Points:
    """The points of reference as of byte `end`: from the newest fragment back to one that tells all of them."""
    begins = [fragment.spec.begin async for fragment in client.fragments(journal)]
    first = min(begins, default=end)
    for begin in sorted((begin for begin in begins if begin < end), reverse=True):
        walk, at = Walk(journal, begin), begin
        async with client.read(journal, begin, end) as reader:
            async for offset, chunk in reader:
                if offset != at:
                    break  # trimmed meanwhile
                walk.feed(chunk)
                at += len(chunk)
        if walk.complete and at == end:
            return walk.finish()
    if end > 0:
        raise PointsLostError(journal, first)
    return {}


def journal_spec(name: str, instance: str, *, replication: int, store: str) -> JournalSpec:
    """The spec of an instance's journal, or of the directory of workers."""
    known = {records.FORMAT_LABEL: str(records.FORMAT), records.INSTANCE_LABEL: instance}
    spec = JournalSpec(name=name, replication=replication, labels=labels.label_set(known))
    spec.fragment.length = FRAGMENT
    spec.fragment.compression_codec = Codec.NONE.to_proto()
    spec.fragment.stores.append(store)
    spec.fragment.refresh_interval.FromSeconds(300)
    return spec


async def ensure(client: Journals, spec: JournalSpec) -> None:
    """Make the journal unless it is there; refuse one that is something else, or of a newer format."""
    for _ in range(2):
        found = await client.list(labels.parse_selector(f"name={spec.name}"))
        if found:
            formats = labels.values_of(found[0].spec.labels, records.FORMAT_LABEL)
            if not formats or int(formats[0]) > records.FORMAT:
                what = f"of format {formats[0]}" if formats else "not the journal of a connector"
                raise PenstockError(
                    f"journal {spec.name} is {what}", hint="use another instance name, or a newer Penstock"
                )
            return
        await client.create(spec)
    raise PenstockError(f"journal {spec.name} was made and is gone again", hint="start again")
