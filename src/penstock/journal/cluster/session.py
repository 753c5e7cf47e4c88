"""A broker's session: its lease in etcd, and the member key that lives as long as the lease (reference 12).

A lease is the cluster's word that a broker is alive. Whoever acts by it must stop before others may take over, so the
session says until when the lease is *surely* alive: `deadline`, counted from the moment at which the last renewal was
sent, not answered. Past it the broker must not act as a primary, whatever etcd may still hold; `is_alive` also counts
the time that the machine has slept.

    JOINING   no lease, or no member key yet
    HELD      the member key belongs to another lease: an earlier run of ours that is not yet forgotten, or a twin
    ALIVE     lease and key are there
    LOST      the deadline has passed without a renewal, or etcd has ended the lease
    LEFT      we have given the lease back

LOST is not the end. If etcd still has the lease when it can be reached again, the session goes on as it was; if not,
it takes a new lease and joins anew, with the value that was announced last.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from enum import Enum

from penstock.journal.cluster.callbacks import tell_all
from penstock.journal.cluster.etcd import EtcdClient
from penstock.journal.cluster.etcd_errors import EtcdError, LeaseGoneError
from penstock.journal.cluster.etcd_values import Compare, Field, Put
from penstock.journal.cluster.mirror import prefix_bytes

log = logging.getLogger(__name__)

TTL = 20
HELD_RETRY = 10.0
_PAUSES = (0.05, 0.1, 0.25, 0.5, 1.0)


class SessionState(Enum):
    """See the module."""

    JOINING = "joining"
    HELD = "held by another"
    ALIVE = "alive"
    LOST = "lost"
    LEFT = "left"


class Session:
    """One member of the cluster. Have `run` running; it ends after `leave`, or when cancelled (the lease then expires).

    `on_state` is a list of callbacks, called at each change of `state`.
    """

    def __init__(
        self,
        client: EtcdClient,
        prefix: str,
        key: str,
        value: bytes,
        *,
        ttl: int = TTL,
        held_retry: float = HELD_RETRY,
    ) -> None:
        self._client = client
        self._prefix = prefix_bytes(prefix)
        self._key = key
        self._value = value
        self._ttl = ttl
        self._held_retry = held_retry
        self._news = asyncio.Event()
        """The value is to be announced, perhaps again."""
        self._leaving = asyncio.Event()
        self._changed = asyncio.Event()
        """Set and replaced at each change of state or revision."""
        self._wanted = 1
        self._announced = 0
        """Numbers of the value that is to be announced, and of the one that was."""
        self._timer: asyncio.TimerHandle | None = None
        self._slept_deadline = 0.0
        self.state = SessionState.JOINING
        self.lease = 0
        self.deadline = 0.0
        """By `time.monotonic`: until when the lease is surely alive."""
        self.revision = 0
        """At which the member key was last put by us."""
        self.trouble: EtcdError | None = None
        """Why the session is not alive, or was last not renewed."""
        self.on_state: list[Callable[[SessionState], object]] = []

    def is_alive(self) -> bool:
        """Whether we are a member, surely, at this moment."""
        return (
            self.state is SessionState.ALIVE
            and time.monotonic() < self.deadline
            and _with_sleep() < self._slept_deadline
        )

    async def joined(self) -> int:
        """Wait until we are a member; the revision of the member key, for `EtcdKeySpace.load`."""
        while self.state is not SessionState.ALIVE:
            await self._change()
        return self.revision

    async def update(self, value: bytes) -> int:
        """Have the member key say `value`, under the same lease or, if that is lost, the next; the revision of it."""
        self._value = value
        self.touch()
        wanted = self._wanted
        while self._announced < wanted:
            await self._change()
        return self.revision

    def touch(self) -> None:
        """Put the member key once more, so that the key space gets a new revision (`EtcdKeySpace.on_gap`)."""
        self._wanted += 1
        self._news.set()

    async def leave(self) -> None:
        """Have `run`, which must be running, give the lease back, with which the member key goes, and end."""
        self._leaving.set()
        while self.state is not SessionState.LEFT:
            await self._changed.wait()

    async def run(self) -> None:
        """Be a member, through all of etcd's trouble, until `leave`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                member = tasks.create_task(self._be_a_member())
                await self._leaving.wait()
                member.cancel()
            self.deadline = self._slept_deadline = 0.0  # before others can know
            await self._give_back()
        finally:
            self._forget_timer()
            self.deadline = self._slept_deadline = 0.0
            self._become(SessionState.LEFT)

    async def _be_a_member(self) -> None:
        failures = 0
        while True:
            try:
                await self._one_lease()
                failures = 0
            except EtcdError as error:
                self._note(error)
            await asyncio.sleep(_pause(failures))
            failures += 1

    async def _one_lease(self) -> None:
        """Take a lease, and be a member under it; returns when etcd has it no more."""
        sent = _moment()
        granted = await self._client.grant(self._ttl)
        self.lease = granted.lease
        self._renewed(sent, granted.ttl)
        self._news.set()
        try:
            async with asyncio.TaskGroup() as tasks:
                # Both keep to this lease, whatever becomes of `self.lease` meanwhile.
                tasks.create_task(self._keep(granted.lease, granted.ttl))
                tasks.create_task(self._announce_news(granted.lease))
        except* LeaseGoneError:
            pass  # whoever found out has said so

    async def _keep(self, lease: int, ttl: int) -> None:
        """Renew the lease, three times in its length; after a failure at once, and again."""
        failures = 0
        while True:
            await asyncio.sleep(ttl / 3 * random.uniform(0.8, 1.0) if not failures else _pause(failures))
            sent = _moment()
            try:
                ttl = await self._client.keep_alive(lease)
            except LeaseGoneError as error:
                self._lose(error)
                raise
            except EtcdError as error:
                self._note(error)
                failures += 1
                continue
            failures = 0
            self._renewed(sent, ttl)
            if self.state is SessionState.LOST:
                log.info("the lease %x outlived etcd's trouble", lease)
                self._news.set()
                self._become(SessionState.JOINING)

    async def _announce_news(self, lease: int) -> None:
        failures = 0
        while True:
            await self._news.wait()
            self._news.clear()
            number = self._wanted
            try:
                revision = await self._announce(lease)
            except LeaseGoneError as error:
                self._lose(error)
                raise
            except EtcdError as error:
                self._note(error)
                self._news.set()
                failures += 1
                await asyncio.sleep(_pause(failures))
                continue
            failures = 0
            if revision:
                self.revision, self._announced = revision, number
                self._become(SessionState.ALIVE if time.monotonic() < self.deadline else SessionState.LOST)
                continue
            self._news.set()
            if self.state is not SessionState.HELD:
                log.warning(
                    "the key %s belongs to another lease; it is tried again until that is gone", self._key
                )
            self._become(SessionState.HELD)
            await asyncio.sleep(self._held_retry)

    async def _announce(self, lease: int) -> int:
        """Put the member key, if it is ours or not there; the revision, or 0 if it is another's."""
        put = Put(self._key, self._value, lease)
        for condition in (
            Compare(self._key, Field.LEASE, lease),
            Compare(self._key, Field.CREATE_REVISION, 0),
        ):
            committed = await self._client.commit(self._prefix, [condition], [put])
            if committed.ok:
                return committed.revision
        return 0

    async def _change(self) -> None:
        """Wait for the next change of state or revision."""
        if self.state is SessionState.LEFT:
            raise EtcdError("the session has ended", hint="start another one")
        await self._changed.wait()

    async def _give_back(self) -> None:
        if not self.lease:
            return
        try:
            await self._client.revoke(self.lease)
        except EtcdError as error:
            log.warning("the lease could not be given back, and will expire: %s", error)

    def _renewed(self, sent: tuple[float, float], ttl: int) -> None:
        self.trouble = None
        self.deadline, self._slept_deadline = sent[0] + ttl, sent[1] + ttl
        self._forget_timer()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, self.deadline - time.monotonic()), self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self.state in (SessionState.ALIVE, SessionState.JOINING, SessionState.HELD) and self.lease:
            log.warning("the lease was not renewed in time (%s)", self.trouble or "no answer yet")
            self._become(SessionState.LOST)

    def _lose(self, error: EtcdError) -> None:
        log.warning("the lease is lost: %s", error)
        self.trouble = error
        self._forget_timer()
        self.lease, self.deadline, self._slept_deadline = 0, 0.0, 0.0
        self._become(SessionState.LOST)

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _note(self, error: EtcdError) -> None:
        if str(error) != str(self.trouble):
            log.warning("the session with etcd: %s", error)
        self.trouble = error

    def _become(self, state: SessionState) -> None:
        if state is not self.state:
            self.state = state
            tell_all(self.on_state, state)
        self._changed.set()
        self._changed = asyncio.Event()


def _moment() -> tuple[float, float]:
    return time.monotonic(), _with_sleep()


def _with_sleep() -> float:
    """Like the monotonic clock, but it goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _pause(failures: int) -> float:
    return _PAUSES[min(failures, len(_PAUSES) - 1)] * random.uniform(0.8, 1.2)
