"""The state of an append in which the client's content is taken (reference 14, "StreamContent").

Each chunk goes to every replica as it comes. Small ones are written on the spot, large ones in a thread, while the
next is received. The client's end commits, whatever else ends the append rolls back.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress

from penstock.base.disk import Buffer
from penstock.journal import registers, validation
from penstock.journal.appending import AppendBase, AppendStreamError, State
from penstock.journal.chunks import Content
from penstock.journal.flow import MinimumRate
from penstock.journal.fragment import ZERO_SUM, Fragment
from penstock.journal.inflow import Inflow
from penstock.journal.protocol import AppendRequest, Status
from penstock.journal.suspension import NO_RESUME, RESUME
from penstock.journal.wholes import Pieces, parts_of

LARGE = 128 << 10
"""From this size on a chunk is worth the way to a thread and back."""
RUN = 4 << 20
"""A run has no more content than this, which is what a message may have: nobody waits longer for it than for one."""
_SUM_OF_NOTHING = hashlib.sha1().digest()


class ContentStates(AppendBase):
    """From the first byte of the client's content to the proposal that commits it."""

    __slots__ = ()

    async def on_stream_content(self) -> None:
        """One message of the client, or its end. The first call may roll the fragment."""
        if self._minimum is None:
            await self._begin_content()
        if isinstance(self._requests, tuple):
            await self._take_whole(self._requests)
            return
        request = await self._next(self._requests)
        if request is None:
            if not self._committing:
                raise AppendStreamError("unexpected EOF")
            await self._written()
            await self._propose()
            return
        self.total_chunks += 1
        if self._committing:
            raise AppendStreamError("expected EOF after empty Content chunk")
        _require_only_content(request)
        if not request.content:
            self._committing = True
        else:
            await self._take(request.content)

    async def _take_whole(self, contents: tuple[Buffer | Pieces, ...]) -> None:
        """As if the client had sent one chunk, the empty message, and its end; and so for each append of the run."""
        run = contents[: self._length_of_run(contents)]
        self.taken = len(run)
        self.total_chunks = 1 + bool(run[0])
        self._requests = ()  # nobody holds it until the disk has it
        if run[0]:
            await self._take_run(run)
        await self._written()
        if self.state is State.STREAM_CONTENT:
            await self._propose()
        if self.taken > 1:
            self.commits = [part for commit in self.commits for part in self._parts(commit, run)]

    async def _take_run(self, run: tuple[Buffer | Pieces, ...]) -> None:
        for chunk in _chunks(part for content in run for part in parts_of(content)):
            await self._take(chunk)
            if self.state is not State.STREAM_CONTENT:
                return

    def _length_of_run(self, contents: tuple[Buffer | Pieces, ...]) -> int:
        """How many appends extend the fragment as it stands: up to the first that would begin another, or wait."""
        replica, local, spec = self._owned(), self._held().local, self._spec
        assert spec is not None
        first_alone = self._with.first_alone and local.fragment.begin == replica.index.begin
        if len(contents) == 1 or first_alone or self._with.flow.maximum_of(spec.max_append_rate):
            return 1
        room = spec.fragment.length - local.fragment.length
        size = 0
        for at, content in enumerate(contents):
            if at and (size > room or size + len(content) > RUN):
                return at
            size += len(content)
        return len(contents)

    def _parts(self, commit: Fragment, run: tuple[Buffer | Pieces, ...]) -> Iterator[Fragment]:
        """Where each append of a run landed."""
        end = commit.begin
        for content in run:
            begin, end = end, end + len(content)
            digest = _sum(content) if self._summed else ZERO_SUM
            yield Fragment(commit.journal, begin, end, digest, commit.codec)

    async def _begin_content(self) -> None:
        """Roll if it is time to; from here on the client is policed."""
        replica, pipeline = self._owned(), self._held()
        proposal = self._proposal()
        if proposal != pipeline.local.fragment and not replica.read_only:
            await pipeline.propose(proposal, pipeline.local.registers)
        self.begin = max(pipeline.local.spool.end, replica.index.end if replica.read_only else 0)
        self._invalidations = replica.invalidations
        self._minimum = MinimumRate(self._with.flow, self._with.clock())

    async def _take(self, content: Buffer) -> None:
        replica, local = self._owned(), self._held().local
        if replica.read_only or self._first.suspend not in (RESUME, NO_RESUME):
            self._fail(Status.NOT_ALLOWED)
            return
        if not self._began:
            self._began = True
            await local.ready()
            # The first append of a fragment has the fragment's own sum.
            summed = self._summed and self.taken == 1 and local.fragment.length
            self._summer = hashlib.sha1() if summed else None
        if replica.closed:
            self._fail_gone()
            return
        assert self._spec is not None
        assert self._minimum is not None
        rate = self._with.flow.maximum_of(self._spec.max_append_rate)
        free = self._is_in_the_way
        delay = 0.0 if free else replica.rate.delay(len(content), rate, self._with.clock())
        if delay:
            self.delayed_chunks += 1
            await self._wait_for_balance(self._with.clock() + delay)
            self._minimum.excuse(self._with.clock())
        pipeline = self._held()
        if pipeline.replicated:
            await pipeline.scatter(content)
        if self._inflow is None and len(content) < LARGE and local.has_room(len(content)):
            self._write(content)
            return
        if self._inflow is None:
            self._inflow = Inflow(self._write, self._with.threads)
        await self._inflow.put(content)

    def _write(self, content: Buffer) -> None:
        self._held().content(content)
        if self._summer is not None:
            self._summer.update(content)

    async def _written(self) -> None:
        if self._inflow is not None:
            await self._inflow.drained()

    @property
    def _is_in_the_way(self) -> bool:
        """Whether the journal or its route has changed since content began: that takes effect when we are done."""
        return self._owned().invalidations != self._invalidations

    async def _wait_for_balance(self, until: float) -> None:
        """Let time pass, unless the journal goes or changes: a debt may be of hours, and others wait for us."""
        replica = self._owned()
        while not (replica.closed or self._is_in_the_way) and (rest := until - self._with.clock()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await replica.changed().wait()
        if self._is_in_the_way:
            replica.rate.forgive()

    async def _propose(self) -> None:
        """Commit what was streamed, and the registers with it."""
        replica, pipeline, first = self._owned(), self._held(), self._first
        if replica.closed:
            self._fail_gone()
            return
        local = pipeline.local
        local.require_sound()
        if self.era is not None and self.era != local.era:
            raise AppendStreamError("an earlier append of this stream was given up")
        self.era = local.era
        if self._changing and not local.spool.delta:
            raise AppendStreamError("register modification requires non-empty Append")
        end, digest, after = self.begin + local.spool.delta, _SUM_OF_NOTHING, local.registers
        if self._changing:
            after = registers.apply(
                local.registers,
                first.union_registers if first.HasField("union_registers") else None,
                first.subtract_registers if first.HasField("subtract_registers") else None,
            )
        self._require_in_charge()
        self._ticket = await pipeline.commit(after, appends=self.taken)
        if end > self.begin and self._summed:
            digest = self._summer.digest() if self._summer is not None else local.fragment.sum
        elif not self._summed:
            digest = ZERO_SUM
        self.registers = local.registers
        self.commits = [Fragment(replica.spec.name, self.begin, end, digest, local.fragment.codec)]
        self.state = State.READ_ACKNOWLEDGEMENTS

    async def _next(self, requests: AsyncIterator[AppendRequest | Content]) -> AppendRequest | Content | None:
        assert self._minimum is not None
        self._minimum.excuse(self._with.clock())  # since the last chunk came it was we who were busy
        try:
            async with asyncio.timeout_at(self._minimum.deadline):
                request = await anext(requests, None)
        except TimeoutError:
            raise AppendStreamError("client stream didn't sustain the minimum append data rate") from None
        if request is not None:
            self._minimum.chunk(len(request.content), self._with.clock())
        return request


def _chunks(parts: Iterable[Buffer]) -> Iterator[Buffer]:
    """Large parts as they are, small ones that are neighbours as one."""
    small: list[Buffer] = []
    for part in parts:
        if len(part) < LARGE:
            small.append(part)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield part
    if small:
        yield b"".join(small)


def _sum(content: Buffer | Pieces) -> bytes:
    summer = hashlib.sha1()
    for part in parts_of(content):
        summer.update(part)
    return summer.digest()


def _require_only_content(request: AppendRequest | Content) -> None:
    """Later messages carry content, and nothing else (reference 6)."""
    if isinstance(request, Content):
        return
    try:
        validation.validate_append_request(request, first=False)
    except validation.ValidationError:
        raise AppendStreamError("expected Content chunk") from None
