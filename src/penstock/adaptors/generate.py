"""`generate`: a source of test data that is the same every time.

Messages are numbered 0, 1, 2 … over all namespaces, which take turns: with two of them the first has the even
numbers. The text of a message depends on its number and the settings and on nothing else, so whoever reads
the target can tell what is missing, doubled or out of order:

    {"seq":17,"check":"9c0e21a4","text":"…"}

`check` is a digest of seed and number. `ts` is the time at which the message was made, to measure how long it
takes to arrive. The position of a namespace is `{"next": n}`, the next number that it is to have.
"""

from __future__ import annotations

import hashlib
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from penstock.adaptors.base import Adaptor, Batch, Source, refuse_conditions
from penstock.base.errors import UsageError
from penstock.base.settings import setting
from penstock.log.message import Message, Mode, Op, Resume

MOST_BYTES = 1024 * 1024
MOST_MESSAGES = 10_000
PACE = 0.1
"""Seconds of messages in a batch, and between batches, where a rate is given."""

_LETTERS = 4096
"""How many letters there are from which every text is cut."""


@dataclass(frozen=True)
class Generate(Adaptor):
    """Numbered documents; how many, how fast, how large."""

    name: ClassVar[str] = "generate"
    description: ClassVar[str] = "test data: numbered documents, the same every time"
    reads: ClassVar[bool] = True

    count: int | None = setting(
        "how many messages in all; endless if not given", default=None, example=10_000, needed=True
    )
    rate: float | None = setting("messages a second; as fast as they are taken if not given", default=None)
    namespaces: Sequence[str] = setting("namespaces, which take turns", default=("generated",))
    seed: int = setting("another seed, other texts", default=0)
    size: int = setting("about how many bytes a document has", default=100)

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 0:
            raise ValueError(f"setting 'count': expected 0 or more, got {self.count}")
        if self.rate is not None and not self.rate > 0:
            raise ValueError(f"setting 'rate': expected more than 0, got {self.rate}")
        if not self.namespaces or len(set(self.namespaces)) < len(self.namespaces) or "" in self.namespaces:
            raise ValueError(f"setting 'namespaces': expected different names, got {list(self.namespaces)}")
        if not 0 <= self.size <= 8 * MOST_BYTES:
            raise ValueError(f"setting 'size': expected 0 to {8 * MOST_BYTES}, got {self.size}")

    def source(self) -> Source:
        return GenerateSource(self)


class Texts:
    """The text of each number."""

    def __init__(self, seed: int, size: int) -> None:
        letters = hashlib.shake_128(str(seed).encode()).hexdigest(_LETTERS // 2)
        self._length = max(0, size - len('{"seq":123456,"check":"01234567","text":""}'))
        self._letters = letters * (self._length // _LETTERS + 2)
        self._seed = zlib.crc32(str(seed).encode())

    def __getitem__(self, number: int) -> bytes:
        check = zlib.crc32(b"%d" % number, self._seed)
        begin = check % _LETTERS
        text = self._letters[begin : begin + self._length]
        return f'{{"seq":{number},"check":"{check:08x}","text":"{text}"}}'.encode()


class _Known(msgspec.Struct):
    """A position as the log gives it back."""

    next: int | None = None


class GenerateSource(Source):
    """Counts, and makes a document of each number."""

    def __init__(self, settings: Generate) -> None:
        self._settings = settings
        self._texts = Texts(settings.seed, settings.size)

    def namespaces(self) -> Sequence[str]:
        return self._settings.namespaces

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        refuse_conditions("generate", accept, resume)
        due = {ns: self._first(turn, ns, resume) for turn, ns in enumerate(self.namespaces()) if accept(ns)}
        if not due:
            return
        copying = [ns for ns in due if ns not in resume or resume[ns].mode is Mode.COPY]
        number, began, at_once = min(due.values()), time.monotonic(), self._at_once()
        first = number
        while self._settings.count is None or number < self._settings.count:
            if self._settings.rate is not None:
                stop.wait(max(0.0, began + (number - first) / self._settings.rate - time.monotonic()))
            if stop.is_set():
                return
            end = min(number + at_once, self._settings.count or number + at_once)
            messages = self._messages(range(number, end), due, copying)
            due = {ns: max(next, self._following(end, ns)) for ns, next in due.items()}
            yield Batch(messages, {ns: {"next": next} for ns, next in due.items()})
            number = end
        if copying:
            yield Batch((), {ns: {"next": due[ns]} for ns in copying}, completed=copying)

    def _messages(self, numbers: range, due: Mapping[str, int], copying: Sequence[str]) -> list[Message]:
        now = time.time_ns() // 1000
        names, texts, insert = self._settings.namespaces, self._texts, Op.INSERT
        by_turn = [(ns, due.get(ns, numbers.stop), Mode.COPY if ns in copying else Mode.SYNC) for ns in names]
        turns = len(names)
        messages = []
        for number in numbers:
            ns, next, mode = by_turn[number % turns]
            if number >= next:
                messages.append(Message(ns, texts[number], insert, now, mode))
        return messages

    def _first(self, turn: int, ns: str, resume: Mapping[str, Resume]) -> int:
        """The number that a namespace goes on with."""
        known = msgspec.convert(resume[ns].position, _Known) if ns in resume else _Known()
        if known.next is None:
            return turn
        if known.next % len(self.namespaces()) != turn:
            raise UsageError(
                f"namespace '{ns}' is to go on with number {known.next}, which is another one's turn now",
                hint="the setting 'namespaces' must stay as it was when the pipeline first ran",
            )
        return known.next

    def _following(self, number: int, ns: str) -> int:
        """The first number from `number` on that is the turn of `ns`."""
        names = self.namespaces()
        return number + (names.index(ns) - number) % len(names)

    def _at_once(self) -> int:
        """How many messages make a batch."""
        fitting = min(MOST_MESSAGES, MOST_BYTES // max(self._settings.size, 1) + 1)
        rate = self._settings.rate
        return fitting if rate is None else max(1, min(fitting, int(rate * PACE)))
