"""Object stores against a real S3 server process (reference, 19 "Store URLs")."""

from __future__ import annotations

import hashlib
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import obstore
import psutil
import pytest
from obstore.exceptions import GenericError

from penstock.base.disk import Disk
from penstock.base.errors import CorruptError, UsageError
from penstock.journal import objectstores
from penstock.journal.codecs import compressed, content_encoding, decompressed
from penstock.journal.fragment import Codec, Fragment, parse_path
from penstock.journal.objectstores import FIRST_RANGE, PART, ObjectStore
from penstock.journal.stores import Listed, open_store
from penstock.journal.tokens import ValidationError

from .s3 import BUCKET, KEY_ID, SECRET, S3Server, aws_environment, s3_server, silent_server

PATH = "foo/bar/date=1/part.raw"
MINUTE = timedelta(minutes=1)
LISTED_AT_ONCE = 100
"""A thousand in the real one; so many puts would take a while."""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server(MOTO_S3_DEFAULT_MAX_KEYS=str(LISTED_AT_ONCE)) as server:
        yield server


@pytest.fixture(autouse=True)
def environment() -> Iterator[pytest.MonkeyPatch]:
    with aws_environment() as patch:
        yield patch


@pytest.fixture
def store(server: S3Server, request: pytest.FixtureRequest) -> ObjectStore:
    """With a prefix of its own for each test."""
    return ObjectStore(server.store_url(f"{request.node.name.split('[')[0]}/"))


def read(store: ObjectStore, path: str, position: int = 0) -> bytes:
    with store.open(path, position=position) as file:
        return file.read()


def get(url: str) -> tuple[bytes, str]:
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.read(), response.headers.get("Content-Encoding", "")


def test_put_then_read_list_sign_and_remove(store: ObjectStore) -> None:
    assert not store.exists(PATH)
    with pytest.raises(FileNotFoundError, match=PATH):
        store.open(PATH)
    before = int(time.time())
    store.put(PATH, [b"foo", memoryview(b"bar"), bytearray(b"!")])
    assert store.exists(PATH)
    assert read(store, PATH) == b"foobar!"
    [listed] = store.list("foo/bar")
    assert (listed.path, listed.size) == ("date=1/part.raw", 7)
    assert before <= listed.mod_time <= time.time() + 1
    assert get(store.sign(PATH, MINUTE)) == (b"foobar!", "")
    store.put(PATH, [b"second"])
    assert read(store, PATH) == b"second"
    store.remove(PATH)
    store.remove(PATH)
    assert not store.exists(PATH)
    assert list(store.list("foo/bar")) == []


def test_the_key_is_the_path_of_the_url_and_the_content_path(server: S3Server) -> None:
    path = "foo/50%41/é=+.raw"
    ObjectStore(server.store_url("a%20b/c/")).put(path, [b"x"])
    assert f"<Key>a b/c/{path}</Key>" in server.request("GET", f"/{BUCKET}").decode()
    bare = ObjectStore(server.store_url())
    bare.put(".test/health-check", [b"x"])
    assert [listed.path for listed in bare.list(".test")] == ["health-check"]
    odd = ObjectStore(server.store_url("a%20b/c/"))
    assert read(odd, path) == b"x"
    assert get(odd.sign(path, MINUTE))[0] == b"x"
    assert [listed.path for listed in odd.list("foo/50%41")] == ["é=+.raw"]


def test_find_and_replace_rewrite_the_first_occurrence(server: S3Server) -> None:
    store = ObjectStore(server.store_url("rewritten/", FIND="foo/", Replace="baz/"))
    store.put("foo/bar/foo/x.raw", [b"x"])
    plain = ObjectStore(server.store_url("rewritten/"))
    assert read(plain, "baz/bar/foo/x.raw") == b"x"
    assert [listed.path for listed in store.list("foo/bar")] == ["foo/x.raw"]
    assert store.exists("foo/bar/foo/x.raw")
    store.remove("foo/bar/foo/x.raw")
    assert list(plain.list("baz")) == []


def test_a_journal_is_listed_without_its_neighbours(server: S3Server, store: ObjectStore) -> None:
    for path in ("foo/bar/a.raw", "foo/barn/b.raw", "foo/bar/x/c.raw", "foo/d.raw"):
        store.put(path, [b"x"])
    # What browsers of buckets make when a person asks for a folder.
    server.request("PUT", f"/{BUCKET}/test_a_journal_is_listed_without_its_neighbours/foo/bar/", b"")
    assert [listed.path for listed in store.list("foo/bar")] == ["a.raw", "x/c.raw"]


@pytest.mark.soak
def test_listings_go_over_more_than_one_page(server: S3Server, store: ObjectStore) -> None:
    sums = (hashlib.sha1(b"%d" % i).digest() for i in range(3 * LISTED_AT_ONCE + 3))
    names = [Fragment("foo/bar", i, i + 1, sum).content_name for i, sum in enumerate(sums)]
    for name in names:
        store.put(f"foo/bar/{name}", [b"x"])
    listed = list(store.list("foo/bar"))
    assert [found.path for found in listed] == sorted(names)
    assert {found.size for found in listed} == {1}
    assert parse_path("foo/bar", listed[-1].path).begin == 3 * LISTED_AT_ONCE + 2


@pytest.mark.parametrize("size", [0, 1, FIRST_RANGE, PART, PART + 1, 2 * PART + 12345])
def test_sizes_around_ranges_and_parts(store: ObjectStore, size: int) -> None:
    content = os.urandom(size)
    chunks = [content[i : i + 700_001] for i in range(0, size, 700_001)]
    store.put(PATH, chunks)
    assert read(store, PATH) == content
    for position in {0, 1, size // 2, max(0, size - 1), size, size + 5}:
        assert read(store, PATH, position) == content[position:]


def test_a_file_replaced_under_a_reader_is_a_failure_not_a_mixture(store: ObjectStore) -> None:
    store.put(PATH, [b"a" * (4 << 20)])
    file = store.open(PATH)
    assert file.read(10) == b"a" * 10
    store.put(PATH, [b"b" * (4 << 20)])
    with pytest.raises(OSError, match="could not read"):
        file.read()


@pytest.mark.parametrize(
    "codec", [Codec.GZIP, Codec.ZSTANDARD, Codec.SNAPPY, Codec.GZIP_OFFLOAD_DECOMPRESSION]
)
def test_compressed_fragments_come_back(store: ObjectStore, codec: Codec) -> None:
    content = b"the same line again and again\n" * 100_000
    fragment = Fragment("foo/bar", 0, len(content), hashlib.sha1(content).digest(), codec)
    path = fragment.content_path
    store.put(path, compressed(codec, [content]), content_encoding=content_encoding(codec))
    with decompressed(codec, store.open(path)) as file:
        assert file.read() == content
    stored, encoding = get(store.sign(path, MINUTE))
    assert len(stored) < len(content) / 10
    assert encoding == ("gzip" if codec is Codec.GZIP_OFFLOAD_DECOMPRESSION else "")


@pytest.mark.parametrize("size", [PART // 2, 3 * PART])
def test_a_source_that_fails_leaves_what_was_there(server: S3Server, store: ObjectStore, size: int) -> None:
    store.put(PATH, [b"old"])

    def source(error: Exception) -> Iterator[bytes]:
        for _ in range(size >> 18):
            yield bytes(1 << 18)
        raise error

    errors = (
        CorruptError("torn", where="spool", position=7),
        OSError("the disk"),
        FileNotFoundError("spool"),
    )
    for error in errors:
        with pytest.raises(type(error)) as caught:
            store.put(PATH, source(error))
        assert caught.value is error
    assert read(store, PATH) == b"old"
    assert b"<UploadId>" not in server.request("GET", f"/{BUCKET}?uploads"), "parts are kept, and paid for"


def test_signed_urls_end(server: S3Server, store: ObjectStore) -> None:
    url = store.sign(PATH, timedelta(milliseconds=1500))
    assert "X-Amz-Expires=2" in url
    assert SECRET not in url


def test_a_bucket_that_is_not_there_is_a_failure(server: S3Server) -> None:
    store = ObjectStore(server.store_url(bucket="nowhere"))
    for call in (lambda: store.put(PATH, [b"x"]), lambda: list(store.list("foo"))):
        with pytest.raises(OSError, match=r"s3://nowhere/.*NoSuchBucket") as caught:
            call()
        assert type(caught.value) is OSError, "not to be taken for a missing file"
    assert not store.exists(PATH)


CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "exists": lambda store: store.exists(PATH),
    "put": lambda store: store.put(PATH, [b"x"]),
    "put parts": lambda store: store.put(PATH, [bytes(PART), bytes(PART)]),
    "open": lambda store: store.open(PATH),
    "list": lambda store: list(store.list("foo")),
    "remove": lambda store: store.remove(PATH),
}


def test_refused_credentials_are_told_from_failures(environment: pytest.MonkeyPatch) -> None:
    with s3_server(INITIAL_NO_AUTH_ACTION_COUNT="1") as strict:  # one action, to make the bucket
        store = ObjectStore(strict.store_url())
        for name, call in CALLS.items():
            with pytest.raises(PermissionError, match="s3://fragments/") as caught:
                call(store)
            assert store.is_authorization_error(caught.value), name
            assert SECRET not in str(caught.value)
    assert not store.is_authorization_error(OSError())


def test_secrets_and_signatures_stay_out_of_messages(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore(server.store_url())

    def head(*_: object) -> None:
        raise GenericError(f"GET http://host/x?X-Amz-Signature=abcdef failed with {SECRET}: <Code>Bad</Code>")

    monkeypatch.setattr(obstore, "head", head)
    with pytest.raises(OSError, match=r"could not look for .*GET http://host/x failed with \*\*\*: Bad$"):
        store.exists(PATH)


def test_a_server_that_is_gone_fails_soon_and_works_again_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(objectstores, "RETRIES", 1)
    with s3_server() as server:
        store = ObjectStore(server.store_url())
        big = os.urandom(8 << 20)
        store.put(PATH, [big])
        file = store.open(PATH)
        assert file.read(1000) == big[:1000]
        server.kill()
        started = time.monotonic()
        for call in CALLS.values():
            with pytest.raises(OSError, match="Connection refused") as caught:
                call(store)
            assert not store.is_authorization_error(caught.value)
        with pytest.raises(OSError, match="could not read"):
            file.read()
        assert time.monotonic() - started < 20
        server.start()
        store.put(PATH, [b"again"])
        assert read(store, PATH) == b"again"


def test_a_server_killed_in_the_middle_of_a_put_is_a_failure() -> None:
    with s3_server() as server:
        store = ObjectStore(server.store_url())

        def source() -> Iterator[bytes]:
            for i in range(40):
                if i == 20:
                    server.kill()
                yield os.urandom(1 << 20)

        with pytest.raises(OSError, match="could not put"):
            store.put(PATH, source())


def test_a_server_that_does_not_answer_is_a_failure_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectstores, "TIMEOUT", timedelta(seconds=0.4))
    monkeypatch.setattr(objectstores, "RETRY_TIMEOUT", timedelta(seconds=0.4))
    with silent_server() as endpoint:
        store = ObjectStore(f"s3://{BUCKET}/?endpoint={endpoint}")
        for name in ("exists", "put", "open", "list", "remove"):
            started = time.monotonic()
            with pytest.raises(OSError):
                CALLS[name](store)
            assert time.monotonic() - started < 20, name


def test_the_time_limits_add_up_to_half_a_minute() -> None:
    in_all = objectstores.TIMEOUT + objectstores.RETRY_TIMEOUT
    assert in_all <= timedelta(seconds=30)
    assert objectstores.CONNECT_TIMEOUT < objectstores.TIMEOUT


@pytest.mark.soak
def test_large_files_are_never_in_memory_whole(store: ObjectStore) -> None:
    total, piece = 96, os.urandom(1 << 20)
    with watched_memory() as grown:
        store.put(PATH, (piece for _ in range(total)))
    assert grown() < 40 << 20
    with watched_memory() as grown, store.open(PATH) as file:
        for _ in range(total):
            assert file.read(1 << 20) == piece
        assert file.read(1) == b""
    assert grown() < 40 << 20


def test_a_read_only_store_is_never_written(server: S3Server, tmp_path: Path) -> None:
    ObjectStore(server.store_url("ro/")).put(PATH, [b"x"])
    store = open_store(server.store_url("ro/"), None, Disk(), read_only=True)
    calls: list[Callable[[], object]] = [lambda: store.put(PATH, [b"y"]), lambda: store.remove(PATH)]
    for call in calls:
        with pytest.raises(PermissionError, match="the store of a read-only journal is never written"):
            call()
    with store.open(PATH) as file:
        assert file.read() == b"x"
    assert [type(listed) for listed in store.list("foo")] == [Listed]


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "foo//x", "foo/./x", "", "foo/a b"])
def test_no_name_leads_out_of_the_prefix(store: ObjectStore, path: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.exists(path),
        lambda: store.put(path, [b"x"]),
        lambda: store.open(path),
        lambda: list(store.list(path)),
        lambda: store.remove(path),
        lambda: store.sign(path, MINUTE),
    ]
    for call in calls:
        with pytest.raises(ValidationError):
            call()


def test_storage_class_and_encryption_reach_the_objects(server: S3Server) -> None:
    url = server.store_url("classes/", storageclass="STANDARD_IA", SSE="AES256")
    store = ObjectStore(url)
    store.put(PATH, [b"x"])
    store.put("foo/bar/large.raw", [bytes(PART + 1)])
    for path in (PATH, "foo/bar/large.raw"):
        with urllib.request.urlopen(store.sign(path, MINUTE), timeout=10) as response:
            assert response.headers["x-amz-storage-class"] == "STANDARD_IA"
            assert response.headers["x-amz-server-side-encryption"] == "AES256"


def test_a_profile_gives_the_credentials(
    server: S3Server, tmp_path: Path, environment: pytest.MonkeyPatch
) -> None:
    (tmp_path / "credentials").write_text(
        "[archive]\naws_access_key_id = AKIAPROFILE\naws_secret_access_key = of-a-profile\n"
    )
    environment.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    assert KEY_ID in ObjectStore(server.store_url()).sign(PATH, MINUTE)
    store = ObjectStore(server.store_url("profile/", profile="archive"))
    assert "AKIAPROFILE" in store.sign(PATH, MINUTE)
    store.put(PATH, [b"x"])
    assert read(store, PATH) == b"x"
    environment.delenv("AWS_ACCESS_KEY_ID")
    environment.setenv("AWS_PROFILE", "archive")
    assert "AKIAPROFILE" in ObjectStore(server.store_url()).sign(PATH, MINUTE)


def test_what_the_library_refuses_is_refused_at_once(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AZURE_ACCOUNT_NAME", "account")
    environment.setenv("AZURE_ACCOUNT_KEY", "not-base-64!")
    with pytest.raises(UsageError, match=r"the store azure://container/ cannot be opened") as caught:
        ObjectStore("azure://container/")
    assert "not-base-64!" not in str(caught.value)
    environment.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(UsageError, match="AccessKeyId"):
        ObjectStore("s3://bucket/")


class watched_memory:  # noqa: N801  # reads as a block, not as a thing
    """How far this process' memory rises above what it was at the start of the block."""

    def __enter__(self) -> Callable[[], int]:
        self._process = psutil.Process()
        self._start = self._highest = self._process.memory_info().rss
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return lambda: self._highest - self._start

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            self._highest = max(self._highest, self._process.memory_info().rss)
