"""When an answer may be given again without reading."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from penstock.console.reaching import Reaching
from penstock.console.remembered import Remembered
from penstock.console.views import Json
from penstock.pipeline.operations import Directory


class Place:
    """Journals whose state is told by the test."""

    def __init__(self) -> None:
        self.states: list[object] = []
        self.exists = True
        self.reads = 0

    def changed(self) -> object:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    @contextmanager
    def looking(self) -> Iterator[Directory]:
        yield cast(Directory, None)

    def read(self, _: Directory) -> Json:
        self.reads += 1
        return {"reads": self.reads}


def asked(place: Place, states: list[object], questions: list[object]) -> list[object]:
    remembered = Remembered(cast(Reaching, place), {"reads": 0})
    place.states = states
    return [remembered.get(place.read, question)["reads"] for question in questions]


def test_nothing_is_read_twice_while_nothing_changes() -> None:
    assert asked(Place(), [7], ["q", "q", "q"]) == [1, 1, 1]


def test_another_question_is_another_answer() -> None:
    assert asked(Place(), [7], ["q", "r", "r", "q"]) == [1, 2, 2, 3]


def test_where_anything_may_change_everything_is_read() -> None:
    assert asked(Place(), [None], ["q", "q"]) == [1, 2]


def test_what_was_read_while_another_had_the_journals_is_not_kept() -> None:
    """It may have written more behind our reading, and gone before we looked again."""
    assert asked(Place(), [None, 7, 7], ["q", "q", "q"]) == [1, 2, 2]


def test_what_was_read_while_they_changed_hands_is_not_kept() -> None:
    assert asked(Place(), [6, 7, 7], ["q", "q", "q"]) == [1, 2, 2]


def test_where_there_is_nothing_yet_nothing_is_read() -> None:
    place = Place()
    place.exists = False
    assert asked(place, [None], ["q", "q"]) == [0, 0]
    place.exists = True
    assert asked(place, [None], ["q"]) == [1]
