"""What the tests with a real etcd share: running coroutines, waiting, and certificates."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

T = TypeVar("T")
PATIENCE = 20.0


def run(work: Coroutine[object, object, T]) -> T:
    """In an event loop of its own, not for ever."""

    async def limited() -> T:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(limited())


async def until(condition: Callable[[], object], patience: float = PATIENCE) -> None:
    async with asyncio.timeout(patience):
        while not condition():  # noqa: ASYNC110 - other threads and processes bring it about, too
            await asyncio.sleep(0.005)


@dataclass(frozen=True)
class Pair:
    cert_file: Path
    key_file: Path


class Authority:
    """Signs certificates for 127.0.0.1, good for servers and clients."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.ca_file = directory / f"{name}.pem"
        self.ca_file.write_bytes(self._signed(self._name, self._key, ca=True))

    def pair(self, name: str) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        pair = Pair(self._directory / f"{name}.crt", self._directory / f"{name}.key")
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        pair.cert_file.write_bytes(self._signed(subject, key, ca=False))
        pair.key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)
