"""The reading half of `immortal`: what its handlers emit, exactly once.

An instance numbers what it emits, and keeps it in its state until the pipeline's log has it. The number is the
position, with the number at which the copy ends; what the log has is taken back from the instance within a second or
so. The copy is what was emitted before the pipeline's first start. One pipeline reads an instance.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from penstock.adaptors.base import Batch, Found, Inspection, Source, refuse_conditions
from penstock.adaptors.immortal import Immortal
from penstock.base.errors import UsageError
from penstock.immortal.binding.outside import Outside
from penstock.log.message import Message, Mode, Op, Position, Resume

WAIT = 0.25
OPS = {"insert": Op.INSERT, "update": Op.UPDATE, "delete": Op.DELETE}


class One(msgspec.Struct, array_like=True):
    """A message as the endpoint gives it."""

    number: int
    ts: float
    ns: str
    op: str
    data: str
    key: str | None


class Page(msgspec.Struct):
    """What the endpoint answers."""

    instance: str
    first: int
    emitted: int
    namespaces: list[str]
    messages: list[One]


class ImmortalSource(Source):
    """What one instance emits."""

    def __init__(self, settings: Immortal) -> None:
        self._settings = settings
        self._logged = 0
        self._given: dict[int, int] = {}
        self._lock = threading.Lock()
        self._waiting = 0

    def namespaces(self) -> Sequence[str]:
        outside = self._settings.connect()
        try:
            return sorted(self._page(outside, 0, 0.0).namespaces)
        finally:
            outside.close()

    def inspect(self, accept: Callable[[str], bool]) -> Inspection:
        return Inspection([Found(ns) for ns in self.namespaces()])

    def gauges(self) -> Mapping[str, float]:
        return {"emitted_unread": float(self._waiting)}

    def logged(self, batch: Batch) -> None:
        with self._lock:
            self._logged = max(self._logged, self._given.pop(id(batch), 0))

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        refuse_conditions("immortal", accept, resume)
        known = {ns: one for ns, one in resume.items() if accept(ns)}
        following = {ns for ns, one in known.items() if one.mode is not Mode.COPY and one.position}
        after = max((_number(one.position) for one in resume.values()), default=0)
        instances = {str(one.position["instance"]) for one in known.values() if "instance" in one.position}
        with self._lock:
            self._logged, self._given = after, {}
        taken = 0
        ends = [int(str(one.position["end"])) for one in known.values() if "end" in one.position]
        end = max(ends, default=-1)
        outside = self._settings.connect()
        try:
            while not stop.is_set():
                page = self._page(outside, after, WAIT)
                self._check(page, after, instances)
                end = page.emitted if end < 0 else end
                new = {ns for ns in (*page.namespaces, *known) if accept(ns)} - following
                if (
                    new and after >= end
                ):  # what was there at the start is through: from here on it is followed
                    position: Position = {"number": after, "instance": page.instance}
                    yield Batch(positions=dict.fromkeys(sorted(new), position), completed=sorted(new))
                    following |= new
                elif new:
                    page.messages = [one for one in page.messages if one.number <= end]
                if page.messages:
                    after = page.messages[-1].number
                    yield self._batch(page, accept, following, end)
                with self._lock:
                    logged = self._logged
                if logged > taken:
                    outside.ask("POST", f"/taken?number={logged}")
                    taken = logged
                self._waiting = page.emitted - after
                if (
                    not self._settings.tail
                    and after >= max(page.emitted, end)
                    and not (page.messages or new - following)
                ):
                    return
        finally:
            outside.close()

    def _page(self, outside: Outside, after: int, wait: float) -> Page:
        return msgspec.json.decode(outside.ask("GET", f"/emitted?after={after}&wait={wait}"), type=Page)

    def _check(self, page: Page, after: int, instances: set[str]) -> None:
        if instances - {page.instance} or page.emitted < after:
            raise UsageError(
                f"the log has read {after} messages of {', '.join(sorted(instances)) or 'an instance'}; "
                f"{page.instance} has emitted {page.emitted}: it is another one",
                hint="give the pipeline another name to begin anew",
            )
        if after and page.first > after + 1 and page.emitted > after:
            raise UsageError(
                f"{page.instance} has messages from number {page.first} on, the log ends at {after}: "
                "another pipeline has taken those between",
                hint="one pipeline reads an instance",
            )

    def _batch(self, page: Page, accept: Callable[[str], bool], following: set[str], end: int) -> Batch:
        messages = [
            Message(
                one.ns,
                one.data.encode(),
                OPS[one.op],
                int(one.ts * 1e6),
                Mode.SYNC if one.ns in following else Mode.COPY,
                None if one.key is None else one.key.encode(),
            )
            for one in page.messages
            if accept(one.ns)
        ]
        after = page.messages[-1].number
        position: Position = {"number": after, "instance": page.instance, "end": end}
        # What nobody wants is passed as well, and taken back like the rest: the next start is to know.
        names = {one.ns for one in messages} or {ns for ns in following if accept(ns)}
        batch = Batch(messages, dict.fromkeys(sorted(names), position))
        if names:
            with self._lock:
                self._given[id(batch)] = after
        return batch


def _number(position: Position) -> int:
    number = position.get("number", 0)
    return number if isinstance(number, int) else 0
