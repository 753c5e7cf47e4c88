"""A primary that has the original's service and none of ours: what is passed on to it goes as the original has it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from penstock.journal.cluster import proxy
from penstock.journal.cluster.peers import Peers
from penstock.journal.labels import label_set
from penstock.journal.protocol import (
    AppendRequest,
    AppendResponse,
    Head,
    Header,
    HeadsRequest,
    HeadsResponse,
    LabelSelector,
    ProcessSpec,
    Status,
)

from ..brokers import in_loop


@asynccontextmanager
async def primary(taken: list[AppendRequest]) -> AsyncIterator[Header]:
    """A server with the original's Append alone; the header of a route that it leads."""

    async def append(
        requests: AsyncIterator[AppendRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AppendResponse:
        taken.extend([request async for request in requests])
        return AppendResponse(status=Status.REGISTER_MISMATCH, registers=label_set({"AA": "1"}))

    handler = grpc.stream_unary_rpc_method_handler(
        append, AppendRequest.FromString, AppendResponse.SerializeToString
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("protocol.Journal", {"Append": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    header = Header(process_id=ProcessSpec.ID(zone="zone", suffix="broker-b"))
    header.route.members.append(header.process_id)
    header.route.endpoints.append(f"http://127.0.0.1:{port}")
    try:
        yield header
    finally:
        await server.stop(0)


def test_it_is_not_pinged_and_brokers_of_ours_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs up on who pings more often than every five minutes."""
    pinged: dict[str, bool] = {}

    def channel(target: str, options: Sequence[tuple[str, int]]) -> grpc.aio.Channel:
        pinged[target] = "grpc.keepalive_time_ms" in dict(options)
        return made(target, options=options)

    async def test() -> None:
        peers = Peers()
        peers.foreign = {"http://127.0.0.1:1"}
        for port in (1, 2):
            peers.append(f"http://127.0.0.1:{port}", "a/journal").cancel()
        await peers.close()
        assert pinged == {"127.0.0.1:1": False, "127.0.0.1:2": True}

    made = grpc.aio.insecure_channel
    monkeypatch.setattr(grpc.aio, "insecure_channel", channel)
    in_loop(test)


@pytest.mark.parametrize("size", [0, 5, (1 << 20) + 5])
def test_an_append_that_came_whole_is_streamed_to_it_and_its_answer_is_the_answer(size: int) -> None:
    async def test() -> None:
        taken: list[AppendRequest] = []
        content = bytes(size)
        request = AppendRequest(
            journal="a/journal", content=content, offset=7, union_registers=label_set({"AA": "2"})
        )
        peers = Peers()
        try:
            async with primary(taken) as header:
                response = await proxy.append_whole(peers, header, request)
        finally:
            await peers.close()
        assert response.status == Status.REGISTER_MISMATCH
        first, *pieces, last = taken
        request.ClearField("content")
        request.header.CopyFrom(header)
        assert first == request
        assert last == AppendRequest()
        assert all(piece.content and piece == AppendRequest(content=piece.content) for piece in pieces)
        assert b"".join(piece.content for piece in pieces) == content

    in_loop(test)


def test_where_its_journals_end_is_not_known_and_those_of_others_are() -> None:
    """One that is known to be of another make is not asked; one that is not says that it does not know the call."""

    async def test() -> None:
        asked: list[HeadsRequest] = []
        request = HeadsRequest(selector=LabelSelector(include=label_set({"kind": "log"})))
        peers = Peers()
        try:
            async with primary([]) as header, teller(asked) as ours, teller([]) as foreign:
                peers.foreign = {foreign}
                known = {header.route.endpoints[0]: {"a/theirs"}, ours: {"a/ours"}, foreign: {"a/ours"}}
                found = await proxy.heads(peers, request, known)
        finally:
            await peers.close()
        assert found == [Head(journal="a/ours", write_head=7)]
        assert asked == [HeadsRequest(selector=request.selector, do_not_proxy=True)]

    in_loop(test)


@asynccontextmanager
async def teller(asked: list[HeadsRequest]) -> AsyncIterator[str]:
    """A broker of ours that tells of two journals, be they asked for or not; its endpoint."""

    async def heads(
        request: HeadsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[HeadsResponse]:
        asked.append(request)
        yield HeadsResponse(heads=[Head(journal="a/ours", write_head=7)])
        yield HeadsResponse(heads=[Head(journal="a/of-nobody-s-business", write_head=8)])

    handler = grpc.unary_stream_rpc_method_handler(
        heads, HeadsRequest.FromString, HeadsResponse.SerializeToString
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("penstock.Local", {"Heads": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.stop(0)
