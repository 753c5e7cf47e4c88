"""The connector worker: takes the streams of connectors and puts what they send into journals, one for each instance.

    PREFIX/INSTANCE     the journal of an instance; the worker that claimed it has all its sessions (`partitions`)
    PREFIX/_workers     the workers that there are (`directory`)

A connector that comes to the wrong worker is sent to the right one; one whose owner does not answer is taken over, and
the claim fences the owner. Shutdown, in this order: no more connections; each instance makes durable what came,
acknowledges it and sends its sessions to a live worker; the directory is left; the client is closed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Coroutine
from contextlib import suppress

from penstock.base.errors import PenstockError, UsageError
from penstock.connector import directory
from penstock.connector.buffers import Buffers
from penstock.connector.counters import Counters
from penstock.connector.directory import Entry
from penstock.connector.frames import Error, Frame, Hello, Ok
from penstock.connector.instancelog import InstanceLog
from penstock.connector.instances import Instance
from penstock.connector.partitions import open_instance
from penstock.connector.registry import Decision, Owner, decision, owner_of
from penstock.connector.serving import Peer
from penstock.connector.settings import JOURNALS, NotHereError, WorkerSettings, WorkerTls, dialled, split
from penstock.connector.targets import introduced, introduction, require_target
from penstock.connector.threaded import Journals
from penstock.journal.client import AsyncClient, BrokerGoneError, JournalError, TimedOutError, backoff
from penstock.journal.protocol import Status

__all__ = ["Instance", "Worker"]

log = logging.getLogger(__name__)

_POLL = 0.1
_AT_ONCE = 32
"""Workers that are asked together."""
_SOON = 6.0
"""Seconds for one that is told to stop to find another that lives."""
_NOBODY = "-probe"
"""No instance: asked for where it only counts whether somebody answers."""


class Worker:
    """Listens from `start` to `stop`. `journals` is the prefix of the journals' names."""

    def __init__(
        self,
        settings: WorkerSettings,
        client: AsyncClient | None = None,
        journals: str = JOURNALS,
        *,
        name: str = "worker",
        replication: int = 1,
        store: str = "file:///",
        tls: WorkerTls | None = None,
    ) -> None:
        self.settings = settings
        self.client = client
        self.listing: Journals | None = client
        """Where the directory is; None for a worker that is in none."""
        self.journals = journals
        self.counters = Counters()
        self.buffers = Buffers()
        self.me = Owner(name, "", uuid.uuid4().hex[:16])
        self.http = ""
        self.place = ""
        """What our directory is known by, once we are in it."""
        self.pipeline = ""
        """The pipeline whose source this is, if it is no worker by itself."""
        self.peers: set[Peer] = set()
        self.refused: dict[Peer, None] = {}
        """Those that are no sessions and have a moment to read why; beyond `max_sessions` the oldest have none."""
        self.instances: dict[str, Instance] = {}
        self.moved: dict[str, str] = {}
        """Where instances went that were moved away."""
        self.started = time.time()
        self._replication, self._store = replication, store
        self._tls = tls
        self._locks: dict[str, asyncio.Lock] = {}
        self._numbers = itertools.count(1)
        self._shaking: dict[int, float] = {}
        """With TLS: connections that are none yet, and when their time for a handshake is over."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = self._announced = False
        self._empty = asyncio.Event()

    # Life.

    async def start(self, listen: str, advertise: str = "") -> str:
        """Listen; the address that connectors use."""
        host, port = split(listen)
        if advertise:
            split(advertise)  # connectors and workers that are sent there could not
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._peer,
                host,
                port,
                backlog=self.settings.max_sessions,
                ssl=self._tls.shows if self._tls is not None else None,
                ssl_handshake_timeout=self.settings.hello_timeout if self._tls is not None else None,
            )
        except OSError as error:
            raise UsageError(
                f"cannot listen on {listen}: {error.strerror}", hint="give another --listen HOST:PORT"
            ) from None
        shown = advertise or dialled(host, self._server.sockets[0].getsockname()[1])
        self.me = Owner(self.me.name, shown, self.me.nonce)
        return shown

    def announce(self) -> None:
        """Enter the directory, as soon as the broker answers."""
        if self.listing is not None:
            self._announced = True
            self.spawn(self._announce())

    @property
    def _entry(self) -> Entry:
        return Entry(self.me, self.http, self.pipeline)

    async def _announce(self) -> None:
        assert self.listing is not None
        for failures in itertools.count(1):
            try:
                self.place = await directory.enter(
                    self.listing,
                    self.journals,
                    self._entry,
                    replication=self._replication,
                    store=self._store,
                )
            except (BrokerGoneError, TimedOutError, JournalError) as error:
                log.warning("the broker does not answer yet: %s", error.message)
            except PenstockError as error:  # it may be full of those that were killed
                log.warning("cannot enter the directory of workers: %s", error.message)
                await self._others()
            else:
                return
            await asyncio.sleep(backoff.delay(failures))

    async def stop(self, patience: float = 10.0) -> None:
        """The end, in the order that the module's text gives."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        address = await self._live_worker()
        instances, self.instances = list(self.instances.values()), {}
        await asyncio.gather(*(each.hand_over(address, patience) for each in instances))
        for peer in list(self.peers):
            peer.restart(address)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.listing is not None and self._announced:
            try:
                async with asyncio.timeout(patience):
                    await directory.leave(self.listing, self.journals, self._entry)
            except (PenstockError, TimeoutError) as error:
                reason = str(error) or "the broker did not answer in time"
                log.warning("could not leave the directory of workers: %s", reason)
        if self.peers:
            with suppress(TimeoutError):
                async with asyncio.timeout(3):
                    await self._empty.wait()

    async def _live_worker(self) -> str:
        """The address of another worker that takes connectors; empty if there is none."""
        try:
            async with asyncio.timeout(_SOON):
                others = await self._others()
        except TimeoutError:
            return ""
        return others[0].owner.address if others else ""

    async def _others(self) -> list[Entry]:
        """Other workers that would take connectors of ours. Takes out those that do not answer."""
        if self.listing is None:
            return []
        with suppress(PenstockError):
            known = await directory.workers(self.listing, self.journals)
            others = [entry for entry in known if entry.owner != self.me]
            for some in (others[at : at + _AT_ONCE] for at in range(0, len(others), _AT_ONCE)):
                answers = await asyncio.gather(*(self._ask(entry.owner, _NOBODY) for entry in some))
                dead = [entry for entry, answer in zip(some, answers, strict=True) if answer is None]
                if dead:
                    await directory.leave(self.listing, self.journals, *dead)
                # Those that say anything else have no time, or do not trust us.
                if ready := [entry for entry, answer in zip(some, answers, strict=True) if answer == 0]:
                    return ready
        return []

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Run something beside; the worker ends it when it stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("an error of the worker itself", exc_info=task.exception())

    # Sessions.

    def _peer(self) -> Peer:
        """For whoever connects. One of too many handshakes is closed without a word, since none can be said yet."""
        number, now = next(self._numbers), asyncio.get_running_loop().time()
        if self._tls is not None:
            for late in [each for each, end in self._shaking.items() if end <= now]:
                del self._shaking[late]
            if len(self._shaking) >= self.settings.max_sessions:
                raise ConnectionRefusedError("too many handshakes")
            self._shaking[number] = now + self.settings.hello_timeout
        return Peer(self, number)

    def enter(self, peer: Peer) -> str | None:
        """A connection came; why it is refused, if it is. One that is refused takes nobody's place while it ends."""
        self._shaking.pop(peer.number, None)
        most = self.settings.max_sessions
        if len(self.peers) >= most:
            absent = {each for each in self.peers if each.is_absent}
            self.peers -= absent
            for each in absent:
                each.wire.cut()
        if self._stopping or len(self.peers) >= most:
            self.refused[peer] = None
            while len(self.refused) > most:
                oldest = next(iter(self.refused))
                del self.refused[oldest]
                oldest.turn_out()
            return directory.STOPPING if self._stopping else f"{directory.FULL}: this worker takes {most}"
        self.peers.add(peer)
        self._empty.clear()
        return None

    def leave(self, peer: Peer) -> None:
        self.peers.discard(peer)
        self.refused.pop(peer, None)
        if not self.peers:
            self._empty.set()
        if peer.instance is not None:
            peer.instance.peers.discard(peer)
            peer.instance.settled()

    def probed(self, hello: Hello, refusal: str | None) -> Ok | Error | None:
        """What to answer, if another worker asks whether we live and have an instance; also if we take nobody now."""
        token = next((each for each in hello.capabilities if each.startswith(directory.PROBE)), None)
        if token is None:
            return None
        if self._stopping:
            # What is no instance any more may still be on its way to the log.
            return Error(directory.STOPPING)
        if token == directory.PROBE:
            fault = self.settings.instance_fault(hello.instance) if hello.instance != _NOBODY else None
            if refusal or fault:
                return Error(refusal or fault or "")
            return introduction(self.me, self.place)
        if token != directory.PROBE + self.me.nonce:
            return Error(directory.ANOTHER)
        if refusal is not None and hello.instance == _NOBODY:
            return Error(refusal)
        instance = self.instances.get(hello.instance)
        return Ok(0 if instance is None else directory.LEAVING if instance.leaving else directory.MINE)

    async def join(self, peer: Peer, name: str) -> Instance | str:
        """The instance for a session, opened; or the address at which it is."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        async with lock:
            instance = self.instances.get(name)
            if instance is None:
                opened = await self._opened(name)
                if isinstance(opened, str):
                    return opened
                instance = opened
            elif instance.leaving:
                return instance.leaving
            instance.peers.add(peer)
            return instance

    async def _opened(self, name: str) -> Instance | str:
        """Open an instance that this worker does not have; waits for the broker, and for an owner that is leaving."""
        for failures in itertools.count(1):
            self._require_going_on()
            try:
                where = await self._elsewhere(name)
                if where:
                    return where
                if where is None:
                    await asyncio.sleep(_POLL)
                    continue
                self._require_going_on()
                instance = Instance(name)
                instance.use(await self.open_log(instance))
            except (BrokerGoneError, TimedOutError) as error:
                log.warning("instance %s waits for the broker: %s", name, error.message)
                await asyncio.sleep(backoff.delay(failures))
                continue
            self.instances[name] = instance
            return instance
        raise AssertionError

    def _require_going_on(self) -> None:
        """A worker that is told to stop claims nothing: it may be its own log that it would fence."""
        if self._stopping:
            raise PenstockError(directory.STOPPING)

    async def _elsewhere(self, name: str) -> str | None:
        """The address of the live owner; empty if there is none; None while it is leaving."""
        if self.client is None:
            return ""
        try:
            barrier = await self.client.append(f"{self.journals}/{name}", ())
        except JournalError as error:
            if error.status == Status.JOURNAL_NOT_FOUND:
                return ""
            raise
        owner = owner_of(barrier.registers)
        if owner == self.me and name in self.moved:
            return await self._moved(name)
        self.moved.pop(name, None)
        if decision(owner, self.me, None) is Decision.CLAIM:
            return ""
        assert owner is not None
        answer = await self._ask(owner, name)
        if answer == directory.LEAVING:
            return None
        alive = answer == directory.MINE
        return owner.address if decision(owner, self.me, alive) is Decision.REDIRECT else ""

    async def _ask(self, owner: Owner, instance: str) -> int | None:
        """What another worker says about an instance (`directory.ask`)."""
        trusts = self._tls.trusts if self._tls is not None else None
        return await directory.ask(owner, self.settings.cookie, instance, self.settings.version, trusts)

    async def _moved(self, name: str) -> str:
        """Where an instance was sent that nobody has claimed since; here again if nobody is there, or has room."""
        target = Owner("", self.moved[name], "")
        if await self._ask(target, _NOBODY) != 0:
            del self.moved[name]
            return ""
        return target.address

    async def open_log(self, instance: Instance) -> InstanceLog:
        """Where the messages of an instance go."""
        assert self.client is not None

        def failed(error: PenstockError) -> None:
            self.failed(instance, error)

        return await open_instance(
            self.client,
            f"{self.journals}/{instance.name}",
            self.settings.partitions,
            self.me,
            failed,
            self.settings.outage_limit,
            replication=self._replication,
            store=self._store,
        )

    def failed(self, instance: Instance, error: PenstockError) -> None:
        """The log of an instance gave up: what is not durable counts for nothing, everybody begins anew."""
        log.warning("instance %s starts again: %s", instance.name, error.message)
        self.counters.rollbacks += 1
        if self.instances.get(instance.name) is instance:
            del self.instances[instance.name]
        instance.restart_all(self.me.address)
        self.spawn(instance.close())

    # Migration.

    def instance_of(self, what: str) -> str:
        """The name of the instance that is meant: by its own name, or by the name or id of one of its streams."""
        if what in self.instances:
            return what
        for name, instance in self.instances.items():
            for stream in instance.registry.held:
                if what in (
                    str(stream),
                    instance.registry.points[stream].name if stream in instance.registry.points else "",
                ):
                    return name
        raise NotHereError(
            f"this worker has no instance and no open stream called '{what}'",
            hint="`penstock connector status` lists them",
        )

    async def migrate(self, what: str, address: str) -> str:
        """Move an instance, with all its sessions, to the worker at `address`; the name of the instance."""
        split(address)
        await self._require_another(address, self.instance_of(what))
        name = self.instance_of(what)
        instance = self.instances[name]
        if instance.leaving:
            instance.leaving = address
            for peer in list(instance.peers):
                peer.migrate(address)
            return name
        self.counters.migrations += 1
        self.spawn(self._move(instance, address))
        return name

    async def _require_another(self, address: str, instance: str) -> None:
        """Refuse a move to where it cannot go (`targets`). Nobody need answer: a connector comes back from there."""
        mine = introduction(self.me, self.place)
        if address == self.me.address:
            answer: Frame | None = mine
        else:
            hello = Hello(self.settings.version, self.settings.cookie, "penstock", instance)
            trusts = self._tls.trusts if self._tls is not None else None
            answer = await introduced(address, hello, trusts, entered=bool(self.place))
        require_target(address, answer, mine)

    async def _move(self, instance: Instance, address: str) -> None:
        await instance.move(address, self.settings.migration_timeout)
        # If it is another one its log has failed meanwhile, and everybody begins anew here.
        if self.instances.get(instance.name) is instance:
            del self.instances[instance.name]
            self.moved[instance.name] = instance.leaving
