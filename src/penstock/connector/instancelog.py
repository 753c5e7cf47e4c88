"""Where the messages of an instance go: what a worker needs of a log, and the journal that is one.

`InstanceLog` is the contract. Records become durable in the order in which they were added; `on_durable` is called
then, and never for anything else. When a log fails, nothing that was not called durable counts: `on_failure` is called
once, and the worker sends all sessions away to come back and read the points of reference anew.

`JournalLog` claims the journal of the instance, reads the points of reference from it, and appends under that claim, so
that another worker's claim fences it (`penstock.journal.client.Appender` with an owner: each record lands once).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, cast

from penstock.base import faults
from penstock.base.errors import PenstockError
from penstock.connector import frames as fr
from penstock.connector import records
from penstock.connector.intake import Run
from penstock.connector.records import Point, Points, Walk
from penstock.connector.registry import Owner
from penstock.journal import labels
from penstock.journal.client import Appender, AppenderFailedError, AsyncClient, Ownership, Pending, claim
from penstock.journal.fragment import Codec
from penstock.journal.protocol import JournalSpec

FRAGMENT: Final = 64 << 20
SNAPSHOT_EVERY: Final = 16 << 20
"""Bytes after which the points of reference are written again."""
BATCH: Final = 1 << 20
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
        """Bytes that are not durable."""

    @abstractmethod
    async def flush(self) -> None:
        """Return when all that was added is durable; raises what the log failed with."""

    @abstractmethod
    async def close(self) -> None:
        """Let it go; what is not durable then is not promised to anybody."""


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
        self._landing: asyncio.Queue[tuple[Pending, OnDurable | None]] = asyncio.Queue()
        self._settling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._appender.__aenter__()
        self._settling = asyncio.create_task(self._settle())
        self._snapshot()

    def messages(self, run: Run, on_durable: OnDurable) -> None:
        for stream, last in run.lasts.items():
            known = self._ahead.get(stream)
            self._ahead[stream] = Point(last, False, known.name if known is not None else "")
        self._add(run.pieces, run.size, on_durable)

    def opened(self, stream: int, name: str) -> None:
        self._ahead[stream] = self._ahead.get(stream, Point())._replace(name=name)
        record = fr.encode(fr.Notify(stream, name, 0))
        self._add([record], len(record), None)

    def ended(self, stream: int, on_durable: OnDurable) -> None:
        self._ahead[stream] = self._ahead.get(stream, Point())._replace(ended=True)
        record = fr.encode(fr.EosMessage(stream))
        self._add([record], len(record), on_durable)

    @property
    def pending_bytes(self) -> int:
        return self._appender.pending_bytes

    async def flush(self) -> None:
        await self._appender.flush()
        await self._landing.join()

    async def close(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
        await self._appender.close()

    def _add(self, pieces: Sequence[bytes | memoryview], size: int, on_durable: OnDurable | None) -> None:
        if self._since >= SNAPSHOT_EVERY:
            self._snapshot()
        # The appender only joins its records and takes their lengths, so views will do.
        for piece in pieces[:-1]:
            self._appender.add(cast("bytes", piece))
        if pieces:
            self._landing.put_nowait((self._appender.append(cast("bytes", pieces[-1])), on_durable))
        elif on_durable is not None:
            on_durable()
        self._since += size

    def _snapshot(self) -> None:
        self._since = 0
        record = records.points(self._ahead)
        self._landing.put_nowait((self._appender.append(record), None))

    async def _settle(self) -> None:
        """Tell of what has landed, in order, until it fails."""
        try:
            while True:
                pending, on_durable = await self._landing.get()
                if not pending.done:
                    with faults.step("connector-append"):
                        await pending
                if on_durable is not None:
                    on_durable()
                self._landing.task_done()
        except AppenderFailedError as error:
            while not self._landing.empty():
                self._landing.get_nowait()
                self._landing.task_done()
            self._landing.task_done()
            self._on_failure(error)


async def open_journal(
    client: AsyncClient, spec: JournalSpec, me: Owner, on_failure: OnFailure, outage_limit: float
) -> JournalLog:
    """Claim the journal, making it first if there is none, and find how far its streams are."""
    await ensure(client, spec)
    with faults.step("connector-claim"):
        owner = await claim(client, spec.name, me.token(), records.claim(me.name))
    points = await points_of(client, spec.name, owner.claimed_at)
    log = JournalLog(client, owner, points, on_failure, outage_limit)
    await log.start()
    return log


async def points_of(client: AsyncClient, journal: str, end: int) -> Points:
    """The points of reference as of byte `end`: from the newest fragment back to one that tells all of them."""
    begins = [fragment.spec.begin async for fragment in client.fragments(journal)]
    first = min(begins, default=end)
    for begin in sorted((begin for begin in begins if begin < end), reverse=True):
        walk = Walk(journal, begin)
        async with client.read(journal, begin, end) as reader:
            async for offset, chunk in reader:
                if offset > begin and walk.at == begin and reader.last_jump is not None:
                    break  # trimmed meanwhile
                walk.feed(chunk)
        if walk.complete:
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


async def ensure(client: AsyncClient, spec: JournalSpec) -> None:
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
