"""From outside of immortals: call one over HTTP. Used by `penstock immortal call` and by the adaptors."""

from __future__ import annotations

import http.client
from urllib.parse import quote, urlsplit

import msgspec

from penstock.base.errors import AwayError, UsageError
from penstock.immortal.binding.errors import RemoteError

_AWAY = (401, 403, 500, 502, 503, 504)


class Outside:
    """The HTTP endpoint of an immortal; one connection, for one thread."""

    def __init__(self, address: str, *, token: str = "", timeout: float = 30.0) -> None:
        host, port = _ends(address)
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._connection = http.client.HTTPConnection(host, port, timeout=timeout + 5)
        self._headers = {"Authorization": _header(f"Bearer {token}")} if token else {}

    def ask(self, verb: str, path: str, body: bytes = b"", headers: dict[str, bytes] | None = None) -> bytes:
        """One request; raises `AwayError` where it may be tried again."""
        try:
            self._connection.request(verb, path, body or None, {**self._headers, **(headers or {})})
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise AwayError(f"the immortal at {self.address} does not answer: {error}") from error
        if response.status == 200:
            return content
        try:
            said = msgspec.json.decode(content, type=dict[str, str])
        except msgspec.DecodeError:
            said = {"error": "Unknown", "message": content[:200].decode(errors="replace")}
        text = f"{said.get('error')}: {said.get('message')}"
        if response.status == 401:
            raise UsageError(f"the immortal at {self.address} wants a token: {text}")
        if response.status in _AWAY:
            raise AwayError(f"the immortal at {self.address} answers {response.status}: {text}")
        if response.status == 422:
            raise RemoteError(str(said.get("error")), str(said.get("message")))
        raise UsageError(f"the immortal at {self.address} answers {response.status}: {text}")

    def call(self, method: str, arguments: list[object], key: str = "") -> object:
        """Call an @impulse method; its result."""
        body = msgspec.json.encode(arguments)
        headers = {"Idempotency-Key": _header(key)} if key else {}
        answer: dict[str, object] = msgspec.json.decode(
            self.ask("POST", f"/call/{quote(method)}", body, headers)
        )
        return answer.get("result")

    def call_text(self, method: str, arguments: list[str], key: str = "") -> str:
        """The same with arguments and result as text."""
        return msgspec.json.encode(self.call(method, [_argument(text) for text in arguments], key)).decode()

    def close(self) -> None:
        self._connection.close()


def _ends(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, or of a URL."""
    try:
        parts = urlsplit(address if "//" in address else f"http://{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or parts.scheme != "http":
        raise UsageError(f"'{address}': HOST:PORT was expected")
    return host, port


def _header(text: str) -> bytes:
    """A text that goes along in a header; the other side reads UTF-8."""
    if not text.isprintable():
        raise UsageError("a token or key is a text in one line")
    return text.encode()


def _argument(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
