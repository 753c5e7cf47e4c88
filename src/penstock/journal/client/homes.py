"""The addresses that a client was given, and which of them it asks now: one, until that is gone, then the next.

What only asks is asked of the next address at once; so is what would change something, if there was no connection:
then it was certainly not done. If that is in doubt the caller is told, and the next call goes elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Generic, TypeVar

import grpc

from penstock.base.errors import PenstockError
from penstock.journal.client import connection
from penstock.journal.client.connection import Tls
from penstock.journal.client.errors import BrokerGoneError, may_ask_another, translated
from penstock.journal.client.stubs import Answering, Stubs

T = TypeVar("T")
A = TypeVar("A")


class Home:
    """One address, with a connection that is made at the first call."""

    def __init__(self, address: str, tls: Tls | None, shortened: Callable[[Stubs], Stubs] | None) -> None:
        self.address = address
        self.channel = connection.channel(address, tls)
        calls = Stubs(self.channel)
        self.calls = calls if shortened is None else shortened(calls)


class Homes:
    """Those of one client. May be used by several threads."""

    def __init__(
        self, address: str, tls: Tls | None, shortened: Callable[[Stubs], Stubs] | None = None
    ) -> None:
        """`shortened` makes of the calls of a channel others that do without it, where they can."""
        self._homes = [Home(one, tls, shortened) for one in connection.addresses_of(address)]
        self._at = 0

    @property
    def current(self) -> Home:
        return self._homes[self._at]

    def asked(self, ask: Callable[[Stubs], T], *, changes: bool = False) -> T:
        """What the first broker answers that can be reached; its errors as ours. `changes`: asking twice matters."""
        for others in reversed(range(len(self._homes))):
            home = self.current
            try:
                return ask(home.calls)
            except grpc.RpcError as error:
                failure = self.failed(home, error)
                if not others or not may_ask_another(failure, changes=changes):
                    raise failure from None
        raise AssertionError("there is an address, and it was asked")

    def failed(self, home: Home, error: grpc.RpcError) -> PenstockError:
        """gRPC's error as ours; a broker that is gone is left, unless another thread has done so."""
        failure = translated(error, home.address)
        if isinstance(failure, BrokerGoneError) and home is self.current:
            self._at = (self._at + 1) % len(self._homes)
        return failure

    def close(self) -> None:
        for home in self._homes:
            home.channel.close()


class Begun(Generic[A]):
    """A call whose first answer is there, so that it is plain whether the broker was reached."""

    def __init__(self, call: Answering[A]) -> None:
        self._call = call
        self._rest = iter(call)
        self._first = tuple(islice(self._rest, 1))

    def __iter__(self) -> Iterator[A]:
        return chain(self._first, self._rest)

    def cancel(self) -> bool:
        return self._call.cancel()
