"""One append over one connection: in one message if it fits and the broker is ours, or else as a stream.

A stream (reference 14) is the parameters, the content, an empty message that means to commit, and the end.

A broker commits only what it has seen the end of, so a stream that breaks before the empty message was sent has
changed nothing. It may answer early, with a status, while the client is still sending.
"""

# ruff: noqa: ASYNC109 - time-outs are sent to the broker, which ends the call by them as well

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Sequence

import grpc
import grpc.aio

from penstock.journal import chunks
from penstock.journal.client import requests
from penstock.journal.client.connection import Metadata
from penstock.journal.client.errors import BrokerGoneError, translated
from penstock.journal.client.routes import Line, connected
from penstock.journal.protocol import AppendRequest, AppendResponse

Call = grpc.aio.StreamUnaryCall[AppendRequest | chunks.Content, AppendResponse]


Content = Sequence[memoryview] | AsyncIterable[bytes]


async def append_over(
    line: Line, first: AppendRequest, content: Content, timeout: float, metadata: Metadata
) -> AppendResponse:
    """The broker's answer, whatever it says. Nothing is sent before there is a connection."""
    try:
        async with asyncio.timeout(timeout):
            there = await connected(line)
    except TimeoutError:
        there = False
    if not there:
        raise BrokerGoneError(
            f"no broker answers at {line.address}", hint="see whether it is running", harmless=True
        )
    small = not isinstance(content, AsyncIterable) and sum(map(len, content)) <= requests.APPEND_CHUNK
    if line.takes_whole and small:
        assert not isinstance(content, AsyncIterable)
        try:
            return await line.calls.append_whole(
                requests.whole(first, content), timeout=timeout, metadata=metadata
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise translated(error, line.address) from None
            line.takes_whole = False  # not a broker of ours; it has not seen the append
    return await stream_append(line, first, content, timeout, metadata)


async def stream_append(
    line: Line,
    first: AppendRequest,
    content: Content,
    timeout: float,
    metadata: Metadata,
) -> AppendResponse:
    """The broker's answer. Whatever ends this early, a failing `content` included, takes the append back."""
    call = line.calls.append(timeout=timeout, metadata=metadata)
    committing = False
    try:
        try:
            await _send(call, first, content)
            committing = True
            await call.write(AppendRequest())
            await call.done_writing()
        except (asyncio.InvalidStateError, grpc.aio.UsageError, grpc.aio.AioRpcError):
            pass  # it takes no more: it has answered already, or the call itself knows why
        return await call
    except grpc.aio.AioRpcError as error:
        failure = translated(error, line.address)
        if isinstance(failure, BrokerGoneError) and not committing:
            failure.harmless = True
        raise failure from None
    finally:
        call.cancel()


async def _send(call: Call, first: AppendRequest, content: Content) -> None:
    await call.write(first)
    if isinstance(content, AsyncIterable):
        async for piece in content:
            for message in requests.chunks(requests.pieces_of(piece)):
                await call.write(message)
    else:
        for message in requests.chunks(content):
            await call.write(message)
