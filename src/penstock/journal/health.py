"""Store health: whether fragments could be written and read just now (reference, 19 "Health").

A check puts a small file, reads it back, finds it in a listing, signs it and, if the signed URL is of the web,
fetches it. A store of read-only journals belongs to another cluster and is only listed. Checks come every half
hour while they succeed, and soon, then less and less often, while they fail.

`Schedule` is pure. `Watch` is one store's loop; it runs each check in a thread of its own, so that neither
uploads that wait for another store nor a file system that hangs can keep a check from starting.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import random
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import ParamSpec, TypeVar

from penstock.base.errors import PenstockError
from penstock.journal.metrics import Metrics
from penstock.journal.stores import FragmentStore

P = ParamSpec("P")
T = TypeVar("T")

DIRECTORY, NAME = ".test", "health-check"
PATH = f"{DIRECTORY}/{NAME}"
CONTENT = b"health-check\n"
PROBE = ".gazette-delete-probe"
PROBE_TIMEOUT = 60.0
FETCH_TIMEOUT = 30.0
SIGNED_FOR = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Pace:
    """Times in seconds; tests have their own."""

    healthy: float = 1800.0
    failing: tuple[float, ...] = (0.0, 0.1, 1.0, 1.0, 10.0, 10.0, 100.0)
    """Before the next check, after the first failure in a row, the second ...; the last stays."""
    jitter: float = 0.2
    timeout: float = 60.0
    sweep: float = 3600.0


class Schedule:
    """When the next check of a store is due."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._failures = 0

    def after(self, ok: bool, chance: float) -> float:
        """The wait after a check that ended so; `chance`, from 0 up to 1, places it within the jitter."""
        if ok:
            self._failures = 0
            wait = self._pace.healthy
        else:
            wait = self._pace.failing[min(self._failures, len(self._pace.failing) - 1)]
            self._failures += 1
        return wait * (1 + self._pace.jitter * (2 * chance - 1))


class Health:
    """What is known of one store; written by its watch alone."""

    def __init__(self) -> None:
        self.checked = False
        self.error = ""
        """Why the last check failed; "" if it did not, or none has ended yet."""
        self.failures = 0
        """Checks in a row that failed."""
        self._changed = asyncio.Event()

    def changed(self) -> asyncio.Event:
        """Set when the next check has ended. Take it before looking at the state."""
        return self._changed

    async def first_check(self) -> None:
        while not self.checked:
            await self._changed.wait()

    def tell(self, error: str) -> None:
        self.checked, self.error = True, error
        self.failures = self.failures + 1 if error else 0
        ended, self._changed = self._changed, asyncio.Event()
        ended.set()

    def forget(self) -> None:
        """What was known says nothing any more; whoever needs to know waits for the next check."""
        self.checked, self.error, self.failures = False, "", 0


class Watch:
    """Checks one store for as long as `run` runs. `store` is asked anew for each check."""

    def __init__(
        self,
        store: Callable[[], FragmentStore],
        metrics: Metrics,
        pace: Pace,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.health = Health()
        self._store = store
        self._metrics = metrics
        self._pace = pace
        self._chance = chance
        self._schedule = Schedule(pace)
        self._again = asyncio.Event()
        self._under_way: asyncio.Future[str] | None = None

    async def run(self) -> None:
        while True:
            self._again.clear()
            error = await self._check()
            if self._again.is_set():
                continue  # what it would tell has been forgotten meanwhile
            self._metrics.store_health_checks[self._store().url, "error" if error else "ok"] += 1
            self.health.tell(error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._schedule.after(not error, self._chance())):
                    await self._again.wait()

    def start_over(self) -> None:
        """Forget what is known, and check at once."""
        self.health.forget()
        self._under_way = None
        self._again.set()

    async def _check(self) -> str:
        # One that hangs is waited for again: threads must not pile up behind a dead mount.
        if self._under_way is None:
            self._under_way = in_thread(check, self._store())
        checking = self._under_way
        ended, _ = await asyncio.wait({checking}, timeout=self._pace.timeout)
        if not ended:
            return f"the store {self._store().url} did not answer within {self._pace.timeout:g} s"
        if self._under_way is checking:
            self._under_way = None
        return checking.result()


def check(store: FragmentStore) -> str:
    """Check a store; the reason if it is not healthy. Blocks, for minutes if the store makes it."""
    try:
        if store.read_only:
            for _ in store.list(DIRECTORY):
                break
        else:
            _check_writable(store)
    except (OSError, PenstockError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    except Exception as error:  # noqa: BLE001  # appends wait for an outcome, whatever it is
        return f"the check of the store {store.url} broke: {type(error).__name__}: {error}"
    return ""


def _check_writable(store: FragmentStore) -> None:
    store.put(PATH, [CONTENT])
    with store.open(PATH) as file:
        _compare(store, "reading", file.read(len(CONTENT) + 1))
    if not any(listed.path == NAME for listed in store.list(DIRECTORY)):
        raise OSError(f"{PATH} was put, but is not in the listing of the store {store.url}")
    signed = store.sign(PATH, SIGNED_FOR)
    if signed.startswith(("http://", "https://")):
        try:
            with urllib.request.urlopen(signed, timeout=FETCH_TIMEOUT) as response:
                fetched = response.read(len(CONTENT) + 1)
        except (OSError, http.client.HTTPException) as error:
            raise OSError(f"the signed URL of {PATH} in the store {store.url} failed: {error}") from None
        _compare(store, "fetching by its signed URL", fetched)


def _compare(store: FragmentStore, doing: str, content: bytes) -> None:
    if content != CONTENT:
        raise OSError(f"{doing} {PATH} in the store {store.url} gave {content!r}; it was put as {CONTENT!r}")


async def probe_delete(store: FragmentStore, prefix: str, *, limit: float = PROBE_TIMEOUT) -> None:
    """Put a file below `prefix` ("" or ending in a slash) and remove it; OSError if that cannot be done."""
    path = f"{prefix}{PROBE}"

    def probe() -> Exception | None:
        try:
            store.put(path, [CONTENT])
            store.remove(path)
        except Exception as error:  # noqa: BLE001  # raised by whoever waits
            return error
        return None

    try:
        async with asyncio.timeout(limit):
            error = await in_thread(probe)
    except TimeoutError:
        raise TimeoutError(
            f"the store {store.url} did not put and remove {path} within {limit:g} s"
        ) from None
    if error is not None:
        raise error


def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """Run a function that does not raise in a thread of its own, which may outlive the loop and the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(result: T) -> None:
        if not future.done():
            future.set_result(result)

    def run() -> None:
        result = function(*args, **kwargs)
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits
            loop.call_soon_threadsafe(tell, result)

    threading.Thread(target=run, name=f"penstock {function.__name__}", daemon=True).start()
    return future
