"""What is legal on the wire (reference, 6): the requests."""

import pytest

from penstock.journal import validation as v
from penstock.journal.protocol import (
    AppendRequest,
    ApplyRequest,
    Fragment,
    FragmentsRequest,
    FragmentStoreHealthRequest,
    Header,
    JournalSpec,
    Label,
    LabelSelector,
    LabelSet,
    ListRequest,
    ReadRequest,
    ReplicateRequest,
)

from .validating import complaint, fragment, header, labels, refused, seconds, spec

READS = [
    (ReadRequest(journal="foo/bar"), ""),
    (ReadRequest(journal="foo/bar;meta", offset=-1), ""),
    (ReadRequest(journal="foo/bar", offset=5, end_offset=5), ""),
    (ReadRequest(journal="foo/bar", offset=-1, end_offset=5), ""),
    (
        ReadRequest(journal="foo/bar", offset=-1, end_offset=-1),
        "EndOffset: expected 0, or no less than Offset (-1; Offset -1)",
    ),
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
    for side, wanted in sides.items():
        getattr(request.selector, side).CopyFrom(wanted)
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
