"""A registration where AMBROSIA's Node binding looks for it: in a storage account of Azure, or what speaks as one.

The binding wants `$AZURE_STORAGE_CONN_STRING`, and reads there what AMBROSIA's own tool has written:

    blob cra, AmbrosiaBinaries/NAME-NAMEr    how replica r was registered, as XML
    table craendpointtable    NAME           four rows: the ends of the streams to itself
    table cravertextable      NAMEr, NAME    a row for each replica
    table craconnectiontable                 the streams to others; it has to be there, and may be empty

So `Ambrosia` leaves it there as well, if that variable is set. Nothing else here reads it: a registration counts
without, and the account's key is not part of it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit
from xml.sax.saxutils import escape

from penstock.base.errors import PenstockError, UsageError

if TYPE_CHECKING:
    from penstock.immortal.about import Registration

VARIABLE = "AZURE_STORAGE_CONN_STRING"
CONTAINER = "cra"
ENDPOINTS, VERTICES, CONNECTIONS = "craendpointtable", "cravertextable", "craconnectiontable"
STREAM_ENDS = ("Ambrosiacontrolin", "Ambrosiacontrolout", "Ambrosiadatain", "Ambrosiadataout")
TIMEOUT = 10.0
_VERSION = "2019-12-12"
_CONFLICT = 409
# The account that the storage emulator has on every machine, with a key that everybody knows.
_EMULATOR = {
    "AccountName": "devstoreaccount1",
    "AccountKey": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    "BlobEndpoint": "http://127.0.0.1:10000/devstoreaccount1",
    "TableEndpoint": "http://127.0.0.1:10002/devstoreaccount1",
}


class AzureError(PenstockError):
    """The storage account cannot be reached, or refuses."""


@dataclass(frozen=True)
class Account:
    """A storage account, as its connection string has it."""

    name: str
    key: bytes
    blobs: str
    tables: str

    @classmethod
    def parsed(cls, text: str) -> Account:
        said = dict(part.strip().split("=", 1) for part in text.split(";") if "=" in part)
        if said.get("UseDevelopmentStorage", "").lower() == "true":
            said = _EMULATOR
        try:
            name, key = said["AccountName"], base64.b64decode(said["AccountKey"], validate=True)
        except (KeyError, ValueError):
            raise UsageError(f"{VARIABLE} has no account with a key") from None
        scheme = said.get("DefaultEndpointsProtocol", "https")
        suffix = said.get("EndpointSuffix", "core.windows.net")
        blobs, tables = (
            said.get(f"{kind.capitalize()}Endpoint", f"{scheme}://{name}.{kind}.{suffix}").rstrip("/")
            for kind in ("blob", "table")
        )
        try:
            _ = urlsplit(blobs).port, urlsplit(tables).port
        except ValueError as error:
            raise UsageError(f"{VARIABLE} has an endpoint that is no address: {error}") from None
        return cls(name, key, blobs, tables)

    def _signed(self, scheme: str, text: str) -> dict[str, str]:
        digest = hmac.digest(self.key, text.encode(), hashlib.sha256)
        return {"Authorization": f"{scheme} {self.name}:{base64.b64encode(digest).decode()}"}

    def blob_authorization(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> dict[str, str]:
        """By the scheme `SharedKey` of the blob service; `headers` in lower case."""
        standard = (
            "content-encoding",
            "content-language",
            "content-length",
            "content-md5",
            "content-type",
            "date",
        )
        conditions = ("if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range")
        values = {name: value for name, value in headers.items() if (name, value) != ("content-length", "0")}
        lines = [method, *(values.get(header, "") for header in (*standard, *conditions))]
        lines += [f"{name}:{headers[name]}" for name in sorted(headers) if name.startswith("x-ms-")]
        lines += [f"/{self.name}{path}", *(f"{name}:{query[name]}" for name in sorted(query))]
        return self._signed("SharedKey", "\n".join(lines))

    def table_authorization(self, path: str, date: str) -> dict[str, str]:
        """By the scheme `SharedKeyLite` of the table service."""
        return self._signed("SharedKeyLite", f"{date}\n/{self.name}{path}")


def publish(connection: str, name: str, log: str, one: Registration) -> None:
    """Leave the registration of one replica where the Node binding reads it."""
    account = Account.parsed(connection)
    _put_blob(account, f"/{CONTAINER}", {"restype": "container"}, b"")
    _put_blob(account, f"/{CONTAINER}/AmbrosiaBinaries/{name}-{name}{one.replica}", {}, described(log, one))
    for table in (ENDPOINTS, VERTICES, CONNECTIONS):
        _to_table(account, "POST", "/Tables", {"TableName": table})
    for end in STREAM_ENDS:
        _put_row(account, ENDPOINTS, name, end)
    _put_row(account, VERTICES, f"{name}{one.replica}", name, IsActive=False)


def described(log: str, one: Registration) -> bytes:
    """A registration in the words of the original, as far as bindings read it."""
    said = {
        "serviceReceiveFromPort": one.receive_port,
        "serviceSendToPort": one.send_port,
        "serviceLogPath": escape(log),
        "storageConnectionString": "",
        "currentVersion": one.version,
        "upgradeToVersion": one.upgrade,
        "activeActive": str(one.active).lower(),
        "logTriggerSizeMB": one.trigger_mib,
    }
    lines = "".join(f"<{name}>{value}</{name}>" for name, value in said.items())
    return f"<AmbrosiaRuntimeParams>{lines}</AmbrosiaRuntimeParams>".encode()


def _put_blob(account: Account, path: str, query: Mapping[str, str], body: bytes) -> None:
    headers = {
        "x-ms-date": formatdate(usegmt=True),
        "x-ms-version": _VERSION,
        "content-length": str(len(body)),
    }
    if not query:
        headers |= {"x-ms-blob-type": "BlockBlob", "content-type": "application/xml"}
    path = urlsplit(account.blobs).path + path
    headers |= account.blob_authorization("PUT", path, query, headers)
    asked = "&".join(f"{key}={value}" for key, value in query.items())
    _ask(account.blobs, "PUT", f"{path}?{asked}" if asked else path, body, headers)


def _put_row(account: Account, table: str, partition: str, row: str, **columns: object) -> None:
    entity = {"PartitionKey": partition, "RowKey": row, **columns}
    _to_table(account, "PUT", f"/{table}(PartitionKey='{quote(partition)}',RowKey='{quote(row)}')", entity)


def _to_table(account: Account, method: str, path: str, entity: Mapping[str, object]) -> None:
    path = urlsplit(account.tables).path + path
    date = formatdate(usegmt=True)
    headers = {
        "x-ms-date": date,
        "x-ms-version": _VERSION,
        "DataServiceVersion": "3.0;NetFx",
        "Accept": "application/json;odata=nometadata",
        "Content-Type": "application/json",
        "Prefer": "return-no-content",
        **account.table_authorization(path, date),
    }
    _ask(account.tables, method, path, json.dumps(entity).encode(), headers)


def _ask(endpoint: str, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> None:
    """What is there already is no error."""
    there = urlsplit(endpoint)
    secure = there.scheme == "https"
    connection = (http.client.HTTPSConnection if secure else http.client.HTTPConnection)(
        there.hostname or "", there.port, timeout=TIMEOUT
    )
    try:
        connection.request(method, path, body, dict(headers))
        status = connection.getresponse().status
    except (OSError, ValueError, http.client.HTTPException) as error:  # also of no host's name
        raise AzureError(f"{endpoint} does not answer: {error or type(error).__name__}") from None
    finally:
        connection.close()
    if status >= 300 and status != _CONFLICT:
        raise AzureError(
            f"{endpoint} refuses {method} {path}: {status} {http.client.responses.get(status, '')}"
        )
