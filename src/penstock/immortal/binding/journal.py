"""The record of an open handler, and how it is run again from it.

A suspended coroutine cannot be written down. What can be is everything that it was told so far: what it read of
the state, and the answers it got. `Journal` keeps these steps in order, each with its key (what was asked) and its
outcome. To re-create the handler, it is called again with the same arguments; each step is now answered from
the record, and nothing is changed or sent, until the handler waits for the very call that it was waiting for.

A step that has another key than the recorded one, a wait that comes too early or a step too many mean that the code is
not the one that made the record, or does something that no record can hold (a clock, say): a `DeterminismError`. What
a step does in turn (a view that it is given, a key function) is part of it, and not recorded for itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

from penstock.immortal.binding.errors import DeterminismError
from penstock.immortal.binding.thrown import Outcome, as_builtin, raise_again, repeatable, thrown
from penstock.immortal.binding.values import class_name, find_class, from_wire, is_exact, is_plain, to_wire
from penstock.immortal.binding.views import (
    LOOKUP_ERRORS,
    Place,
    apply,
    kind_of,
    make_view,
    resolve,
    told,
)

Key = tuple[object, ...]
_ERRORS = (*LOOKUP_ERRORS, ValueError, TypeError)


def kept(value: object) -> Outcome:
    """A result, so that whoever has it cannot change the record, and has now what a handler re-created has then."""
    return ("=", value) if is_exact(value) else ("w", to_wire(value))


class Journal:
    """The steps of one handler so far."""

    __slots__ = ("_cursor", "_is_inside", "_is_over", "entries", "owner", "rebuilding")

    def __init__(self, owner: str, entries: list[tuple[Key, Outcome]] | None = None) -> None:
        self.owner = owner
        self.entries = entries if entries is not None else []
        self._cursor = 0
        self._is_inside = self._is_over = False
        self.rebuilding = entries is not None

    def step(self, key: Key, live: Callable[[], Outcome]) -> Outcome:
        """The outcome of a step: the recorded one while the handler is re-created, else that of `live`."""
        if self._is_over:
            raise GeneratorExit
        if self._is_inside:
            return live()
        if not self.rebuilding:
            self._is_inside = True
            try:
                outcome = live()
            finally:
                self._is_inside = False
            self.entries.append((key, outcome))
            return outcome
        if self._cursor == len(self.entries):
            raise self._differs("it should wait for an answer here", key)
        recorded, outcome = self.entries[self._cursor]
        if recorded != key:
            raise self._differs(_words(recorded), key)
        self._cursor += 1
        return outcome

    @property
    def at_end(self) -> bool:
        """Whether a handler that is re-created has used up its record."""
        return self._cursor == len(self.entries)

    def end(self) -> None:
        """The handler goes on elsewhere, or never: whatever its coroutine asks for now ends it."""
        self._is_over = True

    def finish(self) -> None:
        """The handler waits where it waited: from here on it lives."""
        if self._cursor != len(self.entries):
            raise self._differs(_words(self.entries[self._cursor][0]), ("wait",))
        self.rebuilding = False

    def _differs(self, expected: str, key: Key) -> DeterminismError:
        return DeterminismError(
            f"{self.owner} cannot be re-created from its record: step {self._cursor + 1} was: {expected}; "
            f"now it is: {_words(key)}",
            hint="up to its last await, the code of a handler that is open must ask for the same things in the same "
            "order as when it was recorded",
        )

    def to_wire(self) -> list[list[object]]:
        return [[to_wire(key), to_wire(outcome)] for key, outcome in self.entries]

    @classmethod
    def from_wire(cls, owner: str, wire: list[list[object]]) -> Journal:
        return cls(owner, [(_tuple(key), _tuple(outcome)) for key, outcome in wire])


def _tuple(wire: object) -> tuple[object, ...]:
    value = from_wire(wire)
    return value if isinstance(value, tuple) else ()


def _words(key: Key) -> str:
    name = str(key[0])
    if name in ("look", "copy", "do"):
        place = told(key[1])  # type: ignore[arg-type]
        return f"{key[2]!s} on {place}" if name == "do" else f"{'read' if name == 'look' else name} {place}"
    return " ".join(str(part) for part in key)


class Recording:
    """The scope of an `async` handler: what it asks goes through its journal."""

    __slots__ = ("_values", "journal")

    def __init__(self, values: Mapping[str, object], journal: Journal) -> None:
        self._values = values
        self.journal = journal

    def use(self, values: Mapping[str, object]) -> None:
        """Go on with the state of another class."""
        self._values = values

    def look(self, place: Place) -> object:
        outcome = self.journal.step(("look", place), lambda: self._look(place))
        if outcome[0] == "~":
            name = str(outcome[1])
            kind = {"dict": dict, "list": list}.get(name) or find_class(name)
            return make_view(self, place, kind)
        return _opened(outcome)

    def _look(self, place: Place) -> Outcome:
        try:
            found = resolve(self._values, place)
            if is_plain(found):
                return kept(found)
        except _ERRORS as error:
            return as_builtin(error)
        kind = kind_of(found)
        if kind is None:
            raise DeterminismError(
                f"{self.journal.owner}: {told(place)} is a {type(found).__name__}, of which an async handler can have "
                "no view",
                hint="use it in a plain method of the class that is marked @step",
            )
        return ("~", kind.__name__ if kind in (dict, list) else class_name(kind))

    def operate(self, place: Place, name: str, arguments: tuple[object, ...]) -> object:
        return _opened(self.journal.step(("do", place, name), lambda: self._operate(place, name, arguments)))

    def _operate(self, place: Place, name: str, arguments: tuple[object, ...]) -> Outcome:
        try:
            return kept(apply(resolve(self._values, place), name, arguments))
        except _ERRORS as error:
            return as_builtin(error)

    def copied(self, place: Place) -> object:
        """A copy is a step as any reading is: when the handler is re-created, something else may stand there."""
        return self.effect(("copy", place), lambda: copy.deepcopy(self.raw(place)))

    def effect(self, key: Key, live: Callable[[], object]) -> object:
        """Anything else that happens once: a call, a timer, a step. So does what it raises."""
        raised: list[Exception] = []

        def once() -> Outcome:
            try:
                return kept(live())
            except DeterminismError:
                raise
            except Exception as error:  # noqa: BLE001 - the handler may catch whatever it is
                raised.append(repeatable(error))
                return thrown(raised[0])

        outcome = self.journal.step(key, once)
        if raised:
            raise raised[0]
        return _opened(outcome)

    def raw(self, place: Place) -> object:
        return resolve(self._values, place)


def _opened(outcome: Outcome) -> object:
    if outcome[0] == "=":
        return outcome[1]
    if outcome[0] == "w":
        return from_wire(outcome[1])
    return raise_again(outcome)
