"""What the end of a query means, as a table."""

from __future__ import annotations

import pytest

from penstock.base.errors import AwayError, CorruptError, PenstockError, RefusedError, UsageError
from penstock.pipeline.policy import OnError, Policy
from penstock.pipeline.troubles import RESTARTS, Troubles

REFUSED = RefusedError("message 14 is poison")
AWAY = AwayError("nobody answers")


def test_stop_is_the_default_and_stops_at_the_first_refusal() -> None:
    assert Troubles(Policy()).after(REFUSED) is None


@pytest.mark.parametrize("error", [UsageError("wrong"), CorruptError("bad", where="log", position=0)])
def test_what_only_a_person_can_mend_stops_the_sink_at_once(error: PenstockError) -> None:
    assert Troubles(Policy(retries=9)).after(error) is None


def test_a_target_that_is_away_is_tried_again_without_end_and_ever_later() -> None:
    troubles = Troubles(Policy())
    waits = [troubles.after(AWAY) for _ in range(100)]
    assert {wait[0] for wait in waits if wait} == {"away"}
    delays = [wait[1] for wait in waits if wait]
    assert len(delays) == 100
    assert delays == sorted(delays)
    assert delays[-1] == 30.0


def test_other_failures_are_tried_a_few_times() -> None:
    troubles = Troubles(Policy())
    answers = [troubles.after(PenstockError("a worker died")) for _ in range(RESTARTS + 1)]
    assert all(answer is not None and answer[0] == "restarting" for answer in answers[:RESTARTS])
    assert answers[RESTARTS] is None


def test_retry_waits_twice_as_long_each_time_and_then_stops() -> None:
    troubles = Troubles(Policy(retries=3, backoff=2.0))
    answers = [troubles.after(REFUSED) for _ in range(4)]
    assert answers == [("retrying", 2.0), ("retrying", 4.0), ("retrying", 8.0), None]


def test_a_pause_that_was_asked_for_is_not_cut_short() -> None:
    troubles = Troubles(Policy(retries=3, backoff=600.0))
    assert [troubles.after(REFUSED) for _ in range(4)] == [*[("retrying", 600.0)] * 3, None]


def test_retry_may_end_among_the_dead_letters() -> None:
    troubles = Troubles(Policy(OnError.DEAD_LETTER, retries=1, backoff=1.0))
    assert not troubles.buries
    assert troubles.after(REFUSED) == ("retrying", 1.0)
    assert not troubles.buries
    assert troubles.after(REFUSED) == ("retrying", 0.0)
    assert troubles.buries
    troubles.moved()
    assert not troubles.buries, "the next message has its retries too"


def test_dead_letter_buries_from_the_start() -> None:
    assert Troubles(Policy(OnError.DEAD_LETTER)).buries


def test_a_batch_refused_as_a_whole_is_tried_again_so_that_its_culprit_is_found() -> None:
    assert Troubles(Policy(OnError.DEAD_LETTER)).after(REFUSED) == ("retrying", 0.0)


def test_moving_on_forgives_what_was() -> None:
    troubles = Troubles(Policy(retries=1))
    assert troubles.after(REFUSED) is not None
    troubles.moved()
    assert troubles.after(REFUSED) is not None
    assert troubles.after(REFUSED) is None
