"""Brokers in a cluster, as real processes over a real etcd: appends, reads, failover, hand-over.

One cluster of four brokers in two zones serves all tests here; each has a journal of its own, and leaves all brokers
running.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import cli
from penstock.journal.client import Client, JournalError
from penstock.journal.cluster.broker import require_shared
from penstock.journal.hosting import BrokerOptions
from penstock.journal.protocol import AppendRequest, ApplyRequest, Status
from penstock.journal.tokens import ValidationError
from penstock.log.commitlog import journal_spec

from .checker import Checker, checked
from .processes import Running, cluster, until

pytestmark = pytest.mark.xdist_group("cluster")


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def test_every_broker_answers_for_every_journal(four: Running) -> None:
    four.create("every/broker")
    members = four.members("every/broker")
    assert len(members) == 3
    assert {four[name].zone for name in members} == {"x", "y"}
    landed = 0
    for broker in four.brokers.values():
        with broker.client() as client:
            appended = client.append("every/broker", broker.id.encode())
            assert appended.begin == landed
            landed = appended.end
    for broker in four.brokers.values():
        with broker.client() as client:
            assert client.read_bytes("every/broker", 0, landed) == b"broker-abroker-bbroker-cbroker-d"
            assert client.head("every/broker") == landed
            assert next(found.spec.begin for found in client.fragments("every/broker")) == 0
            assert "every/broker" in {found.spec.name for found in client.list()}


def test_specs_are_changed_at_any_broker_and_seen_by_all(four: Running) -> None:
    four.create("some/spec", replication=1)
    found = four.listed("some/spec")
    found.spec.max_append_rate = 1 << 20
    change = ApplyRequest.Change(expect_mod_revision=found.mod_revision, upsert=found.spec)
    with four["b"].client() as client:
        assert client.apply([change])
    with four["c"].client() as client:
        assert not client.apply([change]), "the revision has moved on"

    def is_seen(name: str) -> bool:
        with four[name].client() as client:
            [spec] = [one.spec for one in client.list() if one.spec.name == "some/spec"]
            return spec.max_append_rate == 1 << 20

    for name in four.brokers:
        until(lambda name=name: is_seen(name))  # type: ignore[misc]
    with four["d"].client() as client:
        assert client.apply([ApplyRequest.Change(expect_mod_revision=-1, delete="some/spec")])

    def is_gone() -> bool:
        with four["a"].client() as client, pytest.raises(JournalError) as caught:
            client.append("some/spec", b"too late")
        return caught.value.status == Status.JOURNAL_NOT_FOUND

    until(is_gone)


def test_trims_and_rolls_are_passed_on_and_hold_everywhere(four: Running) -> None:
    four.create("trimmed/journal")
    other = next(name for name in four.brokers if name not in four.members("trimmed/journal"))
    with four[other].client() as client:
        client.append("trimmed/journal", b"gone")
        middle = client.roll("trimmed/journal").offset
        end = client.append("trimmed/journal", b"kept").end
        folder = four.store / "trimmed/journal"
        until(lambda: any(folder.glob("*")))
        trimmed = client.trim("trimmed/journal", middle)
        assert (trimmed.begin, trimmed.fragments, trimmed.bytes) == (middle, 1, middle)
        assert not any(folder.glob("*")), "it is deleted with the trim, and not at some later listing"
    for name, broker in four.brokers.items():

        def begins(name: str = name) -> bool:
            with four[name].client() as client:
                return client.begin("trimmed/journal") == middle

        until(begins)
        with broker.client() as client:
            assert client.read_bytes("trimmed/journal", middle, end) == b"kept"


def test_a_suspended_journal_gives_its_replicas_up_and_comes_back_where_it_was(four: Running) -> None:
    four.create("some/suspended")
    with four["a"].client() as client:
        end = client.append("some/suspended", b"before").end
        with pytest.raises(JournalError):
            client.append("some/suspended", b"", suspend=AppendRequest.SUSPEND_NOW)
        until(lambda: len(four.members("some/suspended")) == 1)
        until(lambda: client.append("some/suspended", b"after").begin == end)
    assert len(four.settled("some/suspended")) == 3
    for broker in four.brokers.values():
        with broker.client() as client:
            assert client.read_bytes("some/suspended", 0, end + 5) == b"beforeafter"


def test_stores_that_brokers_do_not_share_are_refused(tmp_path: Path) -> None:
    spec = journal_spec("a/journal", 1024, {})
    require_shared(spec, BrokerOptions(file_root=tmp_path))
    with pytest.raises(ValidationError, match="--file-root"):
        require_shared(spec, BrokerOptions())


def test_after_a_primary_was_killed_others_go_on_and_nothing_is_lost(four: Running) -> None:
    four.create("killed/primary")
    with checked(four, "killed/primary") as checker:
        primary = four.members("killed/primary")[0]
        other = next(broker for broker in four.brokers.values() if broker.name != primary)
        with Client(f"{four[primary].address},{other.address}") as client:
            assert "killed/primary" in {found.spec.name for found in client.list()}
            four[primary].kill()
            assert "killed/primary" in {found.spec.name for found in client.list()}
        checker.progress()
        listed = CliRunner().invoke(
            cli, ["journals", "list", "--broker", f"{four[primary].address},{other.address}"]
        )
        assert "killed/primary" in listed.output
        four[primary].start()
        until(lambda: len(four.members("killed/primary")) == 3)


def test_a_broker_that_is_told_to_end_hands_over_and_no_append_fails(four: Running) -> None:
    four.create("handed/over")
    with checked(four, "handed/over") as checker:
        primary = four.members("handed/over")[0]
        assert four[primary].stop() == 0
        four[primary].start()
        checker.progress()
    assert not [failure for failure in checker.failures if "in doubt" in failure], checker.failures
    assert "nobody took over" not in four[primary].log.read_text()


def test_when_all_brokers_were_killed_at_once_nothing_is_lost(four: Running) -> None:
    four.create("all/killed")
    checker = Checker(four, "all/killed", readers=1)
    checker.start()
    try:
        checker.progress(30)
        for broker in four.brokers.values():
            broker.send(9)  # type: ignore[arg-type]
        for broker in four.brokers.values():
            broker.wait()
        four.start("abcd")
        checker.progress(30)
    finally:
        checker.stop()
    checker.verify()
