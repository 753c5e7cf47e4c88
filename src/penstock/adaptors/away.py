"""What an error of the operating system means: the system is away, or it is used wrongly.

Away is what time, or somebody else, can mend without a change of the pipeline: a full disk, a network drive that is
gone, a server that is being restarted. The runner then waits and tries again (`penstock.adaptors.base`).
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.base.errors import AwayError, PenstockError, UsageError

AWAY = frozenset(
    {
        errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.EMFILE, errno.ENFILE,
        errno.ETIMEDOUT, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ENOTCONN, errno.EPIPE,
        errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET,
    }
)  # fmt: skip


def os_error(what: str, error: OSError, otherwise: type[PenstockError] = UsageError) -> PenstockError:
    """The error to raise instead; `what` could not be done, such as "cannot read x.jsonl"."""
    away = isinstance(error, TimeoutError) or error.errno in AWAY
    return (AwayError if away else otherwise)(f"{what}: {error.strerror or error}")


@contextmanager
def telling(what: str) -> Iterator[None]:
    """For work that was under way: errors of the operating system come out as away, or as work that failed."""
    try:
        yield
    except OSError as error:
        raise os_error(what, error, PenstockError) from error
