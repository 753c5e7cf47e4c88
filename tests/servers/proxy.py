"""A network between two processes that a test can break: a proxy for TCP on 127.0.0.1, in a thread of its own.

    with proxied(server.port) as link:
        connect(link.port)
        link.cut()       connections are reset, new ones are too
        link.stall()     connections stay, and nothing passes; new ones are made, and nothing passes
        link.heal()      new connections work; what was stalled flows on
        link.reset()     connections are reset once; new ones work
        link.delay = 0.05    each byte takes so much longer, each way, from the next connection on

A delayed link is as wide as before: bytes that are under way do not wait for each other.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_CHUNK = 1 << 16
_UNDER_WAY = 256
"""Chunks of a direction that may be on a delayed link at a time."""
_PATIENCE = 10.0

_Chunks = asyncio.Queue[tuple[float, bytes]]
"""What is under way in one direction, and when it is due; empty: the end."""


class Proxy:
    """Listens at `port`, leads to `target`. To be used from any thread."""

    def __init__(self, target: int, *, delay: float = 0.0, host: str = "127.0.0.1") -> None:
        self._target = target
        self.delay = delay
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._open.set()
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._links: set[asyncio.Task[None]] = set()
        self._listener = socket.create_server((host, 0))
        self.port = int(self._listener.getsockname()[1])
        self.uri = f"http://{host}:{self.port}"
        self.accepted = 0
        """Connections so far."""
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"proxy of {target}", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        self._do(self._cut)

    def stall(self) -> None:
        self._do(self._open.clear)

    def heal(self) -> None:
        self._do(self._heal)

    def reset(self) -> None:
        self._do(self._abort_all)

    def lead_to(self, target: int) -> None:
        """To another port from now on; connections are reset."""
        self._target = target
        self.reset()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_PATIENCE)
        self._loop.close()

    def _do(self, what: Callable[[], object]) -> None:
        """In the proxy's thread, and wait until it is done."""
        done = threading.Event()

        def do() -> None:
            what()
            done.set()

        self._loop.call_soon_threadsafe(do)
        assert done.wait(_PATIENCE)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, sock=self._listener)
        await self._stopping.wait()
        server.close()
        links = tuple(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    def _cut(self) -> None:
        self._is_cut = True
        self._open.set()
        self._abort_all()

    def _heal(self) -> None:
        self._is_cut = False
        self._open.set()

    def _abort_all(self) -> None:
        for writer in tuple(self._writers):
            _abort(writer)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = self._loop.create_task(self._connected(reader, writer))
        self._links.add(link)
        link.add_done_callback(self._links.discard)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._is_cut:
            _abort(writer)
            return
        self._writers.add(writer)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            self._writers.discard(writer)
            _abort(writer)
            return
        self._writers.add(back)
        try:
            async with asyncio.TaskGroup() as tasks:
                for source, sink in ((reader, back), (there, writer)):
                    chunks: _Chunks = asyncio.Queue(_UNDER_WAY)
                    tasks.create_task(self._take(source, chunks))
                    tasks.create_task(self._give(chunks, sink))
        except* OSError:
            pass  # one side is gone; so is the other, below
        finally:
            for one in (writer, back):
                self._writers.discard(one)
                _abort(one)

    async def _take(self, reader: asyncio.StreamReader, chunks: _Chunks) -> None:
        delay = self.delay
        while True:
            chunk = await reader.read(_CHUNK)
            await chunks.put((self._loop.time() + delay, chunk))
            if not chunk:
                return

    async def _give(self, chunks: _Chunks, writer: asyncio.StreamWriter) -> None:
        while True:
            due, chunk = await chunks.get()
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            await self._open.wait()
            if not chunk:
                writer.write_eof()
                return
            writer.write(chunk)
            await writer.drain()


def _abort(writer: asyncio.StreamWriter) -> None:
    """Break the connection without a farewell."""
    sock = writer.get_extra_info("socket")
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@contextmanager
def proxied(target: int, *, delay: float = 0.0, host: str = "127.0.0.1") -> Iterator[Proxy]:
    """A proxy for a port of this machine, itself at another address of it if there is one."""
    proxy = Proxy(target, delay=delay, host=host)
    try:
        yield proxy
    finally:
        proxy.close()
