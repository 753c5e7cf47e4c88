"""When a fragment is closed and the next one begun (reference 14, "When a fragment rolls"). Pure."""

from __future__ import annotations

from penstock.journal.fragment import Codec, Fragment
from penstock.journal.spool import empty_fragment


def proposal_to_extend(
    fragment: Fragment,
    *,
    codec: Codec,
    length: int,
    flush_seconds: int,
    first_append: int,
    now: int,
    roll_to: int | None,
) -> Fragment:
    """What the next append proposes to extend: the fragment, or an empty one that follows it.

    Reference 14, "When a fragment rolls", but that a new codec closes it, as in the seed. Times in seconds;
    `roll_to` closes the fragment there whatever it is like.
    """
    offset = fragment.end if roll_to is None else max(roll_to, fragment.end)
    rolls = (
        not fragment.length
        or fragment.codec is not codec
        or fragment.length > length
        or (roll_to is not None and roll_to != fragment.begin)
        or flushes(flush_seconds, first_append, now)
    )
    return empty_fragment(fragment.journal, offset, codec) if rolls else fragment


def flushes(flush_seconds: int, first_append: int, now: int) -> bool:
    """Whether the interval has ended in which a fragment was begun. It ends for all journals at the same time."""
    return bool(flush_seconds) and first_append // flush_seconds != now // flush_seconds
