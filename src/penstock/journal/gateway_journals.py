"""GET, HEAD and PUT of `/{journal}`: journals for programs that speak HTTP and nothing else (reference, 21).

A GET is a Read: it streams until the broker ends it or an offset is missing, and its trailer `X-Close-Error` says
which. A PUT is an Append: its body is one transaction, passed on as it comes in. A client that goes away before
the end of its body has appended nothing, since only the end sends the intent to commit.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from email.utils import formatdate
from typing import Final
from urllib.parse import parse_qsl, quote, unquote_to_bytes

from google.protobuf import text_format

from penstock.base.errors import PenstockError
from penstock.journal.auth import Authorizer, UnauthenticatedError
from penstock.journal.claims import Capability, Claims
from penstock.journal.fragment import MAX_OFFSET, Fragment
from penstock.journal.gateway_http import Body, Exchange, HttpError, StreamReader, closing, until_expired, web
from penstock.journal.protocol import AppendRequest, Header, ReadRequest, ReadResponse, Status
from penstock.journal.service import Service
from penstock.journal.tokens import field
from penstock.journal.validation import validate_read_request, validate_request_journal

CLOSE_ERROR: Final = "X-Close-Error"
PUT_CHUNK: Final = 256 << 10
"""Most bytes of a body that become one message of an append."""

_TERMINATED = "broker terminated RPC"
_READ_ERRORS: dict[int, int] = {
    Status.JOURNAL_NOT_FOUND: 404,
    Status.INSUFFICIENT_JOURNAL_BROKERS: 503,
    Status.OFFSET_NOT_YET_AVAILABLE: 416,
}
_ESCAPES = re.compile("%(?![0-9a-fA-F]{2})|%2[fF]")
_NUMBER = re.compile("[+-]?[0-9]{1,19}")
_TRUTH = dict.fromkeys(("1", "t", "T", "true", "TRUE", "True", "on"), True) | dict.fromkeys(
    ("0", "f", "F", "false", "FALSE", "False"), False
)


def _as_it_is(endpoint: str) -> str:
    return endpoint


class Journals:
    """Answers requests whose path is a journal's name."""

    def __init__(self, service: Service, authorizer: Authorizer, *, body_timeout: float) -> None:
        self.endpoint_of: Callable[[str], str] = _as_it_is
        """Where a broker's HTTP is, given where its gRPC is."""
        self._service = service
        self._authorizer = authorizer
        self._body_timeout = body_timeout

    async def answer(self, exchange: Exchange, path: str, query: str) -> web.StreamResponse:
        method = exchange.request.method
        if method not in ("GET", "HEAD", "PUT"):
            raise HttpError(400, f"unknown method {method[:32]} (expected GET, HEAD or PUT)")
        journal = journal_of(path)
        if method == "PUT":
            if query:
                _arguments(query, known=())
            claims = self._authorizer.authorize(exchange.authorization, Capability.APPEND)
            return await self._append(exchange, journal, claims)
        request = _read_request(journal, query)
        request.metadata_only = method == "HEAD"
        claims = self._authorizer.authorize(exchange.authorization, Capability.READ)
        return await self._read(exchange, request, claims)

    async def _read(self, exchange: Exchange, request: ReadRequest, claims: Claims) -> web.StreamResponse:
        async with closing(until_expired(self._service.read(request, claims), claims)) as responses:
            first = await anext(responses, None)
            if first is None:
                raise HttpError(500, _TERMINATED)
            headers = _read_headers(first, request.journal, self.endpoint_of)
            if first.status != Status.OK:
                status = _READ_ERRORS.get(first.status, 500)
                return exchange.answer(status, Status.Name(first.status), headers)
            if request.metadata_only:
                return exchange.answer(206, b"", headers)
            body = await exchange.stream(206, headers, trailer=CLOSE_ERROR)
            why = await _copy(responses, first.offset, body)
            return await body.end({CLOSE_ERROR: why})

    async def _append(self, exchange: Exchange, journal: str, claims: Claims) -> web.StreamResponse:
        await exchange.invite_body()
        messages = _append_requests(exchange.request.content, journal, self._body_timeout)
        async with aclosing(messages) as requests:
            try:
                async with asyncio.timeout(claims.left(time.time())) as limit:
                    response = await self._service.append(requests, claims)
            except TimeoutError:
                if not limit.expired():
                    raise
                raise UnauthenticatedError("the authorization ended before the request did") from None
        headers = _route_headers(response.header, journal, self.endpoint_of)
        if response.status != Status.OK:
            return exchange.answer(500, Status.Name(response.status), headers)
        commit = Fragment.from_proto(response.commit)
        headers |= {
            "X-Commit-Begin": str(commit.begin),
            "X-Commit-End": str(commit.end),
            "X-Commit-SHA1-Sum": commit.sum.hex(),
            "X-Write-Head": str(commit.end),
        }
        return exchange.answer(204, b"", headers)


def journal_of(path: str) -> str:
    """The journal that a request's path names, percent-decoded, with its `;meta` if it has one.

    A `/` must stand as itself: what decodes to one could mean another journal to whatever stands before us.
    """
    if not path.startswith("/"):
        raise HttpError(400, "expected a path that begins with '/'")
    if _ESCAPES.search(path):
        raise HttpError(400, "invalid percent-encoding of a journal (a '/' is written as itself)")
    try:
        journal = unquote_to_bytes(path[1:].encode("utf-8", "surrogateescape")).decode("utf-8")
    except UnicodeDecodeError:
        raise HttpError(400, "a journal's name is not UTF-8") from None
    with field("Journal"):
        validate_request_journal(journal)
    return journal


def _read_request(journal: str, query: str) -> ReadRequest:
    request = ReadRequest(journal=journal)
    arguments = _arguments(query, known=("offset", "block"))
    if (offset := arguments.get("offset")) is not None:
        if _NUMBER.fullmatch(offset) is None or abs(int(offset)) > MAX_OFFSET:
            raise HttpError(400, f"invalid value of argument offset ({offset[:32]!r}; expected a number)")
        request.offset = int(offset)
    if (block := arguments.get("block")) is not None:
        if block not in _TRUTH:
            raise HttpError(400, f"invalid value of argument block ({block[:32]!r}; expected true or false)")
        request.block = _TRUTH[block]
    validate_read_request(request)
    return request


def _arguments(query: str, *, known: tuple[str, ...]) -> dict[str, str]:
    """What a query says. As in the original, names are in any case, and an argument without a value says nothing."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=16)
    except ValueError:
        raise HttpError(400, "invalid query") from None
    arguments: dict[str, str] = {}
    for given, value in pairs:
        name = given.lower()
        if name not in known:
            expected = f"expected {' or '.join(known)}" if known else "expected none"
            raise HttpError(400, f"unknown argument {given[:32]!r} ({expected})")
        if name in arguments:
            raise HttpError(400, f"argument {name} is given twice")
        arguments[name] = value
    return {name: value for name, value in arguments.items() if value}


async def _copy(responses: AsyncIterator[ReadResponse], offset: int, body: Body) -> str:
    """Write content to the body until there is none that adjoins; why there is no more."""
    try:
        async for response in responses:
            if response.status != Status.OK:
                return Status.Name(response.status)
            if response.offset != offset and (response.content or response.HasField("fragment")):
                return "offset jump"
            if response.content:
                await body.write(response.content)
                offset += len(response.content)
    except PenstockError as error:
        return error.message
    return _TERMINATED


async def _append_requests(
    body: StreamReader, journal: str, patience: float
) -> AsyncGenerator[AppendRequest, None]:
    """The messages of an append, the intent to commit only after the whole body."""
    yield AppendRequest(journal=journal)
    while content := await _piece(body, patience):
        yield AppendRequest(content=content)
    yield AppendRequest()


async def _piece(body: StreamReader, patience: float) -> bytes:
    """What has arrived of a body, nothing at its end.

    The broker has a minimum rate of its own. This limit is for what looks like a pause from here and is none: after
    a malformed chunk nothing more arrives.
    """
    try:
        async with asyncio.timeout(patience):
            return await body.read(PUT_CHUNK)
    except TimeoutError:
        raise HttpError(408, "the request's body did not arrive in time") from None
    except web.RequestPayloadError as error:
        raise HttpError(400, f"malformed body: {error}") from None


def _read_headers(response: ReadResponse, journal: str, endpoint_of: Callable[[str], str]) -> dict[str, str]:
    headers = _route_headers(response.header, journal, endpoint_of)
    headers["X-Write-Head"] = str(response.write_head)
    if response.status == Status.OK:
        headers["Content-Range"] = f"bytes {response.offset}-{MAX_OFFSET}/{MAX_OFFSET}"
    if response.HasField("fragment"):
        fragment = Fragment.from_proto(response.fragment)
        headers["X-Fragment-Name"] = fragment.content_name
        if fragment.mod_time:
            headers["X-Fragment-Last-Modified"] = formatdate(fragment.mod_time, usegmt=True)
    if response.fragment_url:
        headers["X-Fragment-Location"] = response.fragment_url
    return headers


def _route_headers(header: Header, journal: str, endpoint_of: Callable[[str], str]) -> dict[str, str]:
    route = header.route
    headers = {"X-Route-Token": text_format.MessageToString(route, as_utf8=False, as_one_line=True)}
    if 0 <= route.primary < len(route.endpoints):
        endpoint = endpoint_of(route.endpoints[route.primary])
        if endpoint.startswith(("http://", "https://")):
            headers["Location"] = f"{endpoint.rstrip('/')}/{quote(journal, safe='/;=+')}"
    return headers
