"""Connections to the other brokers of a cluster: one channel an endpoint, shared by all journals.

Brokers show each other tokens signed with the key they share, for the one journal and the one capability that a call
needs (reference 10); a caller's own token is never passed on. A peer that is gone without a word is found by pings.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import TypeAlias

import grpc.aio

from penstock.journal import methods
from penstock.journal.auth import Keys, sign
from penstock.journal.chunks import Content
from penstock.journal.claims import Capability, Claims
from penstock.journal.client.connection import Metadata, Tls, bearer, target_of
from penstock.journal.cluster.survey import SURVEY, Survey, SurveyRequest
from penstock.journal.protocol import (
    AppendRequest,
    AppendResponse,
    FragmentsRequest,
    FragmentsResponse,
    HeadsRequest,
    HeadsResponse,
    Label,
    LabelSelector,
    LabelSet,
    ReadRequest,
    ReadResponse,
    ReplicateResponse,
    RollRequest,
    RollResponse,
    TrimRequest,
    TrimResponse,
)
from penstock.journal.tls import ClientTls

ReplicateCall: TypeAlias = "grpc.aio.StreamStreamCall[bytes, ReplicateResponse]"
AppendCall: TypeAlias = "grpc.aio.StreamUnaryCall[AppendRequest | Content, AppendResponse]"
ReadCall: TypeAlias = "grpc.aio.UnaryStreamCall[ReadRequest, ReadResponse]"
HeadsCall: TypeAlias = "grpc.aio.UnaryStreamCall[HeadsRequest, HeadsResponse]"

TOKEN_LIFETIME = 24 * 3600.0
"""Of a token for a stream of replication, which ends with it."""
_PROXIED_LIFETIME = 3600.0
_SURVEY_TIMEOUT = 60.0
FAREWELL = 15.0
"""Seconds that a broker which has left the cluster has to answer what it was asked before: as long as it serves on."""
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_PINGS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)
"""For brokers of ours alone: the original hangs up on who pings it more often than every five minutes."""


class Peers:
    """The brokers we talk to. One for all journals of a broker; used and closed on its loop."""

    def __init__(
        self, *, tls: Tls | None = None, keys: Keys | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._tls = tls
        self._keys = keys
        self._now = now
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._parting: set[grpc.aio.Channel] = set()
        self.foreign: Collection[str] = ()
        """Endpoints of brokers that are not ours."""

    def __repr__(self) -> str:
        return f"Peers({', '.join(self._channels)})"

    def replicate(self, endpoint: str, journal: str) -> ReplicateCall:
        """A stream of replication; what is written to it are messages that are encoded already."""
        path, _, read = methods.REPLICATE.for_channels
        call: grpc.aio.StreamStreamMultiCallable[bytes, ReplicateResponse] = self._channel(
            endpoint
        ).stream_stream(path, request_serializer=None, response_deserializer=read)
        return call(metadata=self._authorized(Capability.REPLICATE, journal, TOKEN_LIFETIME))

    async def survey(self, endpoint: str, request: SurveyRequest) -> Survey:
        """What a peer has of a journal."""
        path, write, read = SURVEY.for_channels
        call = self._channel(endpoint).unary_unary(path, request_serializer=write, response_deserializer=read)
        metadata = self._authorized(Capability.REPLICATE, request.journal, _PROXIED_LIFETIME)
        return await call(request, metadata=metadata, timeout=_SURVEY_TIMEOUT)

    def append(self, endpoint: str, journal: str) -> AppendCall:
        path, write, read = methods.APPEND.for_channels
        call = self._channel(endpoint).stream_unary(
            path, request_serializer=write, response_deserializer=read
        )
        return call(metadata=self._authorized(Capability.APPEND, journal, _PROXIED_LIFETIME))

    async def append_whole(self, endpoint: str, request: AppendRequest) -> AppendResponse:
        path, write, read = methods.APPEND_WHOLE.for_channels
        call = self._channel(endpoint).unary_unary(path, request_serializer=write, response_deserializer=read)
        return await call(
            request, metadata=self._authorized(Capability.APPEND, request.journal, _PROXIED_LIFETIME)
        )

    async def trim(self, endpoint: str, request: TrimRequest) -> TrimResponse:
        path, write, read = methods.TRIM.for_channels
        call = self._channel(endpoint).unary_unary(path, request_serializer=write, response_deserializer=read)
        return await call(
            request, metadata=self._authorized(Capability.APPLY, request.journal, _PROXIED_LIFETIME)
        )

    async def roll(self, endpoint: str, request: RollRequest) -> RollResponse:
        path, write, read = methods.ROLL.for_channels
        call = self._channel(endpoint).unary_unary(path, request_serializer=write, response_deserializer=read)
        return await call(
            request, metadata=self._authorized(Capability.APPLY, request.journal, _PROXIED_LIFETIME)
        )

    def read(self, endpoint: str, request: ReadRequest, metadata: Metadata = ()) -> ReadCall:
        path, write, read = methods.READ.for_channels
        call = self._channel(endpoint).unary_stream(
            path, request_serializer=write, response_deserializer=read
        )
        authorized = self._authorized(Capability.READ, request.journal, _PROXIED_LIFETIME)
        return call(request, metadata=(*authorized, *metadata))

    async def list_fragments(self, endpoint: str, request: FragmentsRequest) -> FragmentsResponse:
        path, write, read = methods.LIST_FRAGMENTS.for_channels
        call = self._channel(endpoint).unary_unary(path, request_serializer=write, response_deserializer=read)
        metadata = self._authorized(Capability.READ, request.journal, _PROXIED_LIFETIME)
        return await call(request, metadata=metadata)

    def heads(self, endpoint: str, request: HeadsRequest, timeout: float) -> HeadsCall:
        path, write, read = methods.HEADS.for_channels
        call = self._channel(endpoint).unary_stream(
            path, request_serializer=write, response_deserializer=read
        )
        metadata = self._signed(Capability.LIST | Capability.READ, request.selector, _PROXIED_LIFETIME)
        return call(request, metadata=metadata, timeout=timeout)

    async def retain(self, endpoints: Collection[str]) -> None:
        """Close the channels to brokers that are no longer there, once what these owe us has come."""
        gone = {self._channels.pop(known) for known in tuple(self._channels) if known not in endpoints}
        self._parting |= gone
        await asyncio.gather(*(channel.close(FAREWELL) for channel in gone))
        self._parting -= gone

    async def close(self) -> None:
        for channel in (*self._channels.values(), *self._parting):
            await channel.close()
        self._channels.clear()

    def _channel(self, endpoint: str) -> grpc.aio.Channel:
        channel = self._channels.get(endpoint)
        if channel is None:
            target = target_of(endpoint)
            options = _OPTIONS if endpoint in self.foreign else (*_OPTIONS, *_PINGS)
            if target.secure:
                credentials = (self._tls or ClientTls()).grpc_credentials()
                channel = grpc.aio.secure_channel(target.text, credentials, options=options)
            else:
                channel = grpc.aio.insecure_channel(target.text, options=options)
            self._channels[endpoint] = channel
        return channel

    def _authorized(self, capability: Capability, journal: str, lifetime: float) -> Metadata:
        name = journal.partition(";")[0]
        selector = LabelSelector(include=LabelSet(labels=[Label(name="name", value=name)]))
        return self._signed(capability, selector, lifetime)

    def _signed(self, capability: Capability, selector: LabelSelector, lifetime: float) -> Metadata:
        if self._keys is None:
            return ()
        return bearer(sign(self._keys, Claims(capability, selector), now=self._now(), lifetime=lifetime))
