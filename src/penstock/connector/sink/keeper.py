"""Carries out what the rules of the ledger say, in the order that a crash at any point permits.

    vote       1 the data durable   2 the vote in the log, durable   3 only then REPLY
    commit     1 visible in the storage   2 the decision in the log, durable   3 no reply
    abort      1 gone from the storage    2 the decision in the log, durable   3 no reply

A crash between 1 and 2 leaves the transaction unresolved: it is listed again, decided again, and carried out again.

A storage that `always_commits` cannot undo, so there is no vote to abort for bytes that are missing, or for a range
that is not what came: the worker is refused then, and comes again with what is missing. Only what the storage itself
refuses is voted down.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from penstock.base import faults
from penstock.base.errors import RefusedError
from penstock.base.texts import one_line
from penstock.connector.inner import Phase1, Phase2
from penstock.connector.sink.ledger import Bytes, Decided, Forced, Ledger, RuleError, Voted
from penstock.connector.sink.storage import Storage, Transaction
from penstock.connector.sink.txnlog import TransactionLog

log = logging.getLogger(__name__)

LOST = "bytes that were promised are lost"


class Keeper:
    """The state of one worker while it is connected: storage, log, and the offset that is expected next."""

    def __init__(
        self,
        worker: str,
        storage: Storage,
        txnlog: TransactionLog,
        clock: Callable[[], int],
        *,
        always_commits: bool = False,
    ) -> None:
        self.worker = worker
        self._storage = storage
        self._log = txnlog
        self._clock = clock
        self._always = always_commits
        self.offset = self._recovered()
        storage.advertise(self.ledger.committed)

    @property
    def ledger(self) -> Ledger:
        return self._log.ledger

    def _recovered(self) -> int:
        """Make the storage what the log says, and the log what the storage still has."""
        ledger = self.ledger
        if self._always and ledger.forced is not None:  # from a time when there were votes to abort
            self._log.append(msgspec.structs.replace(ledger.kept(), forced=None))
        prepared = ledger.prepared
        held = self._storage.recover(ledger.committed, None if prepared is None else _transaction(prepared))
        if prepared is not None and held < prepared.end:
            known = one_line(prepared.transaction)
            log.warning("worker %s: %s: %s, or were cut off by an abort", self.worker, known, LOST)
            self._log.append(
                Voted(prepared.transaction, prepared.start, prepared.end, False, LOST, self._clock())
            )
            return self._storage.recover(ledger.committed, None)
        return held

    def data(self, number: int, body: memoryview) -> None:
        """Take bytes, or notice that some are missing."""
        what = self.ledger.data(self.offset, number, len(body))
        if what is Bytes.APPEND:
            with faults.step("sink data"):
                self._storage.write(self.offset, body)
            self.offset += len(body)
        elif what is Bytes.COMPARE and not self._storage.holds(number, body):
            raise RuleError(f"message id {number} was seen before, with other bytes; {self.offset} is next")
        elif what is Bytes.GAP and self.ledger.forced is None:
            reason = f"the bytes from {self.offset} to {number} are missing"
            if self._always:
                raise RuleError(reason)
            log.warning("worker %s: %s", self.worker, reason)
            self._log.append(Forced(reason, self._clock()))

    def phase1(self, asked: Phase1) -> bool:
        """Vote; the vote is durable on return."""
        with faults.step("sink phase1"):
            known = asked.transaction in self.ledger.unresolved
            voted = self.ledger.vote(asked, self.offset, self._clock())
            if known:
                return voted.commit
            if self._always and not voted.commit:
                raise RuleError(voted.reason)
            if voted.commit:
                voted = self._prepared(voted)
            self._log.append(voted)
        if not voted.commit:
            told = one_line(f"{voted.transaction}: {voted.reason}")
            log.warning("worker %s: abort of %s", self.worker, told)
        return voted.commit

    def _prepared(self, voted: Voted) -> Voted:
        try:
            self._storage.prepare(_transaction(voted))
        except RefusedError as error:
            return Voted(voted.transaction, voted.start, voted.end, False, error.message[:1000], voted.time)
        return voted

    def phase2(self, decision: Phase2) -> None:
        """Carry out a decision; an unknown one was carried out before, or is nobody's."""
        voted = self.ledger.unresolved.get(decision.transaction)
        if voted is None:
            unknown = one_line(decision.transaction, 200)
            log.info("worker %s: a decision on %s, which is not open", self.worker, unknown)
            return
        if decision.commit and not voted.commit:
            raise RuleError(f"a commit of {voted.transaction}, which this sink has voted to abort")
        with faults.step("sink phase2"):
            if decision.commit:
                self._storage.commit(_transaction(voted))
                committed = voted.end
            else:
                committed = self.ledger.committed
                self._storage.discard(committed)
            with faults.step("sink decide"):
                self._log.append(Decided(voted.transaction, decision.commit, committed, self._clock()))
            self.offset = committed
        with faults.step("sink decided"):
            self._storage.advertise(self.ledger.committed)

    def close(self) -> None:
        self._storage.close()
        self._log.close()


def _transaction(voted: Voted) -> Transaction:
    return Transaction(voted.transaction, voted.start, voted.end)
