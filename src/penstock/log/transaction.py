"""A two-phase commit on its way, for those who look: which messages, how far it is, who voted how.

    staging    tasks send the messages to the target and ask for its votes
    voted      all votes are in, and all are for it
    aborted    somebody voted against it: nobody commits, and the messages are sent again
    decided    the decision to commit is on record, which is what counts
    telling    the target is told; it stays so if the target is away, until it is opened again

When the target has been told, it is over and nothing is told of it any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

STAGING, VOTED, ABORTED, DECIDED, TELLING = "staging", "voted", "aborted", "decided", "telling"
LASTING_SECONDS = 1.0
"""One that is over sooner is of no interest to those who hear of it through a journal."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """Of one sink, over the messages [begin, end). Times in microseconds since 1970."""

    id: str
    """What the names of all its parts at the target have in common."""
    begin: int
    end: int
    state: str
    since: int
    """When it came into this state."""
    began: int
    votes: Mapping[str, bool] = field(default_factory=dict)
    """Of each worker name that something was sent under: whether the target votes to commit that."""

    def now(self, state: str, at: int) -> Transaction:
        """The same, in another state."""
        return replace(self, state=state, since=at)

    def lasts(self, at: int) -> bool:
        """Whether it takes its time, as of `at` (us)."""
        return at - self.began >= LASTING_SECONDS * 1_000_000

    @property
    def words(self) -> str:
        """In a few words, for a person."""
        told = f"transaction {self.id}, messages {self.begin} to {self.end - 1}: {self.state}"
        if not self.votes:
            return told
        against = [worker for worker, vote in self.votes.items() if not vote]
        return f"{told}, {len(self.votes) - len(against)} of {len(self.votes)} for it" + (
            f"; against it: {', '.join(against)}" if against else ""
        )


def begun(name: str, begin: int, end: int, at: int) -> Transaction:
    return Transaction(name, begin, end, STAGING, at, at)


def after_votes(transaction: Transaction, votes: Mapping[str, bool], at: int) -> Transaction:
    """The votes of a sink are in. That others commit with it may still undo it."""
    state = VOTED if all(votes.values()) else ABORTED
    return replace(transaction, state=state, since=at, votes=dict(votes))
