"""Requests, made the same way for both faces of the client.

Calls that are retried are checked here before they are made (`ValidationError`, with the broker's own text): what
the broker would refuse as malformed it would refuse for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import cast

from penstock.base.disk import Buffer
from penstock.journal import validation
from penstock.journal.chunks import Content
from penstock.journal.protocol import (
    AppendRequest,
    ApplyRequest,
    FragmentsRequest,
    FragmentStoreHealthRequest,
    Header,
    LabelSelector,
    LabelSet,
    ListRequest,
    ReadRequest,
)

APPEND_CHUNK = 1 << 20
"""An append up to this size is one message, a larger one a stream of such chunks."""


def append(
    journal: str,
    check: LabelSelector | None,
    union: LabelSet | None,
    subtract: LabelSet | None,
    offset: int,
    suspend: int,
) -> AppendRequest:
    """The parameters of an append."""
    return AppendRequest(
        journal=journal,
        check_registers=check,
        union_registers=union,
        subtract_registers=subtract,
        offset=offset,
        # At run time the wire's enum values are plain numbers; only its type stub has a class for them.
        suspend=cast("AppendRequest.Suspend", suspend),
    )


def checked_append(first: AppendRequest) -> AppendRequest:
    validation.validate_append_request(first)
    return first


def whole(first: AppendRequest, pieces: Iterable[Buffer]) -> AppendRequest:
    """An append in one message."""
    request = AppendRequest(content=b"".join(pieces))
    request.MergeFrom(first)
    return request


def pieces_of(content: Buffer | Sequence[Buffer]) -> list[memoryview]:
    """The content as bytes, whatever items its buffers are made of."""
    pieces = [content] if isinstance(content, (bytes, bytearray, memoryview)) else content
    return [memoryview(piece).cast("B") for piece in pieces]


def chunks(pieces: Iterable[memoryview]) -> Iterator[Content]:
    """Content messages of a streamed append."""
    for piece in pieces:
        for at in range(0, len(piece), APPEND_CHUNK):
            yield Content(piece[at : at + APPEND_CHUNK])


def stream(first: AppendRequest, pieces: Iterable[memoryview]) -> Iterator[AppendRequest | Content]:
    """The stream of one append: parameters, content in chunks, and the empty message that means commit."""
    yield first
    yield from chunks(pieces)
    yield AppendRequest()


def checked_read(request: ReadRequest) -> ReadRequest:
    validation.validate_read_request(request)
    return request


def listing(
    selector: LabelSelector | None,
    *,
    watch: bool = False,
    resume: Header | None = None,
    store_health: bool = False,
) -> ListRequest:
    request = ListRequest(selector=selector, watch=watch, watch_resume=resume, store_health=store_health)
    if watch:
        validation.validate_list_request(request)
    return request


def apply(changes: Iterable[ApplyRequest.Change], max_txn_size: int) -> Iterator[ApplyRequest]:
    """The changes as requests of at most `max_txn_size` each; 0: all in one."""
    listed = list(changes)
    size = max_txn_size or len(listed) or 1
    for at in range(0, max(len(listed), 1), size):
        yield ApplyRequest(changes=listed[at : at + size])


def fragments(
    journal: str, begin_mod_time: int, end_mod_time: int, signature_ttl: timedelta | None, token: int
) -> FragmentsRequest:
    return FragmentsRequest(
        journal=journal,
        begin_mod_time=begin_mod_time,
        end_mod_time=end_mod_time,
        next_page_token=token,
        signatureTTL=signature_ttl,
    )


def store_health(url: str, check_delete_prefix: str | None) -> FragmentStoreHealthRequest:
    return FragmentStoreHealthRequest(
        fragment_store=url,
        check_delete=check_delete_prefix is not None,
        check_delete_prefix=check_delete_prefix or "",
    )
