"""An instance run again from its log, to look at it (`penstock immortal debug`): what a coordinator in repro mode
sends, and a debugger that stops where a handler begins."""

from __future__ import annotations

import dis
import pdb
import socket
from collections.abc import Callable
from typing import Any, BinaryIO

from penstock.immortal import wire
from penstock.immortal.binding.errors import ImmortalError
from penstock.immortal.binding.machine import Machine
from penstock.immortal.binding.methods import Method
from penstock.immortal.binding.shell import HOST
from penstock.immortal.binding.snapshot import spool


class Breaks:
    """A debugger that stops where the handler of an input begins."""

    def __init__(self, machine: Machine, at: int | None, debugger: pdb.Pdb | None = None) -> None:
        self._machine = machine
        self._at = at
        self._debugger = debugger or pdb.Pdb()
        self._armed = False
        machine.on_input = self.input

    def input(self, number: int, what: str) -> None:
        if self._armed or (self._at is not None and number < self._at):
            return
        self._armed = True
        self._debugger.message(f"input {number} ({what}) of {self._machine.name}; `c` runs to its handler")
        for method in self._machine.spec.names.values():
            self._break(method)
        self._debugger.set_trace()

    def _break(self, method: Method[Any, Any]) -> None:
        code = method.function.__code__
        body = [
            line for _, line in dis.findlinestarts(code) if line is not None and line > code.co_firstlineno
        ]
        self._debugger.set_break(code.co_filename, body[0] if body else code.co_firstlineno)


class Feed:
    """What a coordinator in repro mode sends, over plain sockets, up to where its log ended."""

    def __init__(self, ports: tuple[int, int], connect: Callable[[int], socket.socket]) -> None:
        self._out = connect(ports[0])
        self._in = connect(ports[1])

    def run(
        self,
        load: Callable[[BinaryIO], None],
        receive: Callable[[wire.Record], bool],
        is_over: Callable[[int | None], bool],
    ) -> None:
        """Hand on checkpoint and records until `receive` says stop, or `is_over` with how many records there were.

        It is asked with None while there is no checkpoint yet.
        """
        decoder = wire.RecordDecoder()
        blob: BinaryIO | None = None
        handled: int | None = None
        self._in.settimeout(0.1)
        while not is_over(handled):
            try:
                data = self._in.recv(256 << 10)
            except TimeoutError:
                continue
            if not data:
                raise ImmortalError("the coordinator ended", hint="what it said is above")
            for event in decoder.feed(data):
                if isinstance(event, wire.CheckpointRecord):
                    blob = spool()
                elif isinstance(event, wire.Blob):
                    assert blob is not None
                    blob.write(event.piece)
                    if event.left == 0:
                        blob.seek(0)
                        load(blob)
                        handled = 0
                else:
                    if event.sequence >= 0:
                        handled = (handled or 0) + 1
                    if receive(event):
                        return

    def close(self) -> None:
        self._out.close()
        self._in.close()


def connect(port: int, patience: float = 60.0) -> socket.socket:
    """Connect to a coordinator that is on its way."""
    import time

    deadline = time.monotonic() + patience
    while True:
        try:
            return socket.create_connection((HOST, port), timeout=5)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
