"""The page of /metrics: the original's names, ours, and no secret of a store."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from penstock.journal.metrics import Metrics
from penstock.journal.prometheus import Unpersisted, exposition, public_url

STORE = "s3://key:secret@bucket/prefix/?profile=x&token=hidden"


def _busy() -> Metrics:
    metrics = Metrics()
    metrics.started["Append"] = 3
    metrics.completed["Append", "ok"] = 2
    metrics.completed["Append", "<error>"] = 1
    metrics.commits, metrics.commit_bytes = 10, 1000
    metrics.rollbacks, metrics.rollback_bytes = 1, 7
    metrics.syncs, metrics.sync_seconds = 4, 0.5
    metrics.spools_completed, metrics.spools_persisted = 6, 5
    metrics.store_operation(STORE, "put", "ok", 0.25)
    metrics.store_operation(STORE, "put", "ok", 0.5)
    metrics.store_put_bytes[STORE, "gzip"] = 99
    metrics.store_listed[STORE] = 12
    metrics.store_health_checks[STORE, "ok"] = 8
    return metrics


def _samples(page: bytes) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Values by name and labels. Not through prometheus_client's parser, which renames counters."""
    assert list(text_string_to_metric_families(page.decode())), "not in the text format"
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for line in page.decode().splitlines():
        sample = re.fullmatch(r"(\w+)(?:{(.*)})? (\S+)", line)
        if sample:
            labels = tuple(sorted(re.findall(r'(\w+)="([^"]*)"', sample[2] or "")))
            assert labels not in found.setdefault(sample[1], {}), "the same sample twice spoils the page"
            found[sample[1]][labels] = float(sample[3])
    return found


def _page(metrics: Metrics) -> bytes:
    return exposition(
        metrics,
        write_heads=lambda: [("a/journal", 5), ("größe=\u00e4", 7)],
        unpersisted=lambda: Unpersisted(bytes=123, fragments=2),
        store_health=lambda: [(STORE, True), ("file:///fragments/", False)],
        journals=lambda: 17,
    )


def test_every_number_stands_under_its_name_and_labels() -> None:
    samples = _samples(_page(_busy()))
    store = ("store", "s3://bucket/prefix/")
    assert {name: values for name, values in samples.items() if not name.startswith("process_")} == {
        "gazette_journal_server_started_totals": {(("operation", "Append"),): 3},
        "gazette_journal_server_completed_totals": {
            (("operation", "Append"), ("status", "ok")): 2,
            (("operation", "Append"), ("status", "<error>")): 1,
        },
        "gazette_write_head": {(("journal", "a/journal"),): 5, (("journal", "größe=ä"),): 7},
        "gazette_spool_commits_total": {(): 10},
        "gazette_spool_commit_bytes_total": {(): 1000},
        "gazette_spool_rollbacks_total": {(): 1},
        "gazette_spool_rollback_bytes_total": {(): 7},
        "gazette_spool_completed_total": {(): 6},
        "gazette_spool_persisted_total": {(): 5},
        "gazette_store_active": {(): 2},
        "gazette_store_operation_total": {(("operation", "put"), ("status", "ok"), store): 2},
        "gazette_store_operation_duration_seconds_count": {
            (("operation", "put"), ("status", "ok"), store): 2
        },
        "gazette_store_operation_duration_seconds_sum": {
            (("operation", "put"), ("status", "ok"), store): 0.75
        },
        "gazette_store_put_bytes_total": {(("encoding", "gzip"), store): 99},
        "gazette_store_list_items_count": {(store,): 12},
        "gazette_store_health_check_total": {(("status", "ok"), store): 8},
        "penstock_spool_syncs_total": {(): 4},
        "penstock_spool_sync_seconds_total": {(): 0.5},
        "penstock_unpersisted_bytes": {(): 123},
        "penstock_unpersisted_fragments": {(): 2},
        "penstock_store_healthy": {(store,): 1, (("store", "file:///fragments/"),): 0},
        "penstock_journals": {(): 17},
    }
    assert samples["process_resident_memory_bytes"][()] > 1 << 20
    assert samples["process_open_fds"][()] > 0


def test_the_type_of_a_counter_is_told_under_the_name_of_its_samples() -> None:
    page = _page(_busy()).decode()
    for name in (
        "gazette_journal_server_started_totals",
        "gazette_journal_server_completed_totals",
        "gazette_store_list_items_count",
        "gazette_spool_commits_total",
    ):
        assert f"# TYPE {name} counter\n" in page
    assert "_totals_total" not in page


def test_secrets_of_a_store_are_not_told() -> None:
    page = _page(_busy())
    for secret in (b"secret", b"hidden", b"key:"):
        assert secret not in page
    assert public_url("azure-ad://tenant/account/container/?x=1") == "azure-ad://tenant/account/container/"
    assert public_url("file:///fragments/") == "file:///fragments/"


def test_stores_that_look_the_same_without_their_secrets_are_added_up() -> None:
    metrics = _busy()
    other = STORE.replace("token=hidden", "token=other")
    metrics.store_operation(other, "put", "ok", 1.0)
    metrics.store_listed[other] = 3
    page = exposition(metrics, write_heads=lambda: (), store_health=lambda: [(STORE, True), (other, False)])
    samples = _samples(page)
    assert list(samples["gazette_store_operation_total"].values()) == [3]
    assert list(samples["gazette_store_operation_duration_seconds_sum"].values()) == [1.75]
    assert list(samples["gazette_store_list_items_count"].values()) == [15]
    assert list(samples["penstock_store_healthy"].values()) == [0]


def test_a_broker_that_has_done_nothing_has_a_page() -> None:
    samples = _samples(exposition(Metrics(), write_heads=lambda: [("a/journal", 0)]))
    assert samples["gazette_spool_commits_total"] == {(): 0}
    assert samples["penstock_journals"] == {(): 1}


def test_each_page_shows_the_numbers_of_its_moment() -> None:
    metrics = Metrics()
    heads = [("a/journal", 1)]
    assert _samples(exposition(metrics, write_heads=lambda: heads))["gazette_spool_commits_total"] == {(): 0}
    metrics.commits += 1
    heads[0] = ("a/journal", 2)
    samples = _samples(exposition(metrics, write_heads=lambda: heads))
    assert samples["gazette_spool_commits_total"] == {(): 1}
    assert list(samples["gazette_write_head"].values()) == [2]
