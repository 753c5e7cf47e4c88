"""What store URLs mean: buckets, prefixes, arguments, environment and profiles (reference, 19 "Store URLs")."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.errors import UsageError
from penstock.journal.storeurls import Target, read_target
from penstock.journal.tokens import ValidationError

KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
AZURE = {"AZURE_ACCOUNT_NAME": "acc", "AZURE_ACCOUNT_KEY": "a2V5"}
AD = {"AZURE_CLIENT_ID": "client", "AZURE_CLIENT_SECRET": "hush"}
PLAIN: dict[str, str | bool] = {"virtual_hosted_style_request": True, "disable_bulk_delete": True}
PATH_STYLE = PLAIN | {"virtual_hosted_style_request": False}


@pytest.mark.parametrize(
    ("url", "bucket", "prefix"),
    [
        ("s3://bucket/", "bucket", ""),
        ("s3://bucket/a/b/", "bucket", "a/b/"),
        ("s3://bucket/a%20b/%C3%A9/", "bucket", "a b/é/"),
        ("gs://bucket/a/", "bucket", "a/"),
        ("azure://container/a/", "container", "a/"),
        ("azure-ad://tenant/account/container/", "container", ""),
        ("azure-ad://tenant/account/container/a/b/", "container", "a/b/"),
    ],
)
def test_where_the_objects_are(url: str, bucket: str, prefix: str) -> None:
    target = read_target(url, KEYS | AZURE | AD)
    assert (target.bucket, target.prefix) == (bucket, prefix)


S3: list[tuple[str, dict[str, str], dict[str, str | bool]]] = [
    ("", {}, PLAIN),
    ("region=eu-west-1", {}, PLAIN | {"region": "eu-west-1"}),
    ("REGION=eu-west-1", {"AWS_REGION": "us-west-2"}, PLAIN | {"region": "eu-west-1"}),
    ("", {"AWS_REGION": "us-west-2", "AWS_DEFAULT_REGION": "x"}, PLAIN | {"region": "us-west-2"}),
    ("", {"AWS_DEFAULT_REGION": "us-west-2"}, PLAIN | {"region": "us-west-2"}),
    ("endpoint=https://minio:9000", {}, PATH_STYLE | {"aws_endpoint_url_s3": "https://minio:9000"}),
    (
        "EndPoint=http://a",
        {"AWS_ENDPOINT_URL_S3": "http://b"},
        PATH_STYLE | {"aws_endpoint_url_s3": "http://a"},
    ),
    ("", {"AWS_ENDPOINT_URL": "http://b"}, PATH_STYLE | {"aws_endpoint_url_s3": "http://b"}),
    ("sse=AES256", {}, PLAIN | {"server_side_encryption": "AES256"}),
    (
        "SSE=aws:kms&SSEKMSKeyId=key",
        {},
        PLAIN | {"server_side_encryption": "aws:kms", "sse_kms_key_id": "key"},
    ),
    ("acl=private", {}, PLAIN),
]


@pytest.mark.parametrize(("arguments", "environ", "config"), S3)
def test_arguments_of_s3(arguments: str, environ: dict[str, str], config: dict[str, str | bool]) -> None:
    target = read_target(f"s3://bucket/?{arguments}", KEYS | environ)
    assert target.config == config
    assert target.allow_http == str(config.get("aws_endpoint_url_s3", "")).startswith("http:")
    assert target.profile == ""


def test_a_bucket_with_dots_has_no_host_of_its_own() -> None:
    assert read_target("s3://my.bucket/", KEYS).config["virtual_hosted_style_request"] is False


def test_the_storage_class_is_an_attribute_of_objects() -> None:
    assert read_target("s3://b/?storageClass=STANDARD_IA", KEYS).attributes == {
        "Storage-Class": "STANDARD_IA"
    }
    assert read_target("s3://b/", KEYS).attributes == {}


@pytest.mark.parametrize("scheme", ["s3://b/", "gs://b/", "azure://b/", "azure-ad://t/a/b/"])
def test_all_take_find_and_replace(scheme: str) -> None:
    target = read_target(f"{scheme}?Find=old/&REPLACE=new/", KEYS | AZURE | AD)
    assert target.rewrite.path("x/old/old/y") == "x/new/old/y"


REFUSED: list[tuple[str, type[Exception], str]] = [
    ("s3://b/?regoin=x", ValidationError, "unknown argument 'regoin' .*did you mean 'region'"),
    ("gs://b/?region=x", ValidationError, "unknown argument 'region' .*known: find, replace"),
    ("azure://b/?endpoint=x", ValidationError, "unknown argument 'endpoint'"),
    ("s3://b/?acl=public-read", UsageError, "asks for the acl 'public-read', which cannot be set"),
    ("s3://b/?sse=rot13", UsageError, "sse=rot13; expected AES256"),
    ("s3://b/?sseKmsKeyId=x", UsageError, "needs sse=aws:kms"),
    ("s3://b/?sse=AES256&sseKmsKeyId=x", UsageError, "needs sse=aws:kms"),
    ("s3://b/?endpoint=minio:9000", UsageError, "not an http.* URL"),
    ("s3://b/?endpoint=http://host:99999", UsageError, "not an http.* URL"),
    ("s3://b/a/../../c/", ValidationError, "clean path"),
    ("s3://b//", ValidationError, "clean path"),
    ("s3://user@b/", ValidationError, "not the name of a bucket"),
    ("s3://b:80/", ValidationError, "not the name of a bucket"),
    ("s3://b", ValidationError, "doesn't end in '/'"),
    ("azure-ad://tenant/account/", ValidationError, "expected azure-ad://tenant/account/container/"),
]


@pytest.mark.parametrize(("url", "error", "complaint"), REFUSED)
def test_what_cannot_be_had_is_refused(url: str, error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        read_target(url, KEYS | AZURE | AD)


def test_an_endpoint_with_a_password_is_refused_without_repeating_it() -> None:
    with pytest.raises(UsageError) as caught:
        read_target("s3://b/?endpoint=http://user:hunter2@host/", KEYS)
    assert "hunter2" not in str(caught.value)


PROFILES = """
[default]
aws_access_key_id = AKIADEFAULT
aws_secret_access_key = of-default

[archive]
aws_access_key_id = AKIAARCHIVE
aws_secret_access_key = of-archive
"""
PROFILE_CONFIG = """
[default]
region = eu-north-1

[profile archive]
region = eu-south-1
endpoint_url = http://minio:9000

[profile assumed]
role_arn = arn:aws:iam::1:role/x

[profile bare]
region = eu-south-1
"""


@pytest.fixture
def profiles(tmp_path: Path) -> dict[str, str]:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(PROFILES)
    (tmp_path / ".aws/config").write_text(PROFILE_CONFIG)
    return {"HOME": str(tmp_path)}


def test_a_profile_of_the_url_wins_over_the_environment(profiles: dict[str, str]) -> None:
    target = read_target("s3://b/?profile=archive", KEYS | profiles)
    assert target.profile == "archive"
    assert target.config["region"] == "eu-south-1"
    assert target.config["aws_endpoint_url_s3"] == "http://minio:9000"
    assert target.allow_http
    assert "of-archive" not in repr(target)


def test_without_keys_in_the_environment_its_profile_or_the_default_is_used(profiles: dict[str, str]) -> None:
    def of(environ: dict[str, str]) -> Target:
        return read_target("s3://b/", environ)

    assert of(KEYS | profiles).profile == ""
    assert of(profiles).profile == "default"
    assert of(profiles).config["region"] == "eu-north-1"
    assert of(profiles | {"AWS_PROFILE": "archive"}).profile == "archive"
    assert of(profiles | {"AWS_PROFILE": "assumed"}).profile == ""  # left to the store's client
    assert of({"HOME": "/nonexistent"}).profile == ""


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("missing", "there is no AWS profile 'missing'"),
        ("assumed", "by role_arn, which is not supported"),
        ("bare", "has no access key"),
    ],
)
def test_a_profile_that_does_not_help_is_refused(profiles: dict[str, str], name: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        read_target(f"s3://b/?profile={name}", KEYS | profiles)


def test_a_broken_profile_file_is_told_without_its_content(tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("aws_secret_access_key = hush\n")
    with pytest.raises(UsageError, match="cannot be read") as caught:
        read_target("s3://b/?profile=x", {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "broken")})
    assert "hush" not in str(caught.value)


def test_google() -> None:
    target = read_target("gs://b/", {})
    assert (target.kind, target.config, target.allow_http) == ("gs", {}, False)
    assert target.headers == {"Accept-Encoding": "gzip"}, "or the store would decompress, and ignore ranges"
    emulated = read_target("gs://b/", {"STORAGE_EMULATOR_HOST": "localhost:4443"})
    assert emulated.config == {"base_url": "http://localhost:4443"}
    assert emulated.allow_http
    assert read_target("gs://b/", {"GOOGLE_BASE_URL": "https://x/"}).config == {"base_url": "https://x"}


def test_azure() -> None:
    target = read_target("azure://container/", AZURE)
    assert target.config == {"account_name": "acc", "account_key": "a2V5"}
    assert "a2V5" not in repr(target)
    assert read_target("azure://c/", {"AZURE_STORAGE_ACCOUNT_NAME": "acc"}).config == {"account_name": "acc"}
    with pytest.raises(UsageError, match="needs an account") as caught:
        read_target("azure://container/", {})
    assert "AZURE_ACCOUNT_NAME" in str(caught.value.hint)
    assert read_target("azure://c/", AZURE | {"AZURE_STORAGE_ENDPOINT": "http://x"}).allow_http


def test_azure_by_directory() -> None:
    target = read_target("azure-ad://tenant/account/container/x/", AD)
    assert target.kind == "azure"
    assert target.config == {
        "account_name": "account",
        "tenant_id": "tenant",
        "client_id": "client",
        "client_secret": "hush",
    }
    with pytest.raises(UsageError, match="needs AZURE_CLIENT_SECRET in the environment"):
        read_target("azure-ad://tenant/account/container/", {"AZURE_CLIENT_ID": "client"})
