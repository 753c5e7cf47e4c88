"""A registration where the Node binding looks for it: in a storage account."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import obstore
import pytest
from obstore.store import AzureStore
from tests.journal.blobs import blob_server

from penstock.base.errors import UsageError
from penstock.cli import ambrosia, ambrosia_azure
from penstock.cli.ambrosia_azure import Account
from penstock.cli.ambrosia_options import VERBS, parse

KEY = base64.b64encode(b"a key that is no secret").decode()


@dataclass
class Storage:
    """A storage account: it keeps what it gets, and takes what is signed by its account only."""

    connection: str = ""
    blobs: dict[str, bytes] = field(default_factory=dict)
    tables: dict[str, dict[tuple[str, str], dict[str, object]]] = field(default_factory=dict)

    def take(self, method: str, path: str, body: bytes) -> int:
        if path.endswith("?restype=container"):
            container = path.removesuffix("?restype=container")
            is_there = container in self.blobs
            self.blobs.setdefault(container, b"")
            return 409 if is_there else 201
        if path == "/account/Tables":
            table = json.loads(body)["TableName"]
            is_there = table in self.tables
            self.tables.setdefault(table, {})
            return 409 if is_there else 204
        if entity := re.fullmatch(r"/account/(\w+)\(PartitionKey='(.*)',RowKey='(.*)'\)", unquote(path)):
            self.tables[entity[1]][entity[2], entity[3]] = json.loads(body)
            return 204
        container, _ = path.removeprefix("/account/").split("/", 1)
        if f"/account/{container}" not in self.blobs:
            return 404
        self.blobs[path] = body
        return 201


@contextmanager
def storage() -> Iterator[Storage]:
    """One that has all of its services behind one address, as emulators have."""
    there = Storage()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_signed = re.fullmatch(r"SharedKey(Lite)? account:\S{44}", self.headers["Authorization"])
            self.send_response(there.take(self.command, self.path, body) if is_signed else 403)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_PUT = do_POST = answer  # noqa: N815 - as the server looks them up

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_address[1]}/account"
    there.connection = f"AccountName=account;AccountKey={KEY};BlobEndpoint={address};TableEndpoint={address}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield there
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_requests_are_signed_as_others_sign_them() -> None:
    with blob_server() as server:
        store = AzureStore(
            "cra",
            config={"account_name": "account", "account_key": KEY, "endpoint": server.endpoint},
            client_options={"allow_http": True},
        )
        obstore.put(store, "a/b", b"content")
        sent = {name.lower(): value for name, value in server.headers["cra/a/b"].items()}
    account = Account.parsed(f"AccountName=account;AccountKey={KEY}")
    ours = account.blob_authorization("PUT", "/cra/a/b", {}, sent)
    assert ours == {"Authorization": sent["authorization"]}


@pytest.mark.parametrize(
    ("text", "blobs", "tables"),
    [
        (
            f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={KEY};EndpointSuffix=core.windows.net",
            "https://a.blob.core.windows.net",
            "https://a.table.core.windows.net",
        ),
        (
            "UseDevelopmentStorage=true",
            "http://127.0.0.1:10000/devstoreaccount1",
            "http://127.0.0.1:10002/devstoreaccount1",
        ),
        (f"AccountName=a;AccountKey={KEY};BlobEndpoint=http://h:1/a/;", "http://h:1/a", "https://a.table.core.windows.net"),
    ],
)  # fmt: skip
def test_connection_strings(text: str, blobs: str, tables: str) -> None:
    account = Account.parsed(text)
    assert (account.blobs, account.tables) == (blobs, tables)


@pytest.mark.parametrize("text", ["", "AccountName=a", "AccountName=a;AccountKey=?"])
def test_a_connection_string_without_a_key_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="has no account with a key"):
        Account.parsed(text)


def register(verb: str, *words: str) -> None:
    ambrosia.register(verb, parse(words, VERBS[verb]))


def test_the_node_binding_finds_what_was_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    words = ("-i=node", "-rp=1", "-sp=2", f"-l={tmp_path}/a & b/", "-cv=3", "-uv=4")
    with storage() as there:
        monkeypatch.setenv(ambrosia_azure.VARIABLE, there.connection)
        register("RegisterInstance", *words)
        register("AddReplica", *words, "-r=1")
    assert capsys.readouterr().err == ""
    blobs = "/account/cra/AmbrosiaBinaries/node-node"
    for replica, is_active in ((0, "false"), (1, "true")):
        text = there.blobs[f"{blobs}{replica}"].decode()
        assert KEY not in text
        assert dict(re.findall(r"<(\w+)>([^<]*)</\1>", text)) == {
            "serviceReceiveFromPort": "1",
            "serviceSendToPort": "2",
            "serviceLogPath": f"{tmp_path}/a &amp; b/",
            "storageConnectionString": "",
            "currentVersion": "3",
            "upgradeToVersion": "4",
            "activeActive": is_active,
            "logTriggerSizeMB": "1000",
        }
        assert re.fullmatch("<AmbrosiaRuntimeParams>.*</AmbrosiaRuntimeParams>", text)
    assert [partition for partition, _ in there.tables["craendpointtable"]] == ["node"] * 4
    vertices = there.tables["cravertextable"]
    assert [*vertices] == [("node0", "node"), ("node1", "node")]
    assert not any(row["IsActive"] for row in vertices.values())
    assert there.tables["craconnectiontable"] == {}


def test_an_account_that_cannot_be_reached_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with storage() as there:
        pass
    account = f"AccountKey={KEY};AccountName"
    for connection, why in (
        (there.connection, "does not answer"),
        ("nonsense", "no account with a key"),
        (f"{account}=a;BlobEndpoint=http://h:port", "no address"),
        (f"{account}={'a' * 64}", "does not answer"),
    ):
        monkeypatch.setenv(ambrosia_azure.VARIABLE, connection)
        register("RegisterInstance", "-i=node", "-rp=1", "-sp=2", f"-l={tmp_path}/logs/")
        out, err = capsys.readouterr()
        assert "node was registered" in out
        assert re.search(f"Warning: node was not registered with Azure as well: .*{why}", err)
        assert not re.search("Exception|Usage:", out + err)  # by these the binding knows a failure
