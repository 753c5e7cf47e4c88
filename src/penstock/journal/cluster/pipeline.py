"""The sending side of replication (seed 003, "Components"; reference 16): what every replica of a route is sent.

One stream a peer, for many appends. Content and proposals go to all peers, then to our own spool. Appends take turns
in sending; while one waits for its acknowledgements the next is sent already, so that many overlap, each at the cost
of one round trip. Acknowledgements come in the order of the proposals.

Nothing is acknowledged, shown to readers or stored that not every replica has on its disk. A fragment is closed only
when all that is in it has been acknowledged: a replica told to begin the next one knows that from the telling.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import ClassVar, NamedTuple

from penstock.base.disk import Buffer
from penstock.base.errors import PenstockError
from penstock.journal.cluster.peers import TOKEN_LIFETIME, Peers
from penstock.journal.cluster.quarantine import Peer, examine
from penstock.journal.cluster.streams import PeerStream
from penstock.journal.fragment import Codec, Fragment
from penstock.journal.keys import MemberId
from penstock.journal.localspool import Spawn
from penstock.journal.protocol import Header, LabelSet, ReplicateRequest, ReplicateResponse, Route, Status
from penstock.journal.replica import Replica
from penstock.journal.replication import (
    Disagreement,
    NotSynchronisedError,
    Pipeline,
    ReplicationError,
    RouteChangedError,
    equivalent,
    next_proposal,
)
from penstock.journal.resolver import Resolution
from penstock.journal.spool import Outcome, empty_fragment
from penstock.journal.spoolfile import SpoolFile
from penstock.journal.spoolrecord import require_fitting

SETTLING = 5.0
"""Seconds that acknowledgements have to come in, of a pipeline that is closed in order."""
CHUNK = 1 << 20
"""Content of one message; a client's may be larger than what a peer receives at once."""
MAX_AGE = TOKEN_LIFETIME / 2
"""Seconds after which a pipeline is built anew, before the authorization of its streams ends."""


class Pipelines:
    """Makes the pipelines of one broker: `Appending.pipeline_of`."""

    def __init__(
        self,
        peers: Peers,
        me: MemberId,
        spawn: Spawn,
        threads: Executor,
        broken: Callable[[str], None] = lambda journal: None,
    ) -> None:
        """`broken` is told of journals whose pipeline broke, so that somebody builds another soon."""
        self.peers = peers
        self.me = me
        self.spawn = spawn
        self.threads = threads
        self.broken = broken

    def __call__(self, resolution: Resolution, replica: Replica) -> Pipeline:
        header = resolution.header
        others = others_of(header.route, self.me)
        if not others:
            return SinglePipeline(header, replica, self)
        return PeerPipeline(header, replica, others, self)

    async def examine(self, replica: Replica, route: Route) -> None:
        """What the receiving side asks for (`replicate.Examine`)."""
        await examine(replica, others_of(route, self.me), self.peers, self.threads)


def others_of(route: Route, me: MemberId) -> list[Peer]:
    """The members of a route that are not us."""
    peers = [
        Peer(MemberId(member.zone, member.suffix), endpoint)
        for member, endpoint in zip(route.members, route.endpoints, strict=True)
        if (member.zone, member.suffix) != me
    ]
    for peer in peers:
        if not peer.endpoint:
            raise NotSynchronisedError(
                f"replica {peer.member.zone}/{peer.member.suffix} has left the cluster"
            )
    return peers


class SinglePipeline(Pipeline):
    """Of a journal in a cluster that has one replica."""

    __slots__ = ("_header", "_made_by", "_replica")

    def __init__(self, header: Header, replica: Replica, made_by: Pipelines) -> None:
        super().__init__(header.route, replica.local, replica.spool_slot)
        self._header = header
        self._replica = replica
        self._made_by = made_by

    async def start(self) -> None:
        if self.local.quarantined:
            await examine(self._replica, (), self._made_by.peers, self._made_by.threads)

    async def synchronised(self, ticket: int) -> Disagreement | None:
        self.local.synchronised(self._header.etcd.revision)
        return await super().synchronised(ticket)


class _Commit(NamedTuple):
    """A proposal that waits for its acknowledgements."""

    number: int
    ticket: int
    fragment: Fragment
    file: SpoolFile | None


class PeerPipeline(Pipeline):
    """To at least one peer. What can go wrong with one of them makes the whole of no more use."""

    __slots__ = (
        "_born",
        "_confirmed",
        "_confirming",
        "_failure",
        "_headed",
        "_header",
        "_local_ticket",
        "_made_by",
        "_number",
        "_others",
        "_pending",
        "_proposed",
        "_replica",
        "_sent",
        "_streams",
        "_told",
        "_waiting",
    )

    replicated: ClassVar[bool] = True

    def __init__(self, header: Header, replica: Replica, others: list[Peer], made_by: Pipelines) -> None:
        super().__init__(header.route, replica.local, replica.spool_slot)
        self._header = header
        self._headed = False
        """Whether the peers have been told who we are."""
        self._replica = replica
        self._others = others
        self._made_by = made_by
        self._born = time.monotonic()
        self._number = 0
        """Proposals sent that are to be answered; those up to `_confirmed` every replica has acknowledged."""
        self._confirmed = 0
        self._pending: deque[_Commit] = deque()
        self._confirming = False
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._failure: ReplicationError | None = None
        self._sent = 0
        """Bytes of content sent that no proposal has committed."""
        self._told = -1
        """Below this every replica has everything; -1: they do not agree yet."""
        self._proposed = replica.local.fragment
        self._local_ticket = 0
        self._streams = tuple(
            PeerStream(
                peer.member,
                made_by.peers.replicate(peer.endpoint, replica.spec.name),
                made_by.spawn,
                self._on_broken,
            )
            for peer in others
        )

    def serves(self, route: Route) -> bool:
        sound = self._failure is None and all(stream.error is None for stream in self._streams)
        return sound and time.monotonic() - self._born < MAX_AGE and equivalent(self.route, route)

    # Synchronisation.

    async def start(self) -> None:
        """With content that a crash left, first lock the peers by a proposal that moves none of them, and compare."""
        if not self.local.quarantined:
            return
        nowhere = empty_fragment(self.local.journal, 0, Codec.NONE)
        number = self._synchronising(nowhere, LabelSet())
        for response in await self._answers(number):
            self._require_route(response)
        self._confirmed = number
        await examine(self._replica, self._others, self._made_by.peers, self._made_by.threads)

    async def synchronise(self, header: Header, proposal: Fragment, registers: LabelSet) -> int:
        await self.gather(self._number)
        self.local.withhold()
        self._header = header
        self._told = -1
        number = self._synchronising(proposal, registers)
        self._proposed = proposal
        outcome, self._local_ticket = await self.local.propose(proposal, registers)
        assert outcome is not Outcome.MISMATCH, "our own proposal is made from our own spool"
        return number

    async def synchronised(self, ticket: int) -> Disagreement | None:
        answers = await self._answers(ticket)
        self._confirmed = ticket
        await self.local.durable(self._local_ticket)
        for response in answers:
            self._require_route(response)
        mismatches = [
            (Fragment.from_proto(response.fragment), response.registers)
            for response in answers
            if response.status == Status.PROPOSAL_MISMATCH
        ]
        if mismatches:
            return next_proposal(self._proposed, mismatches)
        self.local.synchronised(self._header.etcd.revision)
        self.local.release(gated=True)
        self._told = self._proposed.end
        self._tell()
        return None

    def _synchronising(self, proposal: Fragment, registers: LabelSet) -> int:
        """Send a proposal that peers may disagree with; the first one tells them the route it is for."""
        request = self._proposal(proposal, registers, acknowledge=True)
        self._require_sound()
        for stream in self._streams:
            if not self._headed:
                request.deprecated_journal = proposal.journal
                request.header.CopyFrom(self._header)
                request.header.process_id.zone, request.header.process_id.suffix = stream.member
            stream.send(request.SerializeToString(), answered=True, any_status=True)
        self._headed = True
        self._number += 1
        return self._number

    async def _answers(self, number: int) -> list[ReplicateResponse]:
        try:
            for stream in self._streams:
                await stream.acknowledged(number)
        except ReplicationError as error:
            raise NotSynchronisedError(f"{self.local.journal}: {error}") from error
        return [stream.last for stream in self._streams]

    def _require_route(self, response: ReplicateResponse) -> None:
        """A peer that resolved otherwise has read further than we have, or will soon."""
        if response.status in (Status.OK, Status.PROPOSAL_MISMATCH):
            return
        theirs = response.header
        if theirs.etcd.revision > self._header.etcd.revision and not equivalent(theirs.route, self.route):
            raise RouteChangedError(self.local.journal, theirs.etcd.revision)
        raise NotSynchronisedError(
            f"{self.local.journal}: replica {theirs.process_id.zone}/{theirs.process_id.suffix}"
            f" does not take part: {Status.Name(response.status)}"
        )

    # Appends.

    async def propose(self, proposal: Fragment, registers: LabelSet) -> int:
        """Begin another fragment, once all that is in this one is acknowledged."""
        await self.gather(self._number)
        self._broadcast(self._proposal(proposal, registers, acknowledge=False).SerializeToString())
        outcome, self._local_ticket = await self.local.propose(proposal, registers)
        assert outcome is not Outcome.MISMATCH, "our own proposal is made from our own spool"
        return self._number

    async def scatter(self, chunk: Buffer) -> None:
        content = memoryview(chunk)
        for at in range(0, len(content), CHUNK):
            piece = bytes(content[at : at + CHUNK])
            request = ReplicateRequest(content=piece, content_delta=self._sent, confirmed=self._told)
            message = request.SerializeToString()
            for stream in self._streams:
                if not stream.has_room:
                    await stream.room()
            self._broadcast(message)
            self._sent += len(piece)

    async def commit(self, registers: LabelSet, *, appends: int = 1) -> int:
        """With nothing to commit it is a barrier, which every replica acknowledges as well."""
        local = self.local
        require_fitting(local.journal, registers)
        request = self._proposal(local.spool.next(), registers, acknowledge=True)
        self._broadcast(request.SerializeToString(), answered=True)
        self._number += 1
        self._sent = 0
        ticket = local.adopt(registers, appends=appends) if local.spool.delta else local.ticket
        self._pending.append(_Commit(self._number, ticket, local.fragment, local.file))
        if not self._confirming:
            self._confirming = True
            self._made_by.spawn(self._confirm(), f"confirm {local.journal}")
        return self._number

    def roll_back(self) -> None:
        if self._sent:
            self._sent = 0
            proposal = self._proposal(self.local.fragment, self.local.registers, acknowledge=False)
            with suppress(ReplicationError):  # a stream that has ended was rolled back by its end
                self._broadcast(proposal.SerializeToString())
        self.local.roll_back()

    async def gather(self, ticket: int) -> None:
        if ticket <= self._confirmed:
            return
        if self._failure is not None:
            raise self._failure
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((ticket, turn))
        await turn

    async def settled(self) -> None:
        with suppress(ReplicationError, TimeoutError):
            async with asyncio.timeout(SETTLING):
                await self.gather(self._number)

    def close(self) -> None:
        """Our spool is free at once; what was sent may still be acknowledged."""
        self.local.roll_back()
        for stream in self._streams:
            stream.close()
        self._spool_slot.release()

    def _broadcast(self, message: bytes, *, answered: bool = False) -> None:
        """To all peers or to none."""
        self._require_sound()
        for stream in self._streams:
            stream.send(message, answered=answered)

    def _require_sound(self) -> None:
        if self._failure is not None:
            raise self._failure
        for stream in self._streams:
            if stream.error is not None:
                raise stream.error

    async def _confirm(self) -> None:
        """In the order of the proposals, wait for every replica; then the commit is certain to stay."""
        try:
            while self._pending:
                commit = self._pending[0]
                for stream in self._streams:
                    await stream.acknowledged(commit.number)
                await self.local.durable(commit.ticket)
                self._pending.popleft()
                self._confirmed = commit.number
                self._told = max(self._told, commit.fragment.end)
                if commit.file is not None and commit.fragment.length:
                    self.local.publish(commit.fragment, commit.file)
                self._wake(None)
            self._tell()
        except (PenstockError, OSError) as error:
            self._failure = ReplicationError(
                f"{self.local.journal}: not every replica has acknowledged: {error}"
            )
            self._pending.clear()
            self._wake(self._failure)
        finally:
            self._confirming = False

    def _wake(self, failure: ReplicationError | None) -> None:
        waiting, self._waiting = self._waiting, []
        for number, turn in waiting:
            if failure is None and number > self._confirmed:
                self._waiting.append((number, turn))
            elif turn.done():
                continue
            elif failure is None:
                turn.set_result(None)
            else:
                turn.set_exception(failure)

    def _tell(self) -> None:
        """Have replicas know what all have. While content is on its way they learn it from that."""
        if not self._sent:
            proposal = self._proposal(self.local.fragment, self.local.registers, acknowledge=False)
            with suppress(ReplicationError):
                self._broadcast(proposal.SerializeToString())

    def _proposal(self, fragment: Fragment, registers: LabelSet, *, acknowledge: bool) -> ReplicateRequest:
        return ReplicateRequest(
            proposal=fragment.to_proto(),
            registers=registers,
            acknowledge=acknowledge,
            confirmed=self._told,
        )

    def _on_broken(self, error: ReplicationError) -> None:
        self._made_by.broken(self.local.journal)
