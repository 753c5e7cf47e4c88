"""A two-phase commit on its way, in words."""

from __future__ import annotations

from penstock.log.transaction import ABORTED, DECIDED, STAGING, VOTED, after_votes, begun


def test_it_goes_from_staging_over_the_votes_to_the_decision() -> None:
    one = begun("3f2a", 100, 200, at=5)
    assert (one.state, one.since, one.began) == (STAGING, 5, 5)
    assert one.words == "transaction 3f2a, messages 100 to 199: staging"
    voted = after_votes(one, {"p.out.0": True, "p.out.1": True}, at=6)
    assert (voted.state, voted.since, voted.began) == (VOTED, 6, 5)
    decided = voted.now(DECIDED, 7)
    assert decided.words == "transaction 3f2a, messages 100 to 199: decided, 2 of 2 for it"


def test_who_voted_against_it_is_named() -> None:
    one = after_votes(begun("3f2a", 7, 8, at=5), {"p.out.0": True, "p.out.1": False}, at=6)
    assert one.state == ABORTED
    assert one.words == "transaction 3f2a, messages 7 to 7: aborted, 1 of 2 for it; against it: p.out.1"
