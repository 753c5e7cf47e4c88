"""What makes a request of the wire legal (reference, 6).

One function a message; each returns nothing, or raises ValidationError whose text names the field from the
outermost in: `Changes[0].Delete: not a valid token (invalid journal name)`. Field names are spelled as the
original's clients know them, since some match on these texts. The rules of what requests hold (specs, labels,
fragments, headers) are in `validation_specs`, and can be had from here as well.
"""

from __future__ import annotations

from penstock.journal.labels import values_of
from penstock.journal.protocol import (
    AppendRequest,
    ApplyRequest,
    FragmentsRequest,
    FragmentStoreHealthRequest,
    LabelSelector,
    ListRequest,
    ReadRequest,
    ReplicateRequest,
)
from penstock.journal.tokens import ValidationError, check_journal, check_path, clean_path, field, split_meta
from penstock.journal.validation_specs import (
    PREFIX_LENGTH,
    check_at_least,
    check_range,
    nanoseconds,
    spelled,
    validate_broker_spec,
    validate_endpoint,
    validate_fragment,
    validate_header,
    validate_journal,
    validate_journal_spec,
    validate_label,
    validate_label_set,
    validate_process_id,
    validate_process_spec,
    validate_request_journal,
    validate_route,
    validate_selector,
    validate_store,
)

__all__ = [
    "ValidationError",
    "clean_path",
    "split_meta",
    "validate_append_request",
    "validate_apply_request",
    "validate_broker_spec",
    "validate_endpoint",
    "validate_fragment",
    "validate_fragment_store_health_request",
    "validate_fragments_request",
    "validate_header",
    "validate_journal",
    "validate_journal_spec",
    "validate_label",
    "validate_label_set",
    "validate_list_request",
    "validate_list_selector",
    "validate_process_id",
    "validate_process_spec",
    "validate_read_request",
    "validate_replicate_request",
    "validate_request_journal",
    "validate_route",
    "validate_selector",
    "validate_store",
]

MAX_PAGE_LIMIT = 10000


def validate_read_request(request: ReadRequest) -> None:
    _check_request_header(request)
    with field("Journal"):
        validate_request_journal(request.journal)
    with field("Offset"):
        check_at_least(request.offset, -1)
    if request.end_offset < 0 or 0 < request.end_offset < request.offset:
        raise ValidationError(
            f"expected 0, or no less than Offset ({request.end_offset}; Offset {request.offset})",
            field="EndOffset",
        )


_SUSPENDS = frozenset(AppendRequest.Suspend.values())


def validate_append_request(request: AppendRequest, *, first: bool = True) -> None:
    """The first message of an append, or a later one (content, or the empty one that means to commit)."""
    if not first:
        _check_unset(request, "journal", "do_not_proxy", "offset", "suspend", "min_etcd_revision")
        _check_absent(request, "header", "check_registers", "union_registers", "subtract_registers")
        return
    _check_request_header(request)
    with field("Journal"):
        validate_request_journal(request.journal)
    with field("Offset"):
        check_at_least(request.offset, 0)
    _check_unset(request, "content")
    if request.HasField("check_registers"):
        with field("CheckRegisters"):
            validate_selector(request.check_registers)
    if request.HasField("union_registers"):
        with field("UnionRegisters"):
            validate_label_set(request.union_registers)
    if request.HasField("subtract_registers"):
        with field("SubtractRegisters"):
            validate_label_set(request.subtract_registers)
    if request.suspend not in _SUSPENDS:
        raise ValidationError(f"unknown value ({request.suspend})", field="Suspend")


def validate_list_selector(selector: LabelSelector) -> None:
    with field("Selector"):
        validate_selector(selector)
        for side, labels in (("Include", selector.include), ("Exclude", selector.exclude)):
            for value in values_of(labels, "prefix"):
                if not value.endswith("/"):
                    raise ValidationError(f"expected trailing '/' of label 'prefix' ({value})", field=side)


def validate_list_request(request: ListRequest) -> None:
    validate_list_selector(request.selector)
    if request.HasField("watch_resume"):
        with field("WatchResume"):
            validate_header(request.watch_resume)


def validate_apply_request(request: ApplyRequest) -> None:
    for i, change in enumerate(request.changes):
        with field(f"Changes[{i}]"):
            _check_change(change)


def _check_change(change: ApplyRequest.Change) -> None:
    upserts = change.HasField("upsert")
    if upserts and change.delete:
        raise ValidationError("both Upsert and Delete are set (expected exactly one)")
    if not upserts and not change.delete:
        raise ValidationError("neither Upsert nor Delete are set (expected exactly one)")
    if upserts:
        with field("Upsert"):
            validate_journal_spec(change.upsert)
    else:
        with field("Delete"):
            check_journal(change.delete)
    lowest = 0 if upserts else 1
    if change.expect_mod_revision < lowest and change.expect_mod_revision != -1:
        raise ValidationError(
            f"expected {lowest} or more, or -1 ({change.expect_mod_revision})", field="ExpectModRevision"
        )


def validate_fragments_request(request: FragmentsRequest) -> None:
    _check_request_header(request)
    with field("Journal"):
        validate_request_journal(request.journal)
    if request.end_mod_time and request.end_mod_time < request.begin_mod_time:
        raise ValidationError(
            f"invalid EndModTime ({request.end_mod_time} must be after {request.begin_mod_time})"
        )
    with field("NextPageToken"):
        check_at_least(request.next_page_token, 0)
    with field("PageLimit"):
        check_range(request.page_limit, 0, MAX_PAGE_LIMIT)
    if request.HasField("signatureTTL"):
        with field("SignatureTTL"):
            check_at_least(nanoseconds(request.signatureTTL), 1, unit=" ns")


def validate_replicate_request(request: ReplicateRequest) -> None:
    """A proposal, which has one, or content, which has nothing else."""
    if not request.HasField("proposal"):
        if not request.content:
            raise ValidationError("expected Content or Proposal")
        with field("ContentDelta"):
            check_at_least(request.content_delta, 0)
        _check_unset(request, "deprecated_journal", "acknowledge")
        _check_absent(request, "header", "registers")
        return
    _check_request_header(request)
    with field("Proposal"):
        validate_fragment(request.proposal)
    _check_unset(request, "content", "content_delta")
    if request.HasField("header") and not request.acknowledge:
        raise ValidationError("expected Acknowledge with Header", field="Acknowledge")
    if request.deprecated_journal not in ("", request.proposal.journal):
        raise ValidationError(
            f"expected the proposal's ({request.deprecated_journal}; {request.proposal.journal})",
            field="DeprecatedJournal",
        )
    with field("Registers"):
        validate_label_set(request.registers)


def validate_fragment_store_health_request(request: FragmentStoreHealthRequest) -> None:
    with field("FragmentStore"):
        validate_store(request.fragment_store)
    prefix = request.check_delete_prefix
    if not prefix:
        return
    with field("CheckDeletePrefix"):
        if not request.check_delete:
            raise ValidationError(f"unexpected without CheckDelete ({prefix})")
        if not prefix.endswith("/"):
            raise ValidationError(f"expected trailing '/' ({prefix})")
        check_path(prefix[:-1] or prefix, *PREFIX_LENGTH)


_WithHeader = ReadRequest | AppendRequest | FragmentsRequest | ReplicateRequest


def _check_request_header(request: _WithHeader) -> None:
    if request.HasField("header"):
        with field("Header"):
            validate_header(request.header)


def _check_unset(request: AppendRequest | ReplicateRequest, *names: str) -> None:
    for name in names:
        if getattr(request, name):
            raise ValidationError(f"unexpected {spelled(name)}")


def _check_absent(request: AppendRequest | ReplicateRequest, *names: str) -> None:
    for name in names:
        if request.HasField(name):
            raise ValidationError(f"unexpected {spelled(name)}")
