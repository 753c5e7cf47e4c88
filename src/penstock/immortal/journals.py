"""The journals of an immortal instance: their names, specs and owners.

    immortals/N/log           its log: records of input, and marks (`logformat`)
    immortals/N/checkpoints   its checkpoints, one behind the other (`checkpoints`)
    immortals/N/about         its registration, and where its coordinators run (`about`)

`Fenced` is a journal that this process owns by an epoch in the registers: two primaries can never both append. An
append whose answer was lost is found out about by a new claim, so brokers may come and go below an owner.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from penstock.base.disk import Buffer
from penstock.base.errors import CorruptError, PenstockError, UsageError
from penstock.journal import labels
from penstock.journal.client import (
    AsyncClient,
    BrokerGoneError,
    FencedError,
    JournalError,
    Ownership,
    RegisterMismatchError,
    RegistersLostError,
    TimedOutError,
)
from penstock.journal.client.fencing import EPOCH, OWNER, epoch_of
from penstock.journal.fragment import Codec
from penstock.journal.protocol import JournalSpec, LabelSelector, LabelSet
from penstock.journal.tokens import ValidationError, check_token

FORMAT = 1
FORMAT_LABEL = "penstock.dev/format"
INSTANCE_LABEL = "penstock.dev/immortal"
KIND_LABEL = "penstock.dev/kind"
KINDS = ("log", "checkpoints", "about")
FRAGMENT = 64 << 20
STORE = "file:///"
"""Where fragments go unless something else is said."""
OUTAGE = 60.0
"""Seconds for which an owner waits for a broker to come back."""
_ROUNDS = 16
_PAUSE = 0.2

Again = Callable[[], Awaitable[None]]


T = TypeVar("T")


class UnwrittenError(PenstockError):
    """The broker could not write: there is no room, say. What was appended may be there or not."""


async def steadily(reach: Again, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask again while brokers come and go; only for what may be asked twice."""
    deadline = time.monotonic() + OUTAGE
    while True:
        try:
            return await ask()
        except (BrokerGoneError, TimedOutError):
            if time.monotonic() > deadline:
                raise
        await reach()
        await asyncio.sleep(_PAUSE)


def journal_name(instance: str, kind: str) -> str:
    return f"immortals/{instance}/{kind}"


def check_name(instance: str) -> str:
    """Refuse a name that no journal could have."""
    try:
        check_token(instance, 1, 128)
        if "/" in instance:
            raise ValidationError("a slash")
    except ValidationError:
        raise UsageError(
            f"'{instance}' is no name for an instance: 1 to 128 bytes of letters, digits and `-_+.`"
        ) from None
    return instance


def spec(instance: str, kind: str, *, replication: int = 1, store: str = STORE) -> JournalSpec:
    made = JournalSpec(
        name=journal_name(instance, kind),
        replication=replication,
        labels=labels.label_set(
            {FORMAT_LABEL: str(FORMAT), INSTANCE_LABEL: instance, KIND_LABEL: f"immortal-{kind}"}
        ),
    )
    made.fragment.length = FRAGMENT
    made.fragment.compression_codec = Codec.NONE.to_proto()
    made.fragment.stores.append(store)
    made.fragment.refresh_interval.FromSeconds(300)
    return made


async def ensure(client: AsyncClient, instance: str, *, replication: int = 1, store: str = STORE) -> None:
    """Make the journals of an instance unless they are there; those that are stay as they are."""
    check_name(instance)
    there = {
        found.spec.name: found.spec
        for found in await client.list(labels.parse_selector(f"{INSTANCE_LABEL}={instance}"))
    }
    for kind in KINDS:
        wanted = spec(instance, kind, replication=replication, store=store)
        found = there.get(wanted.name)
        if found is None:
            await client.create(wanted)
            continue
        version = int(next(iter(labels.values_of(found.labels, FORMAT_LABEL)), "1"))
        if version > FORMAT:
            raise CorruptError(
                f"format {version}, this version of Penstock reads up to {FORMAT}",
                where=wanted.name,
                position=0,
                hint="use the newer Penstock that wrote it",
            )


async def instances(client: AsyncClient) -> list[str]:
    """The names of all instances that the broker knows."""
    found = await client.list(labels.parse_selector(f"{KIND_LABEL}=immortal-about"))
    return sorted(value for one in found for value in labels.values_of(one.spec.labels, INSTANCE_LABEL))


async def registers(client: AsyncClient, journal: str) -> tuple[LabelSet, int]:
    """A journal's registers, and where it ends."""
    barrier = await client.append(journal, ())
    return barrier.registers, barrier.end


def owner_of(found: LabelSet) -> str:
    """Who claimed the journal last; empty if nobody did."""
    return next(iter(labels.values_of(found, OWNER)), "").rpartition("/")[0]


async def claim(
    client: AsyncClient, journal: str, owner: str, record: bytes, *, instead_of: str | None = None
) -> Ownership | None:
    """Become the one that may append.

    With `instead_of`, only if that one has it still: None if somebody else was faster.
    """
    for _ in range(_ROUNDS):
        now, end = await registers(client, journal)
        old = epoch_of(now)
        if old is None and end > 0:
            raise RegistersLostError(journal)
        if instead_of is not None and owner_of(now) not in (instead_of, owner):
            return None
        epoch = (old or 0) + 1
        claimed = labels.label_set({EPOCH: str(epoch), OWNER: f"{owner}/{epoch}"})
        try:
            landed = await client.append(journal, record, check=_expected(old), union=claimed)
        except RegisterMismatchError:
            continue
        return Ownership(client, journal, owner, record, epoch, landed)
    raise FencedError(f"journal {journal}: others keep claiming it", hint="stop the other owners")


def _expected(epoch: int | None) -> LabelSelector:
    if epoch is None:
        return LabelSelector(exclude=labels.label_set({EPOCH: ""}))
    return LabelSelector(include=labels.label_set({EPOCH: str(epoch)}))


class Fenced:
    """A claimed journal. Appends one after the other, each durable on return, whatever becomes of the broker."""

    def __init__(self, client: AsyncClient, own: Ownership, reach: Again) -> None:
        self._client = client
        self._own = own
        self._reach = reach
        self.end = own.end
        """Where the last append of this owner ended."""
        self.last_contact = time.monotonic()

    @property
    def epoch(self) -> int:
        return self._own.epoch

    @property
    def owner(self) -> str:
        return self._own.owner

    async def append(
        self, content: Sequence[Buffer], union: Callable[[int], LabelSet] | None = None
    ) -> tuple[int, int]:
        """Where it landed. `FencedError` if another owner was faster: then nothing of it is in the journal.

        `union` says what becomes of the registers, given the place that it is to land at: after doubt that is another
        one, behind our new claim.
        """
        while True:
            changed = union(self.end) if union is not None else None
            try:
                landed = await self._client.append(
                    self._own.journal, content, check=self._own.check, union=changed, timeout=OUTAGE
                )
            except RegisterMismatchError as error:
                raise self._own.fenced(error.registers) from None
            except JournalError:
                raise
            except (BrokerGoneError, TimedOutError) as error:
                found = await self._found_out(error, sum(map(len, content)))
                if found is not None:
                    return found
                continue
            except PenstockError as error:
                raise UnwrittenError(str(error), hint=error.hint) from error
            self._own.require_registers(landed.registers)
            self.end = landed.end
            self.last_contact = time.monotonic()
            return landed.begin, landed.end

    async def confirm(self) -> None:
        """Make sure that nobody else has claimed the journal since; an append of ours may be under way meanwhile."""
        found, _ = await registers(self._client, self._own.journal)
        self._own.require_registers(found)
        if owner_of(found) != self._own.owner:
            raise self._own.fenced(found)
        self.last_contact = time.monotonic()

    async def _found_out(self, why: PenstockError, size: int) -> tuple[int, int] | None:
        """After doubt: where the append landed, or None if it did not and never will."""
        deadline = time.monotonic() + OUTAGE
        while True:
            try:
                await self._reach()
                renewed = await self._own.renewed()
                break
            except (BrokerGoneError, TimedOutError):
                if time.monotonic() > deadline:
                    raise why from None
                await asyncio.sleep(_PAUSE)
        before, self._own = self.end, renewed
        self.end = renewed.end
        self.last_contact = time.monotonic()
        return (before, before + size) if renewed.earlier_end >= before + size > before else None
