"""A coordinator in repro mode, in a thread of this process, and the runs that use it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.immortal import starting, wire
from penstock.immortal.binding import guard
from penstock.immortal.binding.app import Immortal
from penstock.immortal.binding.errors import ImmortalError
from penstock.immortal.binding.machine import Machine
from penstock.immortal.binding.pair import free_ports
from penstock.immortal.binding.replay import Breaks, Feed, connect
from penstock.immortal.binding.whatif import Difference, WhatIf
from penstock.immortal.coordinator import Options
from penstock.immortal.place import opened
from penstock.journal.client.connection import Tls, Tokens

_FROM = re.compile(r"Recovering from checkpoint \d+: record (\d+) is next")
_CAUGHT_UP = re.compile(r"Caught up with the log: record (\d+) is next")


class Repro:
    """Re-runs of one instance from a checkpoint."""

    def __init__(
        self, name: str, place: str, checkpoint: int, *, tls: Tls | None = None, tokens: Tokens | None = None
    ) -> None:
        self._name = name
        self._place = place
        self._checkpoint = checkpoint
        self._tls, self._tokens = tls, tokens
        self._begin = 0
        self._end: int | None = None
        self._error: BaseException | None = None

    def replay(
        self,
        cls: type[Immortal],
        *,
        at: int | None = None,
        stop: bool = False,
        on_record: Callable[[bytes], None] = lambda body: None,
        on_output: Callable[[bytes], None] = lambda message: None,
    ) -> Machine:
        """Run to the end of the log; `stop`: in a debugger, at input `at`. The machine as it is then.

        `on_record` is shown each record's body before it is handled, `on_output` each message that is sent.
        """
        machine = Machine(cls, self._name, now=float, watch_state=True)
        if stop:
            Breaks(machine, at)

        def receive(record: wire.Record) -> bool:
            if record.sequence >= 0:
                on_record(record.body)
            machine.receive(record)
            out, machine.out = machine.out, []
            for item in out:
                if isinstance(item, bytes):
                    on_output(item)
            return False

        with (
            self._coordinator(upgrade=False) as feed,
            guard.guarding() if not stop else contextlib.nullcontext(),
        ):
            feed.run(machine.load, receive, self._is_over)
        return machine

    def what_if(self, old: type[Immortal], new: type[Immortal]) -> tuple[Difference | None, int]:
        """Run the log against both classes; the first difference, and how many inputs were handled."""
        both = WhatIf(old, new, self._name)
        found: list[Difference] = []

        def receive(record: wire.Record) -> bool:
            difference = both.receive(record)
            if difference is not None:
                found.append(difference)
            return bool(found)

        with self._coordinator(upgrade=True) as feed:
            feed.run(both.load, receive, self._is_over)
        return (found[0] if found else None), both.inputs

    def _is_over(self, handled: int | None) -> bool:
        """With how many records behind its checkpoint the machine has come to the end of the log."""
        if self._error is not None:
            raise self._error
        return self._end is not None and handled is not None and self._begin + handled >= self._end

    def _tell(self, text: str) -> None:
        if (found := _FROM.match(text)) is not None:
            self._begin = int(found[1])
        elif (found := _CAUGHT_UP.match(text)) is not None:
            self._end = int(found[1])

    @contextmanager
    def _coordinator(self, *, upgrade: bool) -> Iterator[Feed]:
        ports = free_ports()
        options = Options(self._name, *ports)
        debug = starting.Debug(self._checkpoint, upgrade)
        loop = asyncio.new_event_loop()
        ready = threading.Event()
        task: list[asyncio.Task[None]] = []

        async def serve() -> None:
            async with opened(self._place, tls=self._tls, tokens=self._tokens) as place:
                await starting.serve(options, place, self._tell, debug)

        async def main() -> None:
            task.append(asyncio.ensure_future(serve()))
            ready.set()
            try:
                await task[0]
            except asyncio.CancelledError:
                pass
            except BaseException as error:  # noqa: BLE001 - told where the replay runs
                self._error = error

        thread = threading.Thread(target=lambda: loop.run_until_complete(main()), name="repro", daemon=True)
        thread.start()
        ready.wait()
        feed: Feed | None = None
        try:
            feed = Feed(ports, self._connected)
            yield feed
        finally:
            if feed is not None:
                feed.close()
            loop.call_soon_threadsafe(task[0].cancel)
            thread.join(30)
            loop.close()

    def _connected(self, port: int):  # type: ignore[no-untyped-def]
        import time

        deadline = time.monotonic() + 60
        while True:
            if self._error is not None:
                raise self._error
            try:
                return connect(port, patience=0)
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise ImmortalError("the coordinator did not start") from None
                time.sleep(0.02)
