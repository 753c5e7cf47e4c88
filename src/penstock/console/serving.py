"""The console from its start to its end: for a command that does nothing else, or in a thread beside a run.

Connections are limited, and those that ask nothing are ended: whoever is on the machine may open some, and each takes a
descriptor that the run beside may need.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from penstock.base.errors import UsageError
from penstock.base.webpages import is_loopback
from penstock.console.access import Access, Credential
from penstock.console.actions import Actions
from penstock.console.cluster import Cluster
from penstock.console.definitions import Definitions
from penstock.console.guarding import Options
from penstock.console.lookout import Lookout
from penstock.console.questions import Questions
from penstock.console.reaching import Reaching
from penstock.console.server import Console

DEFAULT_LISTEN = "127.0.0.1:8400"
_STOP_SECONDS = 2.0
_IDLE_SECONDS = 60.0
_MOST_CONNECTIONS = 256


@dataclass(frozen=True, slots=True)
class Door:
    """Where the console listens, and who may come in."""

    listen: str = DEFAULT_LISTEN
    credentials: Sequence[Credential] = ()
    read_only: bool = False
    cert_file: Path | None = None
    key_file: Path | None = None

    def options(self) -> Options:
        """Checked: away from the loopback interface there must be a secret and TLS."""
        host, colon, port = self.listen.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise UsageError(f"'{self.listen}' is not HOST:PORT", hint=f"for example {DEFAULT_LISTEN}")
        host = host.strip("[]") or "127.0.0.1"
        if (self.cert_file is None) != (self.key_file is None):
            raise UsageError("TLS needs a certificate and its key", hint="give both of the two files")
        if not is_loopback(host) and not self.credentials:
            raise UsageError(
                f"on {self.listen} everybody could read and change the pipelines",
                hint="name who may: --users FILE, or --token @FILE; or listen on 127.0.0.1",
            )
        if not is_loopback(host) and self.cert_file is None:
            raise UsageError(
                f"on {self.listen} secrets and messages would go over the network in the open",
                hint="give --tls-cert and --tls-key; or listen on 127.0.0.1",
            )
        return Options(host, int(port), self._tls())

    def _tls(self) -> ssl.SSLContext | None:
        if self.cert_file is None or self.key_file is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"the certificate and key do not load: {error}") from None
        return context


async def serve(
    reaching: Reaching,
    definitions: Definitions,
    door: Door,
    *,
    ready: Callable[[str], None],
    stop: asyncio.Event,
    cluster: Cluster | None = None,
    cookie: bytes = b"",
    run: str = "",
) -> None:
    """Serve until `stop`; `ready` is told the address. `run` is the pipeline whose run this is beside."""
    options = door.options()
    access = Access(door.credentials, local=is_loopback(options.host), read_only=door.read_only)
    lookout = Lookout(reaching)
    questions, actions = Questions(reaching, definitions), Actions(reaching, definitions)
    console = Console(lookout, questions, actions, access, options, cluster, cookie, run)
    runner = web.AppRunner(
        console.application(),
        access_log=None,
        handle_signals=False,
        shutdown_timeout=_STOP_SECONDS,
        keepalive_timeout=_IDLE_SECONDS,
    )
    await runner.setup()
    try:
        try:
            listener = await _listening(runner, options)
        except OSError as error:
            option = "--console-listen" if run else "--listen"
            raise UsageError(
                f"cannot listen on {door.listen}: {error.strerror}", hint=f"give another {option} HOST:PORT"
            ) from None
        lookout.start()
        try:
            ready(_address(listener, options))
            await stop.wait()
        finally:
            listener.close()
            console.end()
            await asyncio.to_thread(lookout.stop)
    finally:
        await runner.cleanup()


async def _listening(runner: web.AppRunner, options: Options) -> asyncio.Server:
    server = runner.server
    assert server is not None

    def welcome() -> asyncio.Protocol:
        return server() if len(server.connections) < _MOST_CONNECTIONS else _TurnedAway()

    loop = asyncio.get_running_loop()
    return await loop.create_server(welcome, options.host, options.port, ssl=options.tls, backlog=128)


class _TurnedAway(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _address(listener: asyncio.Server, options: Options) -> str:
    port = listener.sockets[0].getsockname()[1]
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"{'https' if options.tls else 'http'}://{host}:{port}/"


@contextmanager
def beside(
    reaching: Reaching,
    definitions: Definitions,
    door: Door,
    ready: Callable[[str], None],
    cluster: Cluster | None = None,
    cookie: bytes = b"",
    run: str = "",
) -> Iterator[None]:
    """The console in a thread of its own for the time of the block; `run` is the pipeline that runs meanwhile."""
    door.options()
    started = threading.Event()
    failure: list[BaseException] = []
    ends: list[Callable[[], object]] = []

    async def work() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        ends.append(lambda: loop.call_soon_threadsafe(stop.set))

        def up(address: str) -> None:
            ready(address)
            started.set()

        await serve(reaching, definitions, door, ready=up, stop=stop, cluster=cluster, cookie=cookie, run=run)

    def live() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for us
            failure.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=live, name="console", daemon=True)
    thread.start()
    started.wait()
    if failure:
        raise failure[0]
    try:
        yield
    finally:
        ends[0]()
        thread.join()
