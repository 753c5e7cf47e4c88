"""`POST /v1/journals/list` and `/v1/journals/read`: the two streaming calls as JSON (reference, 21).

The request's message is the body, as JSON; none is the empty message. The answer is one JSON object a line:
`{"result": …}` for each message of the call, or `{"error": {"code": …, "message": …}}`, with the code of gRPC, which is
the last line. A call that fails before its first message has an HTTP status to match.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Final, TypeVar

import grpc
from google.protobuf import json_format
from google.protobuf.message import Message

from penstock.base.errors import PenstockError
from penstock.journal.auth import Authorizer, UnauthenticatedError
from penstock.journal.claims import Capability, Claims
from penstock.journal.gateway_http import Exchange, HttpError, closing, until_expired, web
from penstock.journal.protocol import ListRequest, ReadRequest
from penstock.journal.service import Service
from penstock.journal.tokens import ValidationError
from penstock.journal.validation import validate_list_request, validate_read_request

LIST: Final = "/v1/journals/list"
READ: Final = "/v1/journals/read"
_JSON = "application/json"

RequestT = TypeVar("RequestT", bound=Message)


class Rest:
    """Answers requests of the two paths."""

    def __init__(self, service: Service, authorizer: Authorizer, *, body_timeout: float) -> None:
        self._service = service
        self._authorizer = authorizer
        self._body_timeout = body_timeout

    async def answer(self, exchange: Exchange, path: str) -> web.StreamResponse:
        try:
            if exchange.request.method != "POST":
                raise HttpError(405, "expected POST", {"Allow": "POST, OPTIONS"})
            required = Capability.LIST if path == LIST else Capability.READ
            claims = self._authorizer.authorize(exchange.authorization, required)
            messages = await self._call(exchange, path, claims)
            async with closing(messages):
                return await _stream(exchange, messages)
        except PenstockError as error:
            status, code, headers = _mapped(error)
            return exchange.answer(status, _error(code, error.message), headers, content_type=_JSON)

    async def _call(self, exchange: Exchange, path: str, claims: Claims) -> AsyncIterator[Message]:
        if path == LIST:
            listing = await self._message(exchange, ListRequest(), validate_list_request)
            return until_expired(self._service.list(listing, claims), claims)
        reading = await self._message(exchange, ReadRequest(), validate_read_request)
        return until_expired(self._service.read(reading, claims), claims)

    async def _message(
        self, exchange: Exchange, empty: RequestT, validate: Callable[[RequestT], None]
    ) -> RequestT:
        await exchange.invite_body()
        try:
            async with asyncio.timeout(self._body_timeout):
                content = await exchange.request.read()
        except TimeoutError:
            raise HttpError(408, "the request's body did not arrive in time") from None
        except web.HTTPRequestEntityTooLarge as error:
            raise HttpError(413, "the request's body is too large") from error
        except web.RequestPayloadError as error:
            raise HttpError(400, f"malformed body: {error}") from None
        try:
            message = json_format.Parse(content, empty) if content.strip() else empty
        except (json_format.ParseError, ValueError, RecursionError) as error:
            raise HttpError(400, f"the body is not a {empty.DESCRIPTOR.name} as JSON: {error}") from None
        validate(message)
        return message


async def _stream(exchange: Exchange, messages: AsyncIterator[Message]) -> web.StreamResponse:
    """The messages, a line each; raises what happens before the first, and tells what happens after it."""
    first = await anext(messages, None)
    body = await exchange.stream(200, {"Content-Type": _JSON})
    if first is not None:
        await body.write(_result(first))
        try:
            async for message in messages:
                await body.write(_result(message))
        except PenstockError as error:
            await body.write(_error(_mapped(error)[1], error.message))
    return await body.end()


def _result(message: Message) -> bytes:
    content = json_format.MessageToDict(message, always_print_fields_with_no_presence=True)
    return _line({"result": content})


def _error(code: grpc.StatusCode, message: str) -> bytes:
    return _line({"error": {"code": code.value[0], "message": message}})


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _mapped(error: PenstockError) -> tuple[int, grpc.StatusCode, dict[str, str]]:
    """HTTP status, gRPC code and headers of an error."""
    if isinstance(error, HttpError):
        code = grpc.StatusCode.UNIMPLEMENTED if error.status == 405 else grpc.StatusCode.INVALID_ARGUMENT
        return error.status, code, dict(error.headers)
    if isinstance(error, UnauthenticatedError):
        return 401, grpc.StatusCode.UNAUTHENTICATED, {"WWW-Authenticate": "Bearer"}
    if isinstance(error, ValidationError):
        return 400, grpc.StatusCode.INVALID_ARGUMENT, {}
    return 500, grpc.StatusCode.UNKNOWN, {}
