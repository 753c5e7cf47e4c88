"""TLS to outside systems: the right authority lets a row through, any other is named, with the server and no password.

Servers that were built without TLS have a door in front that speaks it (`tests.servers.tls`).
"""

from __future__ import annotations

import json
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from tests.adaptors.posting import send
from tests.servers import nats as nats_server_of
from tests.servers.ports import free_port
from tests.servers.tls import Authority, authority, door

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor
from penstock.adaptors.mysql.connection import Server
from penstock.base import secrets
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.testing.adaptors import Holds, Row, SinkSubject
from penstock.testing.adaptors.delivery import Delivery, message
from penstock.testing.adaptors.model import Log, Reading

if TYPE_CHECKING:
    from tests.servers.http import HttpServer
    from tests.servers.mariadb import MySqlServer
    from tests.servers.mongodb import MongoServer
    from tests.servers.nats import NatsServer
    from tests.servers.opensearch import OpenSearchServer
    from tests.servers.postgres import PostgresServer
    from tests.servers.redis import RedisServer

SECRET = "not-to-be-shown"
"""The password of all servers."""

PATIENCE = 60.0
Made = Callable[..., Adaptor]
"""Makes an adaptor for a `host`, trusting the file `ca`."""


@pytest.fixture(autouse=True)
def _unregistered() -> Iterator[None]:
    yield
    secrets.forget_all()


@pytest.fixture(scope="session")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    place = tmp_path_factory.mktemp("tls")
    for above in (place, *place.parents[:2]):
        above.chmod(above.stat().st_mode | 0o055)  # servers run as other users
    return authority(place)


class Target(SinkSubject):
    """Just enough of a target to deliver to."""

    name = "tls"
    holds = Holds.MESSAGES

    def __init__(self, adaptor: Adaptor) -> None:
        self._adaptor = adaptor

    def adaptor(self) -> Adaptor:
        return self._adaptor

    def make(self, word: str) -> str:
        return word

    def contents(self, ns: str) -> Sequence[Row]:
        return ()


def deliver(adaptor: Adaptor, scratch: Path, ns: str) -> None:
    """One row into a sink."""
    delivery = Delivery(Target(adaptor), scratch / "staged")
    delivery.open()
    delivery.add(message(ns, 1, "grüße"))
    assert list(delivery.deliver()) == []
    delivery.close()


def read(adaptor: Adaptor, ns: str) -> list[dict[str, object]]:
    """The rows of a namespace at a source, of which there is one at least."""
    log = Log()
    with Reading(adaptor, log, lambda one: one == ns) as reading:
        assert reading.until(lambda: bool(log.messages), PATIENCE)
    return [json.loads(one.data) for one in log.messages]


def refusals(adaptor: Adaptor, *, sink: bool = True) -> Iterator[PenstockError]:
    """What source and sink say of a server that they do not trust."""
    with pytest.raises(PenstockError) as caught:
        adaptor.source().namespaces()
    yield caught.value
    with pytest.raises(PenstockError) as caught, Reading(adaptor, Log(), lambda ns: True) as reading:
        reading.to_the_end(PATIENCE)
    yield caught.value
    if sink:
        made = adaptor.sink()
        made.use(made.schemas, "tls.sink")
        with pytest.raises(PenstockError) as caught:
            made.inspect()
        yield caught.value


def check_refused(made: Made, trust: Authority, *, sink: bool = True) -> None:
    """Another authority, none, and another name than that of the certificate: each is told as what it is."""
    for settings, reason in (
        ({"ca": str(trust.other), "host": "localhost"}, "certificate"),
        ({"ca": "", "host": "localhost"}, "certificate"),
        ({"ca": str(trust.ca), "host": "127.0.0.1"}, "127.0.0.1"),
    ):
        for error in refusals(made(**settings), sink=sink):
            shown = f"{error} {error.hint} {error.__cause__}"
            assert isinstance(error, UsageError), shown
            assert "certificate" in shown, shown
            assert reason in shown, shown
            assert settings["host"] in str(error), shown
            assert SECRET not in shown, shown


def check_files(made: Made, tmp_path: Path) -> None:
    """A file that is not there, or holds no certificate, is named."""
    nothing, text = tmp_path / "nothing.pem", tmp_path / "text.pem"
    text.write_text("no certificate\n")
    for file in (nothing, text):
        for error in refusals(made(ca=str(file), host="localhost")):
            assert isinstance(error, UsageError)
            assert str(file) in str(error)


@pytest.mark.xdist_group("redis")
def test_redis(redis_server: RedisServer, trust: Authority, tmp_path: Path) -> None:
    with door(redis_server.port, trust.server) as port:

        def made(ca: str, host: str) -> Adaptor:
            return a.redis(uri=f"rediss://:{SECRET}@{host}:{port}/0", ca=ca, json_field="data", prefix="tls:")

        ns = f"s{uuid.uuid4().hex[:8]}"
        deliver(made(str(trust.ca), "localhost"), tmp_path, ns)
        assert read(made(str(trust.ca), "localhost"), f"tls:{ns}") == [{"id": 1, "text": "grüße"}]
        check_refused(made, trust)
        check_files(made, tmp_path)
    with pytest.raises(UsageError, match="expected rediss://"):
        a.redis(uri="redis://localhost", ca="x")


@pytest.fixture
def nats_tls(tmp_path: Path, trust: Authority) -> Iterator[NatsServer]:
    (tmp_path / "server").mkdir()
    with nats_server_of.running(tmp_path / "server", trust.server) as server:
        yield server


@pytest.mark.xdist_group("nats")
def test_nats(nats_tls: NatsServer, trust: Authority, tmp_path: Path) -> None:
    def made(ca: str, host: str) -> Adaptor:
        uri = f"tls://penstock:{SECRET}@{host}:{nats_tls.port}"
        return a.nats(uri=uri, ca=ca, stream="SHOP", prefix="shop.", create=True, timeout=5.0)

    deliver(made(str(trust.ca), "localhost"), tmp_path, "orders")
    assert read(made(str(trust.ca), "localhost"), "SHOP") == [{"id": 1, "text": "grüße"}]
    check_refused(made, trust)
    check_files(made, tmp_path)


@pytest.mark.xdist_group("postgres")
def test_postgres(postgres_server: PostgresServer, trust: Authority, tmp_path: Path) -> None:
    database = f"tls{uuid.uuid4().hex[:8]}"
    postgres_server.database(database)
    postgres_server.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, text text)",
        "CREATE TABLE sent (id int PRIMARY KEY, text text)",
        "INSERT INTO orders VALUES (1, 'grüße')",
        database=database,
    )
    # The door is in this process: a connection that had all threads of it wait would never be made.
    with door(postgres_server.port, trust.server, postgres=True) as port:

        def made(ca: str, host: str, **settings: object) -> Adaptor:
            uri = f"postgresql://owner:{SECRET}@{host}:{port}/{database}?sslmode=verify-full"
            return a.postgres(uri=f"{uri}&sslrootcert={ca or 'system'}", **settings)

        assert read(made(str(trust.ca), "localhost"), "public.orders") == [{"id": 1, "text": "grüße"}]
        deliver(made(str(trust.ca), "localhost"), tmp_path, "public.sent")
        assert postgres_server.query("SELECT id, text FROM sent", database) == [(1, "grüße")]
        source = made(str(trust.ca), "localhost", tail=True)
        log = Log()
        with Reading(source, log, lambda ns: ns == "public.orders") as reading:
            assert reading.until(lambda: "public.orders" in log.completed, PATIENCE)
            postgres_server.execute("INSERT INTO orders VALUES (2, 'x')", database=database)
            assert reading.until(lambda: len(log.messages) == 2, PATIENCE)
        one = source.source()
        one.use(one.copier, "kit.source")
        one.release()
        check_refused(made, trust)
        nothing = tmp_path / "nothing.pem"
        for error in refusals(made(str(nothing), "localhost")):
            assert isinstance(error, UsageError)
            assert str(nothing) in str(error)


@pytest.fixture
def mariadb_tls(mariadb_server: MySqlServer, trust: Authority) -> Iterator[MySqlServer]:
    mariadb_server.restart(ssl_cert=str(trust.server.certificate), ssl_key=str(trust.server.key))
    yield mariadb_server
    mariadb_server.restart()


@pytest.mark.xdist_group("mariadb")
def test_mysql(mariadb_tls: MySqlServer, trust: Authority, tmp_path: Path) -> None:
    database = f"tls{uuid.uuid4().hex[:8]}"
    mariadb_tls.database(database)
    mariadb_tls.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, text text)",
        "CREATE TABLE sent (id int PRIMARY KEY, text text)",
        "INSERT INTO orders VALUES (1, 'grüße')",
        database=database,
    )

    def made(ca: str, host: str, **settings: object) -> Adaptor:
        uri = f"mysql://owner:{SECRET}@{host}:{mariadb_tls.port}/{database}"
        return a.mysql(uri=uri, tls=True, ca=ca, **settings)

    ours = made(str(trust.ca), "localhost")
    (ns,) = [ns for ns in ours.source().namespaces() if ns.endswith("orders")]
    assert read(ours, ns) == [{"id": 1, "text": "grüße"}]
    deliver(ours, tmp_path, ns.replace("orders", "sent"))
    assert mariadb_tls.query("SELECT id, text FROM sent", database) == [(1, "grüße")]
    log = Log()
    with Reading(made(str(trust.ca), "localhost", tail=True), log, lambda one: one == ns) as reading:
        assert reading.until(lambda: ns in log.completed, PATIENCE)
        mariadb_tls.execute("INSERT INTO orders VALUES (2, 'x')", database=database)
        assert reading.until(lambda: len(log.messages) == 2, PATIENCE)
    check_refused(made, trust)
    check_files(made, tmp_path)


@pytest.mark.xdist_group("mariadb")
def test_mysql_speaks_tls_unasked_and_reads_no_certificates_for_each_connection(
    mariadb_tls: MySqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is checked by them."""
    server = Server(mariadb_tls.uri())
    server.connect().close()
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: pytest.fail("they are read again"))
    with closing(server.connect()) as session:
        ((_, cipher),) = session.query("SHOW STATUS LIKE 'Ssl_cipher'")
    assert cipher


@pytest.mark.xdist_group("mariadb")
def test_a_server_that_is_asked_for_tls_and_has_none_is_told_so(
    mariadb_server: MySqlServer, redis_server: RedisServer, trust: Authority
) -> None:
    """Nothing is sent in the clear instead."""
    mariadb_server.restart(skip_ssl="ON")
    try:
        for made in (
            a.mysql(uri=f"mysql://owner:{SECRET}@localhost:{mariadb_server.port}/x", tls=True, ca=str(trust.ca)),
            a.redis(uri=f"rediss://:{SECRET}@localhost:{redis_server.port}/0", ca=str(trust.ca), timeout=0.5),
        ):  # fmt: skip
            for error in refusals(made):
                assert isinstance(error, UsageError | AwayError)
                assert SECRET not in f"{error} {error.hint} {error.__cause__}"
    finally:
        mariadb_server.restart()


@pytest.mark.xdist_group("http")
def test_http(http_server: HttpServer, trust: Authority, tmp_path: Path) -> None:
    (http_server.place / "feed-tls.jsonl").write_text('{"id": 7}\n')
    with door(http_server.port, trust.server) as port:

        def made(ca: str, host: str) -> Adaptor:
            return a.http(uri=f"https://{host}:{port}/tls", token=SECRET, ca=ca, ns="tls", items="page.items")

        deliver(made(str(trust.ca), "localhost"), tmp_path, "tls")
        assert len(http_server.taken("/tls")) == 1
        assert read(made(str(trust.ca), "localhost"), "tls") == [{"id": 7}]
        check_refused(made, trust)
        check_files(made, tmp_path)


def listening(trust: Authority, **settings: object) -> tuple[int, Reading, Log]:
    port, log = free_port(), Log()
    files = {"certificate": str(trust.server.certificate), "private_key": str(trust.server.key)}
    adaptor = a.http(
        listen=f"127.0.0.1:{port}", namespaces=["a"], token=SECRET, timeout=1.0, **files, **settings
    )
    return port, Reading(adaptor, log, lambda ns: True), log


def test_http_listen_shows_its_certificate(trust: Authority) -> None:
    port, reading, log = listening(trust, max_connections=2)
    with reading:
        reading.step(PATIENCE)
        for wrong in (trust.other, None):
            with pytest.raises(ssl.SSLCertVerificationError):
                send(
                    port,
                    "/a",
                    b"{}",
                    tls=ssl.create_default_context(cafile=wrong),
                    authorization=f"Bearer {SECRET}",
                )
        for _ in range(3):  # handshakes that fail leave room for others
            with pytest.raises(OSError):
                send(port, "/a", b"{}", authorization=f"Bearer {SECRET}")
        _posted(port, reading, ssl.create_default_context(cafile=trust.ca))
    assert len(log.messages) == 1


def test_http_listen_lets_in_whom_its_authority_has_signed(trust: Authority) -> None:
    port, reading, log = listening(trust, ca=str(trust.ca))
    known = ssl.create_default_context(cafile=trust.ca)
    known.load_cert_chain(trust.client.certificate, trust.client.key)
    with reading:
        reading.step(PATIENCE)
        with pytest.raises(OSError):
            send(
                port,
                "/a",
                b"{}",
                tls=ssl.create_default_context(cafile=trust.ca),
                authorization=f"Bearer {SECRET}",
            )
        _posted(port, reading, known)
    assert len(log.messages) == 1


def _posted(port: int, reading: Reading, context: ssl.SSLContext) -> None:
    with ThreadPoolExecutor(1) as sender:
        sent = sender.submit(
            lambda: send(port, "/a", b'{"n":1}', tls=context, authorization=f"Bearer {SECRET}")
        )
        assert reading.step(PATIENCE) is not None
        assert sent.result().status == 200


@pytest.mark.parametrize("files", ["missing", "mixed up", "not its key", "encrypted"])
def test_a_certificate_that_is_none_is_named(trust: Authority, tmp_path: Path, files: str) -> None:
    """As a client, and as a server."""
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    certificate, key = trust.client.certificate, trust.client.key
    if files == "missing":
        key = tmp_path / "nowhere.key"
    elif files == "mixed up":
        certificate, key = key, certificate
    elif files == "not its key":
        key = trust.server.key
    else:
        whole = load_pem_private_key(key.read_bytes(), None)
        key = tmp_path / "encrypted.key"
        form = PrivateFormat.TraditionalOpenSSL
        key.write_bytes(whole.private_bytes(Encoding.PEM, form, BestAvailableEncryption(b"secret")))
    given = {"certificate": str(certificate), "private_key": str(key)}
    for made in (
        a.http(uri="https://localhost:1/x", **given),
        a.http(listen=f"127.0.0.1:{free_port()}", **given),
        a.redis(uri="rediss://localhost:1", **given),
        a.nats(uri="tls://localhost:1", **given),
        a.rabbitmq(uri="amqps://localhost:1", queues=["x"], **given),
    ):
        with pytest.raises(UsageError) as caught:
            made.source().namespaces()
        assert str(key) in str(caught.value), str(caught.value)


@pytest.mark.soak
def test_soak_rabbitmq(trust: Authority, tmp_path: Path) -> None:
    from tests.adaptors.test_rabbitmq import Queues
    from tests.servers.rabbitmq import running

    with running(trust.server) as server:
        queues = Queues(server)
        queues.make("orders")

        def made(ca: str, host: str) -> Adaptor:
            uri = f"amqps://penstock:{SECRET}@{host}:{server.tls_port}/"
            return a.rabbitmq(uri=uri, ca=ca, queues=["orders"], exchange="", routing_key="{ns}", timeout=5.0)

        deliver(made(str(trust.ca), "localhost"), tmp_path, "orders")
        assert read(made(str(trust.ca), "localhost"), "orders") == [{"id": 1, "text": "grüße"}]
        check_refused(made, trust)
        check_files(made, tmp_path)


@pytest.mark.soak
def test_soak_kafka(trust: Authority, tmp_path: Path) -> None:
    from tests.servers.kafka import running

    (tmp_path / "server").mkdir()
    with running(tmp_path / "server", trust.server) as server:
        port = server.sasl_address.rpartition(":")[2]

        def made(ca: str, host: str) -> Adaptor:
            options = {
                "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "penstock",
                "sasl.password": SECRET,
            }  # fmt: skip
            options |= {"ssl.ca.location": ca} if ca else {}
            right = ca == str(trust.ca) and host == "localhost"
            timeout = 20.0 if right else 2.0  # librdkafka goes on trying as long as it may
            return a.kafka(uri=f"kafka://{host}:{port}", options=options, create=True, timeout=timeout)

        deliver(made(str(trust.ca), "localhost"), tmp_path, "orders")
        assert read(made(str(trust.ca), "localhost"), "orders") == [{"id": 1, "text": "grüße"}]
        check_refused(made, trust)


@pytest.mark.soak
@pytest.mark.xdist_group("opensearch")
def test_soak_elasticsearch(opensearch_server: OpenSearchServer, trust: Authority, tmp_path: Path) -> None:
    plain = int(opensearch_server.uri.rpartition(":")[2].strip("/"))
    with door(plain, trust.server) as port:

        def made(ca: str, host: str) -> Adaptor:
            return a.elasticsearch(uri=f"https://owner:{SECRET}@{host}:{port}", ca=ca)

        ns = f"tls{uuid.uuid4().hex[:8]}"
        deliver(made(str(trust.ca), "localhost"), tmp_path, ns)
        time.sleep(1.5)
        (found,) = read(made(str(trust.ca), "localhost"), ns)
        assert found["text"] == "grüße"
        check_refused(made, trust)
        check_files(made, tmp_path)


@pytest.mark.xdist_group("http")
def test_elasticsearch_refuses_whom_it_does_not_trust(
    http_server: HttpServer, trust: Authority, tmp_path: Path
) -> None:
    with door(http_server.port, trust.server) as port:

        def made(ca: str, host: str) -> Adaptor:
            return a.elasticsearch(uri=f"https://owner:{SECRET}@{host}:{port}", ca=ca)

        check_refused(made, trust)
        check_files(made, tmp_path)


@pytest.mark.xdist_group("mongodb")
def test_mongodb(mongodb_server: MongoServer, trust: Authority, tmp_path: Path) -> None:
    with door(mongodb_server.port, trust.server) as port:

        def made(ca: str, host: str) -> Adaptor:
            files = f"&tlsCAFile={quote(ca, safe='')}" if ca else ""
            uri = f"mongodb://{host}:{port}/tls?tls=true{files}"
            return a.mongodb(uri=uri, timeout=20.0 if ca == str(trust.ca) and host == "localhost" else 1.0)

        ns = f"tls{uuid.uuid4().hex[:8]}"
        deliver(made(str(trust.ca), "localhost"), tmp_path, ns)
        (found,) = read(made(str(trust.ca), "localhost"), ns)
        assert found["text"] == "grüße"
        check_refused(made, trust)


@pytest.mark.parametrize("authority", ["ca", "other"])
def test_s3(authority: str, trust: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The authority comes from the environment: the library behind it knows no setting for it."""
    from tests.journal.s3 import KEY_ID, S3Server

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("SSL_CERT_FILE", str(getattr(trust, authority)))
    server = S3Server()
    server.start()
    try:
        with door(server.port, trust.server) as port:
            url = server.store_url("tls/").replace(
                f"http%3A%2F%2F127.0.0.1%3A{server.port}", f"https%3A%2F%2Flocalhost%3A{port}"
            )
            adaptor = a.s3(uri=url, format="jsonl", ns="orders")
            if authority == "ca":
                deliver(adaptor, tmp_path, "orders")
                (found,) = read(adaptor, "orders")
                assert found["text"] == "grüße"
            else:
                for error in refusals(adaptor):
                    assert isinstance(error, UsageError), error
                    assert "its certificate is not trusted: UnknownIssuer" in str(error)
                    assert "SSL_CERT_FILE" in str(error.hint)
                    assert SECRET not in f"{error} {error.hint} {error.__cause__}"
    finally:
        server.kill()
