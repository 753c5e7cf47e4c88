"""Work that a cancelled caller waits for all the same.

A call handed to a thread goes on whatever becomes of the task that asked for it. Who holds a lock for such a
call must not let go of it before the call has ended, or the next holder meets a file that is still being
written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def uncancelled(work: Awaitable[T]) -> T:
    """The result of `work`, which is carried to its end; a cancellation of the caller takes effect after it."""
    future = asyncio.ensure_future(work)
    cancellation: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is None:
        return future.result()
    if not future.cancelled():
        future.exception()  # seen, so that nobody logs it as forgotten
    raise cancellation
