"""Appends that come whole: one in a message, or many over one stream (`penstock.Local`).

On a stream each append is a transaction of its own. They are adopted one after another, in the order they came,
and acknowledged in that order as the disk catches up; after one that failed, later ones of its journal are not
tried, so what a client pipelined is in the journal as a prefix of what it sent. Appends that are independent of
each other are tried in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import cast

from penstock.base.errors import PenstockError
from penstock.journal import validation
from penstock.journal.append import Appending, AppendMachine, State
from penstock.journal.claims import Claims
from penstock.journal.protocol import (
    AppendBatch,
    AppendBatchResult,
    AppendRequest,
    AppendResponse,
    AppendResult,
    Status,
)

MAX_REFUSED = 100
WINDOW = 256
"""So many appends of a stream may wait for the disk; then no more are taken from it."""


def response_of(machine: AppendMachine) -> AppendResponse:
    """What the client is told of an append that has ended."""
    if machine.state is State.PROXY:
        raise PenstockError("the journal's primary is another broker, and this one passes no appends on")
    response = AppendResponse(
        status=cast("Status", machine.status),
        header=machine.header,
        total_chunks=machine.total_chunks,
        delayed_chunks=machine.delayed_chunks,
        store_health_error=machine.store_health_error,
    )
    if machine.commit is not None:
        response.commit.CopyFrom(machine.commit.to_proto())
    if machine.status in (Status.OK, Status.REGISTER_MISMATCH):
        response.registers.SetInParent()
        response.registers.CopyFrom(machine.registers)
    return response


def whole(
    request: AppendRequest,
    surroundings: Appending,
    claims: Claims,
    *,
    summed: bool = True,
    era: int | None = None,
) -> AppendMachine:
    """The machine of an append whose content is in its first message."""
    first = _parameters(request)
    validation.validate_append_request(first)
    return AppendMachine(first, request.content, surroundings, claims, summed=summed, era=era)


def _parameters(request: AppendRequest) -> AppendRequest:
    """The request without its content; a new message, since one keeps the memory of what it was parsed from."""
    first = AppendRequest(
        journal=request.journal,
        do_not_proxy=request.do_not_proxy,
        offset=request.offset,
        suspend=request.suspend,
        min_etcd_revision=request.min_etcd_revision,
    )
    for name in ("header", "check_registers", "union_registers", "subtract_registers"):
        if request.HasField(name):
            getattr(first, name).CopyFrom(getattr(request, name))
    return first


async def appends(
    batches: AsyncIterator[AppendBatch], surroundings: Appending, claims: Claims
) -> AsyncGenerator[AppendBatchResult, None]:
    """The answers to one stream of appends."""
    adopted: asyncio.Queue[AppendMachine | AppendResult | None] = asyncio.Queue(WINDOW)
    adopting = asyncio.create_task(_adopt(batches, surroundings, claims, adopted), name="appends")
    try:
        done = False
        while not done:
            waiting: list[AppendMachine | AppendResult | None] = [await adopted.get()]
            while not adopted.empty():
                waiting.append(adopted.get_nowait())
            if waiting[-1] is None:
                waiting.pop()
                done = True
            if waiting:
                yield AppendBatchResult(results=[await _acknowledged(one) for one in waiting])  # type: ignore[arg-type]
        await adopting
    finally:
        adopting.cancel()
        await asyncio.wait((adopting,))


async def _adopt(
    batches: AsyncIterator[AppendBatch],
    surroundings: Appending,
    claims: Claims,
    adopted: asyncio.Queue[AppendMachine | AppendResult | None],
) -> None:
    """Take appends in order, as far as to where they wait for their acknowledgement."""
    refused: dict[str, AppendResult] = {}
    eras: dict[str, int | None] = {}
    try:
        async for batch in batches:
            for request in batch.appends:
                journal = validation.split_meta(request.journal)[0]
                if journal in refused and not batch.independent:
                    await adopted.put(refused[journal])
                    continue
                era = None if batch.independent else eras.get(journal)
                outcome = await _adopted(request, surroundings, claims, summed=not batch.unsummed, era=era)
                if isinstance(outcome, AppendMachine):
                    eras[journal] = (
                        outcome.era
                    )  # a sync may still fail: then those behind it are refused by this
                if isinstance(outcome, AppendResult) and not batch.independent:
                    refused[journal] = outcome
                    if len(refused) > MAX_REFUSED:
                        raise PenstockError(
                            f"appends to more than {MAX_REFUSED} journals failed on one stream"
                        )
                await adopted.put(outcome)
    except asyncio.CancelledError:
        raise  # nobody takes anything from the queue any more
    except BaseException:
        await adopted.put(None)
        raise
    await adopted.put(None)


async def _adopted(
    request: AppendRequest, surroundings: Appending, claims: Claims, *, summed: bool, era: int | None
) -> AppendMachine | AppendResult:
    try:
        machine = whole(request, surroundings, claims, summed=summed, era=era)
        await machine.run_to(State.READ_ACKNOWLEDGEMENTS)
        if machine.state is not State.READ_ACKNOWLEDGEMENTS:
            return AppendResult(response=response_of(machine))
    except (PenstockError, OSError) as error:
        return AppendResult(error=str(error))
    machine.release()
    return machine


async def _acknowledged(one: AppendMachine | AppendResult) -> AppendResult:
    if isinstance(one, AppendResult):
        return one
    try:
        await one.run()
    except (PenstockError, OSError) as error:
        return AppendResult(error=str(error))
    return AppendResult(response=response_of(one))
