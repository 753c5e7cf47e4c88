"""Nonsense on the wire: whatever comes, the broker answers or refuses, and leaves no task, file or slot behind.

An exception that nobody meant (gRPC tells it as `Unexpected <class ...>`) counts as a crash.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.journal.protocol import (
    AppendBatch,
    AppendRequest,
    ApplyRequest,
    CompressionCodec,
    Fragment,
    FragmentsRequest,
    FragmentStoreHealthRequest,
    Header,
    HeadsRequest,
    ListRequest,
    LocateRequest,
    ReadRequest,
    ReplicateRequest,
    RollRequest,
    Status,
    TrimRequest,
)

from .brokers import until
from .foreign import JOURNAL, Foreign, Served, journal, opened

SOUND = "sound/journal"
"""A journal that no nonsense names."""

T = TypeVar("T")
Calls = list[tuple[str, type[Message], str]]
METHODS: Calls = [
    ("/protocol.Journal/List", ListRequest, "unary_stream"),
    ("/protocol.Journal/Apply", ApplyRequest, "unary_unary"),
    ("/protocol.Journal/Read", ReadRequest, "unary_stream"),
    ("/protocol.Journal/Append", AppendRequest, "stream_unary"),
    ("/protocol.Journal/Replicate", ReplicateRequest, "stream_stream"),
    ("/protocol.Journal/ListFragments", FragmentsRequest, "unary_unary"),
    ("/protocol.Journal/FragmentStoreHealth", FragmentStoreHealthRequest, "unary_unary"),
    ("/penstock.Local/Append", AppendRequest, "unary_unary"),
    ("/penstock.Local/Appends", AppendBatch, "stream_stream"),
    ("/penstock.Local/Locate", LocateRequest, "unary_unary"),
    ("/penstock.Local/Heads", HeadsRequest, "unary_stream"),
    ("/penstock.Maintenance/Trim", TrimRequest, "unary_unary"),
    ("/penstock.Maintenance/Roll", RollRequest, "unary_unary"),
]
NAMES = [path.removeprefix("/") for path, _, _ in METHODS]


class Background:
    """A broker and a client of it on a loop of their own, for tests that are not coroutines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self.foreign: Foreign
        self.running: Served
        self._thread.start()
        assert self._ready.wait(20)

    async def _serve(self) -> None:
        async with opened(self._path, journal(), journal(SOUND)) as (self.foreign, self.running):
            await self.foreign.append(SOUND, b"before")
            self._ready.set()
            await self._stop.wait()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        self._loop.close()


@pytest.fixture(scope="module")
def background(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    background = Background(tmp_path_factory.mktemp("fuzz"))
    yield background
    background.stop()


async def told(foreign: Foreign, method: tuple[str, type[Message], str], *sent: bytes) -> tuple[str, str]:
    """Code and details of one call with these serialized messages."""
    path, _, kind = method

    async def each() -> AsyncIterator[bytes]:
        for message in sent:
            yield message

    make = getattr(foreign.channel, kind)(path, bytes, bytes)
    call = make(sent[0] if kind.startswith("unary") else each(), timeout=0.1)
    try:
        if kind.endswith("stream"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    return "OK", ""


async def is_well(foreign: Foreign, running: Served) -> None:
    """An append goes through, and lies where it said it would."""
    response = await foreign.append(SOUND, b"x")
    assert response.status == Status.OK
    assert await foreign.content(SOUND, response.commit.begin) == b"x"
    replica = running.broker._replicas[SOUND]
    assert not replica.pipeline_slot.owned


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_bytes_that_are_no_message_are_refused(
    background: Background, method: tuple[str, type[Message], str]
) -> None:
    @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.binary(max_size=60), min_size=1, max_size=3))
    def garbage(sent: list[bytes]) -> None:
        code, details = background.run(told(background.foreign, method, *sent))
        assert "Unexpected" not in details or "DecodeError" in details, details
        assert code in ("OK", "UNKNOWN", "DEADLINE_EXCEEDED") or details == "Internal error from Core", (
            details
        )

    garbage()
    background.run(is_well(background.foreign, background.running))


INTEGERS = [0, 1, 2, 3, 7, 1024, 1 << 20, -1, -2, (1 << 31) - 1, 1 << 40, (1 << 63) - 1, -(1 << 63)]
STRINGS = [
    "",
    JOURNAL,
    f"{JOURNAL};meta",
    f"{JOURNAL};",
    "b/new",
    "no/such/journal",
    "/rooted",
    "a//b",
    "../up",
    "ünïcode/journal",
    "x" * 600,
    "file:///",
    "file:///no/such/",
    "ftp://host/",
    "name",
    "prefix",
    "AA",
    "{{ .Spool",
    "a/",
    "http://host:1",
]


def bases(kind: type[Message], header: Header) -> list[Message]:
    """Messages that make sense, to be spoilt; an empty one always."""
    proposal = Fragment(journal=JOURNAL, compression_codec=CompressionCodec.NONE)
    made: dict[type[Message], list[Message]] = {
        ApplyRequest: [
            ApplyRequest(changes=[ApplyRequest.Change(expect_mod_revision=-1, upsert=journal())]),
            ApplyRequest(changes=[ApplyRequest.Change(expect_mod_revision=-1, delete=JOURNAL)]),
        ],
        AppendRequest: [AppendRequest(journal=JOURNAL), AppendRequest(content=b"x"), AppendRequest()],
        AppendBatch: [AppendBatch(appends=[AppendRequest(journal=JOURNAL, content=b"x")] * 3)],
        FragmentStoreHealthRequest: [FragmentStoreHealthRequest(fragment_store="file:///")],
        ListRequest: [ListRequest(watch=True, watch_resume=header)],
        ReplicateRequest: [
            ReplicateRequest(header=header, proposal=proposal, acknowledge=True),
            ReplicateRequest(proposal=proposal, acknowledge=True),
            ReplicateRequest(content=b"x"),
        ],
        Header: [header],
    }
    named = [kind(journal=JOURNAL)] if "journal" in kind.DESCRIPTOR.fields_by_name else []
    return [*made.get(kind, []), *named, kind()]


@st.composite
def messages(draw: st.DrawFn, kind: type[Message], header: Header, depth: int = 4) -> Message:
    """Any message of a type: fields set or not, with values that are legal, on the edge, or nonsense."""
    message = kind()
    message.CopyFrom(draw(st.sampled_from(bases(kind, header))))
    spoilt = draw(st.sets(st.sampled_from(range(len(kind.DESCRIPTOR.fields))), max_size=3))
    for field in (kind.DESCRIPTOR.fields[at] for at in spoilt):
        for _ in range(draw(st.integers(1, 2)) if field.is_repeated else 1):
            _set(draw, message, cast("FieldDescriptor", field), header, depth)
    return message


def _set(draw: st.DrawFn, message: Message, field: FieldDescriptor, header: Header, depth: int) -> None:
    if field.message_type is not None:
        if depth:
            inner = draw(messages(GetMessageClass(field.message_type), header, depth - 1))
            held = getattr(message, field.name)
            held.add().CopyFrom(inner) if field.is_repeated else held.CopyFrom(inner)
        return
    value = draw(_values(field))
    if field.is_repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


def _values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return st.binary(max_size=20)
        return st.sampled_from(STRINGS)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return st.sampled_from([0, 1, 2, 3, 4, 5, 99, -1])
    bits = 32 if "32" in _TYPE_NAMES[field.type] else 64
    signed = not _TYPE_NAMES[field.type].startswith(("uint", "fixed"))
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return st.sampled_from([value for value in INTEGERS if low <= value <= high])


_TYPE_NAMES = {
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
    FieldDescriptor.TYPE_FIXED32: "fixed32",
    FieldDescriptor.TYPE_FIXED64: "fixed64",
}


@pytest.mark.parametrize("examples", [20, pytest.param(500, marks=pytest.mark.soak)])
@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_messages_that_make_no_sense_are_answered_or_refused(
    background: Background, method: tuple[str, type[Message], str], examples: int
) -> None:
    foreign, running = background.foreign, background.running
    header = background.run(foreign.fragments(SOUND)).header

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(messages(method[1], header), min_size=1, max_size=1 if method[2].startswith("unary") else 4)
    )
    def nonsense(sent: list[Message]) -> None:
        code, details = background.run(told(foreign, method, *(one.SerializeToString() for one in sent)))
        assert "Unexpected" not in details, details
        # The last is what this client makes of a broker that ends a stream while it still writes.
        assert code in ("OK", "UNKNOWN", "DEADLINE_EXCEEDED") or details == "Internal error from Core", (
            details
        )

    nonsense()
    background.run(is_well(foreign, running))


def test_after_all_that_nothing_is_left(background: Background) -> None:
    """Runs last in this file, on the broker that got all of the above."""

    async def look() -> None:
        foreign, broker = background.foreign, background.running.broker
        await is_well(foreign, background.running)
        await until(lambda: not broker._local._waits._waiting)
        await until(lambda: not any(one.pipeline_slot.owned for one in broker.replicas()))
        names = {str(task.get_coro()) for task in asyncio.all_tasks()}
        assert not [name for name in names if "handler" in name or "_adopt" in name], names

    background.run(look())
