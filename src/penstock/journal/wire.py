"""The gRPC face of the journal service: which methods there are, what each needs, and how errors are told.

`protocol.Journal` is the compatible service (reference 2), `penstock.Local` and `penstock.Maintenance` are ours. A
caller over TCP is authorized; one on the data directory's socket has been, by the file system. Statuses travel in
responses; every other failure is a gRPC error with the text as its details (reference 9).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
import grpc.aio

from penstock.base.errors import PenstockError
from penstock.journal import methods
from penstock.journal.appending import NotInChargeError, PassedOnError, StoppedServingError
from penstock.journal.auth import Authorizer, UnauthenticatedError
from penstock.journal.claims import EVERYTHING, Capability, Claims
from penstock.journal.metrics import Metrics
from penstock.journal.protocol import (
    CHUNK_METADATA,
    JOURNAL_SERVICE,
    LOCAL_SERVICE,
    MAINTENANCE_SERVICE,
    ReadRequest,
    ReadResponse,
    Status,
)
from penstock.journal.replication import ReplicationError
from penstock.journal.service import Service

log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
"""A call under way. What it sends and receives is typed by the handlers themselves."""

Q = TypeVar("Q")
A = TypeVar("A")


class BrokenOffError(PenstockError):
    """What a call waited for has been ended, and not the call."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One call from its authorization to its end, counted."""

    operation: str
    metrics: Metrics
    claims: Claims

    def timeout(self) -> asyncio.Timeout:
        """Ends with the authorization."""
        return asyncio.timeout(self.claims.left(time.time()))

    def completed(self, response: object) -> None:
        status = getattr(response, "status", Status.OK)
        self.metrics.completed[self.operation, "ok" if status == Status.OK else Status.Name(status)] += 1

    def broken_off(self) -> None:
        """The client has gone."""
        self.metrics.completed[self.operation, "<error>"] += 1

    async def require_cancelled(self, context: Context) -> None:
        """Something was cancelled: if it was not the call, but what that waited for, its client is told.

        Of a handler that ends by a cancellation gRPC says nothing to the client, which would wait for ever.
        """
        task = asyncio.current_task()
        if task is not None and not task.cancelling():
            await self.failed(BrokenOffError("the broker has broken off what the call waited for"), context)

    async def failed(self, error: BaseException, context: Context) -> NoReturn:
        self.metrics.completed[self.operation, "<error>"] += 1
        await _refuse(error, context)
        raise AssertionError("abort raises")


class Registration:
    """Makes gRPC handlers of a service's methods."""

    def __init__(self, authorizer: Authorizer, metrics: Metrics) -> None:
        self._authorizer = authorizer
        self._metrics = metrics

    async def _call(self, operation: str, required: Capability, context: Context) -> _Call:
        self._metrics.started[operation] += 1
        if context.peer().startswith("unix:"):
            return _Call(operation, self._metrics, EVERYTHING)
        try:
            claims = self._authorizer.authorize(_metadata(context, "authorization"), required)
        except UnauthenticatedError as error:
            self._metrics.completed[operation, "<error>"] += 1
            await _refuse(error, context)
            raise
        return _Call(operation, self._metrics, claims)

    def answer(
        self, operation: str, required: Capability, method: Callable[[Q, Claims], Awaitable[A]]
    ) -> Callable[[Q, Context], Awaitable[A]]:
        """A handler whose method returns one response; its request may be a stream."""

        async def handler(request: Q, context: Context) -> A:
            call = await self._call(operation, required, context)
            try:
                async with call.timeout():
                    response = await method(request, call.claims)
            except (PenstockError, OSError, TimeoutError) as error:
                await call.failed(error, context)
            except asyncio.CancelledError:
                await call.require_cancelled(context)
                call.broken_off()
                raise
            call.completed(response)
            return response

        return handler

    def commit(
        self, operation: str, required: Capability, method: Callable[[AsyncIterator[Q], Claims], Awaitable[A]]
    ) -> Callable[[AsyncIterator[Q], Context], Awaitable[A]]:
        """As `answer`, of a stream whose end is the decision to commit."""
        answered = self.answer(operation, required, method)

        async def handler(requests: AsyncIterator[Q], context: Context) -> A:
            return await answered(_half_closed(requests, context), context)

        return handler

    def stream(
        self,
        operation: str,
        required: Capability,
        method: Callable[[Q, Claims, Context], AsyncIterator[A]],
        *,
        ends_cleanly: bool,
    ) -> Callable[[Q, Context], AsyncIterator[A]]:
        """A handler whose method returns many. One that `ends_cleanly` ends without an error with its authorization."""

        async def handler(request: Q, context: Context) -> AsyncGenerator[A, None]:
            call = await self._call(operation, required, context)
            last: A | None = None
            limit = call.timeout()
            deadline = limit.when()
            try:
                async with aclosing(method(request, call.claims, context)) as responses:  # type: ignore[type-var]
                    # Not while a response is being sent: gRPC cannot end a call whose handler is cancelled there.
                    while (response := await _before(limit, responses)) is not None:
                        last = response
                        yield response
                        limit = asyncio.timeout_at(deadline)
            except (PenstockError, OSError) as error:
                if not (ends_cleanly and limit.expired()):
                    await call.failed(error, context)
            except asyncio.CancelledError:
                await call.require_cancelled(context)
                call.broken_off()
                raise
            except GeneratorExit:
                call.broken_off()
                raise
            call.completed(last)

        return handler


def register(server: grpc.aio.Server, service: Service, authorizer: Authorizer, metrics: Metrics) -> None:
    """Have `server` answer all services with `service`."""
    made = Registration(authorizer, metrics)
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(JOURNAL_SERVICE, _journal(made, service)),
            grpc.method_handlers_generic_handler(LOCAL_SERVICE, _local(made, service)),
            grpc.method_handlers_generic_handler(MAINTENANCE_SERVICE, _maintenance(made, service)),
        )
    )


def _journal(made: Registration, service: Service) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    def read(request: ReadRequest, claims: Claims, context: Context) -> AsyncIterator[ReadResponse]:
        wanted = _metadata(context, CHUNK_METADATA)
        if wanted is not None and wanted.isdecimal() and int(wanted):
            return service.read(request, claims, int(wanted))
        return service.read(request, claims)

    return {
        methods.LIST.name: grpc.unary_stream_rpc_method_handler(
            made.stream("List", Capability.LIST, _plain(service.list), ends_cleanly=True),
            *methods.LIST.for_servers,
        ),
        methods.APPLY.name: grpc.unary_unary_rpc_method_handler(
            made.answer("Apply", Capability.APPLY, service.apply), *methods.APPLY.for_servers
        ),
        methods.READ.name: grpc.unary_stream_rpc_method_handler(
            made.stream("Read", Capability.READ, read, ends_cleanly=True), *methods.READ.for_servers
        ),
        methods.APPEND.name: grpc.stream_unary_rpc_method_handler(
            made.commit("Append", Capability.APPEND, service.append), *methods.APPEND.for_servers
        ),
        methods.REPLICATE.name: grpc.stream_stream_rpc_method_handler(
            made.stream("Replicate", Capability.REPLICATE, _plain(service.replicate), ends_cleanly=False),
            *methods.REPLICATE.for_servers,
        ),
        methods.LIST_FRAGMENTS.name: grpc.unary_unary_rpc_method_handler(
            made.answer("ListFragments", Capability.READ, service.list_fragments),
            *methods.LIST_FRAGMENTS.for_servers,
        ),
        methods.FRAGMENT_STORE_HEALTH.name: grpc.unary_unary_rpc_method_handler(
            made.answer("FragmentStoreHealth", Capability.READ, service.fragment_store_health),
            *methods.FRAGMENT_STORE_HEALTH.for_servers,
        ),
    }


def _local(made: Registration, service: Service) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    return {
        methods.APPEND_WHOLE.name: grpc.unary_unary_rpc_method_handler(
            made.answer("Append", Capability.APPEND, service.append_whole), *methods.APPEND_WHOLE.for_servers
        ),
        methods.APPENDS.name: grpc.stream_stream_rpc_method_handler(
            made.stream("Appends", Capability.APPEND, _plain(service.appends), ends_cleanly=False),
            *methods.APPENDS.for_servers,
        ),
        methods.LOCATE.name: grpc.unary_unary_rpc_method_handler(
            made.answer("Locate", Capability.READ, service.locate), *methods.LOCATE.for_servers
        ),
        methods.HEADS.name: grpc.unary_stream_rpc_method_handler(
            made.stream(
                "Heads", Capability.LIST | Capability.READ, _plain(service.heads), ends_cleanly=False
            ),
            *methods.HEADS.for_servers,
        ),
    }


def _maintenance(made: Registration, service: Service) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    return {
        methods.TRIM.name: grpc.unary_unary_rpc_method_handler(
            made.answer("Trim", Capability.APPLY, service.trim), *methods.TRIM.for_servers
        ),
        methods.ROLL.name: grpc.unary_unary_rpc_method_handler(
            made.answer("Roll", Capability.APPLY, service.roll), *methods.ROLL.for_servers
        ),
    }


def _plain(
    method: Callable[[Q, Claims], AsyncIterator[A]],
) -> Callable[[Q, Claims, Context], AsyncIterator[A]]:
    """A method that has no interest in the call's metadata."""
    return lambda request, claims, _: method(request, claims)


async def _before(limit: asyncio.Timeout, responses: AsyncIterator[A]) -> A | None:
    """The next response, or None at the end; a TimeoutError if the time is up, though there may be one at hand."""
    async with limit:
        when = limit.when()
        if when is not None and when <= asyncio.get_running_loop().time():
            await asyncio.Event().wait()
        return await anext(responses, None)


async def _half_closed(requests: AsyncIterator[Q], context: Context) -> AsyncGenerator[Q, None]:
    """The same requests, whose end is that of a stream which was half-closed, not of one that was cancelled.

    gRPC ends both alike, and cancels the handler of the latter a moment later: an append would have committed by
    then. Nothing can be sent on a stream that was cancelled, so something is.
    """
    async for request in requests:
        yield request
    await context.send_initial_metadata(())


def _metadata(context: Context, wanted: str) -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == wanted:
            return value if isinstance(value, str) else bytes(value).decode("latin-1")
    return None


def leaves_doubt(error: BaseException) -> bool:
    """Whether what was asked for may have been done, and may be asked for again."""
    if isinstance(error, PassedOnError):
        return error.code is grpc.StatusCode.UNAVAILABLE
    return isinstance(error, (BrokenOffError, ReplicationError, NotInChargeError, StoppedServingError))


async def _refuse(error: BaseException, context: Context) -> None:
    if isinstance(error, UnauthenticatedError):
        code = grpc.StatusCode.UNAUTHENTICATED
    elif isinstance(error, TimeoutError):
        code = grpc.StatusCode.DEADLINE_EXCEEDED
    elif leaves_doubt(error):
        code = grpc.StatusCode.UNAVAILABLE
    else:
        code = grpc.StatusCode.UNKNOWN
    await context.abort(code, str(error))
