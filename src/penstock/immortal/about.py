"""What is known about an instance besides its log: how it was registered, where its coordinators run, at what pace.

All of it stands in one small journal, a line of JSON for each thing that was said; of each kind the last one holds.
When it has grown, what still holds is said again and the rest is trimmed. `describe` and `describe_all` are for those
who want to look: commands, and the console.

A coordinator that serves says where (`Serving`), with a password of this start. Only who may read the journal knows
it, so only such a one can open a stream to the instance.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import msgspec

from penstock.base.errors import UsageError, did_you_mean
from penstock.immortal import checkpoints, journals
from penstock.immortal.checkpoints import Entry
from penstock.journal.client import AsyncClient, BytesGoneError, JournalError
from penstock.journal.client.fencing import epoch_of
from penstock.journal.protocol import Status

REWRITE = 256 << 10


class Registration(msgspec.Struct, frozen=True, tag="registered"):
    """How a replica is to be run; replica 0 is the instance itself. Options of a coordinator override it."""

    replica: int
    receive_port: int
    send_port: int
    create: str = "A"
    """A: recover if there is something to recover from; Y: begin anew; N: recover, or fail."""
    pause: bool = False
    persist: bool = True
    trigger_mib: float = 1000
    active: bool = False
    version: int = 0
    upgrade: int = 0
    at: float = 0.0


class Serving(msgspec.Struct, frozen=True, tag="serving"):
    """A coordinator became primary."""

    replica: int
    owner: str
    epoch: int
    host: str
    port: int
    password: str
    pid: int = 0
    at: float = 0.0
    certificate: str = ""
    """The fingerprint of what it shows to those who connect (SHA-256, in hex); empty where there is no TLS."""


class Pace(msgspec.Struct, frozen=True, tag="pace"):
    """How many calls a primary has taken since it is one, and how many a second lately (`pace.py`)."""

    epoch: int
    calls: int
    per_second: float
    at: float


class Shown(msgspec.Struct, frozen=True, tag="shown"):
    """The files of the instance are shown in this folder (`folder`): if it is gone, somebody deleted them."""

    path: str
    at: float


PACE_HOLDS = 15.0
"""So many seconds a pace holds: who takes calls says it every other second."""

Said = Registration | Serving | Pace | Shown
_said: msgspec.json.Decoder[Said] = msgspec.json.Decoder(Said)


class About(msgspec.Struct):
    """What holds now."""

    registrations: dict[int, Registration] = {}
    serving: Serving | None = None
    pace: Pace | None = None
    shown: Shown | None = None

    def hear(self, said: Said) -> None:
        if isinstance(said, Registration):
            self.registrations = {**self.registrations, said.replica: said}
        elif isinstance(said, Pace):
            if self.pace is None or (said.epoch, said.at) >= (self.pace.epoch, self.pace.at):
                self.pace = said
        elif isinstance(said, Shown):
            self.shown = said
        elif self.serving is None or said.epoch >= self.serving.epoch:
            self.serving = said

    def calls(self) -> int:
        """How many calls the primary has taken since it is one."""
        return self.pace.calls if self.pace is not None and self._is_of_primary(self.pace) else 0

    def calls_per_second(self, now: float) -> float | None:
        """How many the primary takes lately; None if nobody has said so for a while, or ever."""
        if self.serving is None:
            return None
        if self.pace is None or not self._is_of_primary(self.pace):
            return 0.0
        is_fresh = abs(now - self.pace.at) < PACE_HOLDS
        return self.pace.per_second if is_fresh or not self.pace.per_second else None

    def _is_of_primary(self, pace: Pace) -> bool:
        return self.serving is not None and pace.epoch == self.serving.epoch


class Description(msgspec.Struct, frozen=True):
    """One instance, for those who look."""

    name: str
    version: int
    registrations: list[Registration]
    serving: Serving | None
    owner: str
    epoch: int
    checkpoints: list[Entry]
    log_begin: int
    log_end: int
    log_since_checkpoint: int
    """Bytes of log behind the last checkpoint: what a recovery would replay."""
    checkpoint_bytes: int
    calls: int = 0
    """How many the primary has taken since it is one."""
    calls_per_second: float | None = None
    """How many it takes lately; None if that is not known."""


async def read(client: AsyncClient, instance: str) -> About:
    """What holds now about an instance that is there."""
    return (await _read(client, journals.journal_name(instance, "about")))[0]


async def _read(client: AsyncClient, journal: str) -> tuple[About, int]:
    """What holds, and the end of what was read."""
    content, head = await _content(client, journal)
    about = About()
    for line in content.splitlines():
        about.hear(_said.decode(line))
    return about, head


async def _content(client: AsyncClient, journal: str) -> tuple[bytes, int]:
    """All of the journal, and its end; once more if it was trimmed meanwhile."""
    while True:
        head = await client.head(journal)
        begin = await client.begin(journal)
        if begin >= head:
            return b"", head
        try:
            content = await client.read_bytes(journal, begin, head)
            if len(content) == head - begin:
                return content, head
            gone = BytesGoneError(f"journal {journal}: bytes between {begin} and {head} are gone")
        except BytesGoneError as error:
            gone = error
        if await client.begin(journal) == begin:
            raise gone


async def say(client: AsyncClient, instance: str, said: Said) -> None:
    """Durable on return."""
    journal = journals.journal_name(instance, "about")
    landed = await client.append(journal, [msgspec.json.encode(said), b"\n"])
    if landed.end - await client.begin(journal) > REWRITE:
        await _rewrite(client, journal)


async def _rewrite(client: AsyncClient, journal: str) -> None:
    """Say what holds once more, unless somebody says something meanwhile: that is to stay the last word."""
    rolled = await client.roll(journal)
    about, head = await _read(client, journal)
    everything: list[Said] = [*about.registrations.values()]
    if about.serving is not None:
        everything.append(about.serving)
    if about.pace is not None:
        everything.append(about.pace)
    if about.shown is not None:
        everything.append(about.shown)
    lines = b"".join(msgspec.json.encode(said) + b"\n" for said in everything)
    try:
        await client.append(journal, lines, offset=head)
    except JournalError as error:
        if error.status != Status.WRONG_APPEND_OFFSET:
            raise
        return  # who says the next word tries it again
    await client.trim(journal, rolled.offset)


async def follow(client: AsyncClient, instance: str) -> AsyncIterator[About]:
    """What holds now, and again whenever something was said. Without end."""
    journal = journals.journal_name(instance, "about")
    about = About()
    rest = b""
    async with client.read(journal, await client.begin(journal), block=True) as reader:
        async for _, chunk in reader:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                about.hear(_said.decode(line))
            yield about


async def register(
    client: AsyncClient,
    instance: str,
    registration: Registration,
    *,
    is_known: bool = True,
    replication: int = 1,
    store: str = journals.STORE,
) -> None:
    """Register an instance, or a replica of one; what was registered before is replaced.

    A replica of an instance that nobody has heard of is refused, unless it need not be `is_known`. The last two are
    of its journals, if they are made now.
    """
    if registration.upgrade < registration.version:
        raise UsageError(
            f"the version to upgrade to ({registration.upgrade}) is below the current one ({registration.version})"
        )
    if registration.replica and is_known:
        known = await journals.instances(client)
        if instance not in known:
            raise UsageError(
                f"there is no instance '{instance}' to add a replica to{did_you_mean(instance, known)}",
                hint="register it first",
            )
    await journals.ensure(client, instance, replication=replication, store=store)
    await say(client, instance, msgspec.structs.replace(registration, at=time.time()))


async def describe(client: AsyncClient, instance: str) -> Description:
    """All about one instance."""
    known = await journals.instances(client)
    if instance not in known:
        raise UsageError(f"there is no instance '{instance}'{did_you_mean(instance, known)}")
    about = await read(client, instance)
    log = journals.journal_name(instance, "log")
    found, end = await journals.registers(client, log)
    there = await checkpoints.catalogue(client, instance)
    last = there.last
    return Description(
        name=instance,
        version=last.version if last else 0,
        registrations=[about.registrations[number] for number in sorted(about.registrations)],
        serving=about.serving,
        owner=journals.owner_of(found),
        epoch=epoch_of(found) or 0,
        checkpoints=there.entries,
        log_begin=await client.begin(log),
        log_end=end,
        log_since_checkpoint=end - last.log_offset if last else end,
        checkpoint_bytes=sum(entry.size for entry in there.entries),
        calls=about.calls(),
        calls_per_second=about.calls_per_second(time.time()),
    )


async def describe_all(client: AsyncClient) -> list[Description]:
    """All about every instance."""
    return [await describe(client, instance) for instance in await journals.instances(client)]
