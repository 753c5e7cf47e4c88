"""What is legal on the wire (reference, 6): every row of the table, from both sides of its limits.

The rows about tokens and names are in `test_tokens`.
"""

from collections.abc import Callable

import pytest

from penstock.journal import validation as v
from penstock.journal.labels import label_set
from penstock.journal.protocol import (
    BrokerSpec,
    Fragment,
    Header,
    JournalSpec,
    Label,
    LabelSelector,
    LabelSet,
    ProcessSpec,
    Route,
)

from .validating import change, complaint, fragment, header, labels, refused, seconds, spec

# Labels

LABELS = [
    (Label(name="ab"), ""),
    (Label(name="a" * 64, value="v" * 1024), ""),
    (Label(name="app.gazette.dev/x+y", value="a/b=%"), ""),
    (Label(name="a"), "Name: invalid length (1; expected 2 <= length <= 64)"),
    (Label(name="a" * 65), "Name: invalid length (65; expected 2 <= length <= 64)"),
    (Label(name="a=b"), "Name: not a valid token (a=b)"),
    (Label(name="="), "Name: invalid length (1; expected 2 <= length <= 64)"),
    (Label(name="ab", value="v" * 1025), "Value: invalid length (1025; expected 0 <= length <= 1024)"),
    (Label(name="ab", value="a b"), "Value: not a valid token (a b)"),
    (Label(name="ab", prefix=True), "Prefix: only a label of a selector can match by prefix"),
]


@pytest.mark.parametrize("label, expected", LABELS)
def test_label(label: Label, expected: str) -> None:
    assert complaint(lambda: v.validate_label(label)) == expected


SETS = [
    (labels(), ""),
    (labels(("aa", "1"), ("aa", "2"), ("bb", "1")), ""),
    (labels(("aa", ""), ("bb", "1")), ""),
    (labels(("aa", "1"), ("aa", "1")), "Labels[1]: not in unique, sorted order (aa=1 before aa=1)"),
    (labels(("aa", "2"), ("aa", "1")), "Labels[1]: not in unique, sorted order (aa=2 before aa=1)"),
    (labels(("bb", "1"), ("aa", "1")), "Labels[1]: not in unique, sorted order (bb=1 before aa=1)"),
    (labels(("aa", ""), ("aa", "1")), "Labels[1]: has both an empty and a non-empty value (aa)"),
    (labels(("aa", "1"), ("b", "1")), "Labels[1].Name: invalid length (1; expected 2 <= length <= 64)"),
]


@pytest.mark.parametrize("labels, expected", SETS)
def test_label_set(labels: LabelSet, expected: str) -> None:
    assert complaint(lambda: v.validate_label_set(labels)) == expected


def test_selector() -> None:
    prefixed = LabelSet(labels=[Label(name="name", value="a/", prefix=True)])
    v.validate_selector(LabelSelector())
    v.validate_selector(LabelSelector(include=prefixed, exclude=prefixed))
    bad = labels(("x", ""))
    refused("Include.Labels[0].Name: invalid length", lambda: v.validate_selector(LabelSelector(include=bad)))
    refused("Exclude.Labels[0].Name: invalid length", lambda: v.validate_selector(LabelSelector(exclude=bad)))


# JournalSpec


def with_labels(*pairs: tuple[str, str]) -> Callable[[JournalSpec], object]:
    return lambda spec: spec.labels.CopyFrom(label_set(pairs))


def with_fragment(**fields: object) -> Callable[[JournalSpec], object]:
    return lambda spec: change(spec.fragment, fields)


def with_fields(**fields: object) -> Callable[[JournalSpec], object]:
    return lambda spec: change(spec, fields)


def with_suspend(**fields: object) -> Callable[[JournalSpec], object]:
    return lambda spec: change(spec.suspend, fields)


OFFLOAD = 5
DAY = '{{ .Spool.FirstAppendTime.Format "2006-01-02" }}'

SPECS: list[tuple[Callable[[JournalSpec], object], str]] = [
    (with_fields(), ""),
    (with_fields(name="abc"), "Name: invalid length (3"),
    (with_fields(name="a;b"), "Name: invalid length (3"),
    (with_fields(name="/foo//bar"), "Name: must be a clean path (/foo//bar)"),
    (with_fields(name="foo/bar;meta"), "Name: not a valid token (foo/bar;meta)"),
    (with_fields(replication=0), "Replication: expected 1 to 5 (0)"),
    (with_fields(replication=5), ""),
    (with_fields(replication=6), "Replication: expected 1 to 5 (6)"),
    (with_labels(), ""),
    (with_labels(("name", "x")), "Labels: a journal's labels cannot include 'name'"),
    (with_labels(("prefix", "x/")), "Labels: a journal's labels cannot include 'prefix'"),
    (with_labels(("app", "x"), ("app", "y")), ""),
    *(
        (
            with_labels(("content-type", "text/csv"), (name, "x/a"), (name, "x/b")),
            f"a single value for '{name}'",
        )
        for name in (
            *("content-type", "app.gazette.dev/instance", "app.gazette.dev/managed-by"),
            *("app.gazette.dev/message-type", "app.gazette.dev/message-subtype", "app.gazette.dev/region"),
        )
    ),
    (with_labels(("content-type", "application/x-ndjson")), ""),
    (with_labels(("content-type", "application/vnd.api+json")), ""),
    (with_labels(("content-type", "")), "'content-type' is not a MIME media type ()"),
    (with_labels(("content-type", "text")), ""),
    (with_labels(("content-type", "/text")), "'content-type' is not a MIME media type (/text)"),
    (with_labels(("content-type", "text/")), "'content-type' is not a MIME media type (text/)"),
    (with_labels(("content-type", "a/b/c")), "'content-type' is not a MIME media type (a/b/c)"),
    (with_labels(("content-type", "a/b=c")), "'content-type' is not a MIME media type (a/b=c)"),
    (
        with_labels(("app.gazette.dev/message-type", "T")),
        "'app.gazette.dev/message-type' requires 'content-type'",
    ),
    (with_labels(("app.gazette.dev/message-type", "T"), ("content-type", "text/csv")), ""),
    (
        with_labels(("app.gazette.dev/message-subtype", "T"), ("content-type", "text/csv")),
        "'app.gazette.dev/message-subtype' requires 'app.gazette.dev/message-type'",
    ),
    (with_fragment(length=1023), "Fragment.Length: expected 1024 to 17179869184 (1023)"),
    (with_fragment(length=1024), ""),
    (with_fragment(length=1 << 34), ""),
    (with_fragment(length=(1 << 34) + 1), "Fragment.Length: expected 1024 to 17179869184 (17179869185)"),
    (with_fragment(compression_codec=0), "Fragment.CompressionCodec: invalid compression codec (0)"),
    (with_fragment(compression_codec=6), "Fragment.CompressionCodec: invalid compression codec (6)"),
    *((with_fragment(compression_codec=codec), "") for codec in range(1, 6)),
    (
        with_fragment(compression_codec=OFFLOAD, stores=["file:///", "s3://bucket/"]),
        "Fragment.Stores[0]: GZIP_OFFLOAD_DECOMPRESSION is incompatible with a file:// store (file:///)",
    ),
    (with_fragment(compression_codec=OFFLOAD, stores=["s3://bucket/", "file:///"]), ""),
    (with_fragment(stores=[]), ""),
    (with_fragment(stores=["s3://b/", "nope"]), "Fragment.Stores[1]: not absolute (nope)"),
    (with_fragment(refresh_interval=seconds(1)), ""),
    (with_fragment(refresh_interval=seconds(86400)), ""),
    (with_fragment(refresh_interval=seconds(0)), "Fragment.RefreshInterval: expected 1000000000 to"),
    (with_fragment(refresh_interval=seconds(0, 999_999_999)), "Fragment.RefreshInterval: expected"),
    (with_fragment(refresh_interval=seconds(86400, 1)), "Fragment.RefreshInterval: expected"),
    (with_fragment(flush_interval=seconds(0)), ""),
    (with_fragment(flush_interval=seconds(60)), ""),
    (
        with_fragment(flush_interval=seconds(59, 999_999_999)),
        "Fragment.FlushInterval: expected 60000000000 ns",
    ),
    (with_fragment(flush_interval=seconds(-60)), "Fragment.FlushInterval: expected"),
    (with_fragment(retention=seconds(-5)), ""),
    (with_fragment(retention=seconds(1 << 33)), ""),
    (with_fragment(retention=seconds(1 << 34)), "Fragment.Retention: not a valid duration"),
    (with_fragment(retention=seconds(1, -1)), "Fragment.Retention: not a valid duration"),
    (with_fragment(retention=seconds(1, 1_000_000_000)), "Fragment.Retention: not a valid duration"),
    (with_fragment(path_postfix_template=f"date={DAY}"), ""),
    (
        with_fragment(path_postfix_template="{{ .JournalSpec.Name }}"),
        "PathPostfixTemplate: unsupported template",
    ),
    (
        with_fragment(path_postfix_template=f"{DAY}/"),
        "PathPostfixTemplate: must be a clean path (0001-01-01/)",
    ),
    *((with_fields(flags=flags), "") for flags in (0, 1, 2, 4)),
    *((with_fields(flags=flags), f"Flags: invalid combination ({flags};") for flags in (3, 5, 6, 7, 8)),
    (with_fields(max_append_rate=1), ""),
    (with_fields(max_append_rate=-1), "MaxAppendRate: expected 0 or more (-1)"),
    (with_suspend(level=2, offset=7), ""),
    (with_suspend(level=3), "Suspend.Level: unknown level (3)"),
    (with_suspend(offset=-1), "Suspend.Offset: expected 0 or more (-1)"),
]


@pytest.mark.parametrize("edit, expected", SPECS)
def test_journal_spec(edit: Callable[[JournalSpec], object], expected: str) -> None:
    edited = spec()
    edit(edited)
    found = complaint(lambda: v.validate_journal_spec(edited))
    assert expected in found
    assert bool(found) == bool(expected)


STORES = [
    ("s3://bucket/", "s3"),
    ("s3://bucket/prefix/?profile=x&endpoint=http://localhost:9000", "s3"),
    ("gs://bucket/prefix/", "gs"),
    ("azure://container/prefix/", "azure"),
    ("azure-ad://tenant/account/container/", "azure-ad"),
    ("azure-ad://tenant/account/container/prefix/", "azure-ad"),
    ("file:///", "file"),
    ("file:///prefix/below/", "file"),
    ("file:///a%20b/", "file"),
]


@pytest.mark.parametrize("url, scheme", STORES)
def test_store_url(url: str, scheme: str) -> None:
    assert v.validate_store(url) == scheme


BAD_STORES = [
    ("", "not absolute"),
    ("/just/a/path/", "not absolute"),
    ("http://host/", "invalid scheme (http; expected s3, gs, azure, azure-ad or file)"),
    ("s3://bucket", "path component doesn't end in '/' (s3://bucket)"),
    ("s3://bucket/prefix", "path component doesn't end in '/'"),
    ("s3:///prefix/", "missing bucket"),
    ("gs:///prefix/", "missing bucket"),
    ("azure:///prefix/", "missing bucket"),
    ("azure-ad:///account/container/", "missing bucket"),
    ("azure-ad://tenant/", "expected azure-ad://tenant/account/container/"),
    ("azure-ad://tenant/account/", "expected azure-ad://tenant/account/container/"),
    ("azure-ad://tenant//container/", "expected azure-ad://tenant/account/container/"),
    ("file://host/path/", "file store cannot have a host (file://host/path/)"),
    ("file:///path", "path component doesn't end in '/'"),
    ("file:///../", "must be a clean path (file:///../)"),
    ("file:///a/../../b/", "must be a clean path"),
    ("file:///%2e%2e/", "must be a clean path (file:///%2e%2e/)"),
    ("file:////etc/", "must be a clean path (file:////etc/)"),
    ("file:///a%00b/", "must be a clean path"),
    ("s3://[bucket/", "not a valid URL"),
    ("s3://buc ket/", "not a valid URL"),
    ("s3://buc\nket/", "not a valid URL"),
]


@pytest.mark.parametrize("url, expected", BAD_STORES)
def test_bad_store_url(url: str, expected: str) -> None:
    refused(expected, lambda: v.validate_store(url))


# Processes, routes, headers

IDS = [
    ("zone-a", "broker-1", ""),
    ("z" * 32, "s" * 128, ""),
    ("", "broker-1", "Zone: invalid length (0; expected 1 <= length <= 32)"),
    ("z" * 33, "broker-1", "Zone: invalid length (33"),
    ("a b", "broker-1", "Zone: not a valid token (a b)"),
    ("zone-a", "abc", "Suffix: invalid length (3; expected 4 <= length <= 128)"),
    ("zone-a", "s" * 129, "Suffix: invalid length (129"),
    ("zone-a", "brok#er", "Suffix: not a valid token (brok#er)"),
]


@pytest.mark.parametrize("zone, suffix, expected", IDS)
def test_process_id(zone: str, suffix: str, expected: str) -> None:
    found = complaint(lambda: v.validate_process_id(ProcessSpec.ID(zone=zone, suffix=suffix)))
    assert found.startswith(expected)
    assert bool(found) == bool(expected)


ENDPOINTS = [
    ("http://host:8080", ""),
    ("https://host:8080/", ""),
    ("unix://localhost/run/broker.sock", ""),
    ("", "not absolute ()"),
    ("host:8080", "missing host (host:8080)"),
    ("unix:///run/broker.sock", "missing host (unix:///run/broker.sock)"),
]


@pytest.mark.parametrize("endpoint, expected", ENDPOINTS)
def test_endpoint(endpoint: str, expected: str) -> None:
    assert complaint(lambda: v.validate_endpoint(endpoint)) == expected


def test_broker_spec() -> None:
    broker = BrokerSpec(journal_limit=131072)
    broker.process_spec.id.zone, broker.process_spec.id.suffix = "zone-a", "broker-1"
    broker.process_spec.endpoint = "http://host:1"
    v.validate_broker_spec(broker)
    broker.journal_limit += 1
    refused("JournalLimit: expected 0 to 131072 (131073)", lambda: v.validate_broker_spec(broker))
    broker.process_spec.id.zone = ""
    refused("ProcessSpec.Id.Zone: invalid length", lambda: v.validate_broker_spec(broker))
    broker.process_spec.id.zone, broker.process_spec.endpoint = "z", "nope"
    refused("ProcessSpec.Endpoint: not absolute (nope)", lambda: v.validate_broker_spec(broker))


def route(*suffixes: str, primary: int = -1, endpoints: tuple[str, ...] = ()) -> Route:
    members = [ProcessSpec.ID(zone="zone", suffix=suffix) for suffix in suffixes]
    return Route(members=members, primary=primary, endpoints=endpoints)


ROUTES = [
    (route(), ""),
    (route("aaaa", "bbbb"), ""),
    (route("aaaa", "bbbb", primary=1), ""),
    (route("aaaa", primary=0, endpoints=("http://host:1",)), ""),
    (route("aaaa", "bbbb", endpoints=("", "http://host:1")), ""),
    (route(primary=0), "Primary: expected -1 to -1 (0)"),
    (route("aaaa", primary=1), "Primary: expected -1 to 0 (1)"),
    (route("aaaa", primary=-2), "Primary: expected -1 to 0 (-2)"),
    (route("bbbb", "aaaa"), "Members[1]: not in unique, sorted order"),
    (route("aaaa", "aaaa"), "Members[1]: not in unique, sorted order"),
    (route("a"), "Members[0].Suffix: invalid length"),
    (route("aaaa", "bbbb", endpoints=("http://host:1",)), "Endpoints: expected none, or one a member (1; 2"),
    (route("aaaa", endpoints=("nope",)), "Endpoints[0]: not absolute (nope)"),
]


@pytest.mark.parametrize("route, expected", ROUTES)
def test_route(route: Route, expected: str) -> None:
    found = complaint(lambda: v.validate_route(route))
    assert found.startswith(expected)
    assert bool(found) == bool(expected)


def test_header() -> None:
    v.validate_header(header())
    refused("Route.Primary: expected -1 to -1 (0)", lambda: v.validate_header(Header()))
    for name in ("cluster_id", "member_id", "raft_term", "revision"):
        zero = header()
        setattr(zero.etcd, name, 0)
        spelled = "".join(word.capitalize() for word in name.split("_"))
        refused(f"Etcd.{spelled}: expected", lambda zero=zero: v.validate_header(zero))  # type: ignore[misc]
    half = header()
    half.process_id.zone = "zone-a"
    refused("ProcessId.Suffix: invalid length", lambda: v.validate_header(half))
    half.process_id.suffix = "broker-1"
    v.validate_header(half)


# Fragments

FRAGMENTS = [
    (fragment(), ""),
    (fragment(end=3), ""),
    (fragment(path_postfix="date=2026-01-02/x"), ""),
    (fragment(backing_store="s3://bucket/"), ""),
    (fragment(journal="foo/bar;meta"), "Journal: not a valid token (foo/bar;meta)"),
    (fragment(begin=-1), "Begin: expected 0 or more (-1)"),
    (fragment(end=2), "End: expected Begin <= End (have 3, 2)"),
    (fragment(compression_codec=0), "CompressionCodec: invalid compression codec (0)"),
    (fragment(compression_codec=9), "CompressionCodec: invalid compression codec (9)"),
    (fragment(backing_store="nope"), "BackingStore: not absolute (nope)"),
    (fragment(path_postfix="/x"), "PathPostfix: cannot begin with '/' (/x)"),
    (fragment(path_postfix="x/"), "PathPostfix: must be a clean path (x/)"),
    (fragment(path_postfix=".."), "PathPostfix: cannot begin with '.' or '..' as a segment (..)"),
    (fragment(path_postfix="."), "PathPostfix: cannot begin with '.' or '..' as a segment (.)"),
    (fragment(path_postfix="a b"), "PathPostfix: not a valid token (a b)"),
    (fragment(path_postfix="x" * 513), "PathPostfix: invalid length (513"),
]


@pytest.mark.parametrize("fragment, expected", FRAGMENTS)
def test_fragment(fragment: Fragment, expected: str) -> None:
    found = complaint(lambda: v.validate_fragment(fragment))
    assert found.startswith(expected)
    assert bool(found) == bool(expected)
