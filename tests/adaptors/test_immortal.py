"""Reading and writing immortals: the kit, and what is special about them."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import msgspec
import pytest
from tests.adaptors.message_subjects import MessageSource, MessageTarget
from tests.immortal.apps import Kit
from tests.immortal.local import Local

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor, SinkPosition
from penstock.adaptors.immortal.source import ImmortalSource, Page
from penstock.base.errors import UsageError
from penstock.immortal.binding.outside import Outside
from penstock.log.message import MessageOffset, Mode, Resume
from penstock.testing.adaptors import Can, Row, SinkConformance, SourceConformance
from penstock.testing.adaptors.aspects import Aspect, aspect
from penstock.testing.adaptors.bench import FEW, Bench, pour

TOKEN = "not-to-be-shown"
NEVER = "an immortal's handlers say what an op does; the kit's emits rows as they are"


@pytest.fixture
def local() -> Iterator[Local]:
    local = Local(Kit, f"kit-{uuid.uuid4().hex[:6]}", TOKEN)
    local.start()
    try:
        yield local
    finally:
        local.kill()


def misconfigured(local: Local) -> Mapping[str, Adaptor]:
    here = f"127.0.0.1:{local.port}"
    return {
        "wrong token": a.immortal(uri=here, token="wrong", timeout=2.0),
        "nobody listens": a.immortal(uri="127.0.0.1:9", token=TOKEN, timeout=2.0),
    }


class Target(MessageTarget):
    name = "immortal"
    server = "the binding, with a scripted coordinator"
    secret = TOKEN
    cannot: Mapping[Can, str] = {
        Can.REFUSES: "whatever is JSON is a call; an exception of its handler is the end of it",
    }

    def __init__(self, local: Local) -> None:
        self.crashing = self._local = local

    def adaptor(self) -> Adaptor:
        return a.immortal(uri=f"127.0.0.1:{self._local.port}", token=TOKEN, timeout=10.0)

    def misconfigured(self) -> Mapping[str, Adaptor]:
        here = f"127.0.0.1:{self._local.port}"
        return {**misconfigured(self._local), "no such method": a.immortal(uri=here, token=TOKEN, method="x")}

    def make(self, word: str) -> str:
        return word

    def _taken(self, ns: str) -> list[tuple[int, str, str]]:
        return [tuple(row[:3]) for row in cast("list[list[object]]", self._local.call("of", ns))]  # type: ignore[misc]

    def bodies(self, ns: str) -> Sequence[bytes]:
        return [text.encode() for _, op, text in self._taken(ns) if op != "command"]

    def contents(self, ns: str) -> Sequence[Row]:
        found = [msgspec.json.decode(body, type=dict[str, object]) for body in self.bodies(ns)]
        return [Row(int(str(one["id"])), str(one.get("text", ""))) for one in found]


class TestSink(SinkConformance):
    @pytest.fixture
    def subject(self, local: Local) -> Target:
        return Target(local)


class Emits(MessageSource):
    name = "immortal"
    server = "the binding, with a scripted coordinator"
    secret = TOKEN
    key = ()
    cannot: Mapping[Can, str] = {
        Can.REKEYS: NEVER,
        Can.TRUNCATE: NEVER,
        Can.TRANSACTIONS: "what one handler emits may be logged in several batches",
        Can.OVERSIZE: "an emitted message above the limit is refused when it is logged",
    }

    def __init__(self, local: Local) -> None:
        self.crashing = self._local = local

    def adaptor(self, *, tail: bool) -> Adaptor:
        return a.immortal(uri=f"127.0.0.1:{self._local.port}", token=TOKEN, tail=tail, timeout=10.0)

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return misconfigured(self._local)

    def make(self, word: str) -> str:
        self._local.call("open", word)
        return word

    def send(self, ns: str, bodies: Sequence[bytes]) -> None:
        self._local.call("write_texts", ns, [body.decode() for body in bodies])

    def contents(self, ns: str) -> Mapping[int, str]:
        rows = cast("dict[str, str]", self._local.call("contents", ns))
        return {int(number): text for number, text in rows.items()}

    def update(self, ns: str, row: Row) -> None:
        self._local.call("write", ns, "update", [[row.id, row.text]])

    def delete(self, ns: str, id: int) -> None:
        self._local.call("write", ns, "delete", [[id, ""]])

    def held_back(self) -> int:
        assert self._local.machine is not None
        return len(self._local.machine.runtime.outbox)


class TestSource(SourceConformance):
    @pytest.fixture
    def subject(self, local: Local) -> Emits:
        return Emits(local)

    @aspect(Aspect.PRESSURE, Can.TAIL, Can.SEVERAL)
    def test_changes_are_not_read_far_ahead_of_the_log(self, bench: Bench) -> None:
        """The immortal lives in this process, so what it holds would count as well: its pages are counted instead."""
        ns = bench.make(FEW)
        with bench.reading(tail=True) as reading, counted_pages() as pages:
            bench.catch_up(reading, ns)
            bench.follow(reading, ns)
            pages.clear()
            pour(bench, ns)
            assert reading.take(bench.patience) is not None
            time.sleep(1.0)
            assert 0 < len(pages) <= 3


@contextmanager
def counted_pages() -> Iterator[list[int]]:
    """How many messages each page had that a source has asked for, but for empty ones."""
    pages: list[int] = []
    ask = ImmortalSource._page

    def counted(source: ImmortalSource, outside: Outside, after: int, wait: float) -> Page:
        page = ask(source, outside, after, wait)
        if page.messages:
            pages.append(len(page.messages))
        return page

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ImmortalSource, "_page", counted)
        yield pages


def test_a_target_of_another_generation_takes_nothing(local: Local) -> None:
    sink = a.immortal(uri=f"127.0.0.1:{local.port}", token=TOKEN).sink()
    sink.use(sink.schemas, "shop.bank")
    publisher = sink.publisher()
    publisher.open(SinkPosition("log", 2, 0))
    publisher.publish([], SinkPosition("log", 2, 10))
    assert publisher.open(SinkPosition("log", 2, 0)) == SinkPosition("log", 2, 10)
    with pytest.raises(UsageError, match=r"generation 1 of sink 'shop\.bank' is over"):
        publisher.publish([], SinkPosition("log", 1, 20))
    publisher.close()


def test_what_a_filter_leaves_out_does_not_stop_the_next_run(local: Local) -> None:
    """It is taken from the instance like the rest: the log has to know how far that went."""
    resume: dict[str, Resume] = {}

    def run() -> list[bytes]:
        found: list[bytes] = []
        source = ImmortalSource(a.immortal(uri=f"127.0.0.1:{local.port}", token=TOKEN, tail=False))
        for batch in source.read(lambda ns: ns == "wanted", resume, threading.Event()):
            found += [message.data for message in batch.messages]
            for ns, position in batch.positions.items():
                is_copied = ns in batch.completed or (ns in resume and resume[ns].mode is Mode.SYNC)
                resume[ns] = Resume(Mode.SYNC if is_copied else Mode.COPY, position, MessageOffset(-1))
            source.logged(batch)
        return found

    for ns in ("wanted", "other"):
        local.call("open", ns)
    local.call("write_texts", "wanted", ['{"id":1}'])
    assert run() == [b'{"id":1}']
    local.call("write_texts", "other", ['{"id":2}', '{"id":3}'])
    assert run() == []
    assert local.machine is not None
    assert not local.machine.runtime.outbox
    local.call("write_texts", "wanted", ['{"id":4}'])
    assert run() == [b'{"id":4}']
