"""Reads of committed bytes (reference 20, "Read"): a metadata message, then chunks, a fragment at a time.

A blocking read waits at the write head for the next commit. A read below what has been deleted jumps forward.
Reads of a journal that is let go end without an error, at a shutdown only those that wait: the others are nearly
done. Bytes are fetched in threads, a block at a time and no further ahead than that, so that a slow reader costs a
block, and a slow store holds up nobody else.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import Executor
from contextlib import closing
from datetime import timedelta

from penstock.base.errors import CorruptError, PenstockError
from penstock.journal import codecs
from penstock.journal.fragment import Codec, Fragment
from penstock.journal.protocol import Header, ReadRequest, ReadResponse, Status
from penstock.journal.replica import InSpool, InStore, Place, Replica
from penstock.journal.spoollayout import content_at
from penstock.journal.uncancelled import uncancelled

CHUNK = 32736
"""Content of one message, unless the client says that it takes more."""
MAX_CHUNK = 1 << 20
BLOCK = 1 << 20
JUMP_AGE = 6 * 3600
_SMALL = 1 << 16
_MOMENT = 0.001
_URL_LIFE = timedelta(minutes=1)


async def read(
    request: ReadRequest, replica: Replica, header: Header, threads: Executor, chunk: int = CHUNK
) -> AsyncGenerator[ReadResponse, None]:
    """The answer to one Read of a journal that resolved to us."""
    if replica.is_write_only:
        yield ReadResponse(status=Status.NOT_ALLOWED, header=header)
        return
    await replica.until_listed_once()
    if request.offset == -1 and not request.block:
        require_listed(replica)
    offset = replica.write_head if request.offset == -1 else request.offset
    first = True
    missed: Place | None = None
    while not replica.closed:
        changed = replica.changed()
        if not len(replica.index):
            offset = max(offset, replica.trimmed)
        offset, found = find(replica, offset, request.begin_mod_time)
        if found is None and request.block:
            if replica.waits_ended:
                return
            await changed.wait()
            continue
        if found is None and offset < replica.write_head and replica.is_about_to_show:
            await asyncio.sleep(_MOMENT)  # or else the write head would be told of, and not what is before it
            continue
        response = ReadResponse(offset=offset, write_head=replica.write_head)
        if first:
            response.header.CopyFrom(header)
            first = False
        if found is None:
            require_listed(replica)
            response.status = Status.OFFSET_NOT_YET_AVAILABLE
            yield response
            return
        fragment, place = found
        response.fragment.CopyFrom(fragment.to_proto())
        if not isinstance(place, InSpool):
            response.fragment_url = await signed(place, _URL_LIFE, threads)
        yield response
        if request.metadata_only or (request.end_offset and offset >= request.end_offset):
            return
        if request.do_not_proxy and not fragment.is_local:
            return
        stop = min(fragment.end, request.end_offset) if request.end_offset else fragment.end
        began = offset
        try:
            async for content in contents(fragment, place, offset, stop, threads):
                for at in range(0, len(content), chunk):
                    piece = content if len(content) <= chunk else content[at : at + chunk]
                    yield ReadResponse(offset=offset, content=piece)
                    offset += len(piece)
        except FileNotFoundError:
            if fragment.end > replica.trimmed:
                raise
        if offset == began and place == missed:
            raise _short(str(place), 0)  # it was not put into a store either: somebody took it away
        missed = place if offset == began else None
        if request.end_offset and offset >= request.end_offset:
            return


def require_listed(replica: Replica) -> None:
    """Nobody is told that there is nothing while we do not know what there is."""
    if not replica.listed and not replica.closed and replica.listing_error:
        raise PenstockError(
            f"{replica.spec.name}: what its stores hold is not known: {replica.listing_error}",
            hint="see to the store; it is tried again all the time",
        )


def find(replica: Replica, offset: int, begin_mod_time: int = 0) -> tuple[int, tuple[Fragment, Place] | None]:
    """Where a read at `offset` goes on, past what it skips, and the fragment there; None if nothing is there yet."""
    while True:
        entry, covered = replica.index.lookup(offset)
        if entry is None:
            return offset, None
        fragment = entry.fragment
        if not covered:
            if not _may_jump(replica, offset, fragment):
                return offset, None
            offset = fragment.begin
        if begin_mod_time and not fragment.is_local and fragment.mod_time < begin_mod_time:
            offset = fragment.end
            continue
        return offset, (fragment, entry.payload)


def _may_jump(replica: Replica, offset: int, fragment: Fragment) -> bool:
    """Whether what is missing before a fragment will stay missing: trimmed, or gone from the stores for good."""
    if offset < replica.trimmed and fragment.begin <= replica.trimmed:
        return True
    if fragment.is_local:
        return False
    return fragment.begin == replica.index.begin or replica.now_seconds() - fragment.mod_time > JUMP_AGE


async def contents(
    fragment: Fragment, place: Place, begin: int, end: int, threads: Executor
) -> AsyncGenerator[bytes, None]:
    """The bytes [begin, end) of a fragment, in blocks; fewer if its spool file has gone meanwhile.

    Whoever gets fewer looks the fragment up again: it is in the store by then.
    """
    if isinstance(place, InSpool) and end - begin <= _SMALL:
        # Just committed, so in memory: not worth a thread.
        content = _spooled(place, begin - fragment.begin, end - begin)
        if content:
            yield content
        return
    loop = asyncio.get_running_loop()
    blocks = (
        _spool_blocks(place, fragment, begin, end)
        if isinstance(place, InSpool)
        else _store_blocks(place, fragment, begin, end)
    )
    ahead = loop.run_in_executor(threads, next, blocks, b"")
    try:
        while block := await uncancelled(ahead):
            ahead = loop.run_in_executor(threads, next, blocks, b"")
            yield block
    finally:
        await asyncio.wait((ahead,))
        blocks.close()


def _spooled(place: InSpool, position: int, size: int) -> bytes:
    """Bytes of a spool's content; none if the file has gone."""
    try:
        with place.path.open("rb", buffering=0) as file:
            return os.pread(file.fileno(), size, content_at(place.path) + position)
    except FileNotFoundError:
        return b""


def _spool_blocks(place: InSpool, fragment: Fragment, begin: int, end: int) -> Generator[bytes, None, None]:
    try:
        file = place.path.open("rb", buffering=0)
    except FileNotFoundError:
        return
    with file:
        position, stop = begin - fragment.begin, end - fragment.begin
        at = content_at(place.path)
        while position < stop:
            block = os.pread(file.fileno(), min(BLOCK, stop - position), at + position)
            if not block:
                raise _short(str(place.path), at + position)
            yield block
            position += len(block)


def _store_blocks(place: InStore, fragment: Fragment, begin: int, end: int) -> Generator[bytes, None, None]:
    """Without a codec the store is asked for the bytes themselves, otherwise for all up to them."""
    skip, size = begin - fragment.begin, end - begin
    if fragment.codec is Codec.NONE:
        raw, skip = place.store.open(place.path, position=skip), 0
    else:
        raw = codecs.decompressed(fragment.codec, place.store.open(place.path))
    with closing(raw) as file:
        while skip:
            skipped = file.read(min(BLOCK, skip))
            if not skipped:
                raise _short(place.path, begin - fragment.begin - skip)
            skip -= len(skipped)
        while size:
            block = file.read(min(BLOCK, size))
            if not block:
                raise _short(place.path, end - fragment.begin - size)
            yield block
            size -= len(block)


def _short(where: str, position: int) -> CorruptError:
    return CorruptError(
        "the content ends here, before the fragment it is named after",
        where=where,
        position=position,
        hint="what holds it lost bytes it had confirmed; restore the file from a copy",
    )


async def signed(place: InStore, ttl: timedelta, threads: Executor) -> str:
    """A URL for a stored fragment. Signing may ask a service for credentials, so it is done in a thread."""
    return await asyncio.get_running_loop().run_in_executor(threads, place.store.sign, place.path, ttl)
