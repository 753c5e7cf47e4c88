"""What a sink is told about failures and lag: the words, as values and as mappings, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Pipeline, retry
from penstock import adaptors as a
from penstock.base.errors import UsageError
from penstock.pipeline.definition import SinkNode
from penstock.pipeline.namespace import Namespace
from penstock.pipeline.policy import MaxLag, OnError, Policy, WhenBehind
from penstock.pipeline.saving import max_lag_text, policy_text


def saved(**options: Any) -> SinkNode:
    pipeline = Pipeline("shop")
    pipeline.source("db", a.generate(count=1)).save("audit", a.discard(), **options)
    [sink] = pipeline.sink_nodes
    return sink


def test_without_a_word_a_sink_stops_and_may_lag() -> None:
    assert saved().on_error == Policy(OnError.STOP, 0)
    assert saved().max_lag is None
    assert SinkNode("x", a.discard(), Namespace()).on_error == saved().on_error


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ("stop", Policy()),
        ("dead-letter", Policy(OnError.DEAD_LETTER)),
        (retry(5), Policy(OnError.STOP, 5, 1.0)),
        (retry(5, backoff="250ms", then="dead-letter"), Policy(OnError.DEAD_LETTER, 5, 0.25)),
        (retry(1, backoff=2), Policy(OnError.STOP, 1, 2.0)),
        ({"retry": 5, "backoff": "2s", "then": "dead-letter"}, Policy(OnError.DEAD_LETTER, 5, 2.0)),
        ({"retry": 3}, Policy(OnError.STOP, 3, 1.0)),
        (Policy(OnError.DEAD_LETTER), Policy(OnError.DEAD_LETTER)),
    ],
)
def test_what_to_do_with_a_refused_message(given: Any, policy: Policy) -> None:
    assert saved(on_error=given).on_error == policy


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("dead-leter", "unknown word 'dead-leter'; did you mean 'dead-letter'?"),
        ("skip", "unknown word 'skip'; known: dead-letter, stop"),
        (None, "unknown word None"),
        (retry, "retry needs a number of times"),
        ("retry", "retry needs a number of times"),
        ({"retries": 5}, "unknown word 'retries'; did you mean 'retry'?"),
        ({"backoff": "1s"}, "needs 'retry', the number of times"),
        ({"retry": 0}, "expected a number of times from 1 to 1000, got 0"),
        ({"retry": True}, "expected a number of times from 1 to 1000, got True"),
        ({"retry": 1, "backoff": "soon"}, "'backoff': expected a duration such as"),
        ({"retry": 1, "then": "dead"}, "unknown word 'dead'; known: dead-letter, stop"),
    ],
)
def test_policies_that_are_none(given: Any, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        saved(on_error=given)
    assert caught.value.message.startswith("sink 'audit': 'on_error'")
    assert words in caught.value.message
    if given == "skip":
        assert caught.value.hint == "one of: stop, dead-letter; or retry(5), in YAML {retry: 5}"


@pytest.mark.parametrize(
    ("times", "backoff"), [(-1, "1s"), (1.5, "1s"), (2, 0), (2, "-1s"), (2, float("inf")), (2, 1e300)]
)
def test_retry_refuses_at_once(times: Any, backoff: Any) -> None:
    with pytest.raises(UsageError, match="retry: "):
        retry(times, backoff=backoff)


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        (None, None),
        ("10GB", MaxLag(bytes=10**10)),
        (1000, MaxLag(bytes=1000)),
        ({"bytes": "10GiB"}, MaxLag(bytes=10 << 30)),
        ({"age": "1d", "then": "detach"}, MaxLag(seconds=86400.0, then=WhenBehind.DETACH)),
        ({"bytes": 5, "age": 60, "then": "hold"}, MaxLag(5, 60.0, WhenBehind.HOLD)),
        (MaxLag(bytes=7), MaxLag(bytes=7)),
    ],
)
def test_how_far_a_sink_may_fall_behind(given: Any, limit: MaxLag | None) -> None:
    assert saved(max_lag=given).max_lag == limit


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("many", "expected a size such as 64MB"),
        (0, "expected a number of bytes above 0, got 0"),
        (True, "expected a number of bytes above 0, got True"),
        ({}, "needs 'bytes', 'age', or both"),
        ({"then": "detach"}, "needs 'bytes', 'age', or both"),
        ({"byte": 5}, "unknown word 'byte'; did you mean 'bytes'?"),
        ({"bytes": 5, "then": "detatch"}, "unknown word 'detatch'; did you mean 'detach'?"),
        ({"age": "1w"}, "'age': expected a duration such as"),
        ([5], "expected a number of bytes above 0"),
    ],
)
def test_limits_that_are_none(given: Any, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        saved(max_lag=given)
    assert caught.value.message.startswith("sink 'audit': 'max_lag'")
    assert words in caught.value.message


def test_variables_stand_for_policies_and_limits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAG", "5MB")
    monkeypatch.setenv("TIMES", "4")
    sink = saved(on_error={"retry": "${TIMES}", "then": "${THEN:-dead-letter}"}, max_lag={"bytes": "${LAG}"})
    assert sink.on_error == Policy(OnError.DEAD_LETTER, 4)
    assert sink.max_lag == MaxLag(bytes=5_000_000)


def test_a_refused_policy_does_not_take_the_name() -> None:
    pipeline = Pipeline("shop")
    node = pipeline.source("db", a.generate(count=1))
    with pytest.raises(UsageError):
        node.save("audit", a.discard(), on_error="x")
    node.save("audit", a.discard())


def test_policies_and_limits_in_words() -> None:
    assert policy_text(Policy()) == "stop"
    assert policy_text(retry(5, "2s", "dead-letter")) == "retry 5 times from 2s on, then dead-letter"
    assert max_lag_text(MaxLag(10**10, 86400.0, WhenBehind.DETACH)) == "10GB or 1d, then detach"
    assert max_lag_text(MaxLag(seconds=90.0)) == "90s, then hold"
