"""A coordinator as a process: it runs until it fails, tells why in one line, and takes its binding with it.

    FATAL ERROR <n>: …    0 unexpected, 1 version mismatch, 2 missing checkpoint, 3 damaged or missing log,
                          4 binding or metadata, 5 log write, or another primary

Lines that bindings wait for: `Ready…` when they may connect; `Adding input:` and `Adding output:`, or `restoring …`,
twice each, when calls to itself are taken; the same with a name behind the colon for streams to others.

There is no other end than failing: a coordinator that is told to stop (SIGTERM, SIGINT) ends as well as it can, and the
next start recovers as after any crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable

from penstock.immortal.coordinator import Options, fatal
from penstock.immortal.place import opened
from penstock.immortal.starting import Debug, first_of, serve
from penstock.journal.client import AsyncClient
from penstock.journal.client.connection import Tls, Tokens

_log = logging.getLogger(__name__)
STOPPED = 0
STOPPING = 0.1
"""So many seconds a coordinator that is told to stop has to end in good order. What takes longer (its broker) ends by
itself; but who told it may wait no longer than half a second, as the Node binding does, and take it for a failure."""


def tell(text: str) -> None:
    """One line for whoever started us, if it still listens."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


Decide = Callable[[AsyncClient], Awaitable[Options]]
"""Gives the options, with what the journals say about the instance."""


def run(
    options: Options | Decide,
    place: str,
    *,
    tls: Tls | None = None,
    tokens: Tokens | None = None,
    debug: Debug | None = None,
) -> int:
    """Run until the end; the exit code."""
    try:
        return asyncio.run(_run(options, place, tls, tokens, debug))
    except KeyboardInterrupt:
        return STOPPED
    except BaseException as error:  # noqa: BLE001 - the process ends by it
        found = first_of(error) if isinstance(error, BaseExceptionGroup) else error
        ended = fatal(found)
        if ended is None:
            traceback.print_exception(found)
        code, text = (
            (0, f"unexpected {type(found).__name__}: {found}") if ended is None else (ended.code, ended)
        )
        tell(f"FATAL ERROR {code}: {text}")
        return 1


async def _run(
    options: Options | Decide, place: str, tls: Tls | None, tokens: Tokens | None, debug: Debug | None
) -> int:
    loop = asyncio.get_running_loop()
    serving = asyncio.ensure_future(_serving(options, place, tls, tokens, debug))
    told = asyncio.Event()

    def stop() -> None:
        told.set()
        serving.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    stopping = asyncio.ensure_future(told.wait())
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not told.is_set():
        serving.result()
    else:  # who stops us closes the binding's connections as well, a moment before or after: that is no failure
        await asyncio.wait((serving,), timeout=STOPPING)
        if serving.done() and not serving.cancelled():
            serving.exception()
    return STOPPED


async def _serving(
    options: Options | Decide, place: str, tls: Tls | None, tokens: Tokens | None, debug: Debug | None
) -> None:
    async with opened(place, tls=tls, tokens=tokens) as there:
        decided = options if isinstance(options, Options) else await options(there.client)
        await serve(decided, there, tell, debug)


def end(code: int) -> None:
    """End the process at once: nothing that is left over may hold the binding."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
