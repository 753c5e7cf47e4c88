"""What a broker has of a journal on its disk, for another one that came back from a crash (DESIGN, 10).

A spool that a crash left may hold content that nobody else ever had, while the others went on over the same offsets.
Before it counts, it is compared: its broker tells the others its spans, and each answers with the sums of what it has
there. Bytes that differ are judged by the revision of the synchronisation they rest on: the earlier one yields.

    penstock.Peer/Survey, msgpack:
        {journal, spans: [[begin, end] …]}
        {epoch, locked, end, parts: [[begin, end, sha1] …]}
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from typing import Any

import grpc
import grpc.aio
import msgspec

from penstock.base.errors import PenstockError
from penstock.journal.auth import Authorizer, UnauthenticatedError
from penstock.journal.claims import Capability, Claims
from penstock.journal.methods import Method
from penstock.journal.replication import equivalent
from penstock.journal.resolver import Resolver
from penstock.journal.spoolfile import SpoolFile
from penstock.journal.spoollayout import content_at

SERVICE = "penstock.Peer"
_BLOCK = 1 << 20


class SurveyRequest(msgspec.Struct, frozen=True):
    """Tell me what you have of these spans."""

    journal: str
    spans: list[tuple[int, int]]


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of a journal that somebody has."""

    begin: int
    end: int
    sum: bytes


class Survey(msgspec.Struct, frozen=True):
    """What a broker has."""

    epoch: int
    """The revision of the last synchronisation that it took part in."""
    locked: bool
    """Whether a primary of the journal's present route has its spool, so that nobody else writes to it."""
    end: int
    parts: list[Part]


SURVEY: Method[SurveyRequest, Survey] = Method(
    SERVICE,
    "Survey",
    msgspec.msgpack.encode,
    msgspec.msgpack.Decoder(SurveyRequest).decode,
    msgspec.msgpack.encode,
    msgspec.msgpack.Decoder(Survey).decode,
)


class Surveyor:
    """Answers surveys from the replicas of one broker."""

    def __init__(self, resolver: Resolver, threads: Executor) -> None:
        self._resolver = resolver
        self._threads = threads

    async def survey(self, request: SurveyRequest, claims: Claims) -> Survey:
        resolution = await self._resolver.resolve(request.journal, claims, may_proxy=False)
        replica = resolution.replica
        if replica is None:
            return Survey(0, locked=False, end=0, parts=[])
        holder = replica.guest or replica.pipeline
        locked = holder is not None and equivalent(holder.route, resolution.header.route)
        parts = await parts_of(replica.files, request.spans, self._threads)
        return Survey(replica.local.epoch, locked, replica.spool.end, parts)

    def handler(self, authorizer: Authorizer) -> grpc.GenericRpcHandler:
        """For `grpc.aio.Server.add_generic_rpc_handlers`."""

        async def answer(request: SurveyRequest, context: grpc.aio.ServicerContext[Any, Any]) -> Survey:
            shown = dict(context.invocation_metadata() or ()).get("authorization")
            try:
                claims = authorizer.authorize(shown if shown is None else str(shown), Capability.REPLICATE)
                return await self.survey(request, claims)
            except UnauthenticatedError as error:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
            except (PenstockError, OSError) as error:
                await context.abort(grpc.StatusCode.UNKNOWN, str(error))
            raise AssertionError("abort raises")

        made = grpc.unary_unary_rpc_method_handler(answer, *SURVEY.for_servers)
        return grpc.method_handlers_generic_handler(SERVICE, {SURVEY.name: made})


async def parts_of(
    files: Iterable[SpoolFile], spans: Sequence[tuple[int, int]], threads: Executor
) -> list[Part]:
    """The sums of what these files have of these spans; a file that goes meanwhile is in the store by then."""
    parts: list[Part] = []
    for file in files:
        fragment = file.fragment
        for begin, end in spans:
            low, high = max(begin, fragment.begin), min(end, fragment.end)
            if low < high:
                digest = await asyncio.get_running_loop().run_in_executor(
                    threads, _digest, file, low - fragment.begin, high - low
                )
                if digest is not None:
                    parts.append(Part(low, high, digest))
    return parts


def _digest(file: SpoolFile, position: int, size: int) -> bytes | None:
    """The SHA1 of bytes of a spool's content; None if the file has gone. Blocks."""
    opened = _open(file)
    if opened is None:
        return None
    summer = hashlib.sha1()
    position += content_at(file.path)
    with opened:
        while size:
            block = os.pread(opened.fileno(), min(_BLOCK, size), position)
            if not block:
                return None
            summer.update(block)
            position, size = position + len(block), size - len(block)
    return summer.digest()


def _open(file: SpoolFile) -> io.FileIO | None:
    """A spool's file, which may be given another name at any moment; None if it has gone."""
    while True:
        path = file.path
        try:
            return path.open("rb", buffering=0)
        except FileNotFoundError:
            if path == file.path:
                return None
