"""`penstock broker serve` as a process: what it prints, how it is reached, how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.cli import cli
from penstock.cli.brokers import http_address
from penstock.journal.client import Client
from penstock.journal.specs import flatten

from .journaling import SPECS, started

SERVE = ("broker", "serve", "--data-dir", "data", "--listen", "127.0.0.1:0")


@pytest.fixture(autouse=True)
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def penstock(*arguments: str, input: str | None = None) -> str:
    result = CliRunner().invoke(cli, list(arguments), prog_name="penstock", input=input)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_it_serves_until_it_is_told_to_stop_and_keeps_everything(tmp_path: Path) -> None:
    with started(*SERVE, "--json", cwd=tmp_path) as broker:
        told = json.loads(broker.line())
        assert told["data_dir"] == str(tmp_path / "data")
        assert told["pid"] == broker.process.pid
        address = f"http://{told['grpc']}"
        penstock("journals", "apply", "--broker", address, input=SPECS)
        penstock("journals", "append", "--broker", address, "-l", "name=shop/items", input="hello")
        assert penstock("journals", "read", "--data-dir", "data", "-l", "prefix=shop/") == "hello"
        with urllib.request.urlopen(f"http://{told['http']}/shop/items?offset=0", timeout=10) as response:
            assert response.read() == b"hello"
        assert broker.end() == 0
        assert broker.process.stderr is not None
        assert broker.process.stderr.read() == ""
    assert penstock("journals", "read", "--data-dir", "data", "-l", "prefix=shop/") == "hello"


def test_people_get_a_line(tmp_path: Path) -> None:
    with started(*SERVE, "--http", "off", cwd=tmp_path) as broker:
        line = broker.line()
        assert line.startswith("serving gRPC on 127.0.0.1:")
        assert line.endswith(f", data in {tmp_path / 'data'}\n")
        assert "HTTP" not in line
        assert broker.end(signal.SIGINT) == 0


@pytest.mark.parametrize(
    ("listen", "http", "address"),
    [
        ("127.0.0.1:8080", None, "127.0.0.1:8081"),
        ("[::1]:8080", None, "[::1]:8081"),
        ("127.0.0.1:0", None, "127.0.0.1:0"),
        ("127.0.0.1:8080", "0.0.0.0:80", "0.0.0.0:80"),
        ("127.0.0.1:8080", "off", None),
    ],
)
def test_http_is_on_the_next_port_unless_told(listen: str, http: str | None, address: str | None) -> None:
    assert http_address(listen, http) == address


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = CliRunner().invoke(
            cli, ["broker", "serve", "--data-dir", "data", "--http", "off", "--listen", listen]
        )
    assert refused.exit_code == 2
    assert f"cannot listen on {listen}\n" in refused.stderr
    assert "give another --listen" in refused.stderr


def test_one_directory_has_one_broker(tmp_path: Path) -> None:
    with started(*SERVE, cwd=tmp_path) as broker:
        broker.line()
        second = CliRunner().invoke(cli, list(SERVE))
        assert second.exit_code == 4
        assert f"in use by process {broker.process.pid}" in second.stderr


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with started(*SERVE, "--json", cwd=tmp_path) as broker:
        told = json.loads(broker.line())
        with Client(f"http://{told['grpc']}") as client:
            client.apply([change.to_proto() for change in flatten(SPECS)])
            client.append("shop/items", b"hello")
            os.kill(broker.process.pid, signal.SIGSTOP)  # so that both signals are there when it looks
            os.kill(broker.process.pid, signal.SIGTERM)
            os.kill(broker.process.pid, signal.SIGINT)
            os.kill(broker.process.pid, signal.SIGCONT)
            assert broker.process.wait(10) in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    assert penstock("journals", "read", "--data-dir", "data", "-l", "prefix=shop/") == "hello"


def test_keys_are_asked_for(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("c2VjcmV0\n")
    keys.chmod(0o600)
    with started(*SERVE, "--json", "--auth-keys", "@keys", cwd=tmp_path) as broker:
        address = f"http://{json.loads(broker.line())['grpc']}"
        listing = ["journals", "list", "--broker", address]
        refused = CliRunner().invoke(cli, listing)
        assert refused.exit_code == 2
        assert "refused the authorization" in refused.stderr
        assert "c2VjcmV0" not in refused.stderr
        assert "Name" in penstock(*listing, "--auth-keys", "@keys")
        wrong = CliRunner().invoke(cli, [*listing, "--auth-token", "nonsense"])
        assert wrong.exit_code == 2
        # The directory's own socket is for its user, who could read the files as well.
        assert "Name" in penstock("journals", "list", "--data-dir", "data")
        penstock("journals", "apply", "--broker", address, "--auth-keys", "@keys", input=SPECS)
        asking = ("--broker", address, "--auth-keys", "@keys", "-l", "name=shop/items")
        penstock("journals", "append", *asking, input="hello")
        assert penstock("journals", "read", *asking) == "hello"
        penstock("journals", "roll", "shop/items", *asking[:4])


def certificate(path: Path) -> None:
    """Files `cert` and `key` of an authority for `localhost` that has signed itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (path / "cert").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (path / "key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def test_tls_is_spoken_and_asked_for(tmp_path: Path) -> None:
    certificate(tmp_path)
    files = ("--cert-file", "cert", "--key-file", "key")
    with started(*SERVE, "--json", *files, "--client-ca-file", "cert", cwd=tmp_path) as broker:
        port = json.loads(broker.line())["grpc"].rpartition(":")[2]
        secure = ["journals", "list", "--broker", f"https://localhost:{port}", "--ca-file", "cert"]
        assert "Name" in penstock(*secure, *files)
        for refused in (secure, ["journals", "list", "--broker", f"http://localhost:{port}"]):
            result = CliRunner().invoke(cli, refused)
            assert result.exit_code == 1
            assert "does not answer" in result.stderr


def test_stores_that_were_not_named_are_refused(tmp_path: Path) -> None:
    with started(*SERVE, "--json", "--store", "file:///", cwd=tmp_path) as broker:
        address = f"http://{json.loads(broker.line())['grpc']}"
        penstock("journals", "apply", "--broker", address, input=SPECS)
        other = SPECS.replace("file:///", "s3://elsewhere/").replace("shop/", "far/")
        refused = CliRunner().invoke(cli, ["journals", "apply", "--broker", address], input=other)
        assert refused.exit_code != 0
        assert "s3://elsewhere/" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--listen", "8080"), "expected HOST:PORT"),
        (("--http", "nowhere"), "expected HOST:PORT"),
        (("--listen", "127.0.0.1:65535"), "--http off"),
        (("--store", "ftp://x/"), "invalid scheme"),
        (("--store", "s3://bucket"), "doesn't end in '/'"),
        (("--id", "x"), "Suffix: invalid length"),
        (("--zone", "a b"), "Zone: not a valid token"),
        (("--auth-keys", "AA=="), "expected at least one authorization key"),
        (("--cert-file", "cert"), "give both --cert-file and --key-file"),
        (("--client-ca-file", "cert"), "--client-ca-file needs TLS"),
        (("--cert-file", "cert", "--key-file", "cert"), "cert"),
        (("--file-root", "none"), "does not exist"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_made(
    tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    (tmp_path / "cert").write_text("no certificate")
    result = CliRunner().invoke(cli, ["broker", "serve", "--data-dir", "data", *arguments])
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert not (tmp_path / "data").exists()


def test_an_open_broker_on_the_network_is_warned_of(tmp_path: Path) -> None:
    arguments = ("broker", "serve", "--data-dir", "data", "--listen", "0.0.0.0:0", "--http", "off", "--json")
    with started(*arguments, cwd=tmp_path) as broker:
        told = json.loads(broker.line())
        assert broker.process.stderr is not None
        assert "Warning: everybody who reaches 0.0.0.0:0" in broker.process.stderr.readline()
        with Client(f"http://127.0.0.1:{told['grpc'].rpartition(':')[2]}") as client:
            client.apply([change.to_proto() for change in flatten(SPECS)])
            endpoint = client.list()[0].route.endpoints[0]
        assert endpoint == f"http://{socket.gethostname()}:{told['grpc'].rpartition(':')[2]}"
