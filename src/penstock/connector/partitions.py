"""The partitions of an instance: several journals behind one log, each stream in exactly one of them.

    PREFIX/INSTANCE       partition 0; its claim says which worker has the instance
    PREFIX/INSTANCE+N     partition N, from 1 on; no instance has a plus sign in its name

A stream that the log knows stays in the partition that knows it. A new one goes to `id % partitions`, so more or fewer
partitions than before only matter to streams that come later: those that there are, are all opened.

Partition 0 is claimed first. Where two workers claim an instance at the same time, each may have some of the partitions
for a moment; the one that lost partition 0 fails with its next append there, and its connectors are sent to the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from penstock.base.errors import PenstockError
from penstock.connector.frames import NOTHING_SEEN
from penstock.connector.instancelog import (
    InstanceLog,
    JournalLog,
    OnDurable,
    OnFailure,
    journal_spec,
    open_journal,
)
from penstock.connector.intake import Run
from penstock.connector.records import Points
from penstock.connector.registry import Owner
from penstock.journal import labels
from penstock.journal.client import AsyncClient
from penstock.journal.protocol import LabelSelector


def partition_journal(instance_journal: str, partition: int) -> str:
    """The name of a partition's journal."""
    return f"{instance_journal}+{partition}" if partition else instance_journal


def partition_of_journal(instance_journal: str, journal: str) -> int | None:
    """Which partition a journal is; None if it is none of this instance."""
    if journal == instance_journal:
        return 0
    number = journal.removeprefix(f"{instance_journal}+")
    return int(number) if number != journal and number.isdecimal() and number[0] != "0" else None


def partition_selector(instance_journal: str) -> LabelSelector:
    """Selects the journals of an instance behind its first, and perhaps others: `partition_of_journal` tells them."""
    return labels.parse_selector(f"name:prefix={instance_journal}+")


class PartitionedLog(InstanceLog):
    """Several journals, all claimed. `opened` has one for each partition that there is, by its number."""

    def __init__(self, opened: Mapping[int, JournalLog], partitions: int) -> None:
        self._logs = opened
        self._partitions = partitions
        self._place = placed({number: log.points for number, log in opened.items()})
        self.points = {stream: opened[number].points[stream] for stream, number in self._place.items()}

    def partition_of(self, stream: int) -> int:
        return self._place.setdefault(stream, stream % self._partitions)

    def has_room_for(self, stream: int, name: str) -> bool:
        return self._logs[self.partition_of(stream)].has_room_for(stream, name)

    def messages(self, run: Run, on_durable: OnDurable) -> None:
        self._logs[run.partition].messages(run, on_durable)

    def opened(self, stream: int, name: str) -> None:
        self._logs[self.partition_of(stream)].opened(stream, name)

    def ended(self, stream: int, on_durable: OnDurable) -> None:
        self._logs[self.partition_of(stream)].ended(stream, on_durable)

    @property
    def pending_bytes(self) -> int:
        return sum(log.pending_bytes for log in self._logs.values())

    async def flush(self) -> None:
        await asyncio.gather(*(log.flush() for log in self._logs.values()))

    async def close(self) -> None:
        await asyncio.gather(*(log.close() for log in self._logs.values()))


def placed(points: Mapping[int, Points]) -> dict[int, int]:
    """The partition of each stream: the one that has messages of it, or else the first that has its name."""
    place: dict[int, int] = {}
    for number in sorted(points):
        for stream, point in points[number].items():
            known = place.get(stream)
            if known is None or (points[known][stream].last == NOTHING_SEEN and point.last != NOTHING_SEEN):
                place[stream] = number
    return place


async def open_instance(
    client: AsyncClient,
    journal: str,
    partitions: int,
    me: Owner,
    on_failure: OnFailure,
    outage_limit: float,
    *,
    replication: int,
    store: str,
) -> InstanceLog:
    """Claim all journals of an instance, making those that are missing.

    `on_failure` is called once, whichever of them fails; if that is while others are being opened, it is raised here.
    """
    instance = journal.rpartition("/")[2]
    failures: list[PenstockError] = []
    opened: dict[int, JournalLog] = {}
    complete = False

    def fails(error: PenstockError) -> None:
        failures.append(error)
        if complete and len(failures) == 1:
            on_failure(error)

    try:
        for number in sorted({*range(partitions), *await existing(client, journal)}):
            name = partition_journal(journal, number)
            spec = journal_spec(name, instance, replication=replication, store=store)
            opened[number] = await open_journal(client, spec, me, fails, outage_limit)
        if failures:
            raise failures[0]
    except BaseException:
        await _closed(opened.values())
        raise
    complete = True
    return opened[0] if len(opened) == 1 else PartitionedLog(opened, partitions)


async def existing(client: AsyncClient, journal: str) -> Sequence[int]:
    """The partitions behind the first that there are."""
    found = await client.list(partition_selector(journal))
    numbers = (partition_of_journal(journal, each.spec.name) for each in found)
    return sorted(number for number in numbers if number is not None)


async def _closed(logs: Iterable[JournalLog]) -> None:
    await asyncio.gather(*(log.close() for log in logs))
