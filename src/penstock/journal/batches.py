"""Appends that come whole: one in a message, or many over one stream (`penstock.Local`).

On a stream each append is a transaction of its own. They are adopted one after another, in the order they came,
and acknowledged in that order as the disk catches up; after one that failed, later ones of its journal are not
tried, so what a client pipelined is in the journal as a prefix of what it sent. Appends that are independent of
each other are tried in any case. Neighbours in a message that want the same of one journal are adopted as a run
(`append.py`), which saves most of what a small append costs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator, Sequence
from typing import TypeAlias, cast

from penstock.base.errors import PenstockError
from penstock.journal import validation, wholes
from penstock.journal.append import Appending, AppendMachine, State
from penstock.journal.appending import NotInChargeError, StoppedServingError
from penstock.journal.claims import Claims
from penstock.journal.fragment import sum_parts
from penstock.journal.protocol import (
    AppendBatch,
    AppendBatchResult,
    AppendRequest,
    AppendResponse,
    AppendResult,
    Status,
)
from penstock.journal.replication import ReplicationError
from penstock.journal.suspension import NO_RESUME, RESUME
from penstock.journal.wholes import Whole, Wholes

log = logging.getLogger(__name__)

MAX_REFUSED = 100
_TELL_REGISTERS = frozenset((Status.OK, Status.REGISTER_MISMATCH))
WINDOW = 64
"""So many runs of a stream may wait for the disk; then no more are taken from it."""
MAX_RUN = 64
QUIET = 0.1
"""A stream on which nothing came for so many seconds may be ended when the broker stops."""
MAX_ANSWER = 32
"""A message answers no more runs than this, so that it stays small."""


class ElsewhereError(PenstockError):
    """The append is another broker's to make. Nothing was done, and of its content nothing was taken."""


def response_of(machine: AppendMachine) -> AppendResponse:
    """What the client is told of an append that has ended; of a run, of its first."""
    if machine.state is State.PROXY:
        raise ElsewhereError("the journal's primary is another broker, and this one passes no appends on")
    response = AppendResponse(
        status=cast("Status", machine.status),
        header=machine.header,
        total_chunks=machine.total_chunks,
        delayed_chunks=machine.delayed_chunks,
        store_health_error=machine.store_health_error,
    )
    if machine.commits:
        response.commit.CopyFrom(machine.commits[0].to_proto())
    if machine.status in _TELL_REGISTERS:
        response.registers.SetInParent()
        response.registers.CopyFrom(machine.registers)
    return response


async def answered(machine: AppendMachine, request: AppendRequest | None = None) -> AppendResponse:
    """Run an append, and tell what became of it. If it is certain that nothing did, that is a status.

    With the whole `request` it can be passed on to another broker.
    """
    try:
        await machine.run()
    except PenstockError as error:
        response = refusal(machine, error)
        if response is None:
            raise
        return response
    pass_on = machine.surroundings.pass_on
    if machine.state is State.PROXY and pass_on is not None and request is not None:
        return await pass_on(machine.header, request)
    return response_of(machine)


def refusal(machine: AppendMachine, error: PenstockError) -> AppendResponse | None:
    """The answer to an append that came to nothing for want of a broker, which is a reason to try again.

    None if it may be in the journal, or if the reason is another one.
    """
    if machine.state is State.READ_ACKNOWLEDGEMENTS:
        return None
    if isinstance(error, StoppedServingError):
        status = Status.NO_JOURNAL_PRIMARY_BROKER
    elif isinstance(error, (ReplicationError, NotInChargeError)):
        status = Status.INSUFFICIENT_JOURNAL_BROKERS
    else:
        return None
    log.info("an append is refused with %s: %s", Status.Name(status), error)
    header = machine.header if machine.header.etcd.revision else machine.surroundings.resolver.header()
    return AppendResponse(status=status, header=header)


async def append_whole(request: AppendRequest, surroundings: Appending, claims: Claims) -> AppendResponse:
    """One append that is one message."""
    return await answered(machine_of((wholes.whole(request),), surroundings, claims), request)


def machine_of(
    run: Sequence[Whole],
    surroundings: Appending,
    claims: Claims,
    *,
    summed: bool = True,
    era: int | None = None,
) -> AppendMachine:
    """The machine of an append whose content is in its first message, or of a run of those."""
    first = run[0].first
    validation.validate_append_request(first)
    contents = tuple(append.content for append in run)
    return AppendMachine(first, contents, surroundings, claims, summed=summed, era=era)


Outcome: TypeAlias = "AppendMachine | AppendResult | asyncio.Task[AppendResult]"
"""Of appends on a stream: one that waits for its acknowledgement, one that is decided, one that another makes."""


class _Count:
    """Appends of one stream: how many came, how many were answered."""

    __slots__ = ("answered", "taken")

    def __init__(self) -> None:
        self.taken = 0
        self.answered = 0


async def appends(
    batches: AsyncIterator[AppendBatch | Wholes],
    surroundings: Appending,
    claims: Claims,
    stopping: asyncio.Event,
) -> AsyncGenerator[AppendBatchResult, None]:
    """The answers to one stream of appends. Ends with it; or, when the broker is `stopping`, as soon as it is idle."""
    adopted: asyncio.Queue[Outcome | None] = asyncio.Queue(WINDOW)
    count = _Count()
    adopting = asyncio.create_task(_adopt(batches, surroundings, claims, adopted, count), name="appends")
    ending = asyncio.create_task(_end_idle(adopted, adopting, count, stopping), name="end of appends")
    waiting: list[Outcome | None] = []
    try:
        done = False
        while not done:
            waiting = [await adopted.get()]
            while not adopted.empty() and len(waiting) < MAX_ANSWER:
                waiting.append(adopted.get_nowait())
            answer = AppendBatchResult()
            for outcome in waiting:
                if outcome is None:
                    done = True
                else:
                    await _acknowledge(outcome, answer)
            if answer.results:
                yield answer
                count.answered += len(answer.results)
        await asyncio.wait((adopting,))
        if not adopting.cancelled():
            adopting.result()
    finally:
        adopting.cancel()
        ending.cancel()
        await asyncio.wait((adopting, ending))
        while not adopted.empty():
            waiting.append(adopted.get_nowait())
        for outcome in waiting:
            if isinstance(outcome, asyncio.Task):
                outcome.cancel()


async def _end_idle(
    adopted: asyncio.Queue[Outcome | None],
    adopting: asyncio.Task[None],
    count: _Count,
    stopping: asyncio.Event,
) -> None:
    """Nobody should wait for a stream to which nothing is sent. What is on its way when it ends is in doubt, so it
    ends when there was nothing for a moment."""
    await stopping.wait()
    before = -1
    while not before == count.taken == count.answered:
        before = count.taken
        await asyncio.sleep(QUIET)
    adopting.cancel()
    await adopted.put(None)


async def _adopt(
    batches: AsyncIterator[AppendBatch | Wholes],
    surroundings: Appending,
    claims: Claims,
    adopted: asyncio.Queue[Outcome | None],
    count: _Count,
) -> None:
    """Take appends in order, as far as to where they wait for their acknowledgement."""
    refused: dict[str, AppendResult] = {}
    eras: dict[str, int | None] = {}
    try:
        async for message in batches:
            batch = wholes.wholes(message)
            count.taken += len(batch.appends)
            for run in _runs(batch.appends):
                journal = validation.split_meta(run[0].first.journal)[0]
                while run:
                    if journal in refused and not batch.independent:
                        await adopted.put(refused[journal])
                        del run[:1]
                        continue
                    era = None if batch.independent else eras.get(journal)
                    outcome = await _adopted(run, surroundings, claims, summed=not batch.unsummed, era=era)
                    if isinstance(outcome, asyncio.Task):
                        del run[:1]
                        if not batch.independent:
                            await asyncio.wait((outcome,))  # the next must not overtake it
                            if (result := outcome.result()).error or result.response.status != Status.OK:
                                refused[journal] = result
                                _require_few(refused)
                    elif isinstance(outcome, AppendMachine):
                        # A sync may still fail: then those behind it are refused by this.
                        eras[journal] = outcome.era
                        del run[: outcome.taken]
                    else:
                        del run[:1]
                        if not batch.independent:
                            refused[journal] = outcome
                            _require_few(refused)
                    await adopted.put(outcome)
    except asyncio.CancelledError:
        raise  # nobody takes anything from the queue any more
    except BaseException:
        await adopted.put(None)
        raise
    await adopted.put(None)


def _runs(appends: Sequence[Whole]) -> Iterator[list[Whole]]:
    """The appends in order, neighbours that can be adopted together in one list."""
    run: list[Whole] = []
    extended = False
    for append in appends:
        plain = bool(append.content) and _is_plain(append.first)
        if run and not (
            plain and extended and len(run) < MAX_RUN and _wants_the_same(run[0].first, append.first)
        ):
            yield run
            run = []
        run.append(append)
        extended = plain
    if run:
        yield run


def _is_plain(request: AppendRequest) -> bool:
    """Whether an append changes and expects nothing besides its content that the next one would notice."""
    return bool(
        request.suspend in (RESUME, NO_RESUME)
        and not request.offset
        and not request.min_etcd_revision
        and not request.HasField("union_registers")
        and not request.HasField("subtract_registers")
        and not request.HasField("header")
    )


def _wants_the_same(first: AppendRequest, request: AppendRequest) -> bool:
    checks = first.HasField("check_registers")
    return (
        request.journal == first.journal
        and request.suspend == first.suspend
        and request.do_not_proxy == first.do_not_proxy
        and request.HasField("check_registers") == checks
        and (not checks or request.check_registers == first.check_registers)
    )


def _require_few(refused: dict[str, AppendResult]) -> None:
    if len(refused) > MAX_REFUSED:
        raise PenstockError(f"appends to more than {MAX_REFUSED} journals failed on one stream")


async def _adopted(
    run: Sequence[Whole], surroundings: Appending, claims: Claims, *, summed: bool, era: int | None
) -> Outcome:
    """The machine that waits for its acknowledgement, of as many of the run as it has taken; or why the first of
    them was refused; or the first, on its way to another broker."""
    machine: AppendMachine | None = None
    try:
        machine = machine_of(run, surroundings, claims, summed=summed, era=era)
        await machine.run_to(State.READ_ACKNOWLEDGEMENTS)
        if machine.state is State.PROXY and surroundings.pass_on is not None:
            passing = _passed_on(surroundings.pass_on(machine.header, run[0].request()))
            return asyncio.create_task(passing, name="append passed on")
        if machine.state is not State.READ_ACKNOWLEDGEMENTS:
            return AppendResult(response=response_of(machine))
    except (PenstockError, OSError) as error:
        if len(run) > 1:  # each stands or falls by itself
            return await _adopted(run[:1], surroundings, claims, summed=summed, era=era)
        refused = (
            refusal(machine, error) if machine is not None and isinstance(error, PenstockError) else None
        )
        return AppendResult(response=refused) if refused is not None else AppendResult(error=str(error))
    machine.release()
    return machine


async def _passed_on(call: Awaitable[AppendResponse]) -> AppendResult:
    try:
        return AppendResult(response=await call)
    except (PenstockError, OSError) as error:
        return AppendResult(error=str(error), in_doubt=True)


async def _acknowledge(outcome: Outcome, answer: AppendBatchResult) -> None:
    """Add what became of an append, or of each of a run, to the answer."""
    if isinstance(outcome, asyncio.Task):
        answer.results.append(await outcome)
        return
    if isinstance(outcome, AppendResult):
        answer.results.append(outcome)
        return
    try:
        await outcome.run()
    except (PenstockError, OSError) as error:
        answer.results.extend([AppendResult(error=str(error), in_doubt=True)] * outcome.taken)
        return
    first = response_of(outcome)
    for commit in outcome.commits:
        response = answer.results.add().response
        response.CopyFrom(first)  # but for where it landed all are alike
        landed = response.commit
        landed.begin, landed.end = commit.begin, commit.end
        digest = landed.sum
        digest.part1, digest.part2, digest.part3 = sum_parts(commit.sum)
