"""What the original's client refuses (reference 5, and the limits of 6), written a second time on purpose.

An answer that breaks a rule is an AssertionError. Nothing of the broker's own validation is used.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from penstock.journal.protocol import (
    AppendResponse,
    ApplyResponse,
    Fragment,
    FragmentsResponse,
    FragmentStoreHealthResponse,
    Header,
    JournalSpec,
    LabelSet,
    ListResponse,
    ReadResponse,
    Route,
    Status,
)

T = TypeVar("T", AppendResponse, ApplyResponse, FragmentsResponse, FragmentStoreHealthResponse)


def checked(response: T) -> T:
    """A response of one message."""
    check_status(response.status)
    assert response.HasField("header")
    check_header(response.header)
    if isinstance(response, AppendResponse):
        _check_append(response)
    elif isinstance(response, FragmentsResponse):
        _check_fragments(response)
    return response


def _check_append(response: AppendResponse) -> None:
    if response.status == Status.OK:
        assert response.HasField("commit")
    if response.HasField("commit"):
        check_fragment(response.commit)
        if response.commit.begin == response.commit.end:
            assert sum_of(response.commit) == "da39a3ee5e6b4b0d3255bfef95601890afd80709"
    if response.status in (Status.OK, Status.REGISTER_MISMATCH):
        assert response.HasField("registers")
    check_label_set(response.registers)
    assert 0 <= response.delayed_chunks <= response.total_chunks
    assert bool(response.store_health_error) == (response.status == Status.FRAGMENT_STORE_UNHEALTHY)


def _check_fragments(response: FragmentsResponse) -> None:
    before = -1
    for found in response.fragments:
        check_fragment(found.spec)
        assert found.spec.begin > before, "ordered by begin"
        assert found.spec.begin < found.spec.end
        before = found.spec.begin
        if found.signed_url:
            check_url(found.signed_url, host=not found.signed_url.startswith("file:"))
            assert found.spec.backing_store
    assert response.next_page_token == 0 or response.next_page_token > before


class ReadChecker:
    """One Read, message by message."""

    def __init__(self) -> None:
        self._first = True
        self._offset = 0
        self._fragment: Fragment | None = None
        self._ended = False

    def checked(self, response: ReadResponse) -> ReadResponse:
        assert not self._ended, "a message after a status other than OK"
        check_status(response.status)
        assert response.HasField("header") == self._first, "a header on the first message, and on no other"
        if self._first:
            check_header(response.header)
        self._first = False
        assert response.offset >= self._offset, "offsets never go back"
        if response.content:
            self._check_chunk(response)
        else:
            self._check_metadata(response)
        return response

    def _check_chunk(self, response: ReadResponse) -> None:
        assert self._fragment is not None, "content before metadata"
        assert response.offset == self._offset
        rest = ReadResponse(offset=response.offset, content=response.content)
        assert rest == response, "a chunk has offset and content only"
        self._offset += len(response.content)
        assert self._offset <= self._fragment.end

    def _check_metadata(self, response: ReadResponse) -> None:
        self._ended = response.status != Status.OK
        self._offset = max(self._offset, response.offset)
        if not response.HasField("fragment"):
            assert response.status != Status.OK or response.offset == 0
            assert not response.fragment_url
            return
        fragment = self._fragment = response.fragment
        check_fragment(fragment)
        assert fragment.begin <= response.offset < fragment.end <= response.write_head
        if response.fragment_url:
            check_url(response.fragment_url, host=not response.fragment_url.startswith("file:"))
        assert bool(fragment.backing_store) == bool(response.fragment_url)
        assert bool(fragment.backing_store) == bool(fragment.mod_time)


def check_snapshot(responses: Sequence[ListResponse]) -> None:
    """A complete snapshot, without the empty message that ends one which is watched."""
    assert responses, "at least the header"
    check_status(responses[0].status)
    check_header(responses[0].header)
    assert responses[0].header.route == Route(primary=-1)
    for following in responses[1:]:
        assert following.journals, "a follow-on message is never empty"
        assert not following.HasField("header")
        assert following.status == Status.OK
    names = [found.spec.name for response in responses for found in response.journals]
    assert names == sorted(set(names))
    for response in responses:
        assert len(response.journals) <= 25
        for found in response.journals:
            assert found.mod_revision >= found.create_revision > 0
            check_spec(found.spec)
            check_route(found.route)


def check_status(status: int) -> None:
    assert 0 <= status <= 15


def check_header(header: Header) -> None:
    if header.process_id.zone or header.process_id.suffix:
        check_token(header.process_id.zone, 1, 32)
        check_token(header.process_id.suffix, 4, 128)
    check_route(header.route)
    etcd = header.etcd
    assert etcd.cluster_id
    assert etcd.member_id
    assert etcd.raft_term
    assert etcd.revision > 0


def check_route(route: Route) -> None:
    members = [(member.zone, member.suffix) for member in route.members]
    assert members == sorted(set(members))
    assert -1 <= route.primary < len(members)
    assert len(route.endpoints) == len(members)
    if not members:
        assert route.primary == -1
    for zone, suffix in members:
        check_token(zone, 1, 32)
        check_token(suffix, 4, 128)
    for endpoint in route.endpoints:
        check_url(endpoint)


def check_fragment(fragment: Fragment) -> None:
    check_path(fragment.journal, 4, 512)
    assert 0 <= fragment.begin <= fragment.end
    assert 1 <= fragment.compression_codec <= 5
    if fragment.path_postfix:
        check_path(fragment.path_postfix, 1, 512)
    if fragment.backing_store:
        check_url(fragment.backing_store, host=not fragment.backing_store.startswith("file:"))
        assert fragment.backing_store.endswith("/")


def check_spec(spec: JournalSpec) -> None:
    check_path(spec.name, 4, 512)
    assert 1 <= spec.replication <= 5
    check_label_set(spec.labels)
    assert 1024 <= spec.fragment.length <= 1 << 34
    assert 1 <= spec.fragment.compression_codec <= 5
    assert 1 <= spec.fragment.refresh_interval.ToSeconds() <= 86400
    assert spec.flags in (0, 1, 2, 4)
    assert spec.max_append_rate >= 0
    assert 0 <= spec.suspend.level <= 2
    assert spec.suspend.offset >= 0


def check_label_set(labels: LabelSet) -> None:
    pairs = [(label.name, label.value) for label in labels.labels]
    assert pairs == sorted(set(pairs))
    for label in labels.labels:
        check_token(label.name, 2, 64)
        check_token(label.value, 0, 1024, "-_+/.=%")
        assert not label.prefix


def check_token(value: str, low: int, high: int, symbols: str = "-_+/.") -> None:
    assert low <= len(value.encode()) <= high, value
    assert all(char in symbols or unicodedata.category(char)[0] in "LN" for char in value), value


def check_path(value: str, low: int, high: int) -> None:
    check_token(value, low, high, "-_+/.=%")
    assert not value.startswith("/")
    assert all(part not in ("", ".", "..") for part in value.split("/")), value


def check_url(url: str, *, host: bool = True) -> None:
    parts = urlsplit(url)
    assert parts.scheme, url
    assert bool(parts.netloc) == host, url


def sum_of(fragment: Fragment) -> str:
    """The hex digest of a fragment's sum."""
    return f"{fragment.sum.part1:016x}{fragment.sum.part2:016x}{fragment.sum.part3:08x}"
