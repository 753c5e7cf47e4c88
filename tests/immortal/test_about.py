"""What is said about an instance: the last word holds, whatever the clocks say and whoever tidies up meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.immortal.test_startups import broker, scenario

from penstock.immortal import about, journals
from penstock.immortal.about import Registration
from penstock.immortal.coordinator import Options
from penstock.immortal.place import Place
from penstock.journal.client import AsyncClient
from penstock.journal.client.answers import Appended

__all__ = ["broker"]


class Interrupted(AsyncClient):
    """What happens `meanwhile` happens right before something of it is done."""

    before = ""
    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def _turn(self, what: str) -> None:
        if what == self.before and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()

    async def append(self, journal: str, content: Any, **options: Any) -> Appended:
        if b'"registered"' in b"".join(content if isinstance(content, list) else [content]):
            await self._turn("append")
        return await super().append(journal, content, **options)

    async def read_bytes(self, journal: str, begin: int, end: int = 0) -> bytes:
        await self._turn("read_bytes")
        return await super().read_bytes(journal, begin, end)


def test_a_registration_holds_though_the_clock_was_set_back(broker: str) -> None:
    async def test(place: Place, options: Options) -> None:
        await journals.ensure(place.client, options.name)
        for number, at in ((1, 2000.0), (2, 1000.0)):
            said = Registration(0, 1, 2, version=number, upgrade=number, at=at)
            await about.say(place.client, options.name, said)
        assert (await about.read(place.client, options.name)).registrations[0].version == 2

    scenario(broker, test, "set-back")


def test_what_is_said_while_the_rest_is_said_again_is_not_taken_back(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(place: Place, options: Options) -> None:
        await journals.ensure(place.client, options.name)
        old, new = (Registration(0, 1, 2, version=number, upgrade=number) for number in (1, 2))
        await about.say(place.client, options.name, old)

        async def meanwhile() -> None:
            monkeypatch.setattr(about, "REWRITE", 1 << 20)
            await about.say(place.client, options.name, new)

        client = Interrupted(broker)
        async with client:
            client.before, client.meanwhile = "append", meanwhile
            monkeypatch.setattr(about, "REWRITE", 1)
            await about.say(client, options.name, about.Shown("/somewhere", 1.0))
            known = await about.read(place.client, options.name)
            assert known.registrations[0].version == 2
            monkeypatch.setattr(about, "REWRITE", 1)
            await about.say(client, options.name, about.Shown("/elsewhere", 2.0))
        known = await about.read(place.client, options.name)
        assert (known.registrations[0].version, known.shown) == (2, about.Shown("/elsewhere", 2.0))
        assert await place.client.begin(journals.journal_name(options.name, "about")) > 0

    scenario(broker, test, "said-again")


def test_who_reads_while_the_rest_is_trimmed_reads_again(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(place: Place, options: Options) -> None:
        await journals.ensure(place.client, options.name)
        await about.say(place.client, options.name, Registration(0, 1, 2, version=3, upgrade=3))

        async def meanwhile() -> None:
            monkeypatch.setattr(about, "REWRITE", 1)
            await about.say(place.client, options.name, about.Shown("/somewhere", 1.0))

        client = Interrupted(broker)
        async with client:
            client.before, client.meanwhile = "read_bytes", meanwhile
            known = await about.read(client, options.name)
        assert client.meanwhile is None
        assert known.registrations[0].version == 3

    scenario(broker, test, "read-again")
