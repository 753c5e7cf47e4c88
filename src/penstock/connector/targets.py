"""Where an instance may be moved: who the worker at an address says that it is, and whether that is one for it.

A worker is asked without being named (`directory.PROBE` without a nonce), as a person gives no more than an address.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from penstock.base.errors import PenstockError, UsageError
from penstock.connector import directory
from penstock.connector.frames import Error, Frame, Hello, Ok
from penstock.connector.registry import Owner

_MOMENT: Final = 2.0
"""Seconds for an answer: who asks for a move does not wait for ever."""
_POLL: Final = 0.1


def introduction(me: Owner, place: str) -> Ok:
    """How a worker introduces itself to others that ask; without a place as long as it is in no directory."""
    places = {directory.PLACE + place} if place else set()
    return Ok(0, frozenset({directory.SELF + me.nonce, *places}))


async def introduced(
    address: str, hello: Hello, tls: ssl.SSLContext | None, *, entered: bool
) -> Frame | None:
    """Who a worker says that it is. `entered`: wait a moment for one that has just started to enter its directory."""
    end = asyncio.get_running_loop().time() + _MOMENT
    while True:
        answer = await directory.answer_of(Owner("", address, ""), hello, tls, _MOMENT)
        starting = isinstance(answer, Ok) and not directory.told(answer, directory.PLACE)
        if not (starting and entered) or asyncio.get_running_loop().time() > end:
            return answer
        await asyncio.sleep(_POLL)


def require_target(address: str, answer: Frame | None, mine: Ok) -> None:
    """Refuse to move anything to ourselves, by whatever name, to a worker that would refuse our connectors, or to one
    that puts what they send into other journals, where it would come twice.
    """
    if isinstance(answer, Error) and answer.reason.startswith(directory.DISTRUST):
        raise UsageError(
            f"the worker at {address} would take none of our connectors: {answer.reason}",
            hint="workers among which instances move have the same cookie, version, TLS and --instance",
        )
    if not isinstance(answer, Ok):
        return
    nonce, place = directory.told(answer, directory.SELF), directory.told(answer, directory.PLACE)
    own = directory.told(mine, directory.PLACE)
    if nonce == directory.told(mine, directory.SELF):
        raise UsageError(f"{address} is this worker itself", hint="name another one")
    if nonce and own and not place:
        raise PenstockError(
            f"the worker at {address} has not reached its broker yet", hint="try again when it has"
        )
    if nonce and own and place != own:
        raise UsageError(
            f"the worker at {address} puts what it is sent into other journals than this one: what ours have "
            "would come again there",
            hint="workers among which instances move have the same broker, or cluster, and --journals",
        )
