"""What makes the lasting things of the wire legal: labels, specs, fragments, routes, headers (reference, 6).

Each function returns nothing, or raises ValidationError. Where the original is more lenient than is safe,
this is not: names cannot begin with `..` (see `tokens`), a fragment cannot begin below 0, and a path postfix
template must give a legal postfix.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, unquote, urlsplit

from google.protobuf.duration_pb2 import Duration

from penstock.journal import postfix
from penstock.journal.fragment import POSTFIX_LENGTH, Codec
from penstock.journal.labels import NAME_LENGTH, VALUE_LENGTH, values_of
from penstock.journal.protocol import (
    BrokerSpec,
    CompressionCodec,
    Fragment,
    Header,
    JournalSpec,
    Label,
    LabelSelector,
    LabelSet,
    ProcessSpec,
    Route,
)
from penstock.journal.tokens import (
    META_LENGTH,
    PATH_SYMBOLS,
    ValidationError,
    check_journal,
    check_path,
    check_token,
    clean_path,
    field,
    split_meta,
)

MAX_REPLICATION = 5
FRAGMENT_LENGTH = (1024, 1 << 34)
MAX_JOURNAL_LIMIT = 1 << 17
ZONE_LENGTH = (1, 32)
SUFFIX_LENGTH = (4, 128)
PREFIX_LENGTH = (1, 512)

_SECOND = 10**9
REFRESH_INTERVAL = (_SECOND, 24 * 3600 * _SECOND)
MIN_FLUSH_INTERVAL = 60 * _SECOND

CONTENT_TYPE = "content-type"
MESSAGE_TYPE = "app.gazette.dev/message-type"
MESSAGE_SUBTYPE = "app.gazette.dev/message-subtype"
SINGLE_VALUED = (
    CONTENT_TYPE,
    "app.gazette.dev/instance",
    "app.gazette.dev/managed-by",
    MESSAGE_TYPE,
    MESSAGE_SUBTYPE,
    "app.gazette.dev/region",
)

# What the original's parser takes: a type alone is enough. Parameters (`; charset=…`) cannot occur: `;` and spaces are
# not in the alphabet of a label's value.
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$%&'*+\-.^_`{|}~]+(/[A-Za-z0-9!#$%&'*+\-.^_`{|}~]+)?")


def validate_journal(name: str) -> None:
    """A journal's name where no `;meta` may follow."""
    check_journal(name)


def validate_request_journal(name: str) -> None:
    """A journal's name in a request: `;` and a non-empty path may follow it."""
    journal, meta = split_meta(name)
    check_journal(journal)
    if journal != name:
        with field("Meta"):
            check_path(meta, *META_LENGTH)


# Labels


def validate_label(label: Label, *, in_selector: bool = False) -> None:
    with field("Name"):
        check_token(label.name, *NAME_LENGTH)
    with field("Value"):
        check_token(label.value, *VALUE_LENGTH, PATH_SYMBOLS)
    if label.prefix and not in_selector:
        raise ValidationError("only a label of a selector can match by prefix", field="Prefix")


def validate_label_set(labels: LabelSet, *, in_selector: bool = False) -> None:
    before: Label | None = None
    for i, label in enumerate(labels.labels):
        with field(f"Labels[{i}]"):
            validate_label(label, in_selector=in_selector)
            if before is not None and (before.name, before.value) >= (label.name, label.value):
                here = f"{before.name}={before.value} before {label.name}={label.value}"
                raise ValidationError(f"not in unique, sorted order ({here})")
            # An empty value sorts first, so only the label before can be it.
            if before is not None and before.name == label.name and not before.value:
                raise ValidationError(f"has both an empty and a non-empty value ({label.name})")
        before = label


def validate_selector(selector: LabelSelector) -> None:
    with field("Include"):
        validate_label_set(selector.include, in_selector=True)
    with field("Exclude"):
        validate_label_set(selector.exclude, in_selector=True)


# Specs


def validate_journal_spec(spec: JournalSpec) -> None:
    with field("Name"):
        check_journal(spec.name)
    with field("Replication"):
        check_range(spec.replication, 1, MAX_REPLICATION)
    with field("Labels"):
        _check_spec_labels(spec.labels)
    with field("Fragment"):
        _check_spec_fragment(spec.fragment)
    if spec.flags not in (0, JournalSpec.O_RDONLY, JournalSpec.O_WRONLY, JournalSpec.O_RDWR):
        raise ValidationError(f"invalid combination ({spec.flags}; expected 0, 1, 2 or 4)", field="Flags")
    with field("MaxAppendRate"):
        check_at_least(spec.max_append_rate, 0)
    with field("Suspend"):
        if spec.suspend.level not in JournalSpec.Suspend.Level.values():
            raise ValidationError(f"unknown level ({spec.suspend.level})", field="Level")
        with field("Offset"):
            check_at_least(spec.suspend.offset, 0)


def _check_spec_labels(labels: LabelSet) -> None:
    validate_label_set(labels)
    for reserved in ("name", "prefix"):
        if values_of(labels, reserved):
            raise ValidationError(f"a journal's labels cannot include '{reserved}'")
    for name in SINGLE_VALUED:
        if len(values := values_of(labels, name)) > 1:
            raise ValidationError(f"expected a single value for '{name}' ({', '.join(values)})")
    for content_type in values_of(labels, CONTENT_TYPE):
        if _MEDIA_TYPE.fullmatch(content_type) is None:
            raise ValidationError(f"'{CONTENT_TYPE}' is not a MIME media type ({content_type})")
    for name, needed in ((MESSAGE_TYPE, CONTENT_TYPE), (MESSAGE_SUBTYPE, MESSAGE_TYPE)):
        if values_of(labels, name) and not values_of(labels, needed):
            raise ValidationError(f"'{name}' requires '{needed}'")


def _check_spec_fragment(fragment: JournalSpec.Fragment) -> None:
    with field("Length"):
        check_range(fragment.length, *FRAGMENT_LENGTH)
    with field("CompressionCodec"):
        _check_codec(fragment.compression_codec)
    for i, store in enumerate(fragment.stores):
        with field(f"Stores[{i}]"):
            scheme = validate_store(store)
            if (
                i == 0
                and scheme == "file"
                and fragment.compression_codec == CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION
            ):
                raise ValidationError(
                    f"GZIP_OFFLOAD_DECOMPRESSION is incompatible with a file:// store ({store})"
                )
    with field("RefreshInterval"):
        check_range(nanoseconds(fragment.refresh_interval), *REFRESH_INTERVAL, unit=" ns")
    with field("Retention"):
        nanoseconds(fragment.retention)
    with field("FlushInterval"):
        interval = nanoseconds(fragment.flush_interval)
        if interval:
            check_at_least(interval, MIN_FLUSH_INTERVAL, unit=" ns")
    with field("PathPostfixTemplate"):
        postfix.evaluate(fragment.path_postfix_template, postfix.ZERO_TIME)


def validate_store(url: str) -> str:
    """A store's URL; returns its scheme."""
    parts = _split_url(url)
    segments = parts.path.strip("/").split("/")
    if parts.scheme not in ("s3", "gs", "azure", "azure-ad", "file"):
        raise ValidationError(f"invalid scheme ({parts.scheme}; expected s3, gs, azure, azure-ad or file)")
    if not parts.path.endswith("/"):
        raise ValidationError(f"path component doesn't end in '/' ({url})")
    if parts.scheme == "file":
        if parts.netloc:
            raise ValidationError(f"file store cannot have a host ({url})")
        # Rooted, a leading `..` is not clean either, so the path cannot leave the root of file stores.
        path = unquote(parts.path)
        if clean_path(path) != (path.removesuffix("/") or "/") or "\x00" in path:
            raise ValidationError(f"must be a clean path ({url})")
    elif not parts.netloc:
        raise ValidationError(f"missing bucket, container or tenant ({url})")
    elif parts.scheme == "azure-ad" and (len(segments) < 2 or "" in segments[:2]):
        raise ValidationError(f"expected azure-ad://tenant/account/container/ ({url})")
    return parts.scheme


def validate_process_id(process: ProcessSpec.ID) -> None:
    with field("Zone"):
        check_token(process.zone, *ZONE_LENGTH)
    with field("Suffix"):
        check_token(process.suffix, *SUFFIX_LENGTH)


def validate_process_spec(spec: ProcessSpec) -> None:
    with field("Id"):
        validate_process_id(spec.id)
    with field("Endpoint"):
        validate_endpoint(spec.endpoint)


def validate_endpoint(url: str) -> None:
    if not _split_url(url).netloc:
        raise ValidationError(f"missing host ({url})")


def validate_broker_spec(spec: BrokerSpec) -> None:
    with field("ProcessSpec"):
        validate_process_spec(spec.process_spec)
    with field("JournalLimit"):
        check_range(spec.journal_limit, 0, MAX_JOURNAL_LIMIT)


def validate_fragment(fragment: Fragment) -> None:
    with field("Journal"):
        check_journal(fragment.journal)
    with field("Begin"):
        check_at_least(fragment.begin, 0)
    if fragment.end < fragment.begin:
        raise ValidationError(f"expected Begin <= End (have {fragment.begin}, {fragment.end})", field="End")
    with field("CompressionCodec"):
        _check_codec(fragment.compression_codec)
    if fragment.backing_store:
        with field("BackingStore"):
            validate_store(fragment.backing_store)
    with field("PathPostfix"):
        check_path(fragment.path_postfix, *POSTFIX_LENGTH)


def validate_route(route: Route) -> None:
    before: tuple[str, str] | None = None
    for i, member in enumerate(route.members):
        with field(f"Members[{i}]"):
            validate_process_id(member)
            here = (member.zone, member.suffix)
            if before is not None and before >= here:
                raise ValidationError(f"not in unique, sorted order ({before} before {here})")
        before = here
    with field("Primary"):
        check_range(route.primary, -1, len(route.members) - 1)
    if route.endpoints and len(route.endpoints) != len(route.members):
        raise ValidationError(
            f"expected none, or one a member ({len(route.endpoints)}; {len(route.members)} members)",
            field="Endpoints",
        )
    for i, endpoint in enumerate(route.endpoints):
        if endpoint:  # a member that has just gone has none
            with field(f"Endpoints[{i}]"):
                validate_endpoint(endpoint)


def validate_header(header: Header) -> None:
    if header.process_id.zone or header.process_id.suffix:
        with field("ProcessId"):
            validate_process_id(header.process_id)
    with field("Route"):
        validate_route(header.route)
    with field("Etcd"):
        for name in ("cluster_id", "member_id", "raft_term"):
            if not getattr(header.etcd, name):
                raise ValidationError("expected a number other than 0", field=spelled(name))
        with field("Revision"):
            check_at_least(header.etcd.revision, 1)


# Parts


def check_range(value: int, low: int, high: int, *, unit: str = "") -> None:
    if not low <= value <= high:
        raise ValidationError(f"expected {low} to {high}{unit} ({value})")


def check_at_least(value: int, low: int, *, unit: str = "") -> None:
    if value < low:
        raise ValidationError(f"expected {low}{unit} or more ({value})")


def _check_codec(codec: int) -> None:
    if codec == Codec.INVALID or codec not in list(Codec):
        raise ValidationError(f"invalid compression codec ({codec})")


def nanoseconds(duration: Duration) -> int:
    """The duration's length; it must be well-formed, and fit the original's (63 bits of nanoseconds)."""
    total = duration.seconds * _SECOND + duration.nanos
    same_sign = duration.seconds == 0 or duration.nanos == 0 or (duration.seconds < 0) == (duration.nanos < 0)
    if abs(duration.nanos) >= _SECOND or not same_sign or abs(total) >= 1 << 63:
        raise ValidationError(f"not a valid duration ({duration.seconds} s and {duration.nanos} ns)")
    return total


def _split_url(url: str) -> SplitResult:
    # Python drops control characters and white space from URLs without a word.
    if any(ord(character) <= 0x20 or ord(character) == 0x7F for character in url):
        raise ValidationError(f"not a valid URL: holds white space or a control character ({url!r})")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ValidationError(f"not a valid URL: {error} ({url})") from None
    if not parts.scheme:
        raise ValidationError(f"not absolute ({url})")
    return parts


def spelled(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))
