"""What a broker of the original's make has of a journal, found out by reading from it (DESIGN, 10).

It answers no surveys. Nor need it say when it was synchronised: it keeps nothing beyond its own life, and begins anew
each time it comes into a route, so whatever it has in its spools is of the latest synchronisation. One that has nothing
there knows nothing. What it has in stores alone is not its to tell: those are compared as well.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from penstock.base.errors import PenstockError
from penstock.journal.cluster.peers import Peers, ReadCall
from penstock.journal.cluster.proxy import answered
from penstock.journal.cluster.survey import Part, Survey, SurveyRequest
from penstock.journal.protocol import ReadRequest, ReadResponse, Status

LATEST = 2**63 - 1
"""Later than any synchronisation."""


async def survey(peers: Peers, endpoint: str, request: SurveyRequest) -> Survey:
    """As if it had been asked. Where it serves the journal, the synchronisation that we take part in has locked it."""
    parts: list[Part] = []
    head = 0
    for begin, end in request.spans:
        position = begin
        while position < end:
            found = await _read(peers, endpoint, request.journal, position, end)
            head = max(head, found.head)
            if found.part is not None:
                parts.append(found.part)
            if found.next <= position:
                break
            position = found.next
    return Survey(LATEST if parts else 0, locked=True, end=head, parts=parts)


class _Found(NamedTuple):
    """Of one read: its bytes, where the next one begins (0: there is no more), and the write head."""

    part: Part | None
    next: int
    head: int


async def _read(peers: Peers, endpoint: str, journal: str, offset: int, limit: int) -> _Found:
    request = ReadRequest(journal=journal, offset=offset, end_offset=limit, do_not_proxy=True)
    call = peers.read(endpoint, request)
    summer, begin, end, beyond, head = hashlib.sha1(), 0, 0, 0, 0
    try:
        while (response := await answered(endpoint, _next(call))) is not None:
            if response.content:
                begin = begin if end else response.offset
                end = response.offset + len(response.content)
                summer.update(response.content)
                continue
            if response.status not in (Status.OK, Status.OFFSET_NOT_YET_AVAILABLE):
                raise PenstockError(f"{journal}: {endpoint} answers {Status.Name(response.status)}")
            head = max(head, response.write_head)
            if end and response.offset != end:
                break  # what lies beyond a gap is another part
            if response.status == Status.OK and response.fragment.backing_store:
                beyond = response.fragment.end
    finally:
        call.cancel()
    part = Part(begin, end, summer.digest()) if end else None
    return _Found(part, max(end, beyond), head)


async def _next(call: ReadCall) -> ReadResponse | None:
    response = await call.read()
    return response if isinstance(response, ReadResponse) else None
