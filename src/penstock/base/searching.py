"""Whether a pattern is found in a text, in time that grows with the text and not with the ways to read it.

Python's engine tries one way after the other, and `(a+)+$` has 2^n of them in n letters: one message could hold a sink
up for ever. RE2, the original's, follows all ways at once. So Python's engine is asked where it is sure to be done
soon, and for other patterns and longer texts ours: it keeps the set of places in the pattern that the text so far can
lead to, moves it on by one character after another, and remembers what came of each. It is some hundred times slower
than Python's engine on its good days, and finds the same.

Patterns are those that `penstock.base.patterns` has checked: no look-around, no backreferences.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from penstock.base.patterns import compiled

_SOON = 300_000_000
"""So many steps of Python's engine take a second or three."""

_LONGEST = 1 << 25
"""Longer than any message."""

_MOST_PLACES = 20_000
"""A pattern of more, with its repetitions written out, is left to Python's engine."""

_MOST_REMEMBERED = 10_000

_parser: Any = importlib.import_module("re._parser")
_compiler: Any = importlib.import_module("re._compiler")

_REPEATS = ("MAX_REPEAT", "MIN_REPEAT")


@lru_cache(maxsize=256)
def finder(pattern: str) -> Callable[[str], bool]:
    """What tells whether the pattern is found in a text."""
    quick = compiled(pattern).search
    tree = _parser.parse(pattern, re.ASCII)
    enough = _longest(tree)
    try:
        sure = None if enough >= _LONGEST else _Places(tree)
    except _TooManyError:
        sure = None
    if sure is None:
        return lambda text: quick(text) is not None
    found_in = sure.found_in
    return lambda text: quick(text) is not None if len(text) <= enough else found_in(text)


def _longest(tree: Any) -> int:
    """How long a text may be for Python's engine to be done with it soon, whatever it holds."""
    low, high = 0, _LONGEST
    while low < high:
        middle = (low + high + 1) // 2
        if (middle + 1) * _ways(tree, middle) <= _SOON:
            low = middle
        else:
            high = middle - 1
    return low


def _ways(items: Iterable[Any], length: int) -> float:
    """In how many ways at most a part of the pattern can be read into a text of this length, from one place on."""
    ways = 1.0
    for op, given in items:
        if str(op) in _REPEATS:
            least, most, body = given
            times, each = min(int(most), length), _ways(body, length)
            if times > 1 and times * math.log(each) > math.log(_SOON):
                return math.inf
            ways *= max(times - least + 1, 1) * each**times
        elif str(op) == "BRANCH":
            ways *= sum(_ways(branch, length) for branch in given[1])
        elif str(op) == "SUBPATTERN":
            ways *= _ways(given[3], length)
        if ways > _SOON:
            return math.inf
    return ways


class _TooManyError(Exception):
    """The pattern has more places than are worth it."""


class _Place(NamedTuple):
    """A place in the pattern: what the next character, or the spot it stands at, must be; and where it leads then."""

    accepts: Callable[[str], object] | None = None
    holds: Callable[[str, int], bool] | None = None
    leads: tuple[int, ...] = ()


_END = 0
"""The place behind the pattern."""


class _Places:
    """The places of a pattern, and what was found out about going from some of them to others."""

    def __init__(self, tree: Any) -> None:
        self._state = tree.state
        self._places = [_Place()]
        self._start = self._sequence(tree, _END, self._state.flags)
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._asks = any(place.holds for place in self._places)

    def found_in(self, text: str) -> bool:
        """Whether the pattern is found in the text."""
        at: frozenset[int] = frozenset()
        start = self._start
        reached, steps = self._reached, self._steps
        for spot, character in enumerate(text):
            if self._asks:
                here = reached(at | {start}, text, spot)
                if _END in here:
                    return True
                at = self._step(here, character)
                continue
            step = steps.get((at, character))
            if step is None:
                here = reached(at | {start}, text, spot)
                if _END in here:
                    return True
                if len(steps) >= _MOST_REMEMBERED:
                    steps.clear()
                step = steps[at, character] = self._step(here, character)
            at = step
        return _END in reached(at | {start}, text, len(text))

    def _step(self, here: Iterable[int], character: str) -> frozenset[int]:
        found: set[int] = set()
        for number in here:
            place = self._places[number]
            if place.accepts is not None and place.accepts(character):
                found.update(place.leads)
        return frozenset(found)

    def _reached(self, from_: Iterable[int], text: str, spot: int) -> set[int]:
        """All places that can be reached without another character."""
        found: set[int] = set()
        ahead = list(from_)
        while ahead:
            number = ahead.pop()
            if number in found:
                continue
            found.add(number)
            place = self._places[number]
            if place.accepts is None and (place.holds is None or place.holds(text, spot)):
                ahead.extend(place.leads)
        return found

    def _add(self, place: _Place) -> int:
        if len(self._places) >= _MOST_PLACES:
            raise _TooManyError
        self._places.append(place)
        return len(self._places) - 1

    def _sequence(self, items: Iterable[Any], then: int, flags: int) -> int:
        """Where to begin for these items, one after the other, to lead to `then`."""
        for item in reversed(list(items)):
            then = self._item(item, then, flags)
        return then

    def _item(self, item: Any, then: int, flags: int) -> int:
        op, given = str(item[0]), item[1]
        if op in _REPEATS:
            least, most, body = given
            return self._repeat(least, most, body, then, flags)
        if op == "BRANCH":
            return self._add(_Place(leads=tuple(self._sequence(one, then, flags) for one in given[1])))
        if op == "SUBPATTERN":
            _, more, less, body = given
            return self._sequence(body, then, (flags | more) & ~less)
        one = _parser.SubPattern(self._state, [item])
        matches = _compiler.compile(one, flags)
        if op == "AT":
            return self._add(
                _Place(holds=lambda text, spot: matches.match(text, spot) is not None, leads=(then,))
            )
        return self._add(_Place(accepts=matches.match, leads=(then,)))

    def _repeat(self, least: int, most: int, body: Any, then: int, flags: int) -> int:
        if most == _parser.MAXREPEAT:
            again = self._add(_Place())
            into = self._sequence(body, again, flags)
            self._places[again] = _Place(leads=(into, then))
            then = again
        else:
            for _ in range(most - least):
                then = self._add(_Place(leads=(self._sequence(body, then, flags), then)))
        for _ in range(least):
            then = self._sequence(body, then, flags)
        return then
