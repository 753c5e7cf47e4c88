"""Instances whose journals no longer tell how far their streams are: told anew, by somebody who knows.

That happens when a journal is trimmed up to its head while no worker has it: the messages are gone, and with them the
last record of the points of reference. Workers refuse it then (`PointsLostError`), since they could neither drop what
the journal had once nor tell a connector where to go on. `recover` writes the points that it is given into each journal
that lacks them. Streams that it is not told of begin anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.base.errors import UsageError
from penstock.connector import records
from penstock.connector.instancelog import PointsLostError, points_of
from penstock.connector.partitions import existing, partition_journal
from penstock.connector.records import Points
from penstock.journal.client import AsyncClient, JournalError, claim
from penstock.journal.protocol import Status

CLAIMANT = "connector-recover"


async def recover(client: AsyncClient, journal: str, points: Points) -> Sequence[str]:
    """Have the instance of this journal begin with these points; the journals that lacked theirs.

    No worker may have the instance open: it knows the points, and would be fenced.
    """
    try:
        lost = await _without_points(client, journal)
    except JournalError as error:
        if error.status == Status.JOURNAL_NOT_FOUND:
            raise UsageError(
                f"there is no journal {journal}", hint="`penstock journals list` has those that there are"
            ) from None
        raise
    if not lost:
        raise UsageError(
            f"journal {journal} tells how far its streams are; there is nothing to recover",
            hint="`penstock connector status` shows them once a worker has the instance",
        )
    for at, name in enumerate(lost):
        owner = await claim(client, name, CLAIMANT, records.claim(CLAIMANT))
        # A stream is where its point is, so all of them may go to the first.
        await owner.append(records.points({} if at else points))
    return lost


async def _without_points(client: AsyncClient, journal: str) -> list[str]:
    lost = []
    for number in (0, *await existing(client, journal)):
        name = partition_journal(journal, number)
        try:
            await points_of(client, name, await client.head(name))
        except PointsLostError:
            lost.append(name)
    return lost
