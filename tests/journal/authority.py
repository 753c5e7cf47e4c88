"""A certificate authority of the test's own, for journals and for etcd."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Pair:
    cert_file: Path
    key_file: Path


class Authority:
    """A CA of the test's own, and what it signs."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = _subject(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._certificate(self._name, self._key, ca=True)
        self.ca_file = directory / f"{name}.pem"
        self.ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def pair(self, name: str, *, password: bytes | None = None) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._certificate(_subject(name), key, ca=False)
        pair = Pair(self._directory / f"{name}.crt", self._directory / f"{name}.key")
        pair.cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        encryption = (
            serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        )
        pair.key_file.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        )
        return pair

    def _certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256())


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
