"""Telling others: a callback that fails is logged, and hinders neither the teller nor the other callbacks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import ParamSpec

log = logging.getLogger(__name__)

P = ParamSpec("P")


def tell_all(callbacks: Iterable[Callable[P, object]], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call each, in order."""
    for callback in tuple(callbacks):
        try:
            callback(*args, **kwargs)
        except Exception:
            log.exception("a callback failed")
