"""Journals as a person sees them: tables. Pure; what a program gets is in the commands themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text

from penstock.base.texts import one_line
from penstock.journal.check import Finding
from penstock.journal.fragment import Codec, Fragment
from penstock.journal.labels import values_of
from penstock.journal.protocol import FragmentsResponse, JournalSpec, ListResponse, ProcessSpec

NONE = "<none>"
_SUM_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns a list of journals has beside the name."""

    rf: bool = False
    primary: bool = False
    replicas: bool = False
    stores: bool = False
    labels: Sequence[str] = ()

    @property
    def titles(self) -> list[str]:
        chosen = {"RF>": self.rf, "Primary": self.primary, "Replicas": self.replicas, "Stores": self.stores}
        return ["Name", *(title for title, wanted in chosen.items() if wanted), *self.labels]


def journals(found: Iterable[ListResponse.Journal], columns: Columns) -> Table:
    shown = table(*columns.titles)
    for journal in found:
        cells = [journal.spec.name]
        if columns.rf:
            cells.append(str(journal.spec.replication))
        if columns.primary:
            cells.append(_primary(journal))
        if columns.replicas:
            cells.append(_joined(replicas(journal)))
        if columns.stores:
            cells.append(_joined(_stores(journal)))
        cells += [_joined(values_of(journal.spec.labels, name)) for name in columns.labels]
        shown.add_row(*(Text(one_line(cell)) for cell in cells))
    return shown


def _stores(journal: ListResponse.Journal) -> list[str]:
    """Where fragments go; what does not work there is marked."""
    failing = {store.fragment_store for store in journal.store_health.known if store.error}
    return [f"{url} <failing>" if url in failing else url for url in journal.spec.fragment.stores]


def faults(found: Iterable[ListResponse.Journal]) -> list[str]:
    """A line for each store that does not work, with why."""
    errors = {
        store.fragment_store: store.error
        for journal in found
        for store in journal.store_health.known
        if store.error
    }
    return [one_line(f"The store {url} does not work: {error}") for url, error in sorted(errors.items())]


def _primary(journal: ListResponse.Journal) -> str:
    suspended = journal.spec.suspend.level != JournalSpec.Suspend.NONE
    return (primary(journal) or NONE) + (" <S>" if suspended else "")


def primary(journal: ListResponse.Journal) -> str:
    """The broker that takes appends; empty if there is none now."""
    route = journal.route
    return _process(route.members[route.primary]) if 0 <= route.primary < len(route.members) else ""


def replicas(journal: ListResponse.Journal) -> list[str]:
    """The brokers of the journal beside its primary."""
    return [
        _process(member) for at, member in enumerate(journal.route.members) if at != journal.route.primary
    ]


def _process(process: ProcessSpec.ID) -> str:
    return f"{process.zone}/{process.suffix}"


def _joined(values: Iterable[str]) -> str:
    return ",".join(values) or NONE


def fragments(found: Iterable[FragmentsResponse._Fragment]) -> Table:
    shown = table("Journal", "Offset>", "Length>", "Persisted", "SHA1", "Compression", "URL")
    for listed in found:
        fragment = Fragment.from_proto(listed.spec)
        shown.add_row(
            Text(one_line(fragment.journal)),
            str(fragment.begin),
            str(fragment.length),
            moment(fragment.mod_time) if fragment.mod_time else NONE,
            f"{fragment.sum.hex()[:_SUM_DIGITS]}...",
            Codec(fragment.codec).name,
            Text(one_line(listed.signed_url or NONE)),
        )
    return shown


def findings(found: Iterable[tuple[str, Finding]]) -> Table:
    shown = table("Journal", "Fault", "Begin>", "End>", "")
    for journal, finding in found:
        shown.add_row(
            Text(one_line(journal)),
            Text(finding.fault, style="red"),
            str(finding.begin),
            str(finding.end),
            Text(one_line(finding.text)),
        )
    return shown


def moment(unix: int) -> str:
    """Unix seconds as a date in UTC."""
    try:
        return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return str(unix)


def table(*columns: str) -> Table:
    """A table without lines; a title that ends in `>` heads a column of numbers."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in columns:
        numbers = title.endswith(">")
        shown.add_column(
            title.rstrip(">"), justify="right" if numbers else "left", no_wrap=numbers, overflow="fold"
        )
    return shown
