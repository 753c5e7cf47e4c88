"""A broker's numbers as Prometheus reads them, under the names the original's dashboards know (reference, 21).

What is ours alone is called `penstock_…`. Stores are told by their URL without user, password and arguments, which may
hold secrets; numbers of stores that then have the same URL are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit, urlunsplit

from penstock.base.errors import UsageError
from penstock.journal.metrics import Metrics, Timing

try:
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
    from prometheus_client.core import GaugeMetricFamily, SummaryMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ImportError:
    raise UsageError("/metrics needs prometheus_client", hint="pip install 'penstock[broker]'") from None

_STARTED = "gazette_journal_server_started_totals"
_COMPLETED = "gazette_journal_server_completed_totals"
_LISTED = "gazette_store_list_items_count"


Numbers: TypeAlias = Iterable[tuple[tuple[str, ...], float]]
"""Values of labels, and the number that stands under them."""


@dataclass(frozen=True, slots=True)
class Unpersisted:
    """What is committed and in no store yet."""

    bytes: int
    fragments: int


def exposition(
    metrics: Metrics,
    *,
    write_heads: Callable[[], Iterable[tuple[str, int]]],
    unpersisted: Callable[[], Unpersisted] = lambda: Unpersisted(0, 0),
    store_health: Callable[[], Iterable[tuple[str, bool]]] = lambda: (),
    journals: Callable[[], int] | None = None,
) -> bytes:
    """The page of `/metrics`, in the text format.

    `write_heads` are the journals served here and their ends, `store_health` the stores in use and whether the last
    check of each went well. `journals` counts all that are known, if those are more than the ones served.
    """
    registry = CollectorRegistry()
    registry.register(
        _Numbers(metrics, list(write_heads()), unpersisted(), _by_public_health(store_health()), journals)
    )
    ProcessCollector(registry=registry)
    page = generate_latest(registry)
    # prometheus_client has every counter's help end in `_total`. The original's names do not all, and samples must
    # stand under the name that their type was told for.
    for name in (_STARTED, _COMPLETED, _LISTED):
        page = page.replace(f" {name}_total ".encode(), f" {name} ".encode())
    return page


def public_url(store: str) -> str:
    """A store's URL without what may be secret."""
    parts = urlsplit(store)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _by_public_health(store_health: Iterable[tuple[str, bool]]) -> dict[str, bool]:
    """Health by public URL: of several stores with the same one, all must be well."""
    health: dict[str, bool] = {}
    for store, well in store_health:
        url = public_url(store)
        health[url] = well and health.get(url, True)
    return health


@dataclass(frozen=True, slots=True, eq=False)
class _Numbers(Collector):
    metrics: Metrics
    write_heads: list[tuple[str, int]]
    unpersisted: Unpersisted
    store_health: dict[str, bool]
    journals: Callable[[], int] | None

    def collect(self) -> Iterator[Metric]:
        yield from self._calls()
        yield from self._spools()
        yield from self._stores()
        yield _gauge(
            "gazette_write_head",
            "End of each journal served.",
            ("journal",),
            (((journal,), end) for journal, end in self.write_heads),
        )
        count = len(self.write_heads) if self.journals is None else self.journals()
        yield _gauge("penstock_journals", "Journals known.", (), [((), count)])
        yield _gauge(
            "penstock_unpersisted_bytes",
            "Committed bytes in no store yet.",
            (),
            [((), self.unpersisted.bytes)],
        )
        yield _gauge(
            "penstock_unpersisted_fragments",
            "Fragments in no store yet, those under construction included.",
            (),
            [((), self.unpersisted.fragments)],
        )

    def _calls(self) -> Iterator[Metric]:
        metrics = self.metrics
        started = [((operation,), n) for operation, n in metrics.started.items()]
        yield _counter(_STARTED, "Calls begun.", ("operation",), started)
        yield _counter(_COMPLETED, "Calls ended, by how.", ("operation", "status"), metrics.completed.items())

    def _spools(self) -> Iterator[Metric]:
        metrics = self.metrics
        for name, text, value in (
            ("gazette_spool_commits_total", "Appends committed.", metrics.commits),
            ("gazette_spool_commit_bytes_total", "Bytes of appends committed.", metrics.commit_bytes),
            ("gazette_spool_rollbacks_total", "Appends rolled back.", metrics.rollbacks),
            ("gazette_spool_rollback_bytes_total", "Bytes of appends rolled back.", metrics.rollback_bytes),
            ("gazette_spool_completed_total", "Fragments closed.", metrics.spools_completed),
            ("gazette_spool_persisted_total", "Fragments put into a store.", metrics.spools_persisted),
            ("penstock_spool_syncs_total", "Syncs of spools to disk.", metrics.syncs),
            ("penstock_spool_sync_seconds_total", "Time that took.", metrics.sync_seconds),
        ):
            yield _counter(name, text, (), [((), value)])

    def _stores(self) -> Iterator[Metric]:
        metrics = self.metrics
        yield _gauge("gazette_store_active", "Stores in use.", (), [((), len(self.store_health))])
        health = [((store,), float(well)) for store, well in self.store_health.items()]
        yield _gauge("penstock_store_healthy", "Whether the last check went well.", ("store",), health)
        yield from _operations(metrics.store_operations)
        put = _by_public_url(metrics.store_put_bytes.items())
        yield _counter("gazette_store_put_bytes_total", "Bytes put.", ("store", "encoding"), put)
        listed = _by_public_url(((store,), n) for store, n in metrics.store_listed.items())
        yield _counter(_LISTED, "Files listed.", ("store",), listed)
        checks = _by_public_url(metrics.store_health_checks.items())
        yield _counter("gazette_store_health_check_total", "Checks of health.", ("store", "status"), checks)


def _operations(timings: Mapping[tuple[str, str, str], Timing]) -> Iterator[Metric]:
    names = ("store", "operation", "status")
    calls = dict(_by_public_url((key, timing.calls) for key, timing in timings.items()))
    seconds = _by_public_url((key, timing.seconds) for key, timing in timings.items())
    yield _counter("gazette_store_operation_total", "Calls to stores.", names, calls.items())
    durations = SummaryMetricFamily(
        "gazette_store_operation_duration_seconds", "Time of calls to stores.", labels=names
    )
    for key, value in seconds:
        durations.add_metric(key, count_value=int(calls[key]), sum_value=value)
    yield durations


def _by_public_url(numbers: Numbers) -> list[tuple[tuple[str, ...], float]]:
    """The numbers, whose keys begin with a store's URL, by its public one."""
    added: dict[tuple[str, ...], float] = {}
    for (store, *rest), number in numbers:
        key = (public_url(store), *rest)
        added[key] = added.get(key, 0) + number
    return list(added.items())


def _counter(name: str, text: str, labels: tuple[str, ...], numbers: Numbers) -> Metric:
    family = Metric(name.removesuffix("_total"), text, "counter")
    for key, number in numbers:
        family.add_sample(name, dict(zip(labels, key, strict=True)), number)
    return family


def _gauge(name: str, text: str, labels: tuple[str, ...], numbers: Numbers) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, number in numbers:
        family.add_metric(key, number)
    return family
