"""What a cluster costs: appends with one and three replicas, many idle journals, and the time until others take over.

    penstock's brokers and etcd as processes on this machine; clients in this one
    python benchmarks/cluster.py [--seconds 8] [--idle 10000] [--rounds 10] [--only appends,idle,failover]

Each measurement says what it did; the numbers of record are in docs/benchmarks.md. All processes share the machine's
cores, so the ratio of three replicas to one is what it is when one machine does the work of three.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path

from penstock.base.errors import PenstockError
from penstock.journal.client import AsyncClient, Client
from penstock.journal.cluster.local import LocalCluster
from penstock.journal.protocol import ApplyRequest
from penstock.log.commitlog import journal_spec

SIZE = 1024
LEASE = 2
APPENDERS = 50
LOOP = asyncio.Runner()
"""One loop for all: gRPC does not like several, one after the other."""


@contextmanager
def cluster(brokers: int, lease: int = LEASE) -> Iterator[LocalCluster]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place:
        options = ("--etcd-lease", str(lease), "--http", "off", "--limit", "40000")
        running = LocalCluster(Path(place), brokers=brokers, zones=2, port=0, options=options)
        running.start()
        try:
            yield running
        finally:
            running.kill()


def create(client: Client, names: Sequence[str], replication: int) -> None:
    changes = []
    for name in names:
        spec = journal_spec(name, 1 << 26, {})
        spec.replication = replication
        changes.append(ApplyRequest.Change(expect_mod_revision=0, upsert=spec))
    assert client.apply(changes, max_txn_size=100)


def await_appends(client: Client, names: Sequence[str]) -> None:
    for name in names:
        deadline = time.monotonic() + 120
        while True:
            try:
                client.append(name, b"")
                break
            except PenstockError:
                assert time.monotonic() < deadline
                time.sleep(0.05)


async def appending(address: str, names: Sequence[str], seconds: float, appenders: int) -> list[float]:
    """How long each append took. Each appender goes through its share of the journals, again and again."""
    took: list[float] = []
    async with AsyncClient(address, follow_routes=True) as client:
        until = time.monotonic() + seconds

        async def one(number: int) -> None:
            content, turns = os.urandom(SIZE), cycle(names[number % len(names) :: appenders])
            while (begin := time.monotonic()) < until:
                await client.append(next(turns), content)
                took.append(time.monotonic() - begin)

        await asyncio.gather(*(one(number) for number in range(appenders)))
    return took


def quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def told(label: str, took: list[float], seconds: float) -> float:
    rate = len(took) / seconds
    p50, p99 = (quantile(took, part) * 1000 for part in (0.5, 0.99))
    print(f"{label:<52} {rate:>8.0f} appends/s   p50 {p50:6.1f} ms   p99 {p99:6.1f} ms", flush=True)
    return rate


def appends(seconds: float) -> None:
    print(f"Appends of {SIZE} bytes, each durable on every replica; three brokers", flush=True)
    with cluster(3) as running, Client(running.brokers[0].address) as client:
        rates: dict[tuple[int, int, int], float] = {}
        for replication in (1, 3):
            for journals in (1, 50):
                names = [f"bench/r{replication}-{journals}-{number:03}" for number in range(journals)]
                create(client, names, replication)
                await_appends(client, names)
                for appenders in (1, APPENDERS):
                    LOOP.run(appending(client.address, names, 1.0, appenders))
                    took = LOOP.run(appending(client.address, names, seconds, appenders))
                    label = f"R={replication}, {journals} journal(s), {appenders} at a time"
                    rates[replication, journals, appenders] = told(label, took, seconds)
        for journals in (1, 50):
            for appenders in (1, APPENDERS):
                ratio = rates[3, journals, appenders] / rates[1, journals, appenders]
                print(f"R=3 : R=1, {journals} journal(s), {appenders} at a time: {ratio:.2f}", flush=True)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


def status(etcd: str) -> dict[str, object]:
    command = [sys.executable, "-m", "penstock", "cluster", "status", "--etcd", etcd, "--no-heads", "--json"]
    found: dict[str, object] = json.loads(subprocess.run(command, capture_output=True, check=False).stdout)
    return found


def idle(count: int, replication: int) -> None:
    print(f"{count} idle journals, R={replication}, three brokers", flush=True)
    with cluster(3, lease=20) as running, Client(running.brokers[0].address) as client:
        pids = [broker.process.pid for broker in running.brokers]
        before = sum(map(resident, pids))
        begin = time.monotonic()
        create(client, [f"idle/{number:06}" for number in range(count)], replication)
        made = time.monotonic() - begin
        deadline = time.monotonic() + 600
        while not status(running.etcd)["well"]:
            assert time.monotonic() < deadline, "they are never all well"
            time.sleep(1)
        well = time.monotonic() - begin
        after = sum(map(resident, pids))
        start, used = time.monotonic(), sum(map(cpu_seconds, pids))
        time.sleep(65)
        share = (sum(map(cpu_seconds, pids)) - used) / (time.monotonic() - start)
        took = LOOP.run(appending(client.address, ["idle/000000"], 3.0, 1))
        each = (after - before) / count / 1024
        print(
            f"  created in {made:.1f} s, all agreed after {well:.1f} s; idle: {share * 100:.1f} % of one core for all"
            f" brokers, {each:.0f} KiB of memory a journal (all brokers); an append meanwhile p50"
            f" {quantile(took, 0.5) * 1000:.1f} ms",
            flush=True,
        )


def failover(rounds: int) -> None:
    print(f"Time until the next append is acknowledged, R=3 on four brokers, lease {LEASE} s", flush=True)
    for how in (signal.SIGKILL, signal.SIGTERM):
        took: list[float] = []
        for _ in range(rounds):
            with cluster(4) as running:
                took.append(one_failover(running, how))
        print(
            f"  {how.name}: median {quantile(took, 0.5):.2f} s, longest {max(took):.2f} s, {rounds} rounds",
            flush=True,
        )


def one_failover(running: LocalCluster, how: signal.Signals) -> float:
    with Client(running.brokers[0].address) as client:
        create(client, ["failing/over"], 3)
        await_appends(client, ["failing/over"])
        [journal] = [one for one in client.list() if one.spec.name == "failing/over"]
    primary = journal.route.endpoints[journal.route.primary].removeprefix("http://")
    [victim] = [one for one in running.brokers if one.address == primary]
    other = next(one for one in running.brokers if one is not victim)
    with Client(other.address) as client:
        client.append("failing/over", b"before")
        begin, last, longest = time.monotonic(), time.monotonic(), 0.0
        victim.process.send_signal(how)
        while time.monotonic() < begin + 60:
            with suppress(PenstockError):
                client.append("failing/over", b"after", timeout=5)
                now = time.monotonic()
                longest, last = max(longest, now - last), now
                if victim.process.poll() is not None and now - begin > LEASE + 2:
                    return longest
            time.sleep(0.005)
    raise AssertionError("appends did not go on")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--idle-replication", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", default="appends,failover,idle")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    if "appends" in wanted:
        appends(arguments.seconds)
    if "failover" in wanted:
        failover(arguments.rounds)
    if "idle" in wanted:
        idle(arguments.idle, arguments.idle_replication)


if __name__ == "__main__":
    main()
