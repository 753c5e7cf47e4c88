"""A spool that a crash left, compared with what the other replicas and the stores have (DESIGN, 10).

Done while all replicas are locked by one synchronisation, so that nobody writes meanwhile, and again at the next one if
that comes to nothing: others may be there then who know better. What nobody contradicts takes part in the
synchronisation like any other spool. What is contradicted, by a store or by a replica that took part in a later
synchronisation, is set aside and reported, with all behind it; of what is before it the broker may be the last to have
a copy. It then begins as one that never had the journal.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from penstock.base.errors import PenstockError
from penstock.journal.cluster import foreign
from penstock.journal.cluster.peers import Peers
from penstock.journal.cluster.proxy import answered
from penstock.journal.cluster.survey import Part, Survey, SurveyRequest, parts_of
from penstock.journal.keys import MemberId
from penstock.journal.read import contents
from penstock.journal.replica import InSpool, Replica
from penstock.journal.replication import NotSynchronisedError

log = logging.getLogger(__name__)

PATIENCE = 30.0
"""Seconds for which the others may take to be locked by the same synchronisation."""
_LOOK_AGAIN = 0.05


class Peer(NamedTuple):
    """Another member of a route, and where it answers."""

    member: MemberId
    endpoint: str


async def examine(replica: Replica, others: Sequence[Peer], peers: Peers, threads: Executor) -> None:
    """Compare what was recovered; afterwards the spool may take part in the synchronisation that locked it."""
    try:
        async with asyncio.timeout(PATIENCE):
            contradiction = await _contradiction(replica, others, peers, threads)
    except (TimeoutError, PenstockError, OSError) as error:
        told = str(error) or "it took too long"
        raise NotSynchronisedError(
            f"{replica.spec.name}: what a crash left cannot be compared with what others have: {told}"
        ) from error
    if contradiction is None:
        return  # it is compared again, with whoever is there then, until all have agreed
    paths = await replica.local.set_aside(contradiction.offset)
    replica.set_aside += paths
    log.error(
        "%s: a spool that a crash left is not what the journal has (%s); set aside: %s",
        replica.spec.name,
        contradiction.reason,
        ", ".join(str(path) for path in paths) or "an empty one",
    )


class Contradiction(NamedTuple):
    """From which offset on what we have is wrong, and who says so."""

    offset: int
    reason: str


async def _contradiction(
    replica: Replica, others: Sequence[Peer], peers: Peers, threads: Executor
) -> Contradiction | None:
    """The first of all; None if nobody says otherwise. The stores last: what a peer has no more is there by then."""
    files = [file for file in replica.local.files if file.fragment.length]
    spans = [(file.fragment.begin, file.fragment.end) for file in files]
    request = SurveyRequest(replica.spec.name, spans)
    surveys = await asyncio.gather(*(_once_locked(peer, request, peers) for peer in others))
    found: list[Contradiction] = []
    for peer, survey in zip(others, surveys, strict=True):
        offset = await _yields(replica, survey, threads)
        if offset is not None:
            who = f"{peer.member.zone}/{peer.member.suffix}"
            found.append(Contradiction(offset, f"{who} has other bytes, of a later synchronisation"))
    stored = await _contradicted_by_store(replica, threads)
    return min(found if stored is None else [*found, stored], default=None)


async def _once_locked(peer: Peer, request: SurveyRequest, peers: Peers) -> Survey:
    if peer.endpoint in peers.foreign:
        return await foreign.survey(peers, peer.endpoint, request)
    while True:
        survey = await answered(peer.endpoint, peers.survey(peer.endpoint, request))
        if survey.locked:
            return survey
        await asyncio.sleep(_LOOK_AGAIN)


async def _yields(replica: Replica, survey: Survey, threads: Executor) -> int | None:
    """From where on we are wrong by this survey."""
    spans = [(part.begin, part.end) for part in survey.parts]
    ours = await parts_of(replica.local.files, spans, threads)
    empty = not any(file.fragment.length for file in replica.local.files)
    return yields(replica.local.epoch, replica.local.spool.end, ours, survey, empty=empty)


def yields(epoch: int, end: int, ours: Sequence[Part], survey: Survey, *, empty: bool) -> int | None:
    """From where on what was recovered, synchronised last at `epoch`, is contradicted by who knows better, if it is.

    One that is `empty` has an offset and nothing else: of that, too, the later synchronisation knows more.
    """
    later = survey.epoch > epoch
    if empty:
        return 0 if later and survey.end < end else None
    wrong: list[int] = []
    own = {(part.begin, part.end): part.sum for part in ours}
    for part in survey.parts:
        if own.get((part.begin, part.end), part.sum) == part.sum:
            continue
        if survey.epoch == epoch:
            raise PenstockError(
                f"two replicas that were synchronised at revision {epoch} differ in [{part.begin}, {part.end})",
                hint="keep both brokers' spools, and set one of them aside by hand",
            )
        if later:
            wrong.append(part.begin)
    return min(wrong, default=None)


async def _contradicted_by_store(replica: Replica, threads: Executor) -> Contradiction | None:
    if not replica.spec.fragment.stores:
        return None
    await replica.refresh()
    if replica.listing_error:
        raise PenstockError(replica.listing_error)
    for entry in replica.index:
        fragment, place = entry.fragment, entry.payload
        for file in replica.local.files:
            begin, end = max(fragment.begin, file.fragment.begin), min(fragment.end, file.fragment.end)
            if begin >= end or isinstance(place, InSpool):
                continue
            if (begin, end) == (fragment.begin, fragment.end):
                stored = fragment.sum
            else:
                summer = hashlib.sha1()
                async for block in contents(fragment, place, begin, end, threads):
                    summer.update(block)
                stored = summer.digest()
            ours = await parts_of([file], [(begin, end)], threads)
            if any(part.sum != stored for part in ours):
                return Contradiction(begin, f"{fragment.backing_store} has other bytes in [{begin}, {end})")
    return None
