"""TLS of connections that adaptors make: whom they trust, and what a certificate that is not trusted means to a run.

Certificate and host name are always checked. One that does not pass is for a person to mend, at the server or in the
settings, so it is a `UsageError`, and says which server it was and what is wrong with its certificate. Files are PEM.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

from penstock.base.errors import UsageError


def context(ca: str, certificate: str = "", private_key: str = "") -> ssl.SSLContext:
    """Trusts the certificates in the file `ca`, or whom this machine trusts; shows a certificate if there is one."""
    for name, file in (("ca", ca), ("certificate", certificate), ("private_key", private_key)):
        if file:
            _check(name, file)
    try:
        made = ssl.create_default_context(cafile=ca or None)
    except ssl.SSLError as error:
        raise UsageError(f"setting 'ca': there are no certificates in {ca} ({_reason(error)})") from None

    def no_password() -> str:
        raise UsageError(
            f"setting 'private_key': the key in {private_key} is encrypted",
            hint=f"openssl pkey -in {private_key} -out KEY, and keep KEY readable by the user of this pipeline alone",
        )

    try:
        if certificate:
            made.load_cert_chain(certificate, private_key, password=no_password)
    except ssl.SSLError as error:
        raise UsageError(
            f"settings 'certificate' and 'private_key': {certificate} and {private_key} are not a certificate and "
            f"its key ({_reason(error)})"
        ) from None
    return made


def untrusted(error: BaseException, place: str) -> UsageError | None:
    """The error to raise if the certificate of the server at `place` did not pass; None if it is not about that."""
    for one in _chain(error):
        if isinstance(one, ssl.SSLCertVerificationError):
            return UsageError(
                f"the certificate of {place} is not trusted: {one.verify_message}",
                hint="see the setting 'ca': a file with the certificate that signed the server's",
            )
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and those that it comes from, also where a driver hands them on in its own way."""
    found, seen = [error], set[int]()
    while found:
        one = found.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            inner = (one.__cause__, one.__context__, getattr(one, "reason", None), *one.args,
                     getattr(one, "exception", None), getattr(one, "original_exception", None))  # fmt: skip
            found += [other for other in inner if isinstance(other, BaseException)]


def _check(name: str, file: str) -> None:
    try:
        Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"setting '{name}': cannot read {file}: {error.strerror}") from None


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "unreadable").lower().replace("_", " ")
