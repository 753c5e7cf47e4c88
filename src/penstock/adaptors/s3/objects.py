"""Objects of a bucket as files: listed, read in ranges, put, created only if they are not there.

The client is that of the journal's object stores (`penstock.journal.objectstores`), with its URLs, credentials, limits
and error texts; obstore is imported with this module, so nothing imports it before an adaptor is used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError

from penstock.adaptors.formats.contents import Content
from penstock.adaptors.formats.ledger import Entry
from penstock.adaptors.formats.reading import FileChangedError
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.journal.objectstores import PAGE, UNTRUSTED, ObjectStore

RANGE = 4 << 20
HELD = 4
"""Ranges of an object that are held: a Parquet file is read here and there."""

_WRONG = ("NoSuchBucket", "InvalidBucketName", "PermanentRedirect", "AuthorizationHeaderMalformed")
_NAMELESS = "object with invalid path"
"""What the client says of a name that it cannot have, such as `a//b`: all that lies beside it is not listed then."""


class Objects(ObjectStore):
    """What lies under the prefix of a URL. Errors are those of an adaptor."""

    def entries(self, under: str = "") -> Sequence[Entry]:
        """All objects, or those under a directory; with names relative to the prefix.

        Without those that stand for a directory: consoles make an object without content whose name ends in `/`, of
        which the client does not tell the last letter.
        """
        prefix = self._target.prefix
        found: list[tuple[str, Entry]] = []
        directories = {prefix.rstrip("/")}
        with self.asking(), self._translated("list", prefix or "/", of_store=True):
            for page in obstore.list(self._client, f"{prefix}{under}" or None, chunk_size=PAGE):
                for one in page:
                    path = one["path"]
                    name = path.removeprefix(prefix)
                    tag = f"{one['size']}-{one['e_tag'] or one['version'] or one['last_modified']}"
                    time = int(one["last_modified"].timestamp() * 1_000_000)
                    found.append((path, Entry(name, time, one["size"], tag)))
                    while (path := path.rpartition("/")[0]) and path not in directories:
                        directories.add(path)
        return [entry for path, entry in found if entry.size or path not in directories]

    def bytes_of(self, name: str) -> bytes:
        with self.asking(), self._translated("read", name):
            return bytes(obstore.get(self._client, self._key(name)).bytes())

    def create(self, name: str, content: bytes) -> bool:
        """Put an object if there is none of this name; whether that was so."""
        try:
            with self.asking():
                try:
                    obstore.put(self._client, self._key(name), content, mode="create", use_multipart=False)
                except (AlreadyExistsError, PreconditionError):
                    return False
        except FileNotFoundError as error:
            raise UsageError(f"could not put {name} in {self.url}: {self._text(error)}") from None
        return True

    def opened(self, entry: Entry) -> Content:
        return ObjectContent(self, entry)

    def range_of(self, name: str, start: int, end: int, etag: str | None) -> tuple[bytes, str | None]:
        """Bytes of an object, and the tag that it has; `FileChangedError` if it is not that one any more."""
        options: obstore.GetOptions = {"range": (start, end)}
        if etag is not None:
            options["if_match"] = etag
        with self.asking():
            try:
                result = obstore.get(self._client, self._key(name), options=options)
                return bytes(result.bytes()), result.meta["e_tag"]
            except PreconditionError:
                raise FileChangedError(
                    f"{self.where}/{name} changed while it was read",
                    hint="give what is new a name of its own",
                ) from None
            except FileNotFoundError:
                raise FileChangedError(f"{self.where}/{name} is gone, while it was read") from None

    @property
    def where(self) -> str:
        return self.url.partition("?")[0].rstrip("/")

    def _key(self, path: str) -> str:
        return f"{self._target.prefix}{path}"

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Errors of the store as an adaptor tells them: it is away, or used wrongly."""
        try:
            yield
        except PenstockError:
            raise
        except PermissionError as error:
            raise UsageError(str(error), hint="see which credentials are in the environment") from None
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._judged(str(error)) from None
        except obstore.exceptions.BaseError as error:
            with self._as_os_error(error):
                pass

    def _judged(self, text: str) -> PenstockError:
        if UNTRUSTED in text:
            return UsageError(text, hint="name the file of its authority in the variable SSL_CERT_FILE")
        if _NAMELESS in text:
            return UsageError(
                text,
                hint="rename it, or read a prefix without it: no part of a name may be empty, '.' or '..'",
            )
        return (UsageError if any(word in text for word in _WRONG) else AwayError)(text)

    @contextmanager
    def _as_os_error(self, error: Exception) -> Iterator[None]:
        try:
            with self._translated("use", self.where):
                raise error
        except PermissionError as refused:
            raise UsageError(str(refused), hint="see which credentials are in the environment") from None
        except OSError as failed:
            raise self._judged(str(failed)) from None
        yield


class ObjectContent(Content):
    """One object, as it was when it was listed."""

    def __init__(self, objects: Objects, entry: Entry) -> None:
        self.name = f"{objects.where}/{entry.name}"
        self._objects = objects
        self._entry = entry
        self._etag: str | None = None
        self._held: OrderedDict[int, bytes] = OrderedDict()

    def size(self) -> int:
        return self._entry.size

    def read_at(self, size: int, byte: int) -> bytes:
        parts = []
        end = min(byte + size, self._entry.size)
        while byte < end:
            start = byte - byte % RANGE
            block = self._block(start)
            part = block[byte - start : end - start]
            parts.append(part)
            byte += len(part)
        return b"".join(parts)

    def _block(self, start: int) -> bytes:
        if start in self._held:
            self._held.move_to_end(start)
            return self._held[start]
        end = min(start + RANGE, self._entry.size)
        block, etag = self._objects.range_of(self._entry.name, start, end, self._etag)
        if self._etag is None and etag is not None and not self._entry.tag.endswith(etag):
            raise FileChangedError(f"{self.name} changed between two looks at it")
        if len(block) != end - start:
            raise AwayError(
                f"{self.name}: at byte {start} the store sent {len(block)} of {end - start} bytes"
            )
        self._etag = etag
        self._held[start] = block
        while len(self._held) > HELD:
            self._held.popitem(last=False)
        return block
