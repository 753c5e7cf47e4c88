"""Faults under constant load: three replicas on four brokers, and a checker that holds the cluster to everything.

Each test breaks something, waits until appends go on, mends it, and at the end every acknowledged append is where it
was acknowledged, once, on every replica, and nothing has two contents (`checker.py`). All of these are long runs; the
ordinary suite has the most telling of them in `test_cluster.py`.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import pytest
from tests.servers.etcd import running_cluster
from tests.servers.namespaces import namespaces

from .checker import NO_ROOM, Checker, checked
from .processes import LEASE, BrokerProcess, Running, cluster, until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600), pytest.mark.xdist_group("cluster")]

JOURNAL = "a/journal"


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Running]:
    with cluster(tmp_path / "cluster") as running:
        running.create(JOURNAL)
        yield running


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[Running]:
    """Four brokers whose ways to each other and to etcd can be cut."""
    with cluster(tmp_path / "cluster", links=True) as running:
        running.create(JOURNAL)
        yield running


def test_soak_the_primary_is_killed_again_and_again(
    four: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    took = []
    with checked(four, JOURNAL) as checker:
        for _ in range(10):
            primary = four.members(JOURNAL)[0]
            four[primary].kill()
            took.append(checker.progress(20))
            four[primary].start()
            until(lambda: len(four.members(JOURNAL)) == 3)
            checker.progress(20)
    with capsys.disabled():
        print(f"\nkill -9 of the primary to the next append, lease {LEASE} s: {_times(took)}")  # noqa: T201 - for whoever runs it


def test_soak_a_replica_is_killed(four: Running) -> None:
    with checked(four, JOURNAL) as checker:
        for _ in range(3):
            replica = four.members(JOURNAL)[1]
            four[replica].kill()
            checker.progress()
            four[replica].start()
            checker.progress()


def test_soak_two_are_killed_in_turn(four: Running) -> None:
    with checked(four, JOURNAL) as checker:
        first, second = four.members(JOURNAL)[:2]
        four[first].kill()
        four[second].kill()
        four[first].start()
        checker.progress()
        four[second].start()
        checker.progress()


def test_soak_all_are_killed_at_once_and_nothing_is_lost(four: Running) -> None:
    with checked(four, JOURNAL) as checker:
        for _ in range(3):
            for broker in four.brokers.values():
                broker.send(signal.SIGKILL)
            for broker in four.brokers.values():
                broker.wait()
            four.start("abcd")
            checker.progress()


def test_soak_a_frozen_primary_does_not_commit_when_it_wakes(four: Running) -> None:
    with checked(four, JOURNAL) as checker:
        for _ in range(3):
            primary = four.members(JOURNAL)[0]
            four[primary].freeze()
            time.sleep(LEASE + 1)  # its lease is gone by then
            until(lambda primary=primary: four_without(four, primary))  # type: ignore[misc]
            checker.progress()
            four[primary].thaw()
            checker.progress()


def four_without(four: Running, name: str) -> bool:
    """Whether the others have gone on without this broker."""
    other = next(broker for broker in four.brokers.values() if broker.name != name and broker.alive)
    with other.client() as client:
        [found] = [one for one in client.list() if one.spec.name == JOURNAL]
    return four[name].id not in {member.suffix for member in found.route.members}


def test_soak_every_broker_of_one_zone_is_killed_at_once(four: Running) -> None:
    """Both zones have a replica, so nothing is lost; three brokers are needed to go on."""
    with checked(four, JOURNAL) as checker:
        for zone in "xy":
            gone = [broker for broker in four.brokers.values() if broker.zone == zone]
            for broker in gone:
                broker.send(signal.SIGKILL)
            for broker in gone:
                broker.wait()
            four.start("".join(broker.name for broker in gone))
            checker.progress()


def test_soak_a_broker_is_cut_from_etcd(linked: Running) -> None:
    with checked(linked, JOURNAL) as checker:
        for how in ("cut", "stall"):
            primary = linked.members(JOURNAL)[0]
            to_etcd = linked[primary].to_etcd
            assert to_etcd is not None
            getattr(to_etcd, how)()
            until(lambda primary=primary: four_without(linked, primary))  # type: ignore[misc]
            checker.progress()
            to_etcd.heal()
            checker.progress()
            assert linked[primary].alive, "etcd's trouble never ends a broker"


def test_soak_brokers_are_cut_from_each_other(linked: Running) -> None:
    """While both have their leases nobody can decide who is right: appends wait, and go on when the link heals."""
    with checked(linked, JOURNAL) as checker:
        for how in ("cut", "stall"):
            replica = linked.members(JOURNAL)[1]
            link = linked[replica].link
            assert link is not None
            getattr(link, how)()
            time.sleep(1.0)
            link.heal()
            checker.progress()


def test_soak_a_broker_is_cut_off_from_all_others_both_ways(tmp_path: Path) -> None:
    """Nothing gets in or out, and no connection is reset. It has its lease, as have the others: appends wait."""
    with namespaces("abcd") as spaces, cluster(tmp_path / "cluster", spaces=spaces) as four:
        four.create(JOURNAL)
        with checked(four, JOURNAL) as checker:
            for role in (0, 1):
                for seconds in (1.0, 12.0):  # a moment; and until pings have found it out
                    name = four.members(JOURNAL)[role]
                    spaces[name].cut()
                    time.sleep(seconds)
                    spaces[name].heal()
                    checker.progress()
            assert all(broker.alive for broker in four.brokers.values())


def test_soak_one_broker_is_cut_from_the_store(four: Running) -> None:
    with checked(four, JOURNAL) as checker:
        for role in (0, 1):
            broker = four[four.members(JOURNAL)[role]]
            broker.store.unlink()
            broker.store.write_bytes(b"no directory")
            with four.any_alive().client() as client:
                client.roll(JOURNAL)
            checker.progress()
            broker.store.unlink()
            broker.store.symlink_to(four.store)
            checker.progress()


def test_soak_brokers_are_cut_from_the_store(four: Running) -> None:
    """Fragments wait on the disks meanwhile, and get into the store afterwards."""
    with checked(four, JOURNAL) as checker:
        away = four.store.with_name("away")
        four.store.rename(away)
        four.store.write_bytes(b"no directory")
        with four.any_alive().client() as client:
            client.roll(JOURNAL)
        checker.progress()
        four.store.unlink()
        away.rename(four.store)
        checker.progress()
        until(lambda: len(list((four.store / JOURNAL).iterdir())) > 1)


def test_soak_the_disk_of_a_broker_is_full_and_has_room_again(tmp_path: Path) -> None:
    """As a primary: appends fail and say why. As a replica: they are refused, and the primary's log says why."""
    with small_disk(tmp_path / "cluster" / "a") as disk, cluster(tmp_path / "cluster", "abc") as three:
        journals: dict[str, str] = {}
        for number in range(3):  # each broker is the primary of one
            three.create(f"a/journal-{number}")
            journals[three.members(f"a/journal-{number}")[0]] = f"a/journal-{number}"
        with checked(three, journals["a"]) as led, checked(three, journals["b"]) as followed:

            def is_told() -> bool:
                fill(disk)  # again, since spools that are in the store make room
                at_clients = any(NO_ROOM in failure for failure in led.failures)
                return at_clients and NO_ROOM in three["b"].log.read_text()

            until(is_told)
            (disk / "filling").unlink()
            led.progress()
            followed.progress()


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A file system of some megabytes, where the kernel lets us have one."""
    place.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no file system of our own may be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> None:
    """To the last page."""
    with (disk / "filling").open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_soak_etcd_is_restarted(four: Running) -> None:
    with checked(four, JOURNAL) as checker:
        for _ in range(2):
            four.etcd.restart()
            checker.progress()
        assert all(broker.alive for broker in four.brokers.values())


def test_soak_etcd_is_away_for_longer_than_a_lease(four: Running) -> None:
    with checked(four, JOURNAL) as checker:
        four.etcd.kill()
        time.sleep(LEASE + 2)
        four.etcd.start()
        checker.progress()
        assert all(broker.alive for broker in four.brokers.values())


def test_soak_one_of_three_members_of_etcd_is_killed(tmp_path: Path) -> None:
    with (
        running_cluster(tmp_path / "etcds") as etcds,
        cluster(tmp_path / "cluster", etcds=etcds) as running,
    ):
        running.create(JOURNAL)
        with checked(running, JOURNAL) as checker:
            for etcd in etcds:
                etcd.kill()
                checker.progress()
                etcd.start()
                checker.progress()


def test_soak_all_brokers_are_restarted_one_by_one_and_no_append_fails(four: Running) -> None:
    with checked(four, JOURNAL) as checker:
        for name in "abcd":
            assert four[name].stop() == 0
            four[name].start()
            checker.progress()
    assert not checker.failures, checker.failures


def test_soak_brokers_are_added_and_removed(four: Running) -> None:
    with checked(four, JOURNAL) as checker:
        for name in "ef":
            four.add(name, "x").start()
            checker.progress()
        for name in "ab":
            assert four[name].stop() == 0
            checker.progress()
        until(lambda: not {"a", "b"} & set(four.members(JOURNAL)))
        del four.brokers["a"], four.brokers["b"]


def test_soak_a_primary_that_is_told_to_end_hands_over_within_a_second(
    four: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    took = []
    with checked(four, JOURNAL) as checker:
        for _ in range(10):
            primary = four.members(JOURNAL)[0]
            four[primary].send(signal.SIGTERM)
            took.append(_longest_pause(checker, four[primary]))
            assert four[primary].wait() == 0
            four[primary].start()
            checker.progress(20)
    with capsys.disabled():
        print(f"\nSIGTERM of the primary, the longest pause between appends: {_times(took)}")  # noqa: T201 - for whoever runs it
    assert min(took) < 1.0, "whatever else the machine has to do"


def _longest_pause(checker: Checker, broker: BrokerProcess) -> float:
    """Between two acknowledged appends, until the broker has ended."""
    longest, last, count = 0.0, time.monotonic(), checker.count
    while True:
        now = time.monotonic()
        if checker.count != count:
            longest, last, count = max(longest, now - last), now, checker.count
            if not broker.alive:
                return longest
        assert now - last < 60
        time.sleep(0.002)


def _times(took: list[float]) -> str:
    return f"median {median(took):.2f} s, longest {max(took):.2f} s, {len(took)} rounds"
