"""A checker beside the tests of clusters: clients that append and read all the while, and what must hold of it all.

Every append is a record that says who wrote it and what it must hold. Its outcome is kept: acknowledged, and where; or
in doubt; or certain not to have happened. Every read is kept as well. At the end, and as often as one likes:

- acknowledged appends are in the journal once, where they were acknowledged, on every replica, with equal sums
- no offset has two contents: not in what readers ever saw, not in any spool or store
- reads go forward only, and showed nothing that is not in the journal
- nothing is in the journal that nobody wrote
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.base.disk import Disk
from penstock.base.errors import PenstockError
from penstock.journal.client import AsyncClient, BrokerGoneError, JournalError, TimedOutError
from penstock.journal.fragment import parse_path
from penstock.journal.spoolfile import SpoolFile
from penstock.journal.spoollayout import content_at

from ..killing import Id, record, records
from .processes import PATIENCE, Running, until

NO_ROOM = "No space left"
PACE = 0.004
"""Seconds between the appends of one writer: the machine has other things to do as well."""


class Checker:
    """Clients of one journal, in a thread of their own, from `start` to `stop`."""

    def __init__(
        self, cluster: Running, journal: str, *, writers: int = 3, readers: int = 2, seed: int = 1
    ) -> None:
        self.cluster = cluster
        self.journal = journal
        self.acknowledged: dict[Id, tuple[int, int]] = {}
        self.in_doubt: set[Id] = set()
        self.refused: Counter[str] = Counter()
        """Appends that certainly did not happen, by why."""
        self.failures: list[str] = []
        """Appends that failed at the client, whichever way, with when."""
        self.surprises: list[str] = []
        self.seen = bytearray()
        """The journal as far as a reader has seen it."""
        self._writers, self._readers = writers, readers
        self._draw = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="checker", daemon=True)

    # While it runs.

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(2 * PATIENCE)
        assert not self._thread.is_alive(), "a client hangs"
        assert not self.surprises, self.surprises[:5]

    @property
    def count(self) -> int:
        return len(self.acknowledged)

    def progress(self, appends: int = 50) -> float:
        """Wait until so many more appends have been acknowledged; how long the first of them took to come."""
        begin, before = time.monotonic(), self.count
        until(lambda: self.count > before)
        first = time.monotonic() - begin
        until(lambda: self.count >= before + appends)
        return first

    async def _run(self) -> None:
        works = [self._write(number) for number in range(self._writers)]
        works += [self._read(number) for number in range(self._readers)]
        await asyncio.gather(*works)

    def _address(self) -> str:
        return self._draw.choice(list(self.cluster.brokers.values())).address

    async def _write(self, writer: int) -> None:
        number = 0
        client = AsyncClient(self._address(), follow_routes=True)
        try:
            while not self._stop.is_set():
                who = Id(writer, number)
                number += 1
                if not await self._append(client, who):
                    await client.close()  # which broker is asked is of no account: any other one may be
                    client = AsyncClient(self._address(), follow_routes=True)
                await asyncio.sleep(PACE)
        except Exception as error:  # noqa: BLE001 - told by `stop`
            self.surprises.append(f"writer {writer}: {error!r}")
        finally:
            await client.close()

    async def _append(self, client: AsyncClient, who: Id) -> bool:
        content = record(who, self._draw.randrange(10, 400))
        self.in_doubt.add(who)
        try:
            landed = await client.append(self.journal, content, timeout=40)
        except JournalError as error:
            failure: PenstockError = error
            self.refused[error.status_name] += 1
            self.in_doubt.discard(who)
        except BrokerGoneError as error:
            failure = error
            if error.harmless:
                self.refused["not reached"] += 1
                self.in_doubt.discard(who)
        except TimedOutError as error:
            failure = error
        except PenstockError as error:
            if NO_ROOM not in str(error):
                raise
            failure = error
        else:
            self.in_doubt.discard(who)
            self.acknowledged[who] = (landed.begin, landed.end)
            return True
        doubt = "in doubt" if who in self.in_doubt else "refused"
        self.failures.append(f"{time.strftime('%H:%M:%S')} {who} {doubt}: {failure}")
        return False

    async def _read(self, reader: int) -> None:
        """From the front, or from where the last one came to, at any broker, for a while; then at another one."""
        offset = 0
        while not self._stop.is_set():
            client = AsyncClient(self._address())
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._draw.uniform(0.2, 1.5)):
                        async with client.read(self.journal, offset, block=True) as reading:
                            async for at, chunk in reading:
                                self._note(reader, offset, at, chunk)
                                offset = at + len(chunk)
                if self._draw.random() < 0.2:
                    offset = 0
            except PenstockError as error:
                self.surprises.append(f"reader {reader}: {error!r}")
                return
            finally:
                await client.close()

    def _note(self, reader: int, expected: int, at: int, chunk: bytes) -> None:
        if at != expected:
            self.surprises.append(f"reader {reader}: offset {at} where {expected} was due")
            return
        known = self.seen[at : at + len(chunk)]
        if known != chunk[: len(known)]:
            self.surprises.append(f"reader {reader}: other bytes in [{at}, {at + len(chunk)}) than before")
        if at + len(known) == len(self.seen):
            self.seen += chunk[len(known) :]

    # At the end.

    def verify(self) -> bytes:
        """Hold the cluster, in which all replicas agree by now, to everything; the journal's content."""
        members = self.cluster.settled(self.journal)
        with self.cluster[members[0]].client() as client:
            end = client.append(self.journal, b"").end
        contents = {name: self._content_at(name, end) for name in members}
        assert len({hashlib.sha1(content).digest() for content in contents.values()}) == 1, {
            name: (len(content), hashlib.sha1(content).hexdigest()) for name, content in contents.items()
        }
        content = contents[members[0]]
        assert len(content) == end
        self._verify_appends(content)
        assert content[: len(self.seen)] == bytes(self.seen), "a reader saw what is not in the journal"
        self._verify_disks(content, members)
        return content

    def _content_at(self, name: str, end: int) -> bytes:
        """All that one broker has, by its own account."""

        def read() -> bytes:
            with self.cluster[name].client() as client:
                return b"".join(chunk for _, chunk in client.read(self.journal, 0, end))

        until(lambda: len(read()) == end)
        return read()

    def _verify_appends(self, content: bytes) -> None:
        there: dict[Id, tuple[int, int]] = {}
        for begin, end, who in records(content, 0):
            assert who not in there, f"{who} is there twice"
            there[who] = (begin, end)
        for who, landed in self.acknowledged.items():
            assert there.get(who) == landed, f"{who}, acknowledged at {landed}, is at {there.get(who)}"
        strange = set(there) - set(self.acknowledged) - self.in_doubt
        assert not strange, f"appends that did not happen are there: {sorted(strange)[:5]}"

    def _verify_disks(self, content: bytes, members: list[str]) -> None:
        """What lies in the spools of any replica, and in the store, is what the journal has.

        Who is no replica may have a spool that a crash left: nobody sees it before it has been compared.
        """
        for broker in (self.cluster[name] for name in members):
            folder = broker.directory / "spools" / self.journal / "#"
            for path in sorted(folder.glob("*.spool")):
                _require_part(content, *spooled(path, self.journal))
        for path in sorted((self.cluster.store / self.journal).rglob("*-*-*")):
            if path.name.startswith("."):
                continue
            fragment = parse_path(self.journal, path.name, backing_store="file:///", mod_time=1)
            found = path.read_bytes()
            assert hashlib.sha1(found).digest() == fragment.sum, f"{path}: not what its name says"
            assert content[fragment.begin : fragment.end] == found, f"{path}: not what the journal has"


def spooled(path: Path, journal: str) -> tuple[Path, int, bytes]:
    """What a spool file holds that is committed; from a copy, since reading it mends it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.name)
        try:
            copy.write_bytes(path.read_bytes())
        except FileNotFoundError:
            return path, 0, b""
        recovered = SpoolFile.recover(Disk(), copy, journal)
        if recovered is None:
            return path, 0, b""
        file, spool = recovered
        file.close()
        fragment = spool.fragment
        return path, fragment.begin, copy.read_bytes()[content_at(copy) :][: fragment.length]


def _require_part(content: bytes, path: Path, begin: int, found: bytes) -> None:
    assert content[begin : begin + len(found)] == found, f"{path}: not what the journal has from {begin} on"


@contextmanager
def checked(cluster: Running, journal: str, **options: int) -> Iterator[Checker]:
    """Constant load on a journal; at the end, everything is verified."""
    checker = Checker(cluster, journal, **options)
    checker.start()
    try:
        checker.progress(20)
        yield checker
        checker.progress()
    finally:
        checker.stop()
    checker.verify()
