"""Brokers killed, restarted and reassigned at random while clients append: what was acknowledged is there, once."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.base.errors import PenstockError

from ..brokers import until
from .nodes import JOURNAL, Cluster, cluster_of, require_ok, sums

PATIENCE = 8.0


class Chaos:
    """A sequence of faults, and what clients were told meanwhile."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self._number = 0
        self.route = "abc"
        self.acknowledged: dict[int, int] = {}
        self.appends = 0

    async def append(self) -> None:
        """One append at the primary; if it is acknowledged, every offset of it is new."""
        self._number += 1
        content = (b"<%d>" % self._number) * self._random.randrange(1, 90)
        with suppress(PenstockError, OSError, TimeoutError, KeyError):
            async with asyncio.timeout(PATIENCE):
                begin, _ = require_ok(await self._cluster[self.route[0]].append_bytes(content))
            for at, byte in enumerate(content, start=begin):
                assert at not in self.acknowledged, f"offset {at} was given out twice"
                self.acknowledged[at] = byte
            self.appends += 1

    async def step(self) -> None:
        appends = [asyncio.create_task(self.append()) for _ in range(self._random.randrange(1, 6))]
        await asyncio.sleep(self._random.random() * 0.02)
        dead = self._random.sample("abcd", self._random.choice((0, 0, 1, 1, 2, 4)))
        for name in dead:
            await self._cluster.kill(name)
        # What a broker that is gone would have answered, nobody waits for.
        for append in appends if self.route[0] in dead else ():
            append.cancel()
        await asyncio.gather(*appends, return_exceptions=True)
        for append in appends:
            if not append.cancelled() and isinstance(append.exception(), AssertionError):
                append.result()
        alive = [name for name in "abcd" if name not in dead]
        if dead and len(alive) >= 3 and self._random.random() < 0.6:
            await self.assign("".join(self._random.sample(alive, 3)))
            await self.append()
        for name in dead:
            await self._cluster.start(name)
        if dead or self._random.random() < 0.3:
            await self.assign("".join(self._random.sample("abcd", 3)))

    async def assign(self, route: str) -> None:
        self.route = route
        self._cluster.assign(route)

    async def verify(self) -> None:
        """Everything acknowledged is in the store or with the members of the route, and nothing else is there."""
        cluster = self._cluster
        require_ok(await cluster[self.route[0]].append_bytes(b"the end"))
        assert len(sums(cluster, self.route)) == 1
        for name in "abcd":
            if cluster[name].replicas:
                await cluster[name].replica().persisted()
            await until(lambda name=name: not cluster[name]._closing)  # type: ignore[misc]
        content: dict[int, int] = {}
        held = [item for name in self.route for item in cluster[name].spooled().items()]
        for path in (cluster.store / JOURNAL).glob("*-*"):
            held.append((int(path.name[:16], 16), path.read_bytes()))
        for begin, stored in held:
            for at, byte in enumerate(stored, start=begin):
                assert content.setdefault(at, byte) == byte, f"two contents at {at}"
        missing = [at for at, byte in self.acknowledged.items() if content.get(at) != byte]
        assert not missing, f"{len(missing)} acknowledged bytes are not there, from {min(missing)} on"


def endure(path: Path, seed: int, steps: int) -> None:
    async def test() -> None:
        async with asyncio.timeout(50), cluster_of(path, "abcd") as cluster:
            cluster.create(length=1024, stores=("file:///",))
            chaos = Chaos(cluster, seed)
            for _ in range(steps):
                await chaos.step()
            await chaos.verify()
            assert chaos.appends > steps / 3

    asyncio.run(test())


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2))
def test_acknowledged_bytes_survive_faults_at_random(tmp_path: Path, seed: int) -> None:
    endure(tmp_path, seed, steps=8)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(100, 130))
def test_soak_acknowledged_bytes_survive_faults_at_random(tmp_path: Path, seed: int) -> None:
    endure(tmp_path, seed, steps=25)
