"""Object-store URLs read into what a client of the store is built from (reference, 19 "Store URLs").

Pure: the environment and the profile files come as arguments. Whatever a URL asks for and cannot be had is
refused here, before a fragment rests on it. Secrets stay in the environment and the profile files, where the
store's client finds them; a `Target` holds those only that the client does not look for itself.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from penstock.base.errors import UsageError
from penstock.journal.stores import Rewrite, store_arguments, store_prefix
from penstock.journal.tokens import ValidationError
from penstock.journal.validation import validate_store

S3_ARGUMENTS = ("profile", "endpoint", "region", "acl", "storageClass", "sse", "sseKmsKeyId")
S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
AZURE_ENDPOINTS = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_UNSUPPORTED_IN_PROFILE = ("role_arn", "sso_session", "sso_start_url", "credential_process")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a URL's objects are, and how to get there."""

    kind: Literal["s3", "gs", "azure"]
    bucket: str
    prefix: str
    """"" or a path that ends in a slash, before every key."""
    rewrite: Rewrite
    config: dict[str, str | bool] = field(default_factory=dict, repr=False)
    """For the store's client, by its own names."""
    headers: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    """Of every object that is written."""
    allow_http: bool = False
    profile: str = ""
    """Of the profile files, whose credentials to use."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A section of the AWS profile files."""

    access_key_id: str = ""
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    region: str = ""
    endpoint: str = ""


def read_target(url: str, environ: Mapping[str, str]) -> Target:
    """What a URL of any scheme but `file:` stands for."""
    scheme = validate_store(url)
    arguments = store_arguments(url, S3_ARGUMENTS if scheme == "s3" else ())
    rewrite = Rewrite(url, arguments.pop("find", ""), arguments.pop("replace", ""))
    parts = urlsplit(url)
    path = store_prefix(url, parts.path)
    match scheme:
        case "s3":
            return _s3(url, _named(url, parts.netloc), _below(path), rewrite, arguments, environ)
        case "gs":
            return _gs(_named(url, parts.netloc), _below(path), rewrite, environ)
        case "azure":
            return _azure(url, _named(url, parts.netloc), _below(path), rewrite, environ)
    account, container, *rest = path.split("/")
    return _azure_ad(parts.netloc, account, _named(url, container), _below("/".join(rest)), rewrite, environ)


def _named(url: str, bucket: str) -> str:
    if _BUCKET.fullmatch(bucket) is None:
        raise ValidationError(f"not the name of a bucket or container: '{bucket}' ({url})")
    return bucket


def _below(path: str) -> str:
    return f"{path}/" if path else ""


def _s3(
    url: str,
    bucket: str,
    prefix: str,
    rewrite: Rewrite,
    arguments: dict[str, str],
    environ: Mapping[str, str],
) -> Target:
    if arguments.get("acl", "private") != "private":
        raise UsageError(
            f"the store {url} asks for the acl '{arguments['acl']}', which cannot be set on the objects",
            hint="leave the argument out, and let a policy of the bucket say who may read",
        )
    name = arguments.get("profile", "")
    profile = read_profile(url, name, environ) if name or "AWS_ACCESS_KEY_ID" not in environ else None
    from_environ = _first(environ, S3_ENDPOINTS)
    endpoint = arguments.get("endpoint") or from_environ or (profile.endpoint if profile else "")
    config: dict[str, str | bool] = {
        "virtual_hosted_style_request": not endpoint and "." not in bucket,
        "disable_bulk_delete": True,  # many stores that speak S3 have only the plain request
    }
    if endpoint:
        _check_endpoint(url, endpoint)
        config["aws_endpoint_url_s3"] = endpoint  # the one that wins over all others
    if region := arguments.get("region") or _region(environ, profile):
        config["region"] = region
    config.update(_encryption(url, arguments))
    storage_class = arguments.get("storageclass", "")
    return Target(
        "s3",
        bucket,
        prefix,
        rewrite,
        config,
        attributes={"Storage-Class": storage_class} if storage_class else {},
        allow_http=endpoint.startswith("http:"),
        profile=(name or _profile_name(environ)) if profile and profile.access_key_id else "",
    )


def _encryption(url: str, arguments: Mapping[str, str]) -> dict[str, str | bool]:
    kind, key = arguments.get("sse", ""), arguments.get("ssekmskeyid", "")
    if kind not in ("", "AES256", "aws:kms", "aws:kms:dsse"):
        raise UsageError(f"the store {url} has sse={kind}; expected AES256, aws:kms or aws:kms:dsse")
    if key and not kind.startswith("aws:kms"):
        raise UsageError(f"the store {url} has an sseKmsKeyId, which needs sse=aws:kms as well")
    config: dict[str, str | bool] = {}
    if kind:
        config["server_side_encryption"] = kind
    if key:
        config["sse_kms_key_id"] = key
    return config


def _check_endpoint(url: str, endpoint: str) -> None:
    try:
        parts = urlsplit(endpoint)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound or "@" in endpoint:
        # Not repeated here: it may hold a password.
        raise UsageError(f"the endpoint of the store {_bare(url)} is not an http(s) URL of a host")


def _bare(url: str) -> str:
    return url.partition("?")[0]


def _region(environ: Mapping[str, str], profile: Profile | None) -> str:
    return _first(environ, ("AWS_REGION", "AWS_DEFAULT_REGION")) or (profile.region if profile else "")


def _profile_name(environ: Mapping[str, str]) -> str:
    return environ.get("AWS_PROFILE") or "default"


def read_profile(url: str, name: str, environ: Mapping[str, str]) -> Profile:
    """A profile of the AWS files; without a name the environment's or the default one, which may be missing."""
    home = Path(environ.get("HOME", "/"))
    credentials, config = configparser.RawConfigParser(), configparser.RawConfigParser()
    try:
        credentials.read(environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws/credentials")
        config.read(environ.get("AWS_CONFIG_FILE") or home / ".aws/config")
    except (configparser.Error, UnicodeDecodeError) as error:
        # The parser's own text quotes lines of the file.
        raise UsageError(f"the AWS profile files cannot be read ({type(error).__name__})") from None
    wanted = name or _profile_name(environ)
    found: dict[str, str] = {}
    for parser, section in ((config, wanted), (config, f"profile {wanted}"), (credentials, wanted)):
        if parser.has_section(section):
            found.update(parser.items(section))
    if not found and (name or "AWS_PROFILE" in environ):
        raise UsageError(f"there is no AWS profile '{wanted}' for the store {url}")
    profile = Profile(
        found.get("aws_access_key_id", ""),
        found.get("aws_secret_access_key", ""),
        found.get("aws_session_token", ""),
        found.get("region", ""),
        found.get("endpoint_url", ""),
    )
    if name and not profile.access_key_id:
        asked = next((key for key in _UNSUPPORTED_IN_PROFILE if key in found), "")
        reason = f"gets its credentials by {asked}, which is not supported" if asked else "has no access key"
        raise UsageError(f"the AWS profile '{name}' of the store {url} {reason}")
    return profile


def _gs(bucket: str, prefix: str, rewrite: Rewrite, environ: Mapping[str, str]) -> Target:
    config: dict[str, str | bool] = {}
    base = environ.get("GOOGLE_BASE_URL", "")
    if emulator := environ.get("STORAGE_EMULATOR_HOST", ""):
        base = emulator if "://" in emulator else f"http://{emulator}"
    if base:
        config["base_url"] = base.rstrip("/")
    return Target(
        "gs",
        bucket,
        prefix,
        rewrite,
        config,
        # Without it the store decompresses what has Content-Encoding gzip, and ignores ranges as it does.
        headers={"Accept-Encoding": "gzip"},
        allow_http=base.startswith("http:"),
    )


def _azure(url: str, container: str, prefix: str, rewrite: Rewrite, environ: Mapping[str, str]) -> Target:
    account = _first(environ, ("AZURE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_NAME"))
    if not account:
        raise UsageError(
            f"the store {url} needs an account", hint="set AZURE_ACCOUNT_NAME and AZURE_ACCOUNT_KEY"
        )
    config: dict[str, str | bool] = {"account_name": account}
    if key := environ.get("AZURE_ACCOUNT_KEY"):
        config["account_key"] = key
    http = _first(environ, AZURE_ENDPOINTS).startswith("http:")
    return Target("azure", container, prefix, rewrite, config, allow_http=http)


def _azure_ad(
    tenant: str, account: str, container: str, prefix: str, rewrite: Rewrite, environ: Mapping[str, str]
) -> Target:
    names = ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET")
    if missing := [name for name in names if not environ.get(name)]:
        raise UsageError(f"the store {rewrite.url} needs {' and '.join(missing)} in the environment")
    config: dict[str, str | bool] = {
        "account_name": account,
        "tenant_id": tenant,
        "client_id": environ[names[0]],
        "client_secret": environ[names[1]],
    }
    http = _first(environ, AZURE_ENDPOINTS).startswith("http:")
    return Target("azure", container, prefix, rewrite, config, allow_http=http)


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")
