"""Google's and Azure's stores against a small server that speaks as they do: that requests arrive as meant."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from penstock.journal.codecs import compressed
from penstock.journal.fragment import Codec
from penstock.journal.objectstores import PART, ObjectStore

from .blobs import Blobs, blob_server
from .s3 import aws_environment

PATH = "foo/bar/50%/é=1.raw"
MINUTE = timedelta(minutes=1)
LARGE = bytes(range(256)) * ((2 * PART + 4096) // 256)


@pytest.fixture
def environment() -> Iterator[pytest.MonkeyPatch]:
    with aws_environment() as patch:
        yield patch


@pytest.fixture
def blobs() -> Iterator[Blobs]:
    with blob_server() as blobs:
        yield blobs


def service_account(directory: Path) -> Path:
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = directory / "account.json"
    account = {"private_key_id": "1", "private_key": key.decode(), "client_email": "someone@somewhere"}
    file.write_text(json.dumps(account))
    return file


def exercise(store: ObjectStore) -> None:
    """Every operation but signing."""
    assert not store.exists(PATH)
    store.put(PATH, [b"foo", b"bar"])
    assert store.exists(PATH)
    for position in (0, 2, 6, 9):
        with store.open(PATH, position=position) as file:
            assert file.read() == b"foobar"[position:]
    store.put("foo/bar/large.raw", [LARGE])
    with store.open("foo/bar/large.raw", position=10) as file:
        assert file.read() == LARGE[10:]
    assert [(found.path, found.size) for found in store.list("foo/bar")] == [
        ("50%/é=1.raw", 6),
        ("large.raw", len(LARGE)),
    ]
    assert all(found.mod_time > 1_600_000_000 for found in store.list("foo/bar"))
    packed = compressed(Codec.GZIP_OFFLOAD_DECOMPRESSION, [b"content"])
    store.put("foo/bar/packed", packed, content_encoding="gzip")
    for path in (PATH, "foo/bar/large.raw"):
        store.remove(path)
        store.remove(path)
        assert not store.exists(path)
        with pytest.raises(FileNotFoundError):
            store.open(path)


def test_google(blobs: Blobs, environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setenv("GOOGLE_SERVICE_ACCOUNT", str(service_account(tmp_path)))
    environment.setenv("STORAGE_EMULATOR_HOST", blobs.endpoint)
    store = ObjectStore("gs://bucket/a/prefix/?find=foo&replace=baz")
    exercise(store)
    assert list(blobs.content) == ["bucket/a/prefix/baz/bar/packed"]
    told = blobs.headers["bucket/a/prefix/baz/bar/packed"]
    assert (told["content-encoding"], told["accept-encoding"]) == ("gzip", "gzip")
    assert set(blobs.authorizations) == {"Bearer"}
    signed = urlsplit(store.sign("foo/bar/packed", MINUTE))
    assert signed.path == "/bucket/a/prefix/baz/bar/packed"
    assert parse_qs(signed.query)["X-Goog-Expires"] == ["60"]


def test_azure_by_key(blobs: Blobs, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AZURE_ACCOUNT_NAME", "account")
    environment.setenv("AZURE_ACCOUNT_KEY", "c2VjcmV0LWtleQ==")
    environment.setenv("AZURE_STORAGE_ENDPOINT", blobs.endpoint)
    store = ObjectStore("azure://container/a/prefix/")
    exercise(store)
    assert list(blobs.content) == ["container/a/prefix/foo/bar/packed"]
    assert blobs.headers["container/a/prefix/foo/bar/packed"]["x-ms-blob-content-encoding"] == "gzip"
    assert set(blobs.authorizations) == {"SharedKey"}
    signed = urlsplit(store.sign("foo/bar/packed", MINUTE))
    assert signed.path == "/container/a/prefix/foo/bar/packed"
    assert parse_qs(signed.query)["sp"] == ["r"]


def test_azure_by_directory(blobs: Blobs, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AZURE_CLIENT_ID", "client")
    environment.setenv("AZURE_CLIENT_SECRET", "hush")
    environment.setenv("AZURE_AUTHORITY_HOST", blobs.endpoint)
    environment.setenv("AZURE_STORAGE_ENDPOINT", blobs.endpoint)
    store = ObjectStore("azure-ad://tenant/account/container/prefix/")
    store.put(PATH, [b"x"])
    assert blobs.content == {f"container/prefix/{PATH}": b"x"}
    assert all("client_secret=hush" in asked for asked in blobs.tokens)
    assert "Bearer" in blobs.authorizations
