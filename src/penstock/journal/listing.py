"""What there is: the journals of the key space (reference 20, "List"), the fragments of one ("ListFragments"), and the
files of this machine that hold its bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Executor

from penstock.journal import keys, labels
from penstock.journal.appending import StoppedServingError
from penstock.journal.claims import Claims
from penstock.journal.fragment import Codec
from penstock.journal.keyspace import Entry
from penstock.journal.protocol import (
    FragmentsRequest,
    FragmentsResponse,
    Header,
    JournalSpec,
    LabelSelector,
    ListRequest,
    ListResponse,
    LocateRequest,
    LocateResponse,
    Span,
    Status,
)
from penstock.journal.read import require_listed, signed
from penstock.journal.replica import InSpool, InStore, Replica
from penstock.journal.resolver import KeySpace, Resolver
from penstock.journal.spoollayout import content_at

CHUNK = 25
PAGE = 1000

Matched = list[tuple[JournalSpec, Entry]]
Fault = Callable[[str], str | None]
"""What is wrong with a store; "" if nothing is, None if that is not known here (`Stores.fault`)."""


async def list_journals(
    request: ListRequest,
    claims: Claims,
    keyspace: KeySpace,
    resolver: Resolver,
    ended: asyncio.Event,
    fault: Fault,
) -> AsyncGenerator[ListResponse, None]:
    """A snapshot, and while it is watched a new one whenever what matches has changed, until `ended`.

    That a store has become well or unwell is no such change: whoever wants to know asks again.
    """
    resumed = (
        request.watch_resume.etcd.revision + 1 if request.watch and request.HasField("watch_resume") else 0
    )
    if resumed and not await _until(keyspace, resumed, ended):
        return
    last: tuple[int, int] | None = None
    while True:
        revision = keyspace.revision
        matched = _matching(request, claims, keyspace)
        version = (len(matched), max((entry.mod_revision for _, entry in matched), default=0))
        if version != last:
            last = version
            for response in _snapshot(matched, resolver):
                if request.store_health:
                    _tell_health(response, fault)
                yield response
            if request.watch:
                yield ListResponse()
        if not request.watch or not await _until(keyspace, revision + 1, ended):
            return


def _matching(request: ListRequest, claims: Claims, keyspace: KeySpace) -> Matched:
    selector, allowed = labels.for_list(request.selector), labels.for_list(claims.selector)
    found = ((JournalSpec.FromString(entry.value), entry) for _, entry in candidates(selector, keyspace))
    return [
        (spec, entry)
        for spec, entry in found
        for named in (labels.with_name(spec.labels, spec.name),)
        if labels.match(selector, named) and labels.match(allowed, named)
    ]


def candidates(selector: LabelSelector, keyspace: KeySpace) -> Iterator[tuple[str, Entry]]:
    """What may match, by name: journals that are named are looked up, however many others there are."""
    named = [label for label in selector.include.labels if label.name == "name"]
    if not named or any(label.prefix or not label.value for label in named):
        yield from ((key.removeprefix(keys.ITEMS), entry) for key, entry in keyspace.under(keys.ITEMS))
        return
    for name in sorted({label.value for label in named}):
        entry = keyspace.get(keys.item_key(name))
        if entry is not None:
            yield name, entry


def _snapshot(matched: Matched, resolver: Resolver) -> list[ListResponse]:
    """Only the first message has a header; none but the first may be empty."""
    responses = [ListResponse(header=resolver.header())]
    for spec, entry in matched:
        if len(responses[-1].journals) == CHUNK:
            responses.append(ListResponse())
        responses[-1].journals.add(
            spec=spec,
            mod_revision=entry.mod_revision,
            create_revision=entry.create_revision,
            route=resolver.route(spec.name),
        )
    return responses


def _tell_health(response: ListResponse, fault: Fault) -> None:
    for journal in response.journals:
        journal.store_health.SetInParent()
        for url in journal.spec.fragment.stores:
            error = fault(url)
            if error is not None:
                journal.store_health.known.add(fragment_store=url, error=error)


async def _until(keyspace: KeySpace, revision: int, ended: asyncio.Event) -> bool:
    """Wait for a revision; False if we are to end instead."""
    if ended.is_set():
        return False
    waits = [
        asyncio.ensure_future(keyspace.wait_for_revision(revision)),
        asyncio.ensure_future(ended.wait()),
    ]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return not ended.is_set()


async def list_fragments(
    request: FragmentsRequest, replica: Replica, header: Header, threads: Executor
) -> FragmentsResponse:
    """A page of a journal's fragments, the one being written included; never without what the stores have."""
    if replica.is_write_only:
        return FragmentsResponse(status=Status.NOT_ALLOWED, header=header)
    await replica.until_listed_once()
    require_listed(replica)
    if not replica.listed:
        raise StoppedServingError(replica.spec.name)
    response = FragmentsResponse(header=header)
    limit = request.page_limit or PAGE
    for entry in replica.index.starting_at(request.next_page_token):
        fragment, place = entry.fragment, entry.payload
        if len(response.fragments) == limit:
            response.next_page_token = fragment.begin
            break
        if fragment.mod_time and fragment.mod_time < request.begin_mod_time:
            continue
        if request.end_mod_time and not 0 < fragment.mod_time <= request.end_mod_time:
            continue
        listed = response.fragments.add(spec=fragment.to_proto())
        if request.HasField("signatureTTL") and isinstance(place, InStore):
            listed.signed_url = await signed(place, request.signatureTTL.ToTimedelta(), threads)
    return response


async def locate(request: LocateRequest, replica: Replica) -> LocateResponse:
    """In which files of this machine the bytes asked for lie; what is left out is to be read through the broker."""
    await replica.until_listed_once()
    response = LocateResponse(write_head=replica.write_head)
    for fragment, place in replica.locate(request.begin, request.end):
        if isinstance(place, InSpool):
            path, position = place.path, content_at(place.path)
        elif (stored := place.store.local_path(place.path)) and fragment.codec is Codec.NONE:
            path, position = stored, 0
        else:
            break
        begin = max(fragment.begin, request.begin)
        span = Span(begin=begin, end=min(fragment.end, request.end), path=str(path))
        span.position = position + begin - fragment.begin
        span.compression_codec = Codec.NONE.to_proto()
        response.spans.append(span)
    return response
