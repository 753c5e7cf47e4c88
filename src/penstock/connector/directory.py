"""The workers that there are: a journal `PREFIX/_workers` whose registers name each with its addresses.

A worker enters itself when it starts and leaves when it is told to stop. One that was killed stays until somebody who
looks finds that it does not answer, and takes it out. Nothing depends on the directory being right: it says where to
ask, and whom to send a connector to; who may append is said by the registers of each instance's journal.

A pipeline that takes connectors itself is in a directory of its own, `pipelines/P/connectors/_workers`: whoever asks
for all finds it there, and no worker sends it connectors, whose messages would go into another log.
"""

from __future__ import annotations

import asyncio
import ssl
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import quote, unquote

import msgspec

from penstock.connector import frames as fr
from penstock.connector import records
from penstock.connector.framing import Splitter
from penstock.connector.instancelog import ensure, journal_spec
from penstock.connector.registry import Owner
from penstock.connector.settings import split
from penstock.connector.threaded import Journals
from penstock.journal import labels
from penstock.journal.client import JournalError
from penstock.journal.protocol import LabelSet, Status

PROBE = "probe="
"""The capability by which a worker asks another whether it lives and has an instance; without a nonce, who it is."""
SELF, PLACE = "worker=", "place="
"""The capabilities by which one says who it is, by its nonce, and in which directory."""
MINE, LEAVING = 1, 2
"""What an owner answers, as credits: it has the instance, or is about to let it go."""
_PATIENCE = 5.0
_NAME = "_workers"
ANOTHER = "another worker is here now"
STOPPING = "this worker is stopping"
_NO_TRUST = "no TLS"
FULL = "too many connections"
DISTRUST = ("Bad cookie", "Unknown protocol version", "unknown instance", FULL, STOPPING, _NO_TRUST)
"""So begins what those say who would take no connector of ours either."""


class Entry(NamedTuple):
    """A worker in the directory."""

    owner: Owner
    http: str
    pipeline: str = ""
    """The pipeline whose source it is; empty for a worker, which puts what comes into journals of instances."""


def pipeline_prefix(pipeline: str) -> str:
    """Where the source of a pipeline is entered."""
    return f"pipelines/{pipeline}/connectors"


def directory_journal(prefix: str) -> str:
    return f"{prefix}/{_NAME}"


async def prefixes(client: Journals) -> Sequence[str]:
    """The prefixes of journals that workers were started with, one after the other or at once."""
    found = await client.list(labels.parse_selector(f"{records.INSTANCE_LABEL}={_NAME}"))
    return [journal.spec.name.removesuffix(f"/{_NAME}") for journal in found]


def _label(owner: Owner) -> str:
    return f"w-{owner.nonce}"


def _registers(*entries: Entry) -> LabelSet:
    values = {}
    for owner, http, pipeline in entries:
        parts = (owner.name, owner.address, owner.nonce, http, *([pipeline] if pipeline else []))
        values[_label(owner)] = "/".join(quote(part, safe="") for part in parts)
    return labels.label_set(values)


async def enter(client: Journals, prefix: str, entry: Entry, *, replication: int, store: str) -> str:
    """Whoever had the address before was killed, and leaves. Returns what this directory is known by, if anything.

    Each has a value of its own, which nobody else's has: workers whose directories have the same name may be of two
    brokers.
    """
    journal = directory_journal(prefix)
    spec = journal_spec(journal, _NAME, replication=replication, store=store)
    own = labels.label_set({records.PLACE_LABEL: uuid.uuid4().hex})
    spec.labels.CopyFrom(labels.union(spec.labels, own))
    await ensure(client, spec)
    before = [
        each
        for each in await workers(client, prefix)
        if each.owner.address == entry.owner.address and each.owner != entry.owner
    ]
    record = records.claim(entry.owner.name)
    await client.append(journal, record, union=_registers(entry), subtract=_registers(*before))
    found = await client.list(labels.parse_selector(f"name={journal}"))
    places = labels.values_of(found[0].spec.labels, records.PLACE_LABEL) if found else ()
    return places[0] if places else ""


async def leave(client: Journals, prefix: str, *entries: Entry) -> None:
    record = records.claim(entries[0].owner.name)
    try:
        await client.append(directory_journal(prefix), record, subtract=_registers(*entries))
    except JournalError as error:
        if (
            error.status != Status.JOURNAL_NOT_FOUND
        ):  # an end may come before the entry has made the directory
            raise


async def workers(client: Journals, prefix: str) -> Sequence[Entry]:
    """All that are entered, dead ones as well."""
    try:
        barrier = await client.append(directory_journal(prefix), ())
    except JournalError as error:
        if error.status != Status.JOURNAL_NOT_FOUND:
            raise
        return []
    found = []
    for label in barrier.registers.labels:
        parts = [unquote(part) for part in label.value.split("/")]
        if label.name.startswith("w-") and len(parts) in (4, 5):
            found.append(Entry(Owner(*parts[:3]), *parts[3:]))
    return sorted(found)


async def ask(
    owner: Owner,
    cookie: bytes,
    instance: str,
    version: str = fr.SOURCE_VERSION,
    tls: ssl.SSLContext | None = None,
) -> int | None:
    """Whether a worker lives and has an instance (`MINE`, `LEAVING`), lives and has not (0), or does not answer."""
    match await answer_of(owner, fr.Hello(version, cookie, "penstock", instance), tls):
        case None:
            return None
        case fr.Ok(credits=has):
            return has
        case fr.Error(reason=reason) if reason == STOPPING:
            return LEAVING
        case fr.Error(reason=reason) if reason != ANOTHER:
            return MINE  # it lives, but does not trust us, or has no time: nothing to take from it
        case _:
            return 0


def told(answer: fr.Ok, what: str) -> str:
    """What a worker says of itself, its `SELF` or its `PLACE`; empty if it does not."""
    return next((token.removeprefix(what) for token in answer.capabilities if token.startswith(what)), "")


async def answer_of(
    owner: Owner, hello: fr.Hello, tls: ssl.SSLContext | None = None, patience: float = _PATIENCE
) -> fr.Frame | None:
    """What the worker at an address says to a HELLO that probes it: OK if it is that owner, an ERROR if it is not.

    None: nobody answers there. A certificate that we do not trust is an ERROR, too.
    """
    host, port = split(owner.address)
    writer = None
    try:
        async with asyncio.timeout(patience):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            probe = msgspec.structs.replace(hello, capabilities=frozenset({PROBE + owner.nonce}))
            writer.write(fr.encode(probe))
            splitter = Splitter(65536)
            while data := await reader.read(65536):
                for payload in splitter.feed(data):
                    return fr.frame_of(payload)
    except ssl.SSLError as error:
        return fr.Error(f"{_NO_TRUST} to {owner.address}: {error.reason}")
    except (OSError, UnicodeError, TimeoutError, fr.FrameError):
        return None
    finally:
        if writer is not None:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
    return None
