"""HTTP to a cluster, and what its answers mean.

Nothing is repeated here: a bulk that was answered by nobody may have been taken, and only its sender knows whether
it may be sent again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from penstock.adaptors import tls
from penstock.adaptors.elasticsearch import Elasticsearch
from penstock.adaptors.needs import need
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.base.secrets import mask, register

T = TypeVar("T")

BUSY = frozenset({429, 502, 503, 504})
"""What a cluster answers that has no room or no primary at the moment."""

_OLDEST = {"elasticsearch": (7, 0), "opensearch": (1, 0)}
_POINT_IN_TIME = {"elasticsearch": (7, 10), "opensearch": (2, 4)}


@dataclass(frozen=True, slots=True)
class Kind:
    """What the server says it is."""

    distribution: str
    version: tuple[int, int]

    @property
    def has_points_in_time(self) -> bool:
        return self.version >= _POINT_IN_TIME[self.distribution]


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    def read(self, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(self.body, type=kind)
        except msgspec.DecodeError as error:
            raise PenstockError(f"the answer of the cluster does not read: {error}") from None


class Client:
    """One cluster. Keeps a connection open."""

    def __init__(self, settings: Elasticsearch) -> None:
        urllib3 = need("urllib3", "elasticsearch")
        self._settings = settings
        parts = urlsplit(settings.uri)
        port = f":{parts.port}" if parts.port else ""
        self._base = urlunsplit((parts.scheme, f"{parts.hostname}{port}", parts.path.rstrip("/"), "", ""))
        self._headers = _authorization(settings, parts.username, parts.password)
        options: dict[str, Any] = {}
        if parts.scheme == "https":
            options["ssl_context"] = tls.context(settings.ca)
        self._pool = urllib3.PoolManager(
            maxsize=2, retries=False, timeout=urllib3.Timeout(settings.timeout), **options
        )

    def ask(self, method: str, path: str, body: object = None, *, lines: bytes | None = None) -> Answer:
        """Send a request: with `body` as JSON, or `lines` of it. Answers that name a fault of ours are returned."""
        urllib3 = need("urllib3", "elasticsearch")
        headers = dict(self._headers)
        content = lines
        if lines is not None:
            headers["Content-Type"] = "application/x-ndjson"
        elif body is not None:
            headers["Content-Type"] = "application/json"
            content = msgspec.json.encode(body)
        try:
            found = self._pool.request(method, f"{self._base}{path}", body=content, headers=headers)
        except (urllib3.exceptions.SSLError, urllib3.exceptions.LocationParseError) as error:
            wrong = UsageError(f"{self._settings.shown}: {mask(str(error))}", hint="check the uri and `ca`")
            raise tls.untrusted(error, self._settings.shown) or wrong from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise AwayError(f"{self._settings.shown} does not answer: {mask(_reason(error))}") from None
        answer = Answer(found.status, found.data)
        self._check(method, path, answer)
        return answer

    def must(self, method: str, path: str, body: object = None) -> Answer:
        """Send a request that has to succeed."""
        answer = self.ask(method, path, body)
        if answer.status >= 400:
            raise PenstockError(f"{self._settings.shown}: {method} {path}: {reason_of(answer)}")
        return answer

    def kind(self) -> Kind:
        """Which server it is. Refuses what is too old, or something else."""
        told = self.must("GET", "/").read(dict[str, Any]).get("version")
        if not isinstance(told, dict) or "number" not in told:
            raise UsageError(f"{self._settings.shown} is neither Elasticsearch nor OpenSearch")
        distribution = "opensearch" if told.get("distribution") == "opensearch" else "elasticsearch"
        major, minor = (int(part) for part in str(told["number"]).split(".")[:2])
        if (major, minor) < _OLDEST[distribution]:
            raise UsageError(
                f"{self._settings.shown} is {distribution} {told['number']}",
                hint=f"{distribution} {_OLDEST[distribution][0]} or newer is wanted",
            )
        return Kind(distribution, (major, minor))

    def close(self) -> None:
        self._pool.clear()

    def _check(self, method: str, path: str, answer: Answer) -> None:
        if answer.status in (401, 403):
            raise UsageError(
                f"{self._settings.shown}: {method} {path}: {reason_of(answer)}",
                hint="check user and password in the uri, or `api_key`, and what they may do",
            )
        if answer.status in BUSY:
            raise AwayError(f"{self._settings.shown}: {method} {path}: {reason_of(answer)}")


def reason_of(answer: Answer) -> str:
    """What an answer complains of."""
    try:
        error = msgspec.json.decode(answer.body, type=dict[str, Any]).get("error")
    except msgspec.DecodeError:
        error = answer.body[:200].decode(errors="replace")
    return f"{answer.status} {mask(reason(error))}"


def reason(error: object) -> str:
    """The words of an error and of what caused it."""
    if not isinstance(error, Mapping):
        return str(error)
    words = f"{error.get('type')}: {error.get('reason')}"
    cause = error.get("caused_by")
    return f"{words} ({reason(cause)})" if isinstance(cause, Mapping) else words


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error)


def _authorization(settings: Elasticsearch, user: str | None, password: str | None) -> dict[str, str]:
    urllib3 = need("urllib3", "elasticsearch")
    if settings.api_key:
        return {"Authorization": f"ApiKey {settings.api_key}"}
    if user is None:
        return {}
    if password:
        register(unquote(password))
    made = urllib3.make_headers(basic_auth=f"{unquote(user)}:{unquote(password or '')}")
    return {"Authorization": made["authorization"]}
