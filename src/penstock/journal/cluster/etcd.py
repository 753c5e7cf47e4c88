"""A client of etcd, version 3, for one event loop: ranges, transactions, leases and watches over gRPC.

It is given several addresses and asks one of them until that one fails. Every call asks for a member that has a
leader, has a time limit, and carries a token if there is a user. What is tried again by itself:

- what reads, at the next address, until the time limit
- what changes something, only while it is certain that nothing was done: no connection, no leader, an old token.
  Otherwise an `EtcdInDoubtError` says that nobody knows.
- a watch, never: whoever watches must look what it missed (`mirror.py`)

The first answer tells which etcd it is. Answers of another one are refused as if none had come (`ForeignError`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Protocol, TypeVar

import grpc
import grpc.aio

from penstock.base import secrets
from penstock.journal.cluster import etcd_pb2 as pb
from penstock.journal.cluster import etcd_values as values
from penstock.journal.cluster.etcd_endpoints import Endpoints, Line
from penstock.journal.cluster.etcd_errors import (
    EtcdAwayError,
    EtcdInDoubtError,
    EtcdRefusedError,
    EtcdSilentError,
    ForeignError,
    LeaseGoneError,
    TokenError,
    TooLargeError,
    translated,
)
from penstock.journal.cluster.etcd_values import Changes, Committed, Compare, Found, Granted, Operation
from penstock.journal.cluster.etcd_watch import watched
from penstock.journal.tls import ClientTls

Metadata = tuple[tuple[str, str], ...]


class Answer(Protocol):
    """What all answers of etcd have."""

    @property
    def header(self) -> pb.ResponseHeader: ...


T = TypeVar("T", bound=Answer)

TIMEOUT = 5.0
_PAUSES = (0.0, 0.02, 0.05, 0.1, 0.25)
_PAGE = 4000
_LEADER: Metadata = (("hasleader", "true"),)
"""With this, a member that has lost its leader says so instead of waiting for it."""


class EtcdClient:
    """Connections to the members of one etcd. Close it last, after all who use it."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        user: str = "",
        password: str = "",
        tls: ClientTls | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        self._endpoints = Endpoints(addresses, tls)
        self._user = user
        self._password = password
        self._timeout = timeout
        self._token: str | None = None
        self._cluster_id = 0
        self._authenticating = asyncio.Lock()
        if password:
            secrets.register(password)

    def __repr__(self) -> str:
        return f"EtcdClient({self._endpoints.names})"

    async def __aenter__(self) -> EtcdClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._endpoints.close()

    async def range(self, key: bytes, end: bytes = b"", *, limit: int = 0, revision: int = 0) -> Found:
        """The key, or the keys from it up to `end`, as they are now or were at a revision."""
        request = pb.RangeRequest(key=key, range_end=end, limit=limit, revision=revision)

        async def asked(line: Line, patience: float, metadata: Metadata) -> pb.RangeResponse:
            return await line.range(request, timeout=patience, metadata=metadata)

        response = await self._asked(asked)
        found = tuple(values.key_value(kv) for kv in response.kvs)
        return Found(values.origin_of(response.header), found, response.more)

    async def snapshot(self, prefix: bytes, revision: int = 0) -> Found:
        """All keys that begin with `prefix`, at one revision: the one asked for, or that of the first answer."""
        keys: list[values.KeyValue] = []
        start, page = prefix, _PAGE
        first: Found | None = None
        while True:
            try:
                found = await self.range(start, values.after(prefix), limit=page, revision=revision)
            except TooLargeError:
                if page == 1:
                    raise
                page = max(1, page // 8)
                continue
            first = first or found
            revision = revision or found.origin.revision
            keys += found.keys
            if not found.more:
                return Found(first.origin, tuple(keys), False)
            start = found.keys[-1].key + b"\0"

    async def commit(
        self, prefix: bytes, compares: Iterable[Compare], operations: Iterable[Operation]
    ) -> Committed:
        """Do all operations at one revision if all comparisons hold. Keys are below `prefix`."""
        request = values.transaction(prefix, compares, operations)
        changes = len(request.success) > 0

        async def asked(line: Line, patience: float, metadata: Metadata) -> pb.TxnResponse:
            return await line.txn(request, timeout=patience, metadata=metadata)

        return values.committed(await self._asked(asked, changes=changes))

    async def grant(self, ttl: int) -> Granted:
        """A new lease. If the answer is lost, so is the lease, which then expires by itself."""

        async def asked(line: Line, patience: float, metadata: Metadata) -> pb.LeaseGrantResponse:
            return await line.grant(pb.LeaseGrantRequest(TTL=ttl), timeout=patience, metadata=metadata)

        response = await self._asked(asked)
        if response.error:
            raise EtcdRefusedError(f"etcd gave no lease: {response.error}")
        return Granted(response.ID, response.TTL)

    async def keep_alive(self, lease: int) -> int:
        """Begin a lease's time anew; its length in seconds, from a moment after this was called."""
        request = pb.LeaseKeepAliveRequest(ID=lease)

        async def asked(line: Line, patience: float, metadata: Metadata) -> pb.LeaseKeepAliveResponse:
            call = line.keep_alive(iter((request,)), timeout=patience, metadata=metadata)
            try:
                async for response in call:
                    return response
            finally:
                call.cancel()
            raise EtcdAwayError(f"etcd at {line.name} has not said whether a lease is alive")

        response = await self._asked(asked)
        if response.TTL <= 0:
            raise LeaseGoneError(f"etcd has no lease {lease:x} any more")
        return response.TTL

    async def revoke(self, lease: int) -> None:
        """End a lease; its keys are deleted. One that is gone already is no error."""

        async def asked(line: Line, patience: float, metadata: Metadata) -> pb.LeaseRevokeResponse:
            request = pb.LeaseRevokeRequest(ID=lease)
            return await line.revoke(request, timeout=patience, metadata=metadata)

        with suppress(LeaseGoneError):
            await self._asked(asked)

    async def time_to_live(self, lease: int) -> int:
        """Seconds that are left of a lease."""
        request = pb.LeaseTimeToLiveRequest(ID=lease)

        async def asked(line: Line, patience: float, metadata: Metadata) -> pb.LeaseTimeToLiveResponse:
            return await line.time_to_live(request, timeout=patience, metadata=metadata)

        response = await self._asked(asked)
        if response.TTL < 0:
            raise LeaseGoneError(f"etcd has no lease {lease:x} any more")
        return response.TTL

    async def watch(self, prefix: bytes, start: int) -> AsyncGenerator[Changes]:
        """What happens to keys that begin with `prefix`, from revision `start` on. Ends by an `EtcdError` only.

        Close the iterator (`contextlib.aclosing`). After one that broke, the next watch asks another address.
        """
        line = self._endpoints.current
        try:
            metadata = await self._metadata(asyncio.get_running_loop().time() + self._timeout)
            async with aclosing(watched(line, prefix, start, metadata)) as watch:
                async for changes in watch:
                    self._same_etcd(line, changes.origin.cluster_id)
                    yield changes
        except EtcdAwayError:
            self._endpoints.failed(line)
            raise
        except TokenError:
            self._token = None
            raise

    async def _asked(
        self, attempt: Callable[[Line, float, Metadata], Awaitable[T]], *, changes: bool = False
    ) -> T:
        """One call, at as many addresses as it takes."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        renewed = False

        async def with_token(line: Line, patience: float) -> T:
            nonlocal renewed
            metadata = await self._metadata(deadline)
            try:
                return await attempt(line, patience, metadata)
            except grpc.aio.AioRpcError as error:
                refused = isinstance(translated(error, line.name, changes=changes), TokenError)
                if not refused or not self._user or renewed:
                    raise
            renewed = True
            self._forget(metadata)
            return await attempt(line, patience, await self._metadata(deadline))

        return await self._at_some(with_token, deadline, changes)

    async def _at_some(
        self, attempt: Callable[[Line, float], Awaitable[T]], deadline: float, changes: bool
    ) -> T:
        failures = 0
        telling: EtcdAwayError | None = None
        while True:
            line = self._endpoints.current
            left = deadline - asyncio.get_running_loop().time()
            try:
                answer = await attempt(line, self._patience(left, changes))
                self._same_etcd(line, answer.header.cluster_id)
                return answer
            except grpc.aio.AioRpcError as error:
                trouble = translated(error, line.name, changes=changes)
            except EtcdAwayError as error:
                trouble = error
            if isinstance(trouble, (EtcdAwayError, EtcdInDoubtError)):
                self._endpoints.failed(line)
            pause = _PAUSES[min(failures // len(self._endpoints), len(_PAUSES) - 1)]
            failures += 1
            left = deadline - asyncio.get_running_loop().time()
            if not isinstance(trouble, EtcdAwayError):
                raise trouble
            if not isinstance(trouble, EtcdSilentError):
                telling = trouble
            if left <= pause:
                raise telling or trouble
            await asyncio.sleep(pause)

    def _same_etcd(self, line: Line, cluster_id: int) -> None:
        self._cluster_id = self._cluster_id or cluster_id
        if cluster_id and cluster_id != self._cluster_id:
            raise ForeignError(line.name, cluster_id, self._cluster_id)

    def _patience(self, left: float, changes: bool) -> float:
        """How long to wait for one member: what reads can be asked of another one in good time."""
        if changes or len(self._endpoints) == 1:
            return left
        return min(left, max(1.0, self._timeout / len(self._endpoints)))

    async def _metadata(self, deadline: float) -> Metadata:
        if not self._user:
            return _LEADER
        async with self._authenticating:
            if self._token is None:
                request = pb.AuthenticateRequest(name=self._user, password=self._password)

                async def asked(line: Line, patience: float) -> pb.AuthenticateResponse:
                    return await line.authenticate(request, timeout=patience, metadata=_LEADER)

                response = await self._at_some(asked, deadline, changes=False)
                secrets.register(response.token)
                self._token = response.token
            return (*_LEADER, ("token", self._token))

    def _forget(self, metadata: Metadata) -> None:
        """Drop the token that was sent, unless another one has taken its place."""
        if self._token == dict(metadata).get("token"):
            self._token = None
