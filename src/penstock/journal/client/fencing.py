"""Fenced ownership: one owner of a journal at a time, by an epoch in its registers (DESIGN, decision 8).

A claim is one append that sets `epoch` to the old one plus one and is checked against the old one. Every later
append of the owner is checked against its epoch, so an owner that was replaced can do no harm, however late its
last append arrives. After any doubt (a time-out, a lost connection) the order is: claim a *new* epoch first, then
look where the claim landed; the append in doubt lies before it, or never will lie anywhere.

The register `owner` says whose epoch it is, as `{owner}/{epoch}`; so a claim of ours whose answer was lost is told
from somebody else's. `owner` must therefore be unique to each claimant (a process and its start, a random id).

Empty registers match any check (reference 8): a fresh journal is claimed with "no epoch yet", and a journal that
has content but no registers is not touched: someone lost them.
"""

from __future__ import annotations

from penstock.base.errors import PenstockError, UsageError
from penstock.journal import labels
from penstock.journal.client.aio import DEFAULT_TIMEOUT, AsyncClient, Content
from penstock.journal.client.answers import Appended
from penstock.journal.client.errors import BrokerGoneError, JournalError, RegisterMismatchError
from penstock.journal.protocol import LabelSelector, LabelSet
from penstock.journal.tokens import PATH_SYMBOLS, check_token

EPOCH = "epoch"
OWNER = "owner"
_ROUNDS = 16


class FencedError(PenstockError):
    """Another owner has claimed the journal; this one must stop."""


class InDoubtError(PenstockError):
    """An earlier append of this owner may have landed, or may yet; renew the claim before the next one."""


class RegistersLostError(PenstockError):
    """The journal has lost its registers, so nobody can own it."""

    def __init__(self, journal: str) -> None:
        super().__init__(
            f"journal {journal} has content but has lost its registers, so nobody can own it",
            hint="make sure that no other owner is running, then reset its head",
        )


class Ownership:
    """A claim on one journal. Made by `claim`."""

    def __init__(
        self, client: AsyncClient, journal: str, owner: str, record: bytes, epoch: int, landed: Appended
    ) -> None:
        self._client = client
        self.journal = journal
        self.owner = owner
        self.record = record
        self.epoch = epoch
        self.claimed_at = landed.begin
        """Where the claim record begins: everything of earlier owners lies before it."""
        self.end = landed.end
        """Where the claim record ends."""
        self.earlier_end = landed.begin
        """Where ended what was appended under the claim that this one renews."""
        self._doubt: BaseException | None = None
        self._tried = epoch

    @property
    def check(self) -> LabelSelector:
        """What an append under this claim is checked against."""
        return _at_epoch(self.epoch)

    @property
    def registers(self) -> LabelSet:
        """What the claim made of the registers, as far as it is concerned with them."""
        return _registers(self.owner, self.epoch)

    @property
    def in_doubt(self) -> bool:
        """Whether an append ended so that nobody knows if it landed; nothing may follow it under this claim."""
        return self._doubt is not None

    async def append(self, content: Content, *, timeout: float = DEFAULT_TIMEOUT) -> Appended:  # noqa: ASYNC109
        """Append as the owner; durable on return. After a failure that leaves doubt, no more is accepted."""
        if self._doubt is not None:
            raise InDoubtError(
                f"journal {self.journal}: an append failed ({self._doubt}) and may have landed",
                hint="renew the claim: that finds out",
            )
        try:
            landed = await self._client.append(self.journal, content, check=self.check, timeout=timeout)
        except RegisterMismatchError as error:
            raise self.fenced(error.registers) from None
        except JournalError:
            raise  # the broker's own word that nothing landed
        except BrokerGoneError as error:
            if not error.harmless:
                self._doubt = error
            raise
        except BaseException as error:
            self._doubt = error
            raise
        self.require_registers(landed.registers)
        return landed

    async def renewed(self, *, timeout: float = DEFAULT_TIMEOUT) -> Ownership:  # noqa: ASYNC109
        """A new claim in place of this one; whatever was in doubt has landed before it, or never will.

        If this fails with doubt, it may be called again: a claim of ours that landed without an answer is
        recognised, and counted in `earlier_end`.
        """
        for _ in range(_ROUNDS):
            barrier = await self._client.append(self.journal, (), timeout=timeout)
            now = epoch_of(barrier.registers)
            if now is None:
                raise RegistersLostError(self.journal)
            ours = labels.values_of(barrier.registers, OWNER) == [f"{self.owner}/{now}"]
            if not ours or not self.epoch <= now <= self._tried:
                raise self.fenced(barrier.registers)
            self._tried = max(self._tried, now + 1)
            try:
                landed = await self._client.append(
                    self.journal,
                    self.record,
                    check=_at_epoch(now),
                    union=_registers(self.owner, now + 1),
                    timeout=timeout,
                )
            except RegisterMismatchError:
                continue  # a claim that was in doubt has landed after the barrier
            renewed = Ownership(self._client, self.journal, self.owner, self.record, now + 1, landed)
            renewed.earlier_end = landed.begin - (now - self.epoch) * len(self.record)
            return renewed
        raise FencedError(f"journal {self.journal}: others keep claiming it", hint="stop the other owners")

    def fenced(self, registers: LabelSet) -> FencedError:
        return FencedError(
            f"journal {self.journal} was claimed by another owner "
            f"({_shown(registers)}; ours is {self.owner}/{self.epoch})",
            hint="stop: what this owner has not got acknowledged is the other's to decide",
        )

    def require_registers(self, registers: LabelSet) -> None:
        """An append that went through because the registers were empty was not checked at all."""
        if epoch_of(registers) is None:
            self._doubt = RegistersLostError(self.journal)
            raise self._doubt


async def claim(client: AsyncClient, journal: str, owner: str, record: bytes) -> Ownership:
    """Take the journal over from whoever has it. `record` is what the claim leaves in the log; not empty.

    If it fails with doubt, call it again: what it claimed, if it did, is claimed from ourselves.
    """
    check_token(owner, 1, 512, PATH_SYMBOLS)
    if not record:
        raise UsageError("a claim record has at least one byte: brokers change registers only with content")
    for _ in range(_ROUNDS):
        barrier = await client.append(journal, ())
        old = epoch_of(barrier.registers)
        if old is None and barrier.end > 0:
            raise RegistersLostError(journal)
        epoch = (old or 0) + 1
        expected = _no_epoch() if old is None else _at_epoch(old)
        try:
            landed = await client.append(journal, record, check=expected, union=_registers(owner, epoch))
        except RegisterMismatchError:
            continue
        return Ownership(client, journal, owner, record, epoch, landed)
    raise FencedError(f"journal {journal}: others keep claiming it", hint="stop the other owners")


def epoch_of(registers: LabelSet) -> int | None:
    for value in labels.values_of(registers, EPOCH):
        return int(value)
    return None


def _registers(owner: str, epoch: int) -> LabelSet:
    return labels.label_set({EPOCH: str(epoch), OWNER: f"{owner}/{epoch}"})


def _at_epoch(epoch: int) -> LabelSelector:
    return LabelSelector(include=labels.label_set({EPOCH: str(epoch)}))


def _no_epoch() -> LabelSelector:
    return LabelSelector(exclude=labels.label_set({EPOCH: ""}))


def _shown(registers: LabelSet) -> str:
    owner = ", ".join(labels.values_of(registers, OWNER))
    return f"epoch {epoch_of(registers)}" + (f", {owner}" if owner else "")
