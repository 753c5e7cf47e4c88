"""The append state machine (seed 003, "Append State Machine"), one `on_*` method a state.

A broker that is the only replica of its journals passes through the states that need no peer: Resolve,
AcquirePipeline, ValidatePreconditions, StreamContent, ReadAcknowledgements. The last one waits for the disk
where a cluster waits for its peers. Whatever goes wrong before the commit proposal rolls back; after it,
the append is in the journal, acknowledged or not.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from enum import Enum, auto

from penstock.base.errors import PenstockError
from penstock.journal import registers, validation
from penstock.journal.fragment import Fragment
from penstock.journal.protocol import AppendRequest, LabelSet, Status
from penstock.journal.replica import Replica

STALL_LIMIT = 10.0
MIN_RATE = 65536
"""A client that holds the pipeline must sustain this many bytes a second, with `STALL_LIMIT` seconds of grace, or
is dropped: others wait for it."""

_O_RDONLY = 1


class State(Enum):
    """The seed's states, as far as one replica goes through them."""

    RESOLVE = auto()
    ACQUIRE_PIPELINE = auto()
    VALIDATE_PRECONDITIONS = auto()
    STREAM_CONTENT = auto()
    READ_ACKNOWLEDGEMENTS = auto()
    FINISHED = auto()
    ERROR = auto()


class AppendStreamError(PenstockError):
    """The client's stream broke the contract of Append (reference 14)."""

    def __init__(self, complaint: str) -> None:
        super().__init__(f"append stream: {complaint}")


class AppendMachine:
    """One Append RPC. `run` steps through the states; the result stands in the attributes."""

    def __init__(
        self,
        first: AppendRequest,
        requests: AsyncIterator[AppendRequest],
        resolve: Callable[[str], Replica | None],
    ) -> None:
        self.state = State.RESOLVE
        self.status: int = Status.OK
        self.commit: Fragment | None = None
        self.registers = LabelSet()
        self.total_chunks = 0
        self._first = first
        self._requests = requests
        self._resolve = resolve
        self._replica: Replica | None = None
        self._ticket: int | None = None
        self._owns_pipeline = False

    async def run(self) -> None:
        """Step to the end. The pipeline is given back and uncommitted content rolled back in any case."""
        steps = {
            State.RESOLVE: self.on_resolve,
            State.ACQUIRE_PIPELINE: self.on_acquire_pipeline,
            State.VALIDATE_PRECONDITIONS: self.on_validate_preconditions,
            State.STREAM_CONTENT: self.on_stream_content,
            State.READ_ACKNOWLEDGEMENTS: self.on_read_acknowledgements,
        }
        try:
            while self.state in steps:
                await steps[self.state]()
        finally:
            self._release()

    async def on_resolve(self) -> None:
        self._replica = self._resolve(validation.split_meta(self._first.journal)[0])
        if self._replica is None:
            self._fail(Status.JOURNAL_NOT_FOUND)
        else:
            self.state = State.ACQUIRE_PIPELINE

    async def on_acquire_pipeline(self) -> None:
        assert self._replica is not None
        await self._replica.pipeline.acquire()
        self._owns_pipeline = True
        if self._replica.closed:
            self._fail(Status.JOURNAL_NOT_FOUND)
        else:
            self.state = State.VALIDATE_PRECONDITIONS

    async def on_validate_preconditions(self) -> None:
        """Registers, then the offset: bytes go to the furthest known end of the journal, and nowhere else."""
        assert self._replica is not None
        spool, index_end = self._replica.spool, self._replica.index.end
        self.registers = spool.registers
        check = self._first.check_registers if self._first.HasField("check_registers") else None
        furthest = max(spool.end, index_end)
        writable = self._replica.spec.flags != _O_RDONLY
        if not registers.check(spool.registers, check):
            self._fail(Status.REGISTER_MISMATCH)
        elif spool.end != furthest and not self._first.offset and writable:
            self._fail(Status.INDEX_HAS_GREATER_OFFSET)
        elif self._first.offset and self._first.offset != furthest:
            self._fail(Status.WRONG_APPEND_OFFSET)
        else:
            self.state = State.STREAM_CONTENT

    async def on_stream_content(self) -> None:
        """Take content until the client commits or fails; anything but a clean commit rolls back."""
        replica = self._replica
        assert replica is not None
        summer = hashlib.sha1()
        begin = -1
        committing = False
        deadline = asyncio.get_running_loop().time() + STALL_LIMIT
        while (request := await self._next(deadline)) is not None:
            self.total_chunks += 1
            deadline += len(request.content) / MIN_RATE
            if committing:
                raise AppendStreamError("expected EOF after empty Content chunk")
            if not request.content:
                _require_only_content(request)
                committing = True
                continue
            if begin < 0:
                if replica.spec.flags == _O_RDONLY:
                    self._fail(Status.NOT_ALLOWED)
                    return
                await replica.prepare()
                begin = replica.spool.end
            if replica.closed:
                self._fail(Status.JOURNAL_NOT_FOUND)
                return
            _require_only_content(request)
            replica.spool.content(request.content, replica.spool.delta)
            summer.update(request.content)
        if not committing:
            raise AppendStreamError("unexpected EOF")
        if replica.closed:
            self._fail(Status.JOURNAL_NOT_FOUND)
            return
        self._propose(begin, summer.digest())

    def _propose(self, begin: int, digest: bytes) -> None:
        assert self._replica is not None
        replica, first = self._replica, self._first
        changes_registers = first.HasField("union_registers") or first.HasField("subtract_registers")
        if begin < 0:
            if changes_registers:
                raise AppendStreamError("register modification requires non-empty Append")
            begin = max(replica.spool.end, replica.index.end)
            end = begin
        else:
            end = replica.spool.end + replica.spool.delta
            after = registers.apply(
                replica.spool.registers,
                first.union_registers if first.HasField("union_registers") else None,
                first.subtract_registers if first.HasField("subtract_registers") else None,
            )
            self._ticket = replica.adopt(after)
        self.registers = replica.spool.registers
        self.commit = Fragment(replica.spec.name, begin, end, digest, replica.spool.fragment.codec)
        self.state = State.READ_ACKNOWLEDGEMENTS

    async def on_read_acknowledgements(self) -> None:
        """Let the next append stream, and wait for the disk. A barrier waits for all before it."""
        assert self._replica is not None
        self._release()
        await self._replica.durable(self._ticket)
        self.state = State.FINISHED

    async def _next(self, deadline: float) -> AppendRequest | None:
        try:
            async with asyncio.timeout_at(deadline):
                return await anext(self._requests, None)
        except TimeoutError:
            raise AppendStreamError("client stream didn't sustain the minimum append data rate") from None

    def _fail(self, status: int) -> None:
        self.status = status
        self.state = State.ERROR

    def _release(self) -> None:
        if self._owns_pipeline and self._replica is not None:
            self._replica.spool.roll_back()
            self._replica.pipeline.release()
            self._owns_pipeline = False


def _require_only_content(request: AppendRequest) -> None:
    """Later messages carry content, and nothing else (reference 6)."""
    try:
        validation.validate_append_request(request, first=False)
    except validation.ValidationError:
        raise AppendStreamError("expected Content chunk") from None
