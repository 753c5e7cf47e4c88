"""One stream of replication to one peer: messages out, answers in, both at the same time and in order.

What is sent waits in a queue of bounded size while the peer is slow. Answers are counted, not matched: a peer answers
in the order in which it was asked. The first thing that goes wrong ends the stream for good, and everyone who waits
for it is told.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import grpc
import grpc.aio

from penstock.journal.cluster.peers import ReplicateCall
from penstock.journal.keys import MemberId
from penstock.journal.localspool import Spawn
from penstock.journal.protocol import ReplicateResponse, Status
from penstock.journal.replication import ReplicationError

QUEUED = 4 << 20
"""More bytes than this do not wait for a peer: content is held back."""
CLOSING = 10.0
"""Seconds that a peer has to acknowledge what it was sent before the stream was closed."""


class PeerStream:
    """A Replicate call. Used on one loop; its two tasks are its owner's (`spawn`)."""

    def __init__(
        self,
        member: MemberId,
        call: ReplicateCall,
        spawn: Spawn,
        broken: Callable[[ReplicationError], None],
    ) -> None:
        self.member = member
        self.error: ReplicationError | None = None
        self.answered = 0
        """Answers that came."""
        self.last = ReplicateResponse()
        self._call = call
        self._broken = broken
        self._messages: deque[bytes] = deque()
        self._queued = 0
        self._any_status: deque[bool] = deque()
        """Of each answer that is to come, whether it may be other than OK."""
        self._more = asyncio.Event()
        self._less: asyncio.Event | None = None
        self._moved: asyncio.Event | None = None
        self._closing = False
        self._sending = spawn(self._send(), f"replicate to {member.suffix}")
        self._receiving = spawn(self._receive(), f"acknowledgements of {member.suffix}")

    @property
    def has_room(self) -> bool:
        return self._queued <= QUEUED

    def send(self, message: bytes, *, answered: bool = False, any_status: bool = False) -> None:
        """Have a message sent after those before it. Content waits for `room` first."""
        if self.error is not None:
            raise self.error
        if answered:
            self._any_status.append(any_status)
        self._messages.append(message)
        self._queued += len(message)
        self._more.set()

    async def room(self) -> None:
        """Wait until little enough is queued."""
        while not self.has_room and self.error is None:
            if self._less is None:
                self._less = asyncio.Event()
            await self._less.wait()
        if self.error is not None:
            raise self.error

    async def acknowledged(self, number: int) -> None:
        """Wait until so many answers have come."""
        while self.answered < number:
            if self.error is not None:
                raise self.error
            if self._moved is None:
                self._moved = asyncio.Event()
            await self._moved.wait()

    def close(self) -> None:
        """Send no more. Answers to what was sent still count, if they come soon."""
        self._closing = True
        self._more.set()
        if self.error is not None:
            self._call.cancel()

    async def _send(self) -> None:
        try:
            while True:
                while self._messages:
                    message = self._messages.popleft()
                    await self._call.write(message)
                    self._queued -= len(message)
                    if self._less is not None and self.has_room:
                        self._less.set()
                        self._less = None
                if self._closing or self.error is not None:
                    break
                self._more.clear()
                await self._more.wait()
            await self._call.done_writing()
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSING):
                    await asyncio.wait((self._receiving,))
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            await asyncio.wait((self._receiving,))  # which knows why
        finally:
            self._call.cancel()

    async def _receive(self) -> None:
        try:
            while isinstance(response := await self._call.read(), ReplicateResponse):
                if not self._any_status:
                    raise ReplicationError(f"{self._name}: an answer that nobody asked for")
                if not self._any_status.popleft() and response.status != Status.OK:
                    raise ReplicationError(f"{self._name} does not go along: {Status.Name(response.status)}")
                self.last = response
                self.answered += 1
                self._tell()
            code, details = await self._call.code(), await self._call.details()
            if code == grpc.StatusCode.OK:
                self._fail(ReplicationError(f"{self._name}: the stream has ended"))
            else:
                self._fail(ReplicationError(f"{self._name}: {details or code.name}"))
        except ReplicationError as error:
            self._fail(error)
        except grpc.aio.AioRpcError as error:
            self._fail(ReplicationError(f"{self._name}: {error.details() or error.code().name}"))
        except asyncio.CancelledError:
            self._fail(ReplicationError(f"{self._name}: the stream was cancelled"))
            if not self._call.cancelled():
                raise
        finally:
            self._call.cancel()

    @property
    def _name(self) -> str:
        return f"replica {self.member.zone}/{self.member.suffix}"

    def _fail(self, error: ReplicationError) -> None:
        if self.error is None:
            self.error = error
            self._messages.clear()
            self._more.set()
            self._tell()
            if self._less is not None:
                self._less.set()
                self._less = None
            if not self._closing:
                self._broken(error)

    def _tell(self) -> None:
        if self._moved is not None:
            self._moved.set()
            self._moved = None
