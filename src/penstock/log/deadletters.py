"""Dead letters: what a sink, a function or the source refused for good, kept with its reason (DESIGN 6, 11).

One journal a pipeline. A letter is a record in the seed's layout whose offset is the letter's number, 0, 1, 2 …: the
message as it was, and in the header who refused it, when and why. A control record says what became of letters
later: replayed, or dropped. Letters are told apart by sink, generation and message offset, so a batch that is
delivered again after a crash adds none twice. `add` and `settle` are durable on return.

What a source found and could not make a message of has a letter, too, under the name of the source. It has no offset,
since it never was in the log, but a place; what is found there again, byte for byte the same, is kept once. Such a
letter cannot be replayed.

When nothing is dead any more and the journal has grown, its front is trimmed; numbers go on counting.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, cast

import msgspec

from penstock.base import faults
from penstock.base.errors import CorruptError, UsageError
from penstock.journal.client import Client
from penstock.log import record as rec
from penstock.log.journals import (
    KIND_LABEL,
    PIPELINE_LABEL,
    dead_journal,
    ensure,
    extent,
    journal_labels,
    journal_spec,
    steadily,
)
from penstock.log.message import Mode, Op
from penstock.log.ownership import Ownership
from penstock.log.reader import LogReader, walk
from penstock.log.record import Record

_SEGMENT_BYTES = 64 << 20
_ROOM = 64 << 20
"""So much of settled letters is kept for those who look back."""
_KEPT_BYTES = 1 << 20
"""Of something that cannot be a message no more than this is kept."""
_REASON = 64 << 10
"""Characters of a reason that are kept. One may quote the whole message, which must fit beside it into a record."""

State = Literal["dead", "replayed", "dropped"]


class DeadLetter(msgspec.Struct, frozen=True):
    """One letter. `number` is its name for operators; `ts` is the message's time, `time` that of its death, in us."""

    number: int
    sink: str
    """Or the source, of what cannot be a message."""
    offset: int
    """-1 for what cannot be a message."""
    generation: int
    ns: str
    op: str
    mode: str
    ts: int
    key: str | None
    data: str
    node: str
    """Who refused it: a function, or the sink itself."""
    error: str
    time: int
    state: State = "dead"
    place: str | None = None
    """Where a source found it, if it cannot be a message."""
    old_key: str | None = None


class Misfit(NamedTuple):
    """Something that a source cannot make a message of: where it is, why not, and what it is."""

    ns: str
    place: str
    error: str
    content: bytes


class Death(NamedTuple):
    """What a batch reports of a message; the message itself is in the log."""

    offset: int
    ns: str
    node: str
    error: str


class _Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """The header of a letter's record, and of the control records."""

    sink: str = ""
    offset: int = -1
    generation: int = 0
    node: str = ""
    error: str = ""
    time: int = 0
    settled: tuple[int, ...] = ()
    state: State = "dead"
    next: int = 0
    place: str | None = None
    old: str | None = None
    """The old key of the message, under the name that records have for it."""


LetterId = tuple[str, int, int, str]


class Letter(NamedTuple):
    """A letter's record as it is in the journal: the message byte for byte, its place being the letter's number."""

    told: _Told
    record: Record

    @property
    def id(self) -> LetterId:
        return self.told.sink, self.told.generation, self.told.offset, self._found

    def message(self) -> Record:
        """The message as the log had it, to be delivered once more."""
        extra: dict[str, object] | None = {"old": self.told.old} if self.told.old is not None else None
        return self.record._replace(offset=self.told.offset, extra=extra)

    def outline(self) -> Letter:
        """The letter without what may be long."""
        told = msgspec.structs.replace(self.told, error="", old=None)
        return Letter(told, self.record._replace(data=b"", key=None, extra=None))

    @property
    def _found(self) -> str:
        """What tells apart things that were never in the log; nothing of those that were."""
        if self.told.place is None:
            return ""
        return f"{hashlib.blake2b(self.record.data, digest_size=16).hexdigest()} {self.told.place}"


def load(client: Client, pipeline: str) -> list[DeadLetter]:
    """All letters, one for each sink, generation and offset, the newest; in the order of their numbers."""
    found = _fold(client, pipeline, lambda number: True)
    return [_shown(letter, found.states[number]) for number, letter in sorted(found.letters.items())]


def outlines(client: Client, pipeline: str) -> list[DeadLetter]:
    """As `load`, the letters without what they hold, which may be large."""
    found = _fold(client, pipeline, lambda number: False)
    return [_shown(letter, found.states[number]) for number, letter in sorted(found.letters.items())]


def counts(client: Client, pipeline: str) -> dict[str, int]:
    """How many letters of each sink are still dead."""
    found = _fold(client, pipeline, lambda number: False)
    return dict(Counter(letter.told.sink for n, letter in found.letters.items() if found.states[n] == "dead"))


def messages(client: Client, pipeline: str, numbers: Iterable[int]) -> dict[int, Record]:
    """The messages of these letters as the log had them, byte for byte, by the letters' numbers."""
    numbers = set(numbers)
    found = _fold(client, pipeline, numbers.__contains__)
    return {number: _known(found, number, pipeline).message() for number in numbers}


class DeadLetters:
    """The one owner of a pipeline's dead letters. May be used by several threads."""

    def __init__(self, client: Client, pipeline: str, now: int) -> None:
        """Claim the journal, making it if it is new; then read it."""
        self.journal = dead_journal(pipeline)
        self._client = client
        self._pipeline = pipeline
        self._lock = threading.Lock()
        extra = {PIPELINE_LABEL: pipeline, KIND_LABEL: "dead"}
        ensure(client, journal_spec(self.journal, _SEGMENT_BYTES, extra))
        self._ownership = Ownership.claim(client, self.journal, _control(now))
        self._ids: dict[LetterId, int] = {}
        self._states: dict[int, State] = {}
        self._next = 0
        self._remember()

    def add(self, sink: str, generation: int, deaths: Sequence[Death], reader: LogReader, now: int) -> int:
        """Keep these messages of the log, in one append, unless they are kept already; how many were new."""
        with self._lock:
            self._settle_doubt(now)
            new = {
                death.offset: death
                for death in deaths
                if not self._is_dead((sink, generation, death.offset, ""))
            }
            if not new:
                return 0
            known = reader.messages(new)
            letters = [
                self._letter(self._next + i, sink, generation, new[offset], known.get(offset), now)
                for i, offset in enumerate(sorted(new))
            ]
            self._keep(letters)
            return len(letters)

    def add_misfits(self, source: str, misfits: Sequence[Misfit], now: int) -> int:
        """Keep what a source cannot make messages of, in one append, unless it is kept already; how much was new.

        What an operator has given up is not kept a second time if it is read again.
        """
        with self._lock:
            self._settle_doubt(now)
            new: dict[LetterId, Letter] = {}
            for misfit in misfits:
                letter = _misfit_letter(self._next + len(new), source, misfit, now)
                if letter.id not in self._ids:
                    new.setdefault(letter.id, letter)
            self._keep(list(new.values()))
            return len(new)

    def settle(self, numbers: Sequence[int], state: State, now: int) -> None:
        """Say what became of these letters."""
        with self._lock:
            self._settle_doubt(now)
            unknown = [number for number in numbers if number not in self._states]
            if unknown:
                raise UsageError(
                    f"no dead letter {', '.join(map(str, unknown))} of '{self._pipeline}'",
                    hint="`penstock dead list` shows them",
                )
            if not numbers:
                return
            with faults.step("dead letter"):
                self._ownership.append(_control(now, _Told(settled=tuple(numbers), state=state, time=now)))
            self._states.update(dict.fromkeys(numbers, state))
            self._tidy(now)

    def retell(self, number: int, node: str, error: str, now: int) -> None:
        """Keep a letter under its number with the reason for which it was refused once more."""
        with self._lock:
            self._settle_doubt(now)
            found = _fold(self._client, self._pipeline, number.__eq__)
            letter = _known(found, number, self._pipeline)
            told = msgspec.structs.replace(letter.told, node=node, error=error[:_REASON], time=now)
            extra = cast("dict[str, object]", msgspec.to_builtins(told))
            with faults.step("dead letter"):
                self._ownership.append(rec.encode(letter.record._replace(extra=extra)))
            self._states[number] = "dead"

    def _keep(self, letters: Sequence[Letter]) -> None:
        if not letters:
            return
        with faults.step("dead letter"):
            self._ownership.append(b"".join(rec.encode(letter.record) for letter in letters))
        for letter in letters:
            self._states.pop(self._ids.get(letter.id, -1), None)
            self._ids[letter.id] = letter.record.offset
            self._states[letter.record.offset] = "dead"
        self._next += len(letters)

    def _is_dead(self, name: LetterId) -> bool:
        number = self._ids.get(name)
        return number is not None and self._states[number] == "dead"

    def _letter(
        self, number: int, sink: str, generation: int, death: Death, found: Record | None, now: int
    ) -> Letter:
        """A message that the log has no more is kept as far as it is known."""
        message = found or Record(number, now, Mode.COPY, Op.UNKNOWN, death.ns, b"")
        old = message.old_key.decode() if message.old_key is not None else None
        told = _Told(sink, death.offset, generation, death.node, death.error[:_REASON], now, old=old)
        return _letter(number, told, message)

    def _settle_doubt(self, now: int) -> None:
        """First a new claim, then the truth."""
        if self._ownership.in_doubt:
            self._ownership = self._ownership.renewed(_control(now))
            self._remember()

    def _remember(self) -> None:
        found = _fold(self._client, self._pipeline, lambda number: False)
        self._ids = found.numbers
        self._states = found.states
        self._next = found.next

    def _tidy(self, now: int) -> None:
        """Let settled letters go when there are many and no others: all of them, their numbers aside."""
        if "dead" in self._states.values() or extent(self._client, self.journal).size < _ROOM:
            return
        self._client.roll(self.journal)
        landed = self._ownership.append(_control(now, _Told(next=self._next)))
        self._client.trim(self.journal, landed.begin)
        self._ids, self._states = {}, {}


class _Folded(NamedTuple):
    numbers: dict[LetterId, int]
    letters: dict[int, Letter]
    states: dict[int, State]
    next: int


def _fold(client: Client, pipeline: str, whole: Callable[[int], bool]) -> _Folded:
    """What the journal says. Letters whose numbers are not to be `whole` come without content, which may be large."""
    journal = dead_journal(pipeline)
    if journal_labels(client, journal) is None:
        return _Folded({}, {}, {}, 0)
    return steadily(lambda: _folded(_told(client, journal), whole))


def _told(client: Client, journal: str) -> Iterator[Letter]:
    begin, head = extent(client, journal)
    for byte, record in walk(client, journal, begin, head):
        try:
            yield Letter(msgspec.convert(record.extra or {}, _Told, strict=False), record)
        except msgspec.ValidationError as error:
            raise CorruptError(
                f"a dead letter that does not read: {error}", where=journal, position=byte
            ) from None


def _folded(entries: Iterable[Letter], whole: Callable[[int], bool]) -> _Folded:
    numbers: dict[LetterId, int] = {}
    letters: dict[int, Letter] = {}
    states: dict[int, State] = {}
    upcoming = 0
    for entry in entries:
        told, record = entry
        if record.control:
            upcoming = max(upcoming, told.next)
            states.update({number: told.state for number in told.settled if number in states})
            continue
        upcoming = max(upcoming, record.offset + 1)
        older = numbers.get(entry.id)
        if older is not None:
            del letters[older], states[older]
        numbers[entry.id] = record.offset
        kept = (
            entry if whole(record.offset) else Letter(told, record._replace(data=b"", key=None, extra=None))
        )
        letters[record.offset], states[record.offset] = kept, "dead"
    return _Folded(numbers, letters, states, upcoming)


def _letter(number: int, told: _Told, message: Record) -> Letter:
    extra = cast("dict[str, object]", msgspec.to_builtins(told))
    return Letter(told, message._replace(offset=number, extra=extra))


def _misfit_letter(number: int, source: str, misfit: Misfit, now: int) -> Letter:
    told = _Told(source, node=source, error=misfit.error[:_REASON], time=now, place=misfit.place)
    content = misfit.content[:_KEPT_BYTES]
    return _letter(number, told, Record(number, now, Mode.COPY, Op.UNKNOWN, misfit.ns, content))


def _known(found: _Folded, number: int, pipeline: str) -> Letter:
    letter = found.letters.get(number)
    if letter is None:
        raise UsageError(f"no dead letter {number} of '{pipeline}'", hint="`penstock dead list` shows them")
    return letter


def _shown(letter: Letter, state: State) -> DeadLetter:
    told, record = letter
    return DeadLetter(
        number=record.offset,
        sink=told.sink,
        offset=told.offset,
        generation=told.generation,
        ns=record.ns,
        op=record.op.word,
        mode=record.mode.word,
        ts=record.ts,
        key=record.key.decode(errors="replace") if record.key is not None else None,
        data=record.data.decode(errors="replace"),
        node=told.node,
        error=told.error,
        time=told.time,
        state=state,
        place=told.place,
        old_key=told.old,
    )


def _control(now: int, told: _Told | None = None) -> bytes:
    extra = cast("dict[str, object]", msgspec.to_builtins(told)) if told is not None else None
    return rec.encode(Record(-1, now, Mode.COPY, Op.NOOP, "", b"", extra=extra, control=True))
