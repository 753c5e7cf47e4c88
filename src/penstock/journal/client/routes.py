"""Which broker to ask for a journal: routes, as responses tell them, and a connection for each endpoint.

Appends go to the primary, reads to a member of the client's zone if there is one, or else to any (reference 11).
A route is forgotten when its broker does not answer; then the configured address is asked again. Connections
that nobody has used for 30 to 60 s are closed.

A client that was told to use TLS follows no route to an endpoint without: its token would travel in the clear.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import grpc
import grpc.aio

from penstock.base.errors import PenstockError
from penstock.journal.client import connection
from penstock.journal.client.connection import Tls
from penstock.journal.client.errors import may_ask_another
from penstock.journal.client.stubs import AsyncStubs
from penstock.journal.protocol import Header, Route

A = TypeVar("A")

MAX_ROUTES = 4096
SWEEP = 30.0
"""Seconds between looks for idle connections."""


class RouteCache:
    """The last route of each journal, the least recently used ones going first. Pure."""

    def __init__(self, size: int = MAX_ROUTES) -> None:
        self._size = size
        self._routes: OrderedDict[str, Route] = OrderedDict()

    def observe(self, journal: str, header: Header) -> None:
        """Take note of a response's route; one that names nobody who can be asked is no route."""
        name = _without_meta(journal)
        route = header.route
        if not route.members or len(route.endpoints) != len(route.members) or not all(route.endpoints):
            self._routes.pop(name, None)
            return
        self._routes[name] = route
        self._routes.move_to_end(name)
        while len(self._routes) > self._size:
            self._routes.popitem(last=False)

    def forget(self, journal: str) -> None:
        self._routes.pop(_without_meta(journal), None)

    def primary(self, journal: str) -> str | None:
        """The endpoint that appends go to."""
        route = self._used(journal)
        if route is None or not 0 <= route.primary < len(route.endpoints):
            return None
        return route.endpoints[route.primary]

    def member(self, journal: str, zone: str) -> str | None:
        """The endpoint that reads go to."""
        route = self._used(journal)
        if route is None:
            return None
        for member, endpoint in zip(route.members, route.endpoints, strict=True):
            if zone and member.zone == zone:
                return endpoint
        return route.endpoints[route.primary if 0 <= route.primary < len(route.endpoints) else 0]

    def _used(self, journal: str) -> Route | None:
        name = _without_meta(journal)
        route = self._routes.get(name)
        if route is not None:
            self._routes.move_to_end(name)
        return route


def _without_meta(journal: str) -> str:
    return journal.partition(";")[0]


class Line:
    """A connection to one address, and how many calls are using it."""

    def __init__(self, address: str, tls: Tls | None) -> None:
        self.address = address
        self.channel = connection.aio_channel(address, tls)
        self.calls = AsyncStubs(self.channel)
        self.takes_whole = True
        """Whether the broker knows `penstock.Local/Append`; so until it says that it does not."""
        self.takes_batches: bool | None = None
        """Whether it knows `penstock.Local/Appends`; None until it was asked."""
        self.users = 0
        self.swept = False

    @contextmanager
    def busy(self) -> Iterator[Line]:
        self.users += 1
        try:
            yield self
        finally:
            self.users -= 1
            self.swept = False


class Lines:
    """The connections of a client: to its own addresses, of which it asks one, and to the endpoints of routes."""

    def __init__(self, address: str, tls: Tls | None, *, sweep: float = SWEEP) -> None:
        self._tls = tls
        addresses = connection.addresses_of(address)
        self._secure = any(connection.target_of(one, tls=tls is not None).secure for one in addresses)
        self._homes = [Line(one, tls) for one in addresses]
        self._at = 0
        self._others: dict[str, Line] = {}
        self._sweep = sweep
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def home(self) -> Line:
        """The one of the client's own addresses that is asked now."""
        return self._homes[self._at]

    async def asked(
        self,
        ask: Callable[[Line], Awaitable[A]],
        line_now: Callable[[], Line],
        failed: Callable[[grpc.aio.AioRpcError, Line], PenstockError],
        *,
        changes: bool = False,
    ) -> A:
        """Ask as many as we have addresses of our own, as far as nothing is done twice (`homes.py`).

        `failed` makes gRPC's error ours, and has another line be the one of now if a broker is gone.
        """
        for others in reversed(range(len(self._homes))):
            line = line_now()
            with line.busy():
                try:
                    return await ask(line)
                except grpc.aio.AioRpcError as error:
                    failure = failed(error, line)
                    if not others or not may_ask_another(failure, changes=changes):
                        raise failure from None
        raise AssertionError("there is an address, and it was asked")

    def left(self, line: Line) -> None:
        """A broker is gone: if we asked it as one of our own, ask the next."""
        if line is self.home:
            self._at = (self._at + 1) % len(self._homes)

    def to(self, endpoint: str | None) -> Line:
        """The connection to an endpoint, or to the client's own address if that is all there is."""
        if endpoint is None or not self._may_follow(endpoint):
            return self.home
        for home in self._homes:
            if home.address == endpoint:
                return home
        line = self._others.get(endpoint)
        if line is None:
            secure = connection.target_of(endpoint).secure
            line = self._others[endpoint] = Line(endpoint, self._tls if secure else None)
            if self._sweeping is None:
                self._sweeping = asyncio.create_task(self._close_idle())
        return line

    @property
    def open(self) -> frozenset[str]:
        """The endpoints beyond the client's own address to which there are connections."""
        return frozenset(self._others)

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeping
        for line in (*self._homes, *self._others.values()):
            await line.channel.close()

    def _may_follow(self, endpoint: str) -> bool:
        try:
            secure = connection.target_of(endpoint).secure
        except PenstockError:
            return False
        return secure or not self._secure

    async def _close_idle(self) -> None:
        """Each round closes what has not been used since the one before."""
        while True:
            await asyncio.sleep(self._sweep)
            for endpoint, line in list(self._others.items()):
                if line.swept and not line.users:
                    del self._others[endpoint]
                    await line.channel.close()
                line.swept = not line.users


async def connected(line: Line) -> bool:
    """Whether there is a connection, once that is decided; an attempt under way is waited for."""
    while True:
        state = line.channel.get_state(try_to_connect=True)
        if state is grpc.ChannelConnectivity.READY:
            return True
        if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
            return False
        await line.channel.wait_for_state_change(state)
