"""Who may append to a journal: an epoch in its registers, claimed before anything else.

A claim is one append that sets `epoch` to the old one plus one and is checked against the old one. Every
later append is checked against the claimed epoch, so an owner that was replaced can do no harm, however late
its last append arrives. After any doubt (a time-out, a lost connection) the order is: claim a *new* epoch
first, then read the end; the append in doubt has landed by then, or never will. The claim itself may be in doubt as
well: registers also name the `owner`, so that one whose answer was lost is known as our own.

Empty registers match any check (reference 8), so a fresh journal is claimed with "no epoch yet", and a
journal that has content but no registers is not touched: someone lost them.

A journal may belong to another one, as a companion does to its log. Its registers then say `under` as well: the
epoch of the other journal under which it was claimed. Who owns the other journal by a later epoch may claim it,
who was replaced there may not.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from penstock.base.disk import Buffer
from penstock.base.errors import PenstockError
from penstock.journal import labels
from penstock.journal.client import Appended, Client, JournalError, RegisterMismatchError
from penstock.journal.protocol import LabelSelector, LabelSet

EPOCH = "epoch"
OWNER = "owner"
UNDER = "under"


class FencedError(PenstockError):
    """Another owner has claimed the journal; this one must stop."""


class InDoubtError(PenstockError):
    """An earlier append of this owner may have landed, or may yet; claim the journal anew before the next one."""


class Ownership:
    """A claim on one journal."""

    def __init__(self, client: Client, journal: str, owner: str, epoch: int, claimed_at: int) -> None:
        self._client = client
        self.journal = journal
        self.epoch = epoch
        self._owner = owner
        self.claimed_at = claimed_at
        """The byte at which the claim record begins: everything of earlier owners lies before it."""
        self._doubt: BaseException | None = None

    @classmethod
    def claim(
        cls, client: Client, journal: str, claim_record: bytes, *, under: int | None = None
    ) -> Ownership:
        """Take the journal over from whoever had it. `claim_record` is what the claim leaves in the log.

        `under` is our epoch of the journal that this one belongs to.
        """
        owner = uuid.uuid4().hex
        for _ in range(16):
            barrier = client.append(journal, ())
            old = _epoch(barrier.registers)
            latest = _number(barrier.registers, UNDER)
            if under is not None and latest is not None and latest > under:
                raise FencedError(
                    f"journal {journal} was claimed by a later owner (of epoch {latest}, ours is {under})"
                )
            if old is None and barrier.end > 0:
                raise PenstockError(
                    f"journal {journal} has {barrier.end} bytes but has lost its registers, so nobody can own it",
                    hint="make sure that no other owner is running, then reset its head",
                )
            expected = _no_epoch() if old is None else _at_epoch(old)
            epoch = (old or 0) + 1
            try:
                claimed = _register(epoch, owner, under)
                landed = client.append(journal, claim_record, check=expected, union=claimed)
            except RegisterMismatchError:
                continue
            return cls(client, journal, owner, epoch, landed.begin)
        raise FencedError(f"journal {journal}: others keep claiming it", hint="stop the other owners")

    @property
    def in_doubt(self) -> bool:
        """Whether an append ended so that nobody knows if it landed; nothing may follow it under this claim."""
        return self._doubt is not None

    def append(self, content: Buffer | Sequence[Buffer]) -> Appended:
        """Append as the owner; durable on return. After a failure that leaves doubt, no more is accepted."""
        if self._doubt is not None:
            raise InDoubtError(
                f"journal {self.journal}: an append failed ({self._doubt}) and may have landed",
                hint="open the log again: that claims it anew and finds its end",
            )
        return self._append(content, union=None)

    def confirm(self) -> None:
        """Make sure that nobody has taken the journal over by now: an append of nothing, as the owner."""
        try:
            registers = self._client.append(self.journal, (), check=_at_epoch(self.epoch)).registers
        except RegisterMismatchError as error:
            raise self._fenced(error.registers) from None
        if _epoch(registers) is None:
            raise self._lost()

    def renewed(self, claim_record: bytes) -> Ownership:
        """A new claim in place of this one; whatever was in doubt has landed before it, or never will."""
        try:
            landed = self._append(claim_record, union=_register(self.epoch + 1, self._owner))
        except FencedError:
            registers = self._client.append(self.journal, ()).registers
            if _text(registers, OWNER) != self._owner or _epoch(registers) != self.epoch + 1:
                raise
            self.epoch += 1  # an earlier try to renew, of which nothing was heard
            return self.renewed(claim_record)
        return Ownership(self._client, self.journal, self._owner, self.epoch + 1, landed.begin)

    def _append(self, content: Buffer | Sequence[Buffer], union: LabelSet | None) -> Appended:
        try:
            landed = self._client.append(self.journal, content, check=_at_epoch(self.epoch), union=union)
        except RegisterMismatchError as error:
            raise self._fenced(error.registers) from None
        except JournalError:
            raise  # the broker's own word that nothing landed
        except BaseException as error:
            self._doubt = error
            raise
        if _epoch(landed.registers) is None:
            self._doubt = self._lost()
            raise self._doubt
        return landed

    def _fenced(self, registers: LabelSet) -> FencedError:
        return FencedError(
            f"journal {self.journal} was claimed by another owner "
            f"(epoch {_epoch(registers)}, ours is {self.epoch})"
        )

    def _lost(self) -> FencedError:
        return FencedError(
            f"journal {self.journal} has lost its registers, so nobody can own it",
            hint="make sure that no other owner is running, then reset its head",
        )


def _epoch(registers: LabelSet) -> int | None:
    return _number(registers, EPOCH)


def _number(registers: LabelSet, name: str) -> int | None:
    text = _text(registers, name)
    return None if text is None else int(text)


def _text(registers: LabelSet, name: str) -> str | None:
    return next((label.value for label in registers.labels if label.name == name), None)


def _register(epoch: int, owner: str, under: int | None = None) -> LabelSet:
    claimed = {EPOCH: str(epoch), OWNER: owner}
    return labels.label_set(claimed if under is None else {**claimed, UNDER: str(under)})


def _at_epoch(epoch: int) -> LabelSelector:
    return LabelSelector(include=labels.label_set({EPOCH: str(epoch)}))


def _no_epoch() -> LabelSelector:
    return LabelSelector(exclude=labels.label_set({EPOCH: ""}))
