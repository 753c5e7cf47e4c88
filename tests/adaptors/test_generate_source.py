"""The generator: the same messages every time, in turns, from any number on."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import adaptors as a
from penstock.adaptors.base import Batch
from penstock.base.errors import UsageError
from penstock.log.message import Message, MessageOffset, Mode, Resume

generate_module = import_module("penstock.adaptors.generate")  # the package gives its name to the function


def everything(ns: str) -> bool:
    return True


def read(
    accept: Callable[[str], bool] = everything, resume: Mapping[str, Resume] | None = None, **settings: object
) -> Iterator[Batch]:
    return a.generate(**settings).source().read(accept, resume or {}, threading.Event())


def messages(batches: list[Batch]) -> list[Message]:
    return [message for batch in batches for message in batch.messages]


def numbers(batches: list[Batch]) -> list[tuple[str, int]]:
    return [(message.ns, json.loads(message.data)["seq"]) for message in messages(batches)]


def resumed(batches: list[Batch], mode: Mode = Mode.COPY) -> dict[str, Resume]:
    positions = {ns: dict(position) for batch in batches for ns, position in batch.positions.items()}
    return {ns: Resume(mode, position, MessageOffset(0)) for ns, position in positions.items()}


def test_namespaces_take_turns_and_are_completed_at_the_count() -> None:
    batches = list(read(count=5, namespaces=["a", "b"]))
    assert numbers(batches) == [("a", 0), ("b", 1), ("a", 2), ("b", 3), ("a", 4)]
    assert [list(batch.completed) for batch in batches] == [[], ["a", "b"]]
    assert batches[-1].positions == {"a": {"next": 6}, "b": {"next": 5}}
    assert {message.mode for message in messages(batches)} == {Mode.COPY}


def test_the_text_depends_on_number_seed_and_size_alone() -> None:
    texts = [message.data for message in messages(list(read(count=50)))]
    assert [message.data for message in messages(list(read(count=50)))] == texts
    assert len(set(texts)) == 50
    assert not set(texts) & {message.data for message in messages(list(read(count=50, seed=1)))}


def test_the_text_never_changes() -> None:
    """Targets that older versions wrote are checked by it."""
    texts = [message.data for message in messages(list(read(count=8, size=60)))]
    assert texts[7] == b'{"seq":7,"check":"26228103","text":"8d50c4563f2f61b27"}'


@pytest.mark.parametrize("size", [0, 10, 60, 100, 5000, 100_000])
def test_documents_have_about_the_size_asked_for(size: int) -> None:
    for message in messages(list(read(count=3, size=size))):
        assert abs(len(message.data) - max(size, 42)) <= 8
        assert isinstance(json.loads(message.data), dict)


def test_a_count_of_zero_completes_at_once() -> None:
    assert [(list(batch.messages), list(batch.completed)) for batch in read(count=0)] == [([], ["generated"])]


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 30), st.integers(1, 4), st.integers(1, 7), st.sets(st.integers(0, 3)), st.data())
def test_a_resumed_run_goes_on_exactly_after_any_batch(
    count: int, spaces: int, most: int, unwanted: set[int], data: st.DataObject
) -> None:
    namespaces = [f"ns{n}" for n in range(spaces)]
    wanted = {ns for n, ns in enumerate(namespaces) if n not in unwanted}
    expected = [(namespaces[n % spaces], n) for n in range(count) if namespaces[n % spaces] in wanted]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate_module, "MOST_MESSAGES", most)
        batches = list(read(wanted.__contains__, count=count, namespaces=namespaces))
        assert numbers(batches) == expected
        taken = data.draw(st.integers(0, len(batches)))
        rest = list(read(wanted.__contains__, resumed(batches[:taken]), count=count, namespaces=namespaces))
    assert numbers(batches[:taken]) + numbers(rest) == expected


def test_namespaces_that_stand_at_different_numbers_each_go_on_with_their_own() -> None:
    resume = {
        "a": Resume(Mode.COPY, {"next": 6}, MessageOffset(0)),
        "b": Resume(Mode.COPY, {"next": 1}, MessageOffset(0)),
    }
    batches = list(read(resume=resume, count=9, namespaces=["a", "b"]))
    assert numbers(batches) == [("b", 1), ("b", 3), ("b", 5), ("a", 6), ("b", 7), ("a", 8)]


def test_a_namespace_still_copying_resumes_its_copy_while_others_go_on() -> None:
    resume = {
        "a": Resume(Mode.COPY, {"next": 2}, MessageOffset(0)),
        "b": Resume(Mode.COMPLETE, {"next": 3}, MessageOffset(1)),
        "c": Resume(Mode.SYNC, {"next": 8}, MessageOffset(2)),
    }
    with pytest.raises(UsageError, match="another one's turn"):
        list(read(resume=resume, count=9, namespaces=["a", "b", "c"]))
    resume["a"] = Resume(Mode.COPY, {"next": 3}, MessageOffset(0))
    resume["b"] = Resume(Mode.COMPLETE, {"next": 4}, MessageOffset(1))
    batches = list(read(resume=resume, count=12, namespaces=["a", "b", "c"]))
    assert [(ns, number, m.mode.word) for (ns, number), m in zip(numbers(batches), messages(batches), strict=True)] == [
        ("a", 3, "copy"), ("b", 4, "sync"), ("a", 6, "copy"), ("b", 7, "sync"), ("c", 8, "sync"), ("a", 9, "copy"),
        ("b", 10, "sync"), ("c", 11, "sync"),
    ]  # fmt: skip
    assert [ns for batch in batches for ns in batch.completed] == ["a"]


def test_a_backfill_begins_anew_and_cannot_choose() -> None:
    resume = {
        "a": Resume(Mode.COPY, {}, MessageOffset(4)),
        "b": Resume(Mode.COMPLETE, {"next": 7}, MessageOffset(5)),
    }
    batches = list(read(resume=resume, count=8, namespaces=["a", "b"]))
    assert numbers(batches) == [("a", 0), ("a", 2), ("a", 4), ("a", 6), ("b", 7)]
    chosen = {"a": Resume(Mode.COPY, {}, MessageOffset(4), None, "seq > 3")}
    with pytest.raises(
        UsageError, match=r"adaptor 'generate' cannot choose rows: namespace 'a' .* 'seq > 3'"
    ):
        list(read(resume=chosen, count=8, namespaces=["a", "b"]))
    assert list(read({"b"}.__contains__, resume=chosen, count=8, namespaces=["a", "b"]))


def test_a_finished_run_has_nothing_more_until_the_count_is_raised() -> None:
    done = resumed(list(read(count=4)), Mode.COMPLETE)
    assert list(read(resume=done, count=4)) == []
    more = list(read(resume=done, count=6))
    assert numbers(more) == [("generated", 4), ("generated", 5)]
    assert {message.mode for message in messages(more)} == {Mode.SYNC}
    assert not any(batch.completed for batch in more)


def test_other_namespaces_than_before_are_refused() -> None:
    resume = {"b": Resume(Mode.COPY, {"next": 3}, MessageOffset(0))}
    with pytest.raises(
        UsageError, match="namespace 'b' is to go on with number 3, which is another one's turn"
    ):
        list(read(resume=resume, namespaces=["a", "b", "c"], count=9))


def test_without_a_count_it_never_ends() -> None:
    found = numbers(list(islice(read(), 3)))
    assert [number for _, number in found] == list(range(len(found)))
    assert len(found) == 30_000


def test_a_rate_is_kept() -> None:
    began = time.monotonic()
    batches = list(islice(read(rate=1000, size=0), 4))
    took = time.monotonic() - began
    assert len(messages(batches)) == 400
    assert took >= 0.29


def test_a_slow_rate_gives_single_messages_and_stops_at_once() -> None:
    stop = threading.Event()
    batches = a.generate(rate=0.001).source().read(everything, {}, stop)
    assert len(next(batches).messages) == 1
    threading.Timer(0.05, stop.set).start()
    began = time.monotonic()
    assert list(batches) == []
    assert time.monotonic() - began < 10


def test_batches_stay_about_a_megabyte() -> None:
    batch = next(read(size=100_000))
    assert len(batch.messages) == 11
    assert len(next(read(size=2_000_000)).messages) == 1


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"count": -1}, "setting 'count': expected 0 or more, got -1"),
        ({"rate": 0}, "setting 'rate': expected more than 0"),
        ({"rate": -1.5}, "setting 'rate': expected more than 0"),
        ({"namespaces": []}, "setting 'namespaces': expected different names"),
        ({"namespaces": ["a", "a"]}, "setting 'namespaces': expected different names"),
        ({"size": -1}, "setting 'size': expected 0 to"),
        ({"amount": 1}, "unknown setting 'amount'"),
    ],
)
def test_bad_settings_are_refused_at_load(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(UsageError) as error:
        a.generate(**settings)
    assert complaint in error.value.message
