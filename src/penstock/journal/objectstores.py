"""Fragments in the buckets of S3, Google and Azure, and of whatever speaks as they do (reference, 19).

The client library is obstore; what it cannot express is refused when a store is opened. Requests are bounded
in time and size: a store that does not answer is an OSError after about half a minute, whatever the operation,
and neither side of a transfer is in memory whole. Large files go up in parts and become visible with the last;
reading asks for one range after the other, so that a slow reader holds no connection and meets no time-out.

Errors name the store and what it answered, never credentials.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, BinaryIO

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, S3Store

from penstock.base.disk import Buffer
from penstock.base.errors import UsageError
from penstock.journal.stores import FragmentStore, Listed
from penstock.journal.storeurls import Target, read_profile, read_target

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Credential

PART = 5 << 20
"""The least that S3 takes as a part; ten thousand of them are more than the longest fragment."""
PARTS_AT_ONCE = 2
FIRST_RANGE, LAST_RANGE = 1 << 20, 4 << 20
PAGE = 1000
CONNECT_TIMEOUT, TIMEOUT = timedelta(seconds=5), timedelta(seconds=25)
RETRIES, RETRY_TIMEOUT = 3, timedelta(seconds=5)
PROFILE_LIFETIME = timedelta(minutes=5)

_REFUSALS = re.compile(
    "AccessDenied|AllAccessDisabled|ExpiredToken|InvalidAccessKeyId|InvalidToken|SignatureDoesNotMatch"
    "|AuthenticationFailed|AuthorizationFailure"
)
_SECRET_NAMES = re.compile("(AWS|AZURE|GOOGLE)_.*(KEY|SECRET|TOKEN|KEY_BASE64)")
_ANSWER = re.compile(r"<(Code|Message)>([^<]*)<")
_CAUSE = re.compile(r'message: "([^"]*)"')
UNTRUSTED = "its certificate is not trusted"
"""Part of what is said of a store that shows a certificate of an unknown authority."""
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")


class NoSuchRangeError(OSError):
    """A file was asked for bytes from its end on."""


class ObjectStore(FragmentStore):
    """An `s3:`, `gs:`, `azure:` or `azure-ad:` store."""

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        self.url = url
        self.read_only = read_only
        self._target = read_target(url, os.environ)
        try:
            self._client = _client(self._target)
        except (BaseError, ValueError) as error:
            raise UsageError(f"the store {url} cannot be opened: {self._text(error)}") from None

    def exists(self, path: str) -> bool:
        try:
            return self.size(path) > 0
        except FileNotFoundError:
            return False

    def put(self, path: str, source: Iterable[Buffer], *, content_encoding: str = "") -> None:
        self._check_writable()
        attributes = dict(self._target.attributes)
        if content_encoding:
            attributes["Content-Encoding"] = content_encoding
        chunks = _Source(source)
        start = bytearray()
        for chunk in chunks:
            start += chunk
            if len(start) > PART:
                break
        whole = len(start) <= PART
        content = bytes(start) if whole else itertools.chain([bytes(start)], chunks)
        try:
            with self._translated("put", path, of_store=True):
                obstore.put(
                    self._client,
                    self._key(path),
                    content,
                    attributes=attributes,
                    use_multipart=not whole,
                    chunk_size=PART,
                    max_concurrency=PARTS_AT_ONCE,
                )
        except OSError:
            if chunks.failure is not None:
                raise chunks.failure from None
            raise

    def open(self, path: str, *, position: int = 0) -> BinaryIO:
        return StoredFile(_Ranges(self, path, position))

    def list(self, directory: str) -> Iterator[Listed]:
        top = f"{self._target.prefix}{self._target.rewrite.directory(directory)}/"
        with self._translated("list", directory, of_store=True):
            for page in obstore.list(self._client, top, chunk_size=PAGE):
                for found in page:
                    key = found["path"]
                    if key.startswith(top):  # not so an empty object that stands for the directory itself
                        yield Listed(
                            key.removeprefix(top), found["size"], int(found["last_modified"].timestamp())
                        )

    def remove(self, path: str) -> None:
        self._check_writable()
        try:
            with self._translated("remove", path):
                obstore.delete(self._client, self._key(path))
        except FileNotFoundError:
            return

    def sign(self, path: str, ttl: timedelta) -> str:
        seconds = timedelta(seconds=max(1, math.ceil(ttl.total_seconds())))
        with self._translated("sign", path):
            return obstore.sign(self._client, "GET", self._key(path), seconds)

    def is_authorization_error(self, error: OSError) -> bool:
        return isinstance(error, PermissionError)

    def get_range(self, path: str, start: int, end: int, etag: str | None) -> obstore.GetResult:
        """One request for [start, end) of a file that has not changed since it had this tag."""
        options: obstore.GetOptions = {"range": (start, end)}
        if etag is not None:
            options["if_match"] = etag
        with self._translated("read", path):
            return obstore.get(self._client, self._key(path), options=options)

    def size(self, path: str) -> int:
        with self._translated("look for", path):
            return obstore.head(self._client, self._key(path))["size"]

    def _key(self, path: str) -> str:
        return f"{self._target.prefix}{self._target.rewrite.path(path)}"

    @contextmanager
    def _translated(self, doing: str, path: str, *, of_store: bool = False) -> Iterator[None]:
        """The library's errors as OSError. `of_store`: what was not found is the bucket, not the file."""
        try:
            yield
        except FileNotFoundError as error:
            if of_store:
                raise OSError(self._failed(doing, path, error)) from None
            raise FileNotFoundError(self._failed(doing, path, error)) from None
        except BaseError as error:
            refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
            if refused or _REFUSALS.search(str(error)):
                raise PermissionError(self._failed(doing, path, error)) from None
            if "416 Range Not Satisfiable" in str(error):
                raise NoSuchRangeError(self._failed(doing, path, error)) from None
            raise OSError(self._failed(doing, path, error)) from None

    def _failed(self, doing: str, path: str, error: Exception) -> str:
        return f"could not {doing} {path} in the store {self.url}: {self._text(error)}"

    def _text(self, error: Exception) -> str:
        """What a person needs of the library's text, which is pages long, and quotes URLs and answers."""
        text, _, details = str(error).partition("\n\nDebug source:")
        answer = ": ".join(value for _, value in _ANSWER.findall(text))
        cause = "" if answer else ": ".join(_CAUSE.findall(details)[-1:])
        if not answer and (refused := _CERTIFICATE.search(details)):
            cause = f"{UNTRUSTED}: {refused[1]}"
        elif not answer and not cause and "TimedOut" in details:
            cause = "it did not answer in time"
        said = text.partition("<")[0].strip().rstrip(":")
        said = re.sub(r"\?\S+", "", said)  # a query may hold a signature
        told = ": ".join(part for part in (said[:400], answer[:400], cause) if part)
        for name, value in os.environ.items():
            if len(value) >= 4 and _SECRET_NAMES.fullmatch(name) and not name.endswith("KEY_ID"):
                told = told.replace(value, "***")
        return told


class _Source:
    """Passes a source on; keeps its failure, which is not the store's."""

    def __init__(self, source: Iterable[Buffer]) -> None:
        self._source = iter(source)
        self.failure: BaseException | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return bytes(next(self._source))
        except StopIteration:
            raise
        except BaseException as error:
            self.failure = error
            raise


class StoredFile(io.BufferedReader):
    """An object, opened for reading."""

    content_encoding: str
    """What the store answered with: "" also if it had been put with one, and was decoded on the way."""

    def __init__(self, ranges: _Ranges) -> None:
        super().__init__(ranges, 1 << 16)
        self.content_encoding = ranges.content_encoding


class _Ranges(io.RawIOBase):
    """An object as ranges, each asked for when the one before was read; growing, since most readers go on."""

    def __init__(self, store: ObjectStore, path: str, position: int) -> None:
        self._store, self._path = store, path
        self._position = position
        self._length = FIRST_RANGE
        self._etag: str | None = None
        self._end = position + 1
        self._piece = memoryview(b"")
        self.content_encoding = ""
        self._fetch()

    def readable(self) -> bool:
        return True

    def readinto(self, target: Buffer) -> int:  # type: ignore[override]
        if not self._piece and self._position < self._end:
            self._fetch()
        size = min(len(self._piece), len(target))
        memoryview(target)[:size] = self._piece[:size]
        self._piece = self._piece[size:]
        return size

    def _fetch(self) -> None:
        start = self._position
        try:
            result = self._store.get_range(self._path, start, start + self._length, self._etag)
        except NoSuchRangeError:
            if self._etag is not None or self._store.size(self._path) > start:
                raise
            self._end = start
            return
        self._etag, self._end = result.meta["e_tag"], result.meta["size"]
        self.content_encoding = result.attributes.get("Content-Encoding", "")
        expected = min(start + self._length, self._end) - start
        with self._store._translated("read", self._path):
            self._piece = memoryview(result.bytes())
        if len(self._piece) != expected:
            raise OSError(
                f"could not read {self._path} in the store {self._store.url}: at byte {start} it sent"
                f" {len(self._piece)} bytes; expected {expected}"
            )
        self._position += expected
        self._length = min(self._length * 2, LAST_RANGE)


def _client(target: Target) -> S3Store | GCSStore | AzureStore:
    client: ClientConfig = {
        "connect_timeout": CONNECT_TIMEOUT,
        "timeout": TIMEOUT,
        "allow_http": target.allow_http,
        "default_headers": target.headers,
    }
    retry: RetryConfig = {"max_retries": RETRIES, "retry_timeout": RETRY_TIMEOUT}
    # The library's types know each setting by name; these come from a table.
    config: Any = target.config
    match target.kind:
        case "s3":
            return S3Store(
                target.bucket,
                config=config,
                client_options=client,
                retry_config=retry,
                credential_provider=_ProfileCredentials(target) if target.profile else None,
            )
        case "gs":
            return GCSStore(target.bucket, config=config, client_options=client, retry_config=retry)
        case "azure":
            return AzureStore(target.bucket, config=config, client_options=client, retry_config=retry)


class _ProfileCredentials:
    """The keys of a profile, read again now and then: other programs renew them in the file."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __call__(self) -> S3Credential:
        profile = read_profile(self._target.rewrite.url, self._target.profile, os.environ)
        return {
            "access_key_id": profile.access_key_id,
            "secret_access_key": profile.secret_access_key,
            "token": profile.session_token or None,
            "expires_at": datetime.now(UTC) + PROFILE_LIFETIME,
        }
