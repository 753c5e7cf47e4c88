"""The leader's loop: what the allocator decides, made so in etcd, one round after each change of the key space.

Every broker runs it; only the leader, the member that was here first, acts. A round takes the picture as it is, solves
the problem if it is a new one, and makes the next steps in transactions, up to the first whose comparisons no
longer hold. The next round waits until the key space shows what this one did: it never decides twice on the same
picture. Planning is done in a thread; the event loop goes on serving.

Trouble with etcd ends a round, never the loop. If a transaction was sent and no answer came, it may still be made
later, so before anything else the leader writes its own member key anew, with the same value: each of its
transactions compares that key, so what is still under way has no effect from then on, and the revision of the new
one shows when the picture is complete.

If a comparison fails, and no news explains it, something is in the picture that is not so, and would hold up all
that shares its transaction; then steps are taken one by one, so that what can be done is done.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.journal import keys
from penstock.journal.cluster.allocator.changes import Step, Transaction, transactions, unchanged_member
from penstock.journal.cluster.allocator.converge import converge
from penstock.journal.cluster.allocator.picture import Entry, Picture
from penstock.journal.cluster.allocator.solve import Desired, solve
from penstock.journal.cluster.allocator.state import Member, State
from penstock.journal.cluster.etcd_errors import EtcdAwayError, EtcdError, EtcdRefusedError, LeaseGoneError
from penstock.journal.cluster.etcd_values import Committed, Compare, Operation, Put
from penstock.journal.keys import MemberId

log = logging.getLogger(__name__)

_LOOK_AGAIN = 1.5
"""Seconds without news after which the leader no longer trusts that its picture is complete."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


class KeySpace(Protocol):
    """What the loop needs of the key space."""

    def get(self, key: str) -> Entry | None: ...
    def under(self, prefix: str) -> Iterator[tuple[str, Entry]]: ...
    def observe(self, changed: Callable[[Sequence[str]], None]) -> None: ...
    async def wait_for_revision(self, revision: int) -> None: ...
    async def commit(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> Committed: ...


@dataclass(slots=True)
class Counts:
    """What the loop has done since its start, and how large the problem was when it last looked."""

    rounds: int = 0
    steps: Counter[Step] = field(default_factory=Counter)
    transactions: int = 0
    overtaken: int = 0
    """Transactions that failed since something had changed."""
    troubles: int = 0
    solutions: int = 0
    solving_seconds: float = 0.0
    members: int = 0
    items: int = 0
    wanted: int = 0


class Allocation:
    """Runs as long as its broker has a member key."""

    def __init__(
        self, keyspace: KeySpace, me: MemberId, *, max_replication: int, delay: float = 0.01
    ) -> None:
        """`delay`: seconds for which further changes are awaited before a round."""
        self._keyspace = keyspace
        self._me = me
        self._delay = delay
        self.counts = Counts()
        self._picture = Picture(max_replication)
        self._news = asyncio.Event()
        self._empty = asyncio.Event()
        self._solved: tuple[bytes, Desired] | None = None
        self._made_at = 0
        """The revision of our last transaction."""
        self._in_doubt = False
        self._one_by_one = False
        for prefix in (keys.MEMBERS, keys.ITEMS, keys.ASSIGN):
            for key, entry in keyspace.under(prefix):
                self._picture.update(key, entry)
        self._changed(())
        keyspace.observe(self._changed)

    @property
    def is_leader(self) -> bool:
        leader = self._picture.leader
        return leader is not None and leader.id == self._me

    @property
    def holds_nothing(self) -> bool:
        """Whether no journal is assigned to us."""
        return not self._picture.load(self._me)

    @property
    def may_drain(self) -> bool:
        """Whether the others have room for all that we serve, by their limits and by their number."""
        state = self._picture.state()
        return not state.limits.get(self._me, 0)

    async def drained(self) -> None:
        """Return when this broker is on its way out, or no member any more, and nothing is assigned to it."""
        await self._empty.wait()

    async def run(self) -> None:
        """Act while we lead. Ends only when it is cancelled."""
        pause = _FIRST_PAUSE
        while True:
            await self._news.wait()
            await asyncio.sleep(self._delay)
            self._news.clear()
            try:
                done = await self._round()
                pause = _FIRST_PAUSE
            except Exception as error:  # noqa: BLE001 - nobody else would go on in our place
                self._note(error)
                done = False
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                self._news.set()
            if not done:
                await self._news_or_patience()

    async def _news_or_patience(self) -> None:
        """Something was not as it seemed; news of it should be on the way, but may have been missed."""
        try:
            async with asyncio.timeout(_LOOK_AGAIN):
                await self._news.wait()
        except TimeoutError:
            self._one_by_one = True
            self._news.set()

    def _changed(self, changed: Sequence[str]) -> None:
        for key in changed:
            self._picture.update(key, self._keyspace.get(key))
        member = self._picture.member(self._me)
        if self.holds_nothing and (member is None or member.exiting):
            self._empty.set()
        else:
            self._empty.clear()
        self._news.set()

    def _note(self, error: Exception) -> None:
        self.counts.troubles += 1
        if not isinstance(error, EtcdAwayError | EtcdRefusedError | LeaseGoneError):
            self._in_doubt = True
        unforeseen = None if isinstance(error, EtcdError) else error
        log.warning("allocation is tried again after: %s", error, exc_info=unforeseen)

    async def _round(self) -> bool:
        """Make the steps that can be made now; False if the picture turned out to be old."""
        leader = self._picture.leader
        if leader is None or leader.id != self._me:
            self._solved = None
            return True
        if not await (self._look_again(leader) if self._in_doubt else self._seen(self._made_at)):
            return False
        self.counts.rounds += 1
        one_by_one, self._one_by_one = self._one_by_one, False
        ok = True
        for transaction in await asyncio.to_thread(self._planned, self._picture.state(), one_by_one):
            committed = await self._made(transaction)
            ok = ok and committed.ok
            if not committed.ok and not one_by_one:
                await self._seen(committed.revision)
                break
        return await self._seen(self._made_at) and ok

    async def _look_again(self, leader: Member) -> bool:
        """Put an end to what may still be under way, and complete the picture; False if our key has changed."""
        key = keys.member_key(leader.id)
        entry = self._keyspace.get(key)
        if entry is None or entry.mod_revision != leader.mod_revision:
            return False
        same = Put(key, entry.value, leader.lease)
        committed = await self._keyspace.commit((unchanged_member(leader),), (same,))
        if not committed.ok:
            return False
        await self._keyspace.wait_for_revision(committed.revision)
        self._in_doubt = False
        self._made_at = 0
        return True

    async def _seen(self, revision: int) -> bool:
        """Wait until the picture has what we did. A deletion of what was gone already has a revision of others."""
        try:
            async with asyncio.timeout(_LOOK_AGAIN):
                await self._keyspace.wait_for_revision(revision)
        except TimeoutError:
            self._in_doubt = True
            self._news.set()
            return False
        return True

    def _planned(self, state: State, one_by_one: bool) -> list[Transaction]:
        """In a thread; one at a time."""
        if state.leader is None or state.leader.id != self._me:
            return []
        counts = self.counts
        counts.members, counts.items, counts.wanted = len(state.members), len(state.items), state.wanted
        if self._solved is None or self._solved[0] != state.fingerprint:
            start = time.perf_counter()
            self._solved = state.fingerprint, solve(state)
            counts.solutions += 1
            counts.solving_seconds += time.perf_counter() - start
        checkpoints = converge(state, self._solved[1])
        batches = [[checkpoint] for checkpoint in checkpoints] if one_by_one else [checkpoints]
        return [transaction for batch in batches for transaction in transactions(state.leader, batch)]

    async def _made(self, transaction: Transaction) -> Committed:
        committed = await self._keyspace.commit(transaction.compares, transaction.operations)
        self.counts.transactions += 1
        if committed.ok:
            self._made_at = committed.revision
            self.counts.steps.update(transaction.steps)
        else:
            self.counts.overtaken += 1
        return committed
