"""The driver: a client with Penstock's settings, and what its errors mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.adaptors import tls
from penstock.adaptors.needs import need
from penstock.adaptors.redis import Redis
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.base.secrets import mask

if TYPE_CHECKING:
    import redis

_AWAY = (
    "LOADING",
    "READONLY",
    "OOM",
    "MISCONF",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "BUSY",
    "NOREPLICAS",
)
"""Answers of a server that will take it later: it starts, is a replica now, or has no room."""

_RIGHTS = ("NOAUTH", "WRONGPASS", "NOPERM")


def driver() -> ModuleType:
    return need("redis", "redis")


def connected(settings: Redis) -> redis.Redis:
    """A client that gives answers as the server does, in bytes, and does not try again by itself."""
    library, retry = driver(), need("redis.retry", "redis")
    client: redis.Redis = library.Redis.from_url(
        settings.uri, protocol=2, decode_responses=False, socket_timeout=settings.timeout,
        socket_connect_timeout=settings.timeout, socket_keepalive=True,
        retry=retry.Retry(need("redis.backoff", "redis").NoBackoff(), 0), **_tls(settings),
    )  # fmt: skip
    for command in ("XREAD", "XINFO STREAM", "XRANGE", "EVALSHA"):
        client.set_response_callback(command, _as_it_is)
    return client


def _tls(settings: Redis) -> dict[str, object]:
    """Certificate and host name are checked, whatever the version of the driver does by itself."""
    if not settings.uri.startswith("rediss:"):
        return {}
    tls.context(settings.ca, settings.certificate, settings.private_key)  # names the file that cannot be read
    files = {
        "ssl_ca_certs": settings.ca,
        "ssl_certfile": settings.certificate,
        "ssl_keyfile": settings.private_key,
    }
    return {"ssl_cert_reqs": "required", "ssl_check_hostname": True, **{k: v for k, v in files.items() if v}}


def ask(client: redis.Redis | redis.client.Pipeline, *words: str | bytes | int) -> object:
    """One command, as it is; of a pipeline the answer comes later."""
    command: Callable[..., object] = client.execute_command
    return command(*words)


@contextmanager
def asking(settings: Redis, what: str) -> Iterator[None]:
    """For requests: errors of the driver come out as Penstock's; `what` could not be done."""
    errors = driver().exceptions
    at = _place(settings)
    try:
        yield
    except (errors.ConnectionError, errors.TimeoutError, OSError) as error:
        # Being denied is a kind of connection error, as is a server that starts.
        denied = isinstance(error, errors.AuthenticationError | errors.AuthorizationError)
        if distrust := tls.untrusted(error, at):
            raise distrust from None
        text = f"{what} at {at}: {mask(str(error))}"
        if denied:
            raise UsageError(text, hint="see the password in the setting 'uri'") from None
        raise AwayError(text) from None
    except errors.RedisError as error:
        raise _answered(f"{what} at {at}", str(error), type(error).__name__) from None


def _answered(what: str, answer: str, kind: str) -> PenstockError:
    text = f"{what}: {mask(answer)}"
    word = answer.partition(" ")[0]
    if word in _RIGHTS or kind in ("AuthenticationError", "NoPermissionError"):
        return UsageError(text, hint="give the user of this pipeline the right, or see the setting 'uri'")
    if word in _AWAY or kind in ("BusyLoadingError", "ReadOnlyError", "OutOfMemoryError", "MasterDownError"):
        return AwayError(text)
    if "OOM" in answer or "used memory > 'maxmemory'" in answer:
        return AwayError(text, hint="the server has no room: raise maxmemory, or have it forget something")
    if word == "WRONGTYPE" or "WRONGTYPE" in answer:
        return UsageError(text, hint="the key is in use for something else; see the setting 'prefix'")
    return PenstockError(text)


def _place(settings: Redis) -> str:
    parts = urlsplit(settings.uri)
    return f"{parts.hostname}:{parts.port or 6379}" if parts.hostname else parts.path


def _as_it_is(answer: object, **_: object) -> object:
    return answer
