"""Fenced ownership: one owner at a time, however late or lost its appends are."""

from __future__ import annotations

import pytest

from penstock.base.errors import UsageError
from penstock.journal import labels
from penstock.journal.client import (
    AsyncClient,
    BrokerGoneError,
    FencedError,
    InDoubtError,
    JournalError,
    RegistersLostError,
    claim,
)
from penstock.journal.client.fencing import epoch_of
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.protocol import Status
from penstock.journal.tokens import ValidationError
from penstock.log.commitlog import journal_spec

from .client_servers import JOURNAL, MemoryBroker, lands, lost_after_landing, lost_before_landing, run, status


def test_a_new_owner_fences_off_the_old_one(broker: EmbeddedBroker) -> None:
    async def test() -> None:
        async with AsyncClient(broker.address) as client:
            await client.create(journal_spec(JOURNAL, 1024, {}))
            old = await claim(client, JOURNAL, "old", b"<old>")
            assert (old.epoch, old.claimed_at, old.end) == (1, 0, 5)
            await old.append(b"mine")
            new = await claim(client, JOURNAL, "new", b"<new>")
            assert (new.epoch, new.claimed_at) == (2, 9)
            with pytest.raises(FencedError, match=r"epoch 2, new/2; ours is old/1"):
                await old.append(b"late")
            with pytest.raises(FencedError):
                await old.renewed()
            await new.append(b"next")
            assert await client.read_bytes(JOURNAL, 0) == b"<old>mine<new>next"

    run(test())


@pytest.mark.parametrize(("outcome", "landed"), [(lost_after_landing, 4), (lost_before_landing, 0)])
def test_after_doubt_nothing_is_appended_until_the_claim_is_renewed(outcome: object, landed: int) -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            owner = await claim(client, JOURNAL, "one", b"<1>")
            broker.outcomes.append(outcome)  # type: ignore[arg-type]
            with pytest.raises(BrokerGoneError):
                await owner.append(b"lost")
            assert owner.in_doubt
            with pytest.raises(InDoubtError, match="may have landed"):
                await owner.append(b"next")
            # The renewal gets lost as well, twice; it is recognised as ours.
            broker.outcomes.extend([lands, lost_after_landing, lands, lost_after_landing])
            for _ in range(2):
                with pytest.raises(BrokerGoneError):
                    await owner.renewed()
            renewed = await owner.renewed()
            assert renewed.epoch == 4
            assert renewed.earlier_end - owner.end == landed
            assert not renewed.in_doubt
            await renewed.append(b"next")

    run(test())


def test_a_refusal_leaves_no_doubt() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            owner = await claim(client, JOURNAL, "one", b"<1>")
            broker.outcomes.append(status(Status.NOT_ALLOWED))
            with pytest.raises(JournalError):
                await owner.append(b"x")
            assert not owner.in_doubt
            await owner.append(b"x")

    run(test())


def test_a_claim_by_epoch_alone_is_not_taken_for_ours() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            owner = await claim(client, JOURNAL, "one", b"<1>")
            broker.outcomes.extend([lands, lost_before_landing])
            with pytest.raises(BrokerGoneError):
                await owner.renewed()
            await client.append(JOURNAL, b"<other>", union=labels.label_set({"epoch": "2"}))
            with pytest.raises(FencedError):
                await owner.renewed()

    run(test())


def test_registers_that_are_lost_stop_everybody() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            owner = await claim(client, JOURNAL, "one", b"<1>")
            broker.registers = labels.label_set()
            with pytest.raises(RegistersLostError, match="lost its registers"):
                await owner.append(b"x")
            with pytest.raises(InDoubtError):
                await owner.append(b"x")
            with pytest.raises(RegistersLostError):
                await owner.renewed()
            with pytest.raises(RegistersLostError):
                await claim(client, JOURNAL, "two", b"<2>")

    run(test())


def test_two_that_claim_at_once_get_different_epochs() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            # Between our barrier and our claim another one comes first.
            def overtaken(broker: MemoryBroker, first: object, content: bytes) -> object:
                broker.registers = labels.label_set({"epoch": "5", "owner": "other/5"})
                return lands(broker, first, content)  # type: ignore[arg-type]

            broker.outcomes.extend([lands, overtaken])  # type: ignore[list-item]
            owner = await claim(client, JOURNAL, "one", b"<1>")
            assert owner.epoch == 6
            assert epoch_of(broker.registers) == 6

    run(test())


def test_an_owner_has_a_name_that_registers_can_hold_and_a_record() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            with pytest.raises(ValidationError):
                await claim(client, JOURNAL, "not a token", b"<1>")
            with pytest.raises(UsageError, match="at least one byte"):
                await claim(client, JOURNAL, "one", b"")

    run(test())
