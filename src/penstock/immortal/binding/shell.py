"""A machine on its two sockets: connect, read, handle, write, until one of the two is gone.

The coordinator listens; the binding connects to the receive port first, then to the send port (reference 8). Reading
never waits for writing: a coordinator that does not read is no reason to stop listening to it. What waits to be
written has a limit, at which the process ends, and recovers when it is started again.

The pair fails together: when the coordinator is gone, `serve` raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.base.faults import step
from penstock.immortal import wire
from penstock.immortal.binding import guard
from penstock.immortal.binding.errors import ImmortalError
from penstock.immortal.binding.machine import Checkpoint, Machine
from penstock.immortal.binding.snapshot import Outcome, spool

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
READ = 256 << 10
RETRY = 0.05
CONNECT = 60.0
MAX_UNWRITTEN = 1 << 30
MARK_EVERY = 1.0


class CoordinatorGoneError(ImmortalError):
    """The coordinator's connection ended; both are started again together."""


@dataclass
class Waiting:
    """Calls from outside that wait for their outcome."""

    futures: dict[str, asyncio.Future[Outcome]] = field(default_factory=dict)

    def settle(self, request: str, outcome: Outcome) -> None:
        future = self.futures.pop(request, None)
        if future is not None and not future.done():
            future.set_result(outcome)


class Shell:
    """One machine and its coordinator, for one life."""

    def __init__(
        self, machine: Machine, *, on_primary: Callable[[Shell], asyncio.Task[None] | None] | None = None
    ):
        self.machine = machine
        self.waiting = Waiting()
        machine.on_outcome = self.waiting.settle
        machine.on_impulse = self._impulse
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._on_primary = on_primary
        self._changed = asyncio.Event()
        self._unwritten = asyncio.Event()
        self.moved = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    async def serve(
        self, receive_port: int, send_port: int, is_there: Callable[[], bool] = lambda: True
    ) -> None:
        """Serve until the coordinator is gone, which `is_there` may tell early; always ends by raising."""
        guard.check_class(self.machine.spec)
        _, writer = await connected(receive_port, is_there)
        try:
            reader, other = await connected(send_port, is_there)
        except BaseException:
            writer.close()
            raise
        try:
            with guard.guarding():
                await self._together(reader, writer)
        finally:
            self.machine.abandon()
            writer.close()
            other.close()

    async def _together(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks = [
            asyncio.create_task(self._read(reader), name="read"),
            asyncio.create_task(self._write(writer), name="write"),
            asyncio.create_task(self._tick(), name="tick"),
        ]
        self._tasks = tasks
        try:
            while True:
                done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    self._tasks.remove(task)
                    task.result()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        decoder = wire.RecordDecoder()
        blob = None
        while True:
            try:
                data = await reader.read(READ)
            except OSError as error:
                raise CoordinatorGoneError(f"the connection to the coordinator broke: {error}") from None
            if not data:
                raise CoordinatorGoneError("the coordinator closed its connection")
            for event in decoder.feed(data):
                if isinstance(event, wire.CheckpointRecord):
                    blob = spool()
                elif isinstance(event, wire.Blob):
                    assert blob is not None
                    blob.write(event.piece)
                    if event.left == 0:
                        blob.seek(0)
                        with step("binding.load"), blob:
                            self.machine.load(blob)
                else:
                    self._receive(event)
            self.wrote()
            async with self.moved:
                self.moved.notify_all()
            await asyncio.sleep(0)  # whoever writes has a turn, too, while there is more to read

    def _receive(self, record: wire.Record) -> None:
        name = "binding.handle" if record.sequence >= 0 else f"binding.control.{record.body[1]}"
        with step(name):
            self.machine.receive(record)
        if self.machine.became_primary:
            self.machine.became_primary = False
            logger.info("%s is primary", self.machine.name)
            self._tasks.append(asyncio.create_task(self._hook(), name="on_primary"))
            task = self._on_primary(self) if self._on_primary is not None else None
            if task is not None:
                self._tasks.append(task)
            self._changed.set()

    async def _hook(self) -> None:
        await self.machine.instance.on_primary()
        self.wrote()

    def _impulse(self) -> None:
        """Somebody outside of handlers has sent one, from any thread."""
        if threading.get_ident() == self._thread:
            self.wrote()
        else:
            self._loop.call_soon_threadsafe(self.wrote)

    def wrote(self) -> None:
        """The machine may have something to be written, and timers may have changed."""
        self._changed.set()
        if self.machine.out:
            self._unwritten.set()

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await self._unwritten.wait()
            self._unwritten.clear()
            # Taken from the list, which stays: another thread may have hold of it, about to add an Impulse.
            out = self.machine.out[:]
            del self.machine.out[: len(out)]
            try:
                await self._write_all(writer, out)
            except OSError as error:
                raise CoordinatorGoneError(f"the connection to the coordinator broke: {error}") from None

    async def _write_all(self, writer: asyncio.StreamWriter, out: list[bytes | Checkpoint]) -> None:
        begin = 0
        for at, item in enumerate(out):
            if isinstance(item, Checkpoint):
                writer.write(b"".join(out[begin:at]))  # type: ignore[arg-type]
                begin = at + 1
                await self._write_checkpoint(writer, item)
        with step("binding.write"):
            writer.write(b"".join(out[begin:]))  # type: ignore[arg-type]
        await writer.drain()

    async def _write_checkpoint(self, writer: asyncio.StreamWriter, checkpoint: Checkpoint) -> None:
        with step("binding.checkpoint"), checkpoint.file as file:
            writer.write(wire.checkpoint_message(checkpoint.length))
            left = checkpoint.length
            while left:
                piece = file.read(min(left, 1 << 20))
                if not piece:
                    raise ImmortalError(f"a checkpoint ended {left} bytes early")
                left -= len(piece)
                writer.write(piece)
                await writer.drain()

    async def _tick(self) -> None:
        marked = time.monotonic()
        while True:
            wait = MARK_EVERY
            is_time = time.monotonic() - marked >= MARK_EVERY
            if is_time:
                marked = time.monotonic()
                refuse_too_much(self.machine.out)
            if self.machine.is_primary:
                now = time.time()
                due = self.machine.services.tick(now)
                if due is not None:
                    wait = min(wait, max(0.0, due - now))
                if is_time:
                    self.machine.mark(now)
                if self.machine.out:
                    self._unwritten.set()
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()


def refuse_too_much(out: Sequence[bytes | Checkpoint]) -> None:
    """End where output has piled up: what waits is in memory, and the coordinator may never read it."""
    if sum(len(item) for item in out if isinstance(item, bytes)) > MAX_UNWRITTEN:
        raise ImmortalError(
            f"the coordinator has not read for so long that {MAX_UNWRITTEN >> 20} MiB wait for it",
            hint="a destination is down, or slower than this immortal; start the pair again when it is up",
        )


async def connected(
    port: int, is_there: Callable[[], bool]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the coordinator, which may still be on its way."""
    deadline = time.monotonic() + CONNECT
    while True:
        try:
            return await asyncio.open_connection(HOST, port, limit=4 << 20)
        except ConnectionRefusedError:
            if time.monotonic() > deadline or not is_there():
                raise CoordinatorGoneError(f"no coordinator listens on port {port}") from None
            await asyncio.sleep(RETRY)
