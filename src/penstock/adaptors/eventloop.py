"""An asyncio loop in a thread of its own, for drivers that are asynchronous: what they do goes on between two calls."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class EventLoop:
    """Runs from the first moment until `close`, which ends all that is still under way."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[object, object, T], timeout: float) -> T:
        """Do `work` in the loop and wait for it. Raises TimeoutError; the work is cancelled then."""
        if not self._thread.is_alive():
            work.close()
            raise ConnectionError("the loop is closed")
        doing = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, timeout), self._loop)
        try:
            return doing.result()
        except concurrent.futures.CancelledError:
            raise ConnectionError("the loop was closed") from None
        except BaseException:
            doing.cancel()
            raise

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(_end_all(asyncio.all_tasks(self._loop)))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


async def _end_all(tasks: set[asyncio.Task[object]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
