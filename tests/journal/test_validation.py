"""What is legal on the wire (reference, 6): every row of the table, from both sides of its limits.

The rows about tokens and names are in `test_tokens`.
"""

from collections.abc import Callable

import pytest
from google.protobuf.duration_pb2 import Duration

from penstock.journal import validation as v
from penstock.journal.labels import label_set
from penstock.journal.protocol import (
    AppendRequest,
    ApplyRequest,
    BrokerSpec,
    Fragment,
    FragmentsRequest,
    FragmentStoreHealthRequest,
    Header,
    JournalSpec,
    Label,
    LabelSelector,
    LabelSet,
    ListRequest,
    ProcessSpec,
    ReadRequest,
    ReplicateRequest,
    Route,
)
from penstock.journal.validation import ValidationError


def complaint(check: Callable[[], object]) -> str:
    """What a check says, or "" if it has nothing to say."""
    try:
        check()
    except ValidationError as error:
        return str(error)
    return ""


def refused(text: str, check: Callable[[], object]) -> None:
    assert text in complaint(check)


# Labels

LABELS = [
    (Label(name="ab"), ""),
    (Label(name="a" * 64, value="v" * 1024), ""),
    (Label(name="app.gazette.dev/x+y", value="a/b=%"), ""),
    (Label(name="a"), "Name: invalid length (1; expected 2 <= length <= 64)"),
    (Label(name="a" * 65), "Name: invalid length (65; expected 2 <= length <= 64)"),
    (Label(name="a=b"), "Name: not a valid token (a=b)"),
    (Label(name="ab", value="v" * 1025), "Value: invalid length (1025; expected 0 <= length <= 1024)"),
    (Label(name="ab", value="a b"), "Value: not a valid token (a b)"),
    (Label(name="ab", prefix=True), "Prefix: only a label of a selector can match by prefix"),
]


@pytest.mark.parametrize("label, expected", LABELS)
def test_label(label: Label, expected: str) -> None:
    assert complaint(lambda: v.validate_label(label)) == expected


def labels(*pairs: tuple[str, str]) -> LabelSet:
    """In the given order, right or wrong."""
    return LabelSet(labels=[Label(name=name, value=value) for name, value in pairs])


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


def spec() -> JournalSpec:
    spec = JournalSpec(name="foo/bar", replication=1, labels=label_set({"app": "x"}))
    spec.fragment.length = 1 << 20
    spec.fragment.compression_codec = 1  # type: ignore[assignment]
    spec.fragment.stores.append("s3://bucket/")
    spec.fragment.refresh_interval.FromSeconds(300)
    return spec


def seconds(count: int, nanos: int = 0) -> Duration:
    return Duration(seconds=count, nanos=nanos)


def with_labels(*pairs: tuple[str, str]) -> Callable[[JournalSpec], object]:
    return lambda spec: spec.labels.CopyFrom(label_set(pairs))


def with_fragment(**fields: object) -> Callable[[JournalSpec], object]:
    return lambda spec: change(spec.fragment, fields)


def change(message: object, fields: dict[str, object]) -> None:
    for name, value in fields.items():
        if isinstance(value, list):
            del getattr(message, name)[:]
            getattr(message, name).extend(value)
        elif isinstance(value, Duration):
            getattr(message, name).CopyFrom(value)
        else:
            setattr(message, name, value)


def with_fields(**fields: object) -> Callable[[JournalSpec], object]:
    return lambda spec: change(spec, fields)


def with_suspend(**fields: object) -> Callable[[JournalSpec], object]:
    return lambda spec: change(spec.suspend, fields)


OFFLOAD = 5
DAY = '{{ .Spool.FirstAppendTime.Format "2006-01-02" }}'

SPECS: list[tuple[Callable[[JournalSpec], object], str]] = [
    (with_fields(), ""),
    (with_fields(name="abc"), "Name: invalid length (3"),
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
    (with_labels(("content-type", "text")), "'content-type' is not a MIME media type (text)"),
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


def header() -> Header:
    header = Header(route=Route(primary=-1))
    header.etcd.cluster_id, header.etcd.member_id, header.etcd.revision, header.etcd.raft_term = 1, 2, 3, 4
    return header


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


def fragment(**fields: object) -> Fragment:
    message = Fragment(journal="foo/bar", begin=3, end=5)
    message.compression_codec = 1  # type: ignore[assignment]
    change(message, fields)
    return message


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


# Requests

READS = [
    (ReadRequest(journal="foo/bar"), ""),
    (ReadRequest(journal="foo/bar;meta", offset=-1), ""),
    (ReadRequest(journal="foo/bar", offset=5, end_offset=5), ""),
    (ReadRequest(journal="foo/bar", offset=-1, end_offset=5), ""),
    (ReadRequest(journal="/invalid/name"), "Journal: cannot begin with '/' (/invalid/name)"),
    (ReadRequest(), "Journal: invalid length (0"),
    (ReadRequest(journal="foo/bar", offset=-2), "Offset: expected -1 or more (-2)"),
    (
        ReadRequest(journal="foo/bar", offset=5, end_offset=4),
        "EndOffset: expected 0, or no less than Offset (4; Offset 5)",
    ),
    (ReadRequest(journal="foo/bar", header=Header()), "Header.Route.Primary: expected -1 to -1 (0)"),
    (ReadRequest(journal="foo/bar", header=header()), ""),
]


@pytest.mark.parametrize("request_, expected", READS)
def test_read_request(request_: ReadRequest, expected: str) -> None:
    found = complaint(lambda: v.validate_read_request(request_))
    assert found.startswith(expected)
    assert bool(found) == bool(expected)


FIRSTS = [
    (AppendRequest(journal="foo/bar"), ""),
    (AppendRequest(journal="foo/bar;meta", offset=7, do_not_proxy=True, header=header()), ""),
    (AppendRequest(), "Journal: invalid length (0"),
    (AppendRequest(journal="foo/bar", offset=-1), "Offset: expected 0 or more (-1)"),
    (AppendRequest(journal="foo/bar", content=b"x"), "unexpected Content"),
    (
        AppendRequest(journal="foo/bar", check_registers=LabelSelector(include=labels(("a", "")))),
        "CheckRegisters.Include.Labels[0].Name: invalid length",
    ),
    (
        AppendRequest(journal="foo/bar", union_registers=labels(("a", ""))),
        "UnionRegisters.Labels[0].Name: inv",
    ),
    (
        AppendRequest(journal="foo/bar", subtract_registers=labels(("a", ""))),
        "SubtractRegisters.Labels[0].Name: inv",
    ),
    (
        AppendRequest(
            journal="foo/bar", union_registers=LabelSet(labels=[Label(name="ab", value="x", prefix=True)])
        ),
        "UnionRegisters.Labels[0].Prefix: only",
    ),
    (AppendRequest(journal="foo/bar", suspend=4), ""),  # type: ignore[arg-type]
    (AppendRequest(journal="foo/bar", suspend=5), "Suspend: unknown value (5)"),  # type: ignore[arg-type]
    (AppendRequest(journal="foo/bar", header=Header()), "Header.Route"),
]


@pytest.mark.parametrize("request_, expected", FIRSTS)
def test_first_append_request(request_: AppendRequest, expected: str) -> None:
    found = complaint(lambda: v.validate_append_request(request_, first=True))
    assert found.startswith(expected)
    assert bool(found) == bool(expected)


LATERS = [
    (AppendRequest(content=b"x"), ""),
    (AppendRequest(), ""),
    (AppendRequest(journal="foo/bar"), "unexpected Journal"),
    (AppendRequest(header=Header()), "unexpected Header"),
    (AppendRequest(do_not_proxy=True), "unexpected DoNotProxy"),
    (AppendRequest(offset=1), "unexpected Offset"),
    (AppendRequest(check_registers=LabelSelector()), "unexpected CheckRegisters"),
    (AppendRequest(union_registers=LabelSet()), "unexpected UnionRegisters"),
    (AppendRequest(subtract_registers=LabelSet()), "unexpected SubtractRegisters"),
    (AppendRequest(suspend=1), "unexpected Suspend"),  # type: ignore[arg-type]
    (AppendRequest(min_etcd_revision=1), "unexpected MinEtcdRevision"),
]


@pytest.mark.parametrize("request_, expected", LATERS)
def test_later_append_request(request_: AppendRequest, expected: str) -> None:
    assert complaint(lambda: v.validate_append_request(request_, first=False)) == expected


def selecting(**sides: LabelSet) -> ListRequest:
    request = ListRequest()
    for side, labels in sides.items():
        getattr(request.selector, side).CopyFrom(labels)
    return request


LISTS = [
    (ListRequest(), ""),
    (selecting(include=labels(("prefix", "a/"), ("prefix", "b/"))), ""),
    (
        selecting(include=labels(("prefix", "a"))),
        "Selector.Include: expected trailing '/' of label 'prefix' (a)",
    ),
    (
        selecting(exclude=labels(("prefix", ""))),
        "Selector.Exclude: expected trailing '/' of label 'prefix' ()",
    ),
    (selecting(include=labels(("x", "a"))), "Selector.Include.Labels[0].Name: invalid length"),
    (ListRequest(watch=True, watch_resume=header()), ""),
    (ListRequest(watch=True, watch_resume=Header()), "WatchResume.Route"),
]


@pytest.mark.parametrize("request_, expected", LISTS)
def test_list_request(request_: ListRequest, expected: str) -> None:
    found = complaint(lambda: v.validate_list_request(request_))
    assert found.startswith(expected)
    assert bool(found) == bool(expected)


Change = ApplyRequest.Change
CHANGES = [
    (Change(upsert=spec()), ""),
    (Change(upsert=spec(), expect_mod_revision=5), ""),
    (Change(upsert=spec(), expect_mod_revision=-1), ""),
    (Change(delete="foo/bar", expect_mod_revision=1), ""),
    (Change(delete="foo/bar", expect_mod_revision=-1), ""),
    (Change(), "Changes[0]: neither Upsert nor Delete are set (expected exactly one)"),
    (
        Change(upsert=spec(), delete="foo/bar"),
        "Changes[0]: both Upsert and Delete are set (expected exactly one)",
    ),
    (Change(upsert=JournalSpec()), "Changes[0].Upsert.Name: invalid length (0"),
    (
        Change(delete="invalid journal name"),
        "Changes[0].Delete: not a valid token (invalid journal name)",
    ),
    (
        Change(upsert=spec(), expect_mod_revision=-2),
        "Changes[0].ExpectModRevision: expected 0 or more, or -1 (-2)",
    ),
    (Change(delete="foo/bar"), "Changes[0].ExpectModRevision: expected 1 or more, or -1 (0)"),
    (
        Change(delete="foo/bar", expect_mod_revision=-2),
        "Changes[0].ExpectModRevision: expected 1 or more, or -1 (-2)",
    ),
]


@pytest.mark.parametrize("change, expected", CHANGES)
def test_apply_request(change: ApplyRequest.Change, expected: str) -> None:
    found = complaint(lambda: v.validate_apply_request(ApplyRequest(changes=[change])))
    assert found.startswith(expected)
    assert bool(found) == bool(expected)


def test_the_second_change_is_named_as_such() -> None:
    request = ApplyRequest(changes=[Change(upsert=spec()), Change(delete="/invalid/name")])
    refused(
        "Changes[1].Delete: cannot begin with '/' (/invalid/name)", lambda: v.validate_apply_request(request)
    )


FRAGMENT_LISTS = [
    (FragmentsRequest(journal="foo/bar"), ""),
    (FragmentsRequest(journal="foo/bar", begin_mod_time=50, end_mod_time=50), ""),
    (FragmentsRequest(journal="foo/bar", begin_mod_time=50), ""),
    (FragmentsRequest(journal="foo/bar", page_limit=10000, next_page_token=1), ""),
    (FragmentsRequest(journal="foo/bar", signatureTTL=seconds(0, 1)), ""),
    (FragmentsRequest(journal="/invalid/name"), "Journal: cannot begin with '/' (/invalid/name)"),
    (
        FragmentsRequest(journal="foo/bar", begin_mod_time=50, end_mod_time=40),
        "invalid EndModTime (40 must be after 50)",
    ),
    (FragmentsRequest(journal="foo/bar", next_page_token=-1), "NextPageToken: expected 0 or more (-1)"),
    (FragmentsRequest(journal="foo/bar", page_limit=-1), "PageLimit: expected 0 to 10000 (-1)"),
    (FragmentsRequest(journal="foo/bar", page_limit=10001), "PageLimit: expected 0 to 10000 (10001)"),
    (FragmentsRequest(journal="foo/bar", signatureTTL=seconds(0)), "SignatureTTL: expected 1 ns or more (0)"),
    (FragmentsRequest(journal="foo/bar", signatureTTL=seconds(-1)), "SignatureTTL: expected 1 ns or more"),
]


@pytest.mark.parametrize("request_, expected", FRAGMENT_LISTS)
def test_fragments_request(request_: FragmentsRequest, expected: str) -> None:
    found = complaint(lambda: v.validate_fragments_request(request_))
    assert found.startswith(expected)
    assert bool(found) == bool(expected)


REPLICATIONS = [
    (ReplicateRequest(proposal=fragment()), ""),
    (ReplicateRequest(proposal=fragment(), registers=labels(("aa", "1"))), ""),
    (ReplicateRequest(proposal=fragment(), header=header(), acknowledge=True), ""),
    (ReplicateRequest(proposal=fragment(), deprecated_journal="foo/bar"), ""),
    (ReplicateRequest(proposal=Fragment()), "Proposal.Journal: invalid length"),
    (ReplicateRequest(proposal=fragment(), content=b"x"), "unexpected Content"),
    (ReplicateRequest(proposal=fragment(), content_delta=1), "unexpected ContentDelta"),
    (ReplicateRequest(proposal=fragment(), header=header()), "Acknowledge: expected Acknowledge with Header"),
    (
        ReplicateRequest(proposal=fragment(), deprecated_journal="foo/baz"),
        "DeprecatedJournal: expected the proposal's (foo/baz; foo/bar)",
    ),
    (ReplicateRequest(proposal=fragment(), registers=labels(("a", ""))), "Registers.Labels[0].Name: invalid"),
    (ReplicateRequest(content=b"x", content_delta=5), ""),
    (ReplicateRequest(), "expected Content or Proposal"),
    (ReplicateRequest(content=b"x", content_delta=-1), "ContentDelta: expected 0 or more (-1)"),
    (ReplicateRequest(content=b"x", header=header()), "unexpected Header"),
    (ReplicateRequest(content=b"x", deprecated_journal="foo/bar"), "unexpected DeprecatedJournal"),
    (ReplicateRequest(content=b"x", acknowledge=True), "unexpected Acknowledge"),
    (ReplicateRequest(content=b"x", registers=LabelSet()), "unexpected Registers"),
]


@pytest.mark.parametrize("request_, expected", REPLICATIONS)
def test_replicate_request(request_: ReplicateRequest, expected: str) -> None:
    found = complaint(lambda: v.validate_replicate_request(request_))
    assert found.startswith(expected)
    assert bool(found) == bool(expected)


def probing(
    prefix: str, *, check_delete: bool = True, store: str = "s3://bucket/"
) -> FragmentStoreHealthRequest:
    return FragmentStoreHealthRequest(
        fragment_store=store, check_delete=check_delete, check_delete_prefix=prefix
    )


PROBES = [
    (probing(""), ""),
    (probing("", check_delete=False), ""),
    (probing("a/b/"), ""),
    (probing("", store="nope"), "FragmentStore: not absolute (nope)"),
    (probing("a/", check_delete=False), "CheckDeletePrefix: unexpected without CheckDelete (a/)"),
    (probing("a"), "CheckDeletePrefix: expected trailing '/' (a)"),
    (probing("../"), "CheckDeletePrefix: cannot begin with '.' or '..'"),
    (probing("a/../"), "CheckDeletePrefix: must be a clean path (a/..)"),
    (probing("/"), "CheckDeletePrefix: cannot begin with '/' (/)"),
    (probing("/a/"), "CheckDeletePrefix: cannot begin with '/' (/a)"),
    (probing("a b/"), "CheckDeletePrefix: not a valid token (a b)"),
]


@pytest.mark.parametrize("request_, expected", PROBES)
def test_fragment_store_health_request(request_: FragmentStoreHealthRequest, expected: str) -> None:
    found = complaint(lambda: v.validate_fragment_store_health_request(request_))
    assert found.startswith(expected)
    assert bool(found) == bool(expected)
