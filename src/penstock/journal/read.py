"""Reads of committed bytes (reference 20, "Read"): a metadata message, then chunks, a fragment at a time.

A blocking read waits at the write head for the next commit. A read that meets a gap at the front of the
journal jumps over it: what was there has been deleted. Reads of a journal that is let go end without an error,
at a shutdown only those that wait: the others are nearly done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from penstock.base.errors import CorruptError
from penstock.journal.fragment import Fragment
from penstock.journal.protocol import Header, ReadRequest, ReadResponse, Status
from penstock.journal.replica import LocalFile, Replica

CHUNK = 32736
JUMP_AGE = 6 * 3600
_URL_LIFE = timedelta(minutes=1)
_O_WRONLY = 2


async def read(
    request: ReadRequest, replica: Replica, header: Header, sign: Callable[[Fragment, timedelta], str]
) -> AsyncGenerator[ReadResponse, None]:
    """The answer to one Read of a journal that resolved to us."""
    if replica.spec.flags == _O_WRONLY:
        yield ReadResponse(status=Status.NOT_ALLOWED, header=header)
        return
    offset = replica.write_head if request.offset == -1 else request.offset
    first = True
    while not replica.closed:
        changed = replica.changed()
        found = _find(replica, offset, request.begin_mod_time)
        if found is None and request.block:
            if replica.waits_ended:
                return
            await changed.wait()
            continue
        response = ReadResponse(offset=offset, write_head=replica.write_head)
        if first:
            response.header.CopyFrom(header)
            first = False
        if found is None:
            response.status = Status.OFFSET_NOT_YET_AVAILABLE
            yield response
            return
        offset, fragment, file = found
        response.offset = offset
        response.fragment.CopyFrom(fragment.to_proto())
        if not fragment.is_local:
            response.fragment_url = sign(fragment, _URL_LIFE)
        yield response
        if request.metadata_only or (request.end_offset and offset >= request.end_offset):
            return
        if request.do_not_proxy and not fragment.is_local:
            return
        stop = min(fragment.end, request.end_offset) if request.end_offset else fragment.end
        with _opened(file) as chunk_at:
            while offset < stop:
                content = chunk_at(min(CHUNK, stop - offset), offset - fragment.begin)
                if not content:
                    break  # the file was let go under us: the fragment is in the store by now
                yield ReadResponse(offset=offset, content=content)
                offset += len(content)
                await asyncio.sleep(0)
        if request.end_offset and offset >= request.end_offset:
            return


def _find(replica: Replica, offset: int, begin_mod_time: int) -> tuple[int, Fragment, LocalFile] | None:
    """The fragment to read from, and the offset there; None if nothing is committed at `offset` yet."""
    while True:
        entry, covered = replica.index.lookup(offset)
        if entry is None:
            return None
        fragment = entry.fragment
        if not covered:
            is_first = fragment.begin == replica.index.begin
            if fragment.is_local or not (is_first or _age(replica, fragment) > JUMP_AGE):
                return None
            offset = fragment.begin
        if begin_mod_time and not fragment.is_local and fragment.mod_time < begin_mod_time:
            offset = fragment.end
            continue
        return offset, fragment, entry.payload


def _age(replica: Replica, fragment: Fragment) -> int:
    return replica.now_seconds() - fragment.mod_time


@contextmanager
def _opened(file: LocalFile) -> Iterator[Callable[[int, int], bytes]]:
    """A reader of (size, position in the fragment) that returns nothing once the file has gone."""
    if file.spool is not None:
        spool = file.spool

        def from_spool(size: int, position: int) -> bytes:
            return b"" if spool.closed else spool.read(size, position)

        yield from_spool
        return
    with file.path.open("rb", buffering=0) as stored:

        def from_store(size: int, position: int) -> bytes:
            stored.seek(file.position + position)
            content = stored.read(size)
            if not content:
                raise CorruptError(
                    "the file ends here, before the fragment it is named after",
                    where=str(file.path),
                    position=file.position + position,
                    hint="the disk lost bytes it had confirmed; restore the file from a copy",
                )
            return content

        yield from_store
