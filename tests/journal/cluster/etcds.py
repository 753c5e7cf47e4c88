"""What the tests with a real etcd share: running coroutines, and waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 60.0


def run(work: Coroutine[object, object, T]) -> T:
    """In an event loop of its own, not for ever."""

    async def limited() -> T:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(limited())


async def until(condition: Callable[[], object], patience: float = PATIENCE) -> None:
    async with asyncio.timeout(patience):
        while not condition():  # noqa: ASYNC110 - other threads and processes bring it about, too
            await asyncio.sleep(0.005)
