"""Where a source of Kafka goes on, decided without a broker: from the position and from what a broker has."""

from __future__ import annotations

import pytest

from penstock.adaptors.kafka.place import Place, Span, resumed
from penstock.log.message import MessageOffset, Mode, Position, Resume


def known(position: Position, mode: Mode = Mode.SYNC) -> Resume:
    return Resume(mode, position, MessageOffset(0))


def test_a_topic_that_was_never_read_is_copied_from_its_first_record_to_what_is_committed() -> None:
    place, lost = resumed("t", "x", None, {0: Span(5, 9, 12), 1: Span(0, 0, 0)}, tail=True)
    assert lost == []
    assert (place.next, place.until, place.goal) == ({0: 5, 1: 0}, {0: 9, 1: 0}, {})
    assert (place.wants(0), place.wants(1), place.is_copied) == (True, False, False)


def test_a_copy_goes_on_to_where_it_was_to_end() -> None:
    position: Position = {"id": "x", "next": {"0": 3}, "until": {"0": 7}}
    place, lost = resumed("t", "x", known(position, Mode.COPY), {0: Span(0, 20, 20)}, tail=True)
    assert (place.next, place.until, lost) == ({0: 3}, {0: 7}, [])
    place.reached(0, 7)
    assert place.is_copied
    assert not place.wants(0)


def test_a_position_is_told_as_it_is_read() -> None:
    place = Place("t", "x", {0: 3, 1: 4}, {0: 7, 1: 4})
    again, _ = resumed(
        "t", "x", known(place.position, Mode.COPY), {0: Span(0, 9, 9), 1: Span(0, 9, 9)}, tail=True
    )
    assert (again.next, again.until) == (place.next, place.until)


@pytest.mark.parametrize(
    ("position", "span", "next", "complaint"),
    [
        ({"id": "x", "next": {"0": 3}}, Span(8, 9, 9), 8, "the records 3 to 7 were removed"),
        ({"id": "x", "next": {"0": 30}}, Span(2, 9, 9), 9, "ends at 9, but was read up to 30"),
        ({"id": "old", "next": {"0": 30}}, Span(2, 90, 90), 2, "was deleted and made anew"),
        ({"id": "x", "next": {"1": 3}}, Span(8, 9, 9), 8, "the records 0 to 7 were removed"),
    ],
)
def test_what_is_gone_is_said_and_where_it_would_go_on(
    position: Position, span: Span, next: int, complaint: str
) -> None:
    place, lost = resumed("t", "x", known(position), {0: span}, tail=True)
    assert place.next == {0: next}
    assert len(lost) == 1
    assert complaint in lost[0]


def test_without_tail_all_ends_where_it_ends_now() -> None:
    place, _ = resumed("t", "x", known({"id": "x", "next": {"0": 3}}), {0: Span(0, 5, 9)}, tail=False)
    assert (place.goal, place.wants(0), place.ends(0)) == ({0: 5}, True, 5)
    place.reached(0, 5)
    assert not place.wants(0)
