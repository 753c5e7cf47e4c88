"""One watch of etcd, over a stream of its own.

A watch that is silent looks like one under which nothing changes. So it is asked for its progress all the time, and
one that gives no sign of life is a failed one: a broker that no longer sees changes must find out before its
lease ends. How far the progress is said to be is not used; before 3.5.8 etcd may say it too early.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from penstock.journal.cluster import etcd_pb2 as pb
from penstock.journal.cluster import etcd_values as values
from penstock.journal.cluster.etcd_endpoints import Line
from penstock.journal.cluster.etcd_errors import (
    CompactedError,
    EtcdAwayError,
    EtcdError,
    TokenError,
    translated,
)
from penstock.journal.cluster.etcd_values import Changes

if TYPE_CHECKING:
    Call = grpc.aio.StreamStreamCall[pb.WatchRequest, pb.WatchResponse]

ASK_EVERY = 2.0
SILENCE = 6.0
"""Seconds between questions, and without an answer."""


async def watched(
    line: Line, prefix: bytes, start: int, metadata: tuple[tuple[str, str], ...]
) -> AsyncGenerator[Changes]:
    """Changes of whole revisions from `start` on, and word without changes that all is well. Ends by an error."""
    call = line.watch(_requests(prefix, start), metadata=metadata)
    events: list[pb.Event] = []
    try:
        while True:
            response = await _next(call, line.name)
            if response.canceled:
                raise _cancelled(response, line.name, start)
            events += response.events
            if response.fragment:
                continue
            yield Changes(values.origin_of(response.header), tuple(map(values.change_of, events)))
            events = []
    finally:
        call.cancel()


async def _requests(prefix: bytes, start: int) -> AsyncIterator[pb.WatchRequest]:
    create = pb.WatchCreateRequest(
        key=prefix, range_end=values.after(prefix), start_revision=start, progress_notify=True, fragment=True
    )
    yield pb.WatchRequest(create_request=create)
    while True:
        await asyncio.sleep(ASK_EVERY)
        yield pb.WatchRequest(progress_request=pb.WatchProgressRequest())


async def _next(call: Call, endpoint: str) -> pb.WatchResponse:
    try:
        async with asyncio.timeout(SILENCE):
            response = await call.read()
    except TimeoutError:
        raise EtcdAwayError(f"etcd at {endpoint}: the watch gives no sign of life") from None
    except grpc.aio.AioRpcError as error:
        raise translated(error, endpoint, changes=False) from None
    if isinstance(response, pb.WatchResponse):
        return response
    raise EtcdAwayError(f"etcd at {endpoint} has ended the watch")


def _cancelled(response: pb.WatchResponse, endpoint: str, start: int) -> EtcdError:
    if response.compact_revision:
        return CompactedError(
            f"etcd at {endpoint} has forgotten revision {start}; it begins at {response.compact_revision}"
        )
    reason = response.cancel_reason or "no reason given"
    if "permission denied" in reason or "auth" in reason:
        # Also its word for a token that has become too old.
        return TokenError(f"etcd at {endpoint} does not let us watch: {reason}")
    return EtcdAwayError(f"etcd at {endpoint} has ended the watch: {reason}")
