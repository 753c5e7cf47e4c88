"""The driver: a pool of connections with Penstock's settings, and what it means that there is no answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.adaptors import tls
from penstock.adaptors.http import Http
from penstock.adaptors.needs import need
from penstock.base.errors import AwayError, PenstockError
from penstock.base.secrets import mask

if TYPE_CHECKING:
    import urllib3


def pool(settings: Http) -> urllib3.PoolManager:
    """Tries nothing again by itself, and follows no redirects unless told to."""
    library = need("urllib3", "http")
    secure: dict[str, object] = {}
    if settings.uri.startswith("https:"):
        secure["ssl_context"] = tls.context(settings.ca, settings.certificate, settings.private_key)
    made: urllib3.PoolManager = library.PoolManager(
        timeout=library.Timeout(settings.timeout), retries=False, **secure
    )
    return made


def silent(settings: Http, error: Exception) -> PenstockError:
    """The error to raise where a request got no answer."""
    away = AwayError(f"{settings.place} does not answer: {mask(str(error))}")
    return tls.untrusted(error, settings.place) or away
