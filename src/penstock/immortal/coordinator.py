"""The coordinator of one instance while it runs: between its binding, its log, and its peers (reference 10.5).

The order in which input moves, which is what makes it exactly once:

    1. it arrives (peers, the instance itself) and is counted             `State.accept`
    2. what has gathered becomes one record, appended and durable         `commit_record`
    3. its senders are told                                               `on_durable`
    4. the record goes to the binding                                     `deliver`
    5. what the binding sends is counted, kept and passed on at once      `read_binding`

While one record is being written the next one gathers; no timers. A checkpoint is taken at a place of the log: delivery
stops there until the binding has answered, while input goes on into the log. How a coordinator comes to run is told in
`starting`, how it talks to others in `peers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.base.faults import step
from penstock.immortal import checkpoints, journals, turns
from penstock.immortal.checkpoints import Catalogue, Entry
from penstock.immortal.folder import Folder
from penstock.immortal.journals import Fenced, journal_name, steadily
from penstock.immortal.logformat import Mark, Rolled, Source, encode_mark
from penstock.immortal.outputs import Output
from penstock.immortal.place import Place
from penstock.immortal.sockets import Binding
from penstock.immortal.state import COMMIT_BUFFER, NewRecord, State
from penstock.immortal.wire import pings
from penstock.immortal.wire.decoding import Blob
from penstock.immortal.wire.messages import CALLS, CheckpointStart, Message, MessageType, initial_message
from penstock.immortal.wire.pings import is_ping
from penstock.immortal.wire.zigzag import CorruptWireError
from penstock.journal.client import (
    BrokerGoneError,
    FencedError,
    JournalError,
    OffsetJumpError,
    TimedOutError,
)

if TYPE_CHECKING:
    from penstock.journal.tls import ServerTls

_log = logging.getLogger(__name__)
QUEUE_BYTES = 32 << 20
_LOOK_AGAIN = 0.1
SENT = CALLS | {int(MessageType.RPC_BATCH)}
"""What a binding sends to others and to itself."""


class FatalError(Exception):
    """Ends the coordinator, and with it the binding: `FATAL ERROR code: text`."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Options:
    """How one coordinator is run."""

    name: str
    receive_port: int
    send_port: int
    host: str = "127.0.0.1"
    port: int = 0
    replica: int = 0
    active: bool = False
    version: int = 0
    upgrade: int = 0
    create: str = "A"
    persist: bool = True
    trigger: int = 1000 << 20
    """Bytes of log after which it is rolled; 0 or less: never."""
    keep: int = 3
    """Checkpoints that are kept; log before the oldest is deleted."""
    output_limit: int = 256 << 20
    """Bytes of output that nobody has taken at which the binding is no longer read."""
    failover: float = 1.5
    """Seconds without a heartbeat after which a secondary takes over."""
    legacy: bool = False
    replication: int = 1
    """Of the instance's journals, if they are made now."""
    store: str = journals.STORE
    tls: ServerTls | None = None
    """What streams to this instance are opened with."""
    folder: Path | None = None
    """The directory of logs in which bindings look for the instance's files (`folder`)."""


@dataclass
class Asked:
    """A checkpoint that the binding was asked for, or will be, at a place of the log."""

    kind: MessageType
    version: int
    is_first: bool = False
    log_offset: int = 0
    initial: bytes = b""
    done: asyncio.Future[Entry | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


@dataclass(frozen=True)
class Durable:
    """A record that may be delivered."""

    sequence: int
    body: bytes
    sources: dict[str, Source]
    end: int


class Coordinator:
    """Of one instance, in one life; `state` and `log` are set by the start-up."""

    def __init__(self, options: Options, place: Place, binding: Binding, owner: str) -> None:
        self.options = options
        self.place = place
        self.client = place.client
        self.binding = binding
        self.owner = owner
        self.folder = None if options.folder is None else Folder(place, options.name, options.folder)
        self.state = State(options.name, 0, "")
        self.fenced: Fenced | None = None
        self.version = options.version
        self.delivered_end = 0
        """Where in the log the last thing ends that the binding has got."""
        self.attached: set[str] = set()
        self.is_primary = False
        self.is_replaying = False
        self.is_muted = False
        """Whether output goes nowhere: in repro and what-if runs."""
        self.durable: dict[str, Source] = {}
        self.on_output: Callable[[Output], None] = lambda _: None
        self.on_attach: Callable[[str], None] = lambda _: None
        self.on_durable: Callable[[dict[str, Source]], None] = lambda _: None
        self.listening: Callable[[], Iterable[str]] = tuple
        """The secondaries that can be asked for checkpoints."""
        self._turns = turns.Turns(turns.PATIENCE)
        self.input = asyncio.Event()
        self._appending = asyncio.Lock()
        self._queue: deque[Durable | Asked] = deque()
        self._queued_bytes = 0
        self._queued = asyncio.Event()
        self._room = asyncio.Event()
        self._asked: Asked | None = None
        self.part_begin = 0
        """Where in the log its last part begins; at first, behind the last checkpoint."""
        self._part = 0
        self._roll_wanted = False
        self.progress = asyncio.Event()
        """Set whenever room may have come for input or output."""

    # The binding's messages.

    async def read_binding(self) -> None:
        """For as long as the coordinator lives."""
        taking: checkpoints.Writer | None = None
        async for event in self.binding.events():
            if isinstance(event, Message):
                self._message(event)
                if event.type in SENT and not self.is_muted:
                    await self._wait_for_room()
            else:
                try:
                    taking = await self._checkpoint(event, taking)
                except FencedError as error:
                    taking = None
                    self._give_up(error)

    def _message(self, message: Message) -> None:
        kind = message.type
        if kind in SENT:
            if not self.is_muted:
                data = pings.leaving(kind, message.data, time.time()) if is_ping(kind) else message.data
                for output in self.state.sent(kind, data, in_replay=self.is_replaying):
                    self.on_output(output)
                if self.state.gathered_bytes:
                    self.input.set()
        elif kind == MessageType.ATTACH_TO:
            self._attach(message.data)
        elif kind == MessageType.TAKE_CHECKPOINT:
            self._roll_wanted = True
            self.input.set()
        elif kind == MessageType.INITIAL_MESSAGE and self._asked is not None and self._asked.is_first:
            self._asked.initial = initial_message(message.data)
        else:
            raise CorruptWireError(f"illegal leading byte in local message ({kind})", position=0)

    def _attach(self, data: bytes) -> None:
        try:
            name = data.decode()
        except UnicodeDecodeError:
            raise CorruptWireError("a destination that is not UTF-8", position=0) from None
        if name and name != self.options.name and not self.is_muted:
            self.attached.add(name)
            self.on_attach(name)

    async def _wait_for_room(self) -> None:
        """What nobody takes holds the binding back, except where it would wait for itself."""
        while self.is_primary and self._asked is None and not self._has_room:
            self.progress.clear()
            with contextlib.suppress(TimeoutError):  # that the binding has stopped to read is told by nobody
                await asyncio.wait_for(self.progress.wait(), _LOOK_AGAIN)

    @property
    def _has_room(self) -> bool:
        """Of input not more than the log takes; but a binding that does not read may be waiting to be read from."""
        gathered, sent = self.state.gathered_bytes, self.state.output_bytes
        if self.binding.is_behind:
            return sent < self.options.output_limit
        return gathered < 2 * COMMIT_BUFFER and sent - gathered < self.options.output_limit

    # Checkpoints.

    async def _checkpoint(
        self, event: CheckpointStart | Blob, taking: checkpoints.Writer | None
    ) -> checkpoints.Writer | None:
        if isinstance(event, CheckpointStart):
            return await self._begin_checkpoint(event.length)
        if taking is None:
            return None  # the rest of one that was given up
        await self._blob(taking, event)
        return taking if event.left else None

    def _give_up(self, error: FencedError) -> None:
        """Another replica takes a checkpoint of a later place: ours is not needed, unless the start waits for it."""
        asked, self._asked = self._asked, None
        if asked is None or asked.kind != MessageType.TAKE_CHECKPOINT:
            raise error
        _log.info("a checkpoint was given up: %s", error)
        asked.done.set_result(None)

    async def _begin_checkpoint(self, length: int) -> checkpoints.Writer:
        asked = self._asked
        if asked is None:
            raise CorruptWireError("a checkpoint that nobody asked for", position=0)
        if asked.is_first and not asked.initial:
            raise CorruptWireError("a first checkpoint without an InitialMessage before it", position=0)
        state, kept = self.state.head(asked.initial)
        head = checkpoints.Head(0, asked.version, asked.log_offset, length, state)
        return await checkpoints.Writer.begin(
            self.client,
            self.options.name,
            self.owner,
            self.place.reach,
            head,
            kept,
            is_first=asked.is_first,
        )

    async def _blob(self, writer: checkpoints.Writer, event: Blob) -> None:
        await writer.write(event.piece)
        if event.left:
            return
        entry, there = await writer.commit(self.options.keep)
        _log.info("checkpoint %d of %s: %d bytes", entry.number, self.options.name, entry.size)
        if self.folder is not None:
            await self.folder.show(there)
        await self._trim(there)
        asked, self._asked = self._asked, None
        assert asked is not None
        asked.done.set_result(entry)
        self.input.set()  # another one may be due

    async def _trim(self, there: Catalogue) -> None:
        """Really delete what nobody can recover from any more."""
        first = there.entries[0]
        for kind, offset in (("log", first.log_offset), ("checkpoints", first.begin)):
            journal = journal_name(self.options.name, kind)
            try:
                with step("immortal-trim"):
                    await self.client.roll(journal)
                    await self.client.trim(journal, offset)
            except (JournalError, BrokerGoneError, TimedOutError) as error:
                _log.warning("journal %s was not trimmed: %s", journal, error)

    async def take_checkpoint(self, asked: Asked) -> Entry | None:
        """Ask the binding, and wait until the checkpoint counts."""
        asked.log_offset = self.delivered_end
        self._asked = asked
        self.progress.set()
        await self.binding.control(self.state.committer, asked.kind)
        return await asked.done

    # The log.

    async def append(self, mark: Mark) -> int:
        """Put a mark into the log; where it ends."""
        assert self.fenced is not None
        async with self._appending:
            _, end = await self.fenced.append([encode_mark(self.state.committer, mark)])
        return end

    async def commit(self) -> None:
        """Gather, append, tell, hand on; for as long as this is the primary."""
        assert self.fenced is not None
        while True:
            await self.input.wait()
            self.input.clear()
            while (record := self.state.record()) is not None:
                await self.commit_record(record)
                self.progress.set()
                while self._queued_bytes > QUEUE_BYTES:
                    self._room.clear()
                    await self._room.wait()
            trigger = self.options.trigger
            is_due = self._roll_wanted or 0 < trigger <= self.fenced.end - self.part_begin
            if is_due and not any(isinstance(item, Asked) for item in self._queue) and self._asked is None:
                self._roll_wanted = False
                await self.roll()

    async def commit_record(self, record: NewRecord) -> None:
        """One record, durable before anybody hears of it."""
        assert self.fenced is not None
        end = self.fenced.end
        if self.options.persist:
            async with self._appending:
                with step("immortal-commit"):
                    _, end = await self.fenced.append(record.encoded(self.state.committer))
        self.state.durable(record)
        self.durable.update(record.sources)
        self.on_durable(record.sources)
        self._hand_on(Durable(record.sequence, record.body, record.sources, end), len(record.body))

    async def roll(self) -> None:
        """Begin a new part of the log; a secondary takes the checkpoint there if one listens, else our binding."""
        assert self.fenced is not None
        self._part += 1
        checkpointer = await self._checkpointer()
        with step("immortal-roll"):
            self.part_begin = await self.append(Rolled(self._part, checkpointer, time.time()))
        if not checkpointer:
            self.ask(Asked(MessageType.TAKE_CHECKPOINT, self.version))

    async def _checkpointer(self) -> str:
        listening = [*self.listening()]
        if not listening:
            return ""
        name = self.options.name
        there = await steadily(self.place.reach, lambda: checkpoints.catalogue(self.client, name))
        return self._turns.next(listening, there.last.number if there.last else 0, time.monotonic())

    def ask(self, asked: Asked) -> Asked:
        """Have a checkpoint taken behind all that is in the log now."""
        self._hand_on(asked, 0)
        return asked

    def _hand_on(self, item: Durable | Asked, size: int) -> None:
        self._queue.append(item)
        self._queued_bytes += size
        self._queued.set()

    async def deliver(self) -> None:
        """Records and requests to the binding, in the order of the log."""
        while True:
            while not self._queue:
                self._queued.clear()
                await self._queued.wait()
            item = self._queue.popleft()
            if isinstance(item, Asked):
                await self.take_checkpoint(item)
                continue
            self._queued_bytes -= len(item.body)
            self._room.set()
            self.state.delivered(item.sequence, item.sources)
            self.delivered_end = item.end
            with step("immortal-deliver"):
                await self.binding.deliver(self.state.committer, item.sequence, item.body)

    async def watch_fence(self) -> None:
        """A primary that was replaced is to know it soon, also one that is idle, or whose append nobody answers."""
        assert self.fenced is not None
        while True:
            await asyncio.sleep(1.0)
            if time.monotonic() - self.fenced.last_contact > 1.0:
                await steadily(self.place.reach, self.fenced.confirm)


def fatal(error: BaseException) -> FatalError | None:
    """What an error means to those who run a coordinator."""
    from penstock.base.errors import PenstockError
    from penstock.immortal.checkpoints import MissingCheckpointError
    from penstock.immortal.logformat import CorruptLogError
    from penstock.immortal.sockets import BindingGoneError

    if isinstance(error, FatalError):
        return error
    if isinstance(error, FencedError):
        return FatalError(5, f"another coordinator is primary now: {error}")
    if isinstance(error, (BindingGoneError, CorruptWireError)):
        return FatalError(4, str(error))
    if isinstance(error, MissingCheckpointError):
        return FatalError(2, str(error))
    if isinstance(error, CorruptLogError):
        return FatalError(3, f"{error}; {error.hint}")
    if isinstance(error, OffsetJumpError):
        return FatalError(3, f"the log behind the checkpoint is missing: {error}")
    if isinstance(error, PenstockError):
        text = f"{error}; {error.hint}" if error.hint else str(error)
        unwritten = isinstance(error, (JournalError, journals.UnwrittenError))
        return FatalError(5 if unwritten else 0, text)
    return None
