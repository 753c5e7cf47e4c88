"""Calls end with an answer, whatever becomes of their handlers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import grpc.aio
import pytest

from penstock.journal import wire
from penstock.journal.auth import OpenAuthorizer
from penstock.journal.claims import Claims
from penstock.journal.client import AsyncClient, BrokerGoneError
from penstock.journal.metrics import Metrics
from penstock.journal.protocol import ListRequest, ListResponse, TrimRequest, TrimResponse
from penstock.journal.service import Service

from .brokers import in_loop


class Broken:
    """A service whose calls wait for something that is cancelled meanwhile."""

    async def trim(self, request: TrimRequest, claims: Claims) -> TrimResponse:
        waited_for = asyncio.get_running_loop().create_future()
        waited_for.cancel()
        await waited_for
        raise AssertionError

    async def list(self, request: ListRequest, claims: Claims) -> AsyncIterator[ListResponse]:
        await self.trim(TrimRequest(), claims)
        yield ListResponse()

    def __getattr__(self, name: str) -> object:
        return None


def test_a_call_is_answered_though_what_it_waited_for_was_cancelled() -> None:
    async def test() -> None:
        server = grpc.aio.server()
        metrics = Metrics()
        wire.register(server, cast("Service", Broken()), OpenAuthorizer(), metrics)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with AsyncClient(f"127.0.0.1:{port}") as client:
                with pytest.raises(BrokerGoneError, match="broken off") as told:
                    await client.trim("a/journal", 1)
                assert not told.value.harmless
                with pytest.raises(BrokerGoneError, match="broken off"):
                    await client.list()
            assert metrics.completed["Trim", "<error>"] == 1
        finally:
            await server.stop(None)

    in_loop(test)
