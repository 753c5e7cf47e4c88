"""A broker's place in the cluster: its session with etcd, and the mirror of the key space.

`join` comes first and may take long: etcd may be away, or an earlier run of the same broker not yet forgotten. From
then on both go on by themselves through all of etcd's trouble, until `leave`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from google.protobuf.message import DecodeError

from penstock.base.errors import PenstockError
from penstock.journal import keys
from penstock.journal.cluster.etcd import EtcdClient
from penstock.journal.cluster.etcd_errors import EtcdError, EtcdRefusedError
from penstock.journal.cluster.mirror import EtcdKeySpace
from penstock.journal.cluster.options import ClusterOptions
from penstock.journal.cluster.session import Session
from penstock.journal.keys import MemberId
from penstock.journal.protocol import BrokerSpec, JournalSpec, Route
from penstock.journal.resolver import Identity
from penstock.journal.validation_specs import validate_journal_spec

log = logging.getLogger(__name__)

_AGAIN = 0.5
_SHORTER = 0.05


class Membership:
    """Made, joined and left once. Everything here belongs to one event loop."""

    def __init__(self, options: ClusterOptions, me: MemberId, endpoint: str) -> None:
        self.options = options
        self.me = me
        self._endpoint = endpoint
        self.client = EtcdClient(
            options.etcd, user=options.etcd_user, password=options.etcd_password, tls=options.etcd_tls
        )
        self.session = Session(
            self.client,
            options.prefix,
            keys.member_key(me),
            self._announcement(exiting=False),
            ttl=options.lease,
            held_retry=max(_SHORTER, min(10.0, options.lease / 4)),
        )
        self.mirror = EtcdKeySpace(self.client, options.prefix, refuses=unreadable, delay=options.watch_delay)
        self.mirror.on_gap.append(self.session.touch)
        self._tasks: list[asyncio.Task[None]] = []

    async def join(self) -> None:
        """Be a member, and have a mirror that is followed. Raises what waiting will not mend: a wrong password, say."""
        try:
            await self.client.range(self.mirror.prefix, limit=1)
        except EtcdRefusedError:
            raise
        except EtcdError as error:
            log.warning("etcd is waited for: %s", error)
        self._tasks.append(asyncio.create_task(self.session.run(), name="session"))
        revision = await self.session.joined()
        while True:
            try:
                await self.mirror.load(revision)
                break
            except EtcdError as error:
                log.warning("the key space cannot be read yet: %s", error)
                await asyncio.sleep(_AGAIN)
        self._tasks.append(asyncio.create_task(self.mirror.run(), name="key space"))

    def identity(self) -> Identity:
        """Who we are, in the etcd that we joined."""
        origin = self.mirror.origin
        assert origin is not None, "joined"
        return Identity(self.me, origin.cluster_id, origin.member_id or 1, origin.raft_term or 1)

    async def exit(self) -> None:
        """Say that we are on our way out, so that others take over."""
        await self.session.update(self._announcement(exiting=True))

    async def leave(self) -> None:
        """Give the lease back: from now on nobody counts on us."""
        if self._tasks and not self._tasks[0].done():
            with suppress(PenstockError):
                await self.session.leave()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.close()

    def _announcement(self, *, exiting: bool) -> bytes:
        spec = BrokerSpec(journal_limit=self.options.limit, exiting=exiting, penstock=True)
        spec.process_spec.id.zone, spec.process_spec.id.suffix = self.me
        spec.process_spec.endpoint = self._endpoint
        return spec.SerializeToString(deterministic=True)


def unreadable(key: str, value: bytes) -> str | None:
    """Why a key's value is not what it should be (reference 12); None if it is."""
    try:
        if key.startswith(keys.ITEMS):
            spec = JournalSpec.FromString(value)
            if keys.item_key(spec.name) != key:
                return f"it is the spec of {spec.name}"
            validate_journal_spec(spec)
        elif key.startswith(keys.MEMBERS):
            id = BrokerSpec.FromString(value).process_spec.id
            if keys.member_key(MemberId(id.zone, id.suffix)) != key:
                return f"it is the spec of {id.zone}#{id.suffix}"
        elif key.startswith(keys.ASSIGN):
            keys.parse_assignment(key)
            Route.FromString(value)
        elif key.startswith(keys.TRIMS):
            int(value)
    except (DecodeError, ValueError, PenstockError) as error:
        return str(error)
    return None
