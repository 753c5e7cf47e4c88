"""How a coordinator comes to run: first start, recovery, upgrade, secondary, repro and what-if (reference 9).

    first start      (11) -> InitialMessage, Checkpoint -> record 0 is the InitialMessage
    recovery         checkpoint, replay, (11) -> Checkpoint
    active/active    checkpoint, replay for as long as somebody else is primary, (15)
    upgrade          checkpoint, replay, (10) -> Checkpoint of the new version, then (2) if it stands alone
    repro            checkpoint, replay, and on with the log for ever; what-if the same, with (12) behind the checkpoint

To become primary is to claim the log. Everything before the claim is final by then, so replay ends at the claim. One
whose answer was lost ends nothing: it is made again, and what others appended in between is replayed like the rest.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from penstock.immortal import about, checkpoints, journals, watching
from penstock.immortal.checkpoints import Entry, Loaded
from penstock.immortal.coordinator import Asked, Coordinator, FatalError, Options
from penstock.immortal.journals import Fenced, claim, journal_name, steadily
from penstock.immortal.logformat import (
    Claimed,
    CorruptLogError,
    LogDecoder,
    LogRecord,
    Marked,
    Met,
    Rolled,
    Upgraded,
    encode_mark,
)
from penstock.immortal.pace import tell_pace
from penstock.immortal.peers import Peers
from penstock.immortal.place import Place
from penstock.immortal.sockets import Binding
from penstock.immortal.state import State
from penstock.immortal.streams import fingerprint
from penstock.immortal.wire.messages import MessageType
from penstock.journal.client import OffsetJumpError

_log = logging.getLogger(__name__)
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Debug:
    """A repro run from a checkpoint; with `upgrade` a what-if run."""

    checkpoint: int
    upgrade: bool = False


async def serve(options: Options, place: Place, tell: Tell, debug: Debug | None = None) -> None:
    """Run a coordinator until it fails, which is how each one ends."""
    await place.reach()
    if debug is None:
        name, replication, store = options.name, options.replication, options.store
        await steadily(
            place.reach, lambda: journals.ensure(place.client, name, replication=replication, store=store)
        )
    elif options.name not in await steadily(place.reach, lambda: journals.instances(place.client)):
        raise FatalError(2, f"there is no instance {options.name} to re-run")
    receive, send = options.receive_port, options.send_port
    binding = await Binding.accepted(
        receive,
        send,
        lambda: tell(f"Ready: waiting for the binding on ports {receive} and {send}"),
        legacy=options.legacy,
    )
    owner = f"replica-{options.replica}.{uuid.uuid4().hex[:16]}"
    coordinator = Coordinator(options, place, binding, owner)
    life: Life | None = None
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(coordinator.read_binding())
            life = Life(coordinator, group, tell)
            group.create_task(life.replay_only(debug) if debug else life.run())
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
    finally:
        binding.close()
        if life is not None:
            life.close()


def first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended it all."""
    for error in errors.exceptions:
        return first_of(error) if isinstance(error, BaseExceptionGroup) else error
    return errors


class Life:
    """One start of a coordinator, from its first word to the binding on."""

    def __init__(self, coordinator: Coordinator, group: asyncio.TaskGroup, tell: Tell) -> None:
        self._coordinator = coordinator
        self._options = coordinator.options
        self._client = coordinator.client
        self._group = group
        self._tell = tell
        self._password = secrets.token_hex(16)
        self._peers = Peers(coordinator, self._password, group.create_task, tell)
        self._log = journal_name(self._options.name, "log")
        self._caught_up = asyncio.Event()
        self._claimed_or_not = asyncio.Event()
        """Not set while it is not known what became of a claim of ours."""
        self._pending = b""
        self._adding = "Adding"
        self._read_to = 0
        self._is_replayed = False

    def close(self) -> None:
        """Nobody hears of us any more."""
        self._peers.close()

    async def run(self) -> None:
        """Become primary, at once or some day, and then run."""
        options = self._options
        await self._peers.listen()
        there = await steadily(
            self._coordinator.place.reach, lambda: checkpoints.catalogue(self._client, options.name)
        )
        if options.create == "Y" or await self._is_to_begin_anew():
            await self._first_start(None, anew=True)
            return
        while options.active and there.last is None and options.create == "A":
            there, gone = await self._wait_for_a_first()
            if there.last is None and await self._first_start(gone):
                return
        if there.last is None and options.create == "A":
            await self._first_start(None)
        elif there.last is None:
            raise FatalError(2, f"instance {options.name} has no checkpoint to recover from")
        else:
            await self._recover(there.last)

    async def _is_to_begin_anew(self) -> bool:
        """Replicas begin anew by nothing but `create`: one of them may run while another is started."""
        options, folder = self._options, self._coordinator.folder
        if options.create != "A" or options.active or folder is None:
            return False
        if not await folder.was_deleted(options.version):
            return False
        self._tell(f"The logs of {options.name} were deleted: it begins anew")
        return True

    async def replay_only(self, debug: Debug) -> None:
        """Re-run from a checkpoint, and follow the log; nothing is claimed, nothing is written."""
        name, reach = self._options.name, self._coordinator.place.reach
        there = await steadily(reach, lambda: checkpoints.catalogue(self._client, name))
        entry = checkpoints.chosen(there, self._options.name, debug.checkpoint)
        self._coordinator.is_muted = True
        await self._load(entry)
        if debug.upgrade:
            binding, committer = self._coordinator.binding, self._coordinator.state.committer
            await binding.control(committer, MessageType.UPGRADE_SERVICE)
        self._group.create_task(self._tell_where_it_ends())
        await self._replay(entry)

    async def _tell_where_it_ends(self) -> None:
        """The run follows the log for ever; whoever wants to stop at its present end hears where that is."""
        await self._caught_up.wait()
        self._tell(f"Caught up with the log: record {self._coordinator.state.sequence} is next")

    # First start.

    async def _wait_for_a_first(self) -> tuple[checkpoints.Catalogue, str]:
        """Of replicas that start together, one makes the first start; the others wait for its checkpoint."""
        name, failover, place = self._options.name, self._options.failover, self._coordinator.place
        gone = asyncio.ensure_future(watching.until_gone(place, name, self._coordinator.owner, failover))
        try:
            while True:
                await asyncio.wait((gone,), timeout=0.2)
                there = await steadily(place.reach, lambda: checkpoints.catalogue(self._client, name))
                if there.last is not None or gone.done():
                    return there, gone.result() if gone.done() else ""
        finally:
            gone.cancel()

    async def _first_start(self, instead_of: str | None, *, anew: bool = False) -> bool:
        """False if another replica was faster. Unless it is to begin `anew`, what another made is not made again."""
        coordinator = self._coordinator
        committer = time.time_ns() // 1000 & 0x7FFFFFFF
        coordinator.state = State(self._options.name, committer, uuid.uuid4().hex)
        fenced = await self._claimed(instead_of)
        if fenced is None:
            return False
        if not anew:
            await self._require_nothing_there()
        coordinator.delivered_end = fenced.end
        self._group.create_task(coordinator.deliver())
        kind = MessageType.TAKE_BECOMING_PRIMARY_CHECKPOINT
        asked = coordinator.ask(Asked(kind, coordinator.version, is_first=True))
        await asked.done
        coordinator.state.initial(asked.initial)
        record = coordinator.state.record()
        assert record is not None
        await coordinator.commit_record(record)
        coordinator.part_begin = fenced.end
        await self._primary()
        return True

    async def _require_nothing_there(self) -> None:
        """Before our claim another may have made the first start, and have taken calls since: they are not lost."""
        name = self._options.name
        there = await steadily(
            self._coordinator.place.reach, lambda: checkpoints.catalogue(self._client, name)
        )
        if there.last is not None:
            raise FatalError(5, f"another coordinator of {name} was faster; start this one again to recover")

    # Recovery.

    async def _recover(self, entry: Entry) -> None:
        if entry.version != self._options.version:
            raise self._is_of_version(entry.version)
        self._adding = "restoring"
        await self._load(entry)
        claiming = self._group.create_task(self._become_primary())
        replaying = self._group.create_task(self._replay(entry))
        await claiming
        await self._replayed_up_to_the_claim(replaying)
        last = await self._last_of_own_version()
        coordinator = self._coordinator
        assert coordinator.fenced is not None
        coordinator.delivered_end = coordinator.part_begin = coordinator.fenced.end
        if self._is_promoted:  # no checkpoint is taken here, however often this happens
            coordinator.part_begin = last.log_offset
        coordinator.durable = dict(coordinator.state.sources)
        if self._pending and coordinator.state.sequence == 0:
            coordinator.state.initial(self._pending)
        else:
            self._pending = b""
        self._group.create_task(coordinator.deliver())
        await self._announce_to_binding()

    async def _last_of_own_version(self) -> Entry:
        """The checkpoint of an upgrade is what upgrades: who was killed behind it left no mark in the log."""
        name = self._options.name
        there = await steadily(
            self._coordinator.place.reach, lambda: checkpoints.catalogue(self._client, name)
        )
        assert there.last is not None
        if there.last.version != self._options.version:
            raise self._is_of_version(there.last.version)
        return there.last

    @property
    def _is_promoted(self) -> bool:
        """Whether this one becomes primary as one of several replicas, and as what it was."""
        return self._options.active and self._options.upgrade <= self._options.version

    def _is_of_version(self, version: int) -> FatalError:
        options = self._options
        return FatalError(
            1,
            f"version mismatch: instance {options.name} is of version {version}, "
            f"this coordinator was started for {options.version}; register the current version",
        )

    async def _announce_to_binding(self) -> None:
        coordinator, options = self._coordinator, self._options
        coordinator.is_replaying = False
        if options.upgrade > options.version:
            asked = Asked(MessageType.UPGRADE_TAKE_CHECKPOINT, options.upgrade, initial=self._pending)
            await coordinator.ask(asked).done
            coordinator.version = options.upgrade
            await coordinator.append(Upgraded(options.upgrade, time.time()))
            await self._primary()
            if not options.active:
                await coordinator.roll()
            self._tell(f"Upgraded to version {options.upgrade}")
            return
        if self._is_promoted:
            await coordinator.binding.control(coordinator.state.committer, MessageType.BECOMING_PRIMARY)
        else:
            kind = MessageType.TAKE_BECOMING_PRIMARY_CHECKPOINT
            coordinator.ask(Asked(kind, options.version, initial=self._pending))
        await self._primary()

    async def _load(self, entry: Entry) -> None:
        loaded = Loaded(self._client, self._options.name, entry)
        head, kept = await loaded.head()
        coordinator = self._coordinator
        coordinator.state = State.restored(self._options.name, head.state, kept)
        self._pending = head.state.pending
        coordinator.is_replaying = True
        self._tell(f"Recovering from checkpoint {entry.number}: record {entry.sequence} is next")
        await coordinator.binding.checkpoint(coordinator.state.committer, entry.size, loaded.blob())
        coordinator.delivered_end = entry.log_offset

    async def _replay(self, entry: Entry) -> None:
        """Everything in the log behind the checkpoint goes to the binding, up to our own claim."""
        state = self._coordinator.state
        decoder = LogDecoder(self._log, entry.log_offset, committer=state.committer, sequence=entry.sequence)
        head = await steadily(self._coordinator.place.reach, lambda: self._client.head(self._log))
        await self._require_log_of(entry)
        if entry.log_offset >= head:
            self._caught_up.set()
        async with self._client.read(self._log, entry.log_offset, block=True, raise_jumps=True) as reader:
            async for offset, chunk in reader:
                for item in decoder.feed(chunk):
                    if await self._replayed(item, entry.version):
                        self._is_replayed = True
                        self._caught_up.set()
                        return
                self._read_to = offset + len(chunk)
                if self._read_to >= head:
                    if decoder.position < head:
                        raise self._goes_on_beyond(decoder.position)
                    self._caught_up.set()

    async def _require_log_of(self, entry: Entry) -> None:
        """Where nothing at all is left a read waits for what comes next."""
        begin = await steadily(self._coordinator.place.reach, lambda: self._client.begin(self._log))
        if begin > entry.log_offset:
            raise OffsetJumpError(self._log, entry.log_offset, begin)

    async def _replayed_up_to_the_claim(self, replaying: asyncio.Task[None]) -> None:
        """A record that says it is longer than it is would be waited for without end."""
        fenced = self._coordinator.fenced
        assert fenced is not None
        while not replaying.done():
            await asyncio.wait((replaying,), timeout=0.2)
            if not self._is_replayed and self._read_to >= fenced.end:
                raise self._goes_on_beyond(self._coordinator.delivered_end)

    def _goes_on_beyond(self, position: int) -> CorruptLogError:
        """Appends are whole records, so none is cut off where an append ends."""
        what = "a record that goes on beyond the end of the log"
        return CorruptLogError(what, where=self._log, position=position)

    async def _replayed(self, item: LogRecord | Marked, version: int) -> bool:
        """Whether this was our own claim, behind which is nothing of anybody else; or the end of what is re-run."""
        coordinator = self._coordinator
        if isinstance(item, LogRecord):
            coordinator.state.replay(item)
            coordinator.delivered_end = item.end
            await coordinator.binding.deliver(item.committer, item.sequence, item.body)
            return False
        coordinator.delivered_end = item.end
        mark = item.mark
        if isinstance(mark, Claimed):
            if coordinator.is_muted:
                return mark.version > version
            if mark.version > version:
                raise self._is_of_version(mark.version)
            return mark.owner == coordinator.owner and await self._is_claimed_by(item)
        if isinstance(mark, Met):
            coordinator.state.met(mark)
        elif isinstance(mark, Upgraded) and coordinator.is_muted:
            return mark.version != version  # other code has handled what follows
        elif isinstance(mark, Upgraded) and mark.version != self._options.version:
            raise FatalError(1, f"version mismatch: the instance was upgraded to version {mark.version}")
        elif isinstance(mark, Rolled) and mark.checkpointer == coordinator.owner:
            await coordinator.take_checkpoint(Asked(MessageType.TAKE_CHECKPOINT, self._options.version))
        return False

    # Claims.

    async def _become_primary(self) -> None:
        """Claim the log: when we have caught up, or, as a secondary, when the primary is gone."""
        options = self._options
        await self._caught_up.wait()
        if not self._is_promoted:
            await self._claimed(None)
            return
        self._tell("Following the log as a secondary")
        while True:
            gone = await watching.until_gone(
                self._coordinator.place, options.name, self._coordinator.owner, options.failover
            )
            if await self._claimed(gone) is not None:
                return

    async def _is_claimed_by(self, item: Marked) -> bool:
        """Whether this claim of ours is the one that holds. Behind one whose answer was lost others may have been
        primary, until we claimed the log again."""
        await self._claimed_or_not.wait()
        fenced = self._coordinator.fenced
        return fenced is not None and fenced.end == item.end

    async def _claimed(self, instead_of: str | None) -> Fenced | None:
        self._claimed_or_not.clear()
        coordinator = self._coordinator
        mark = Claimed(
            coordinator.owner,
            self._options.replica,
            0,
            self._options.version,
            coordinator.state.incarnation,
            time.time(),
        )
        record = encode_mark(coordinator.state.committer, mark)
        own = await steadily(
            coordinator.place.reach,
            lambda: claim(self._client, self._log, coordinator.owner, record, instead_of=instead_of),
        )
        if own is not None:
            coordinator.fenced = Fenced(self._client, own, coordinator.place.reach)
        self._claimed_or_not.set()
        if coordinator.fenced is not None:
            await self._say_serving(coordinator.fenced)
        return coordinator.fenced

    async def _say_serving(self, fenced: Fenced) -> None:
        options = self._options
        said = about.Serving(
            options.replica,
            self._coordinator.owner,
            fenced.epoch,
            options.host,
            self._peers.port,
            self._password,
            os.getpid(),
            time.time(),
            fingerprint(options.tls),
        )
        await steadily(self._coordinator.place.reach, lambda: about.say(self._client, options.name, said))

    async def _primary(self) -> None:
        coordinator = self._coordinator
        coordinator.is_primary = True
        coordinator.state.begin()
        coordinator.input.set()
        self._group.create_task(coordinator.commit())
        self._group.create_task(coordinator.watch_fence())
        self._group.create_task(tell_pace(coordinator))
        self._peers.begin()
        self._tell(f"Primary: {self._options.name} on port {self._peers.port}")
        for end in ("input", "output") * 2:  # bindings count these: the four ends of the streams to itself
            self._tell(f"{self._adding} {end}:")
