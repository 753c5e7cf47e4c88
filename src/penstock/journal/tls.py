"""TLS from files: what a listener shows and whom it asks for a certificate, and what a client trusts.

Files are PEM. They are read, and certificate and key compared, when the credentials are made, so that a broker with
wrong ones does not start; the error names the file. TLS is 1.2 or newer.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from penstock.base.errors import UsageError


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A listener's certificate chain and key. With `client_ca_file`, clients need a certificate that it has signed."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """For `grpc.aio.Server.add_secure_port`."""
        self.ssl_context()  # gRPC itself tells of unfit files only in its log
        authority = _read(self.client_ca_file, "client CA") if self.client_ca_file else None
        pair = (_read(self.key_file, "key"), _read(self.cert_file, "certificate"))
        return grpc.ssl_server_credentials(
            [pair], root_certificates=authority, require_client_auth=authority is not None
        )

    def ssl_context(self) -> ssl.SSLContext:
        """For the HTTP gateway's listener."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        _load_pair(context, self.cert_file, self.key_file)
        if self.client_ca_file:
            _load_authority(context, self.client_ca_file, "client CA")
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Whom a client trusts (None: whom this machine trusts), and its own certificate if the broker asks for one."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def grpc_credentials(self) -> grpc.ChannelCredentials:
        """For `grpc.aio.secure_channel` and `grpc.secure_channel`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        authority, chain, key = self._authority(), None, None
        if self.ca_file:
            _load_authority(context, self.ca_file, "CA")
        if (self.cert_file is None) != (self.key_file is None):
            raise UsageError("a client certificate needs both its file and its key's file")
        if self.cert_file and self.key_file:
            _load_pair(context, self.cert_file, self.key_file)
            chain, key = _read(self.cert_file, "certificate"), _read(self.key_file, "key")
        return grpc.ssl_channel_credentials(authority, key, chain)

    def ssl_context(self) -> ssl.SSLContext:
        """For sockets of asyncio."""
        if (self.cert_file is None) != (self.key_file is None):
            raise UsageError("a client certificate needs both its file and its key's file")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.ca_file:
            _load_authority(context, self.ca_file, "CA")
        else:
            context.load_default_certs()
        if self.cert_file and self.key_file:
            _load_pair(context, self.cert_file, self.key_file)
        return context

    def _authority(self) -> bytes | None:
        if self.ca_file:
            return _read(self.ca_file, "CA")
        # gRPC brings a list of its own, which does not know what this machine's owner has added.
        system = ssl.get_default_verify_paths().cafile
        return Path(system).read_bytes() if system else None


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the TLS {what} file {path}: {error.strerror}") from None


def _load_pair(context: ssl.SSLContext, cert_file: Path, key_file: Path) -> None:
    _read(cert_file, "certificate")
    _read(key_file, "key")

    def no_password() -> str:
        raise UsageError(
            f"the TLS key file {key_file} is encrypted",
            hint=f"openssl pkey -in {key_file} -out KEY, and keep KEY readable by the broker alone",
        )

    try:
        context.load_cert_chain(cert_file, key_file, password=no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(
                f"the TLS key in {key_file} is not that of the certificate in {cert_file}"
            ) from None
        raise UsageError(
            f"the TLS files {cert_file} and {key_file} are not a certificate and its key in PEM ({_reason(error)})"
        ) from None


def _load_authority(context: ssl.SSLContext, path: Path, what: str) -> None:
    _read(path, what)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise UsageError(
            f"the TLS {what} file {path} holds no certificates in PEM ({_reason(error)})"
        ) from None


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "unreadable").lower().replace("_", " ")
