"""TLS: real handshakes of gRPC and HTTPS with certificates made here, and files that are not what they should be."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import aiohttp
import grpc
import grpc.aio
import pytest

from penstock.base.errors import UsageError
from penstock.journal.auth import OpenAuthorizer
from penstock.journal.gateway import Gateway
from penstock.journal.service import Service
from penstock.journal.tls import ClientTls, ServerTls

from .authority import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


@asynccontextmanager
async def _grpc_server(tls: ServerTls) -> AsyncIterator[str]:
    async def echo(request: bytes, context: object) -> bytes:
        return request

    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", {"Echo": handler}),))
    port = server.add_secure_port("127.0.0.1:0", tls.grpc_credentials())
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def _echo(address: str, tls: ClientTls) -> bytes:
    async with grpc.aio.secure_channel(address, tls.grpc_credentials()) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test.Echo/Echo")
        return await call(b"hello", timeout=5)


def _grpc_handshake(server: ServerTls, client: ClientTls) -> bytes:
    async def test() -> bytes:
        async with _grpc_server(server) as address:
            return await _echo(address, client)

    return asyncio.run(test())


def _https_handshake(server: ServerTls, client: ssl.SSLContext) -> tuple[str | None, str | None, bytes]:
    """The agreed protocol, TLS version, and what the server said."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    async def test() -> tuple[str | None, str | None, bytes]:
        listener = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=server.ssl_context())
        async with listener:
            port = listener.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
            agreed: ssl.SSLObject = writer.get_extra_info("ssl_object")
            said = await reader.read()
            writer.close()
            return agreed.selected_alpn_protocol(), agreed.version(), said

    return asyncio.run(test())


def test_grpc_talks_over_tls_to_a_client_that_trusts_the_authority(authority: Authority) -> None:
    pair = authority.pair("broker")
    server = ServerTls(pair.cert_file, pair.key_file)
    assert _grpc_handshake(server, ClientTls(ca_file=authority.ca_file)) == b"hello"


def test_grpc_refuses_a_server_of_another_authority(authority: Authority, tmp_path: Path) -> None:
    pair = authority.pair("broker")
    server = ServerTls(pair.cert_file, pair.key_file)
    for client in (ClientTls(ca_file=Authority(tmp_path, "other").ca_file), ClientTls()):
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            _grpc_handshake(server, client)
        assert refusal.value.code() == grpc.StatusCode.UNAVAILABLE


def test_grpc_with_a_client_authority_wants_a_certificate_of_it(authority: Authority, tmp_path: Path) -> None:
    pair, client, other = authority.pair("broker"), authority.pair("client"), Authority(tmp_path, "other")
    stranger = other.pair("stranger")
    server = ServerTls(pair.cert_file, pair.key_file, client_ca_file=authority.ca_file)
    known = ClientTls(authority.ca_file, client.cert_file, client.key_file)
    assert _grpc_handshake(server, known) == b"hello"
    for refused in (
        ClientTls(authority.ca_file),
        ClientTls(authority.ca_file, stranger.cert_file, stranger.key_file),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            _grpc_handshake(server, refused)
        assert refusal.value.code() == grpc.StatusCode.UNAVAILABLE


def test_https_agrees_on_http_1_1(authority: Authority) -> None:
    pair = authority.pair("broker")
    client = ssl.create_default_context(cafile=str(authority.ca_file))
    client.set_alpn_protocols(["h2", "http/1.1"])
    protocol, version, said = _https_handshake(ServerTls(pair.cert_file, pair.key_file), client)
    assert (protocol, said) == ("http/1.1", b"hello")
    assert version in ("TLSv1.2", "TLSv1.3")


def test_https_with_a_client_authority_wants_a_certificate_of_it(authority: Authority) -> None:
    pair, own = authority.pair("broker"), authority.pair("client")
    server = ServerTls(pair.cert_file, pair.key_file, client_ca_file=authority.ca_file)
    client = ssl.create_default_context(cafile=str(authority.ca_file))
    # With TLS 1.3 the client is done before the server refuses it: it learns of it when it reads.
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        assert _https_handshake(server, client)[2] == b""
    client.load_cert_chain(own.cert_file, own.key_file)
    assert _https_handshake(server, client)[2] == b"hello"


def test_a_missing_file_is_named(authority: Authority, tmp_path: Path) -> None:
    pair, gone = authority.pair("broker"), tmp_path / "gone.pem"
    for make in (
        ServerTls(gone, pair.key_file).grpc_credentials,
        ServerTls(pair.cert_file, gone).ssl_context,
        ServerTls(pair.cert_file, pair.key_file, gone).grpc_credentials,
        ServerTls(pair.cert_file, pair.key_file, gone).ssl_context,
        ClientTls(gone).grpc_credentials,
        ClientTls(None, pair.cert_file, gone).grpc_credentials,
    ):
        with pytest.raises(UsageError, match=r"cannot read the TLS .* file .*gone\.pem: No such file"):
            make()


def test_a_key_of_another_certificate_is_told(authority: Authority) -> None:
    pair, other = authority.pair("broker"), authority.pair("other")
    for make in (
        ServerTls(pair.cert_file, other.key_file).grpc_credentials,
        ServerTls(pair.cert_file, other.key_file).ssl_context,
        ClientTls(None, pair.cert_file, other.key_file).grpc_credentials,
    ):
        with pytest.raises(UsageError, match=r"the TLS key in .*other\.key is not that of .*broker\.crt"):
            make()


def test_files_that_hold_no_certificates_are_told(authority: Authority, tmp_path: Path) -> None:
    pair, noise = authority.pair("broker"), tmp_path / "noise.pem"
    noise.write_text("not a certificate\n")
    for make in (
        ServerTls(noise, pair.key_file).ssl_context,
        ServerTls(pair.cert_file, noise).ssl_context,
        ServerTls(pair.cert_file, pair.key_file, noise).ssl_context,
        ClientTls(noise).grpc_credentials,
    ):
        with pytest.raises(UsageError, match=r"noise\.pem"):
            make()


def test_an_encrypted_key_is_refused_without_asking_for_its_password(authority: Authority) -> None:
    pair = authority.pair("broker", password=b"secret")
    with pytest.raises(UsageError, match="is encrypted") as refusal:
        ServerTls(pair.cert_file, pair.key_file).ssl_context()
    assert refusal.value.hint


def test_a_client_certificate_needs_its_key(authority: Authority) -> None:
    with pytest.raises(UsageError, match="needs both"):
        ClientTls(cert_file=authority.pair("client").cert_file).grpc_credentials()


def test_the_gateway_serves_https(authority: Authority) -> None:
    pair = authority.pair("broker")

    async def test() -> None:
        tls = ServerTls(pair.cert_file, pair.key_file).ssl_context()
        gateway = Gateway(
            cast("Service", None),
            OpenAuthorizer(),
            metrics=None,
            ready=lambda: (True, "ready"),
            request_timeout=0.3,
        )
        port = await gateway.start("127.0.0.1", 0, tls)
        trusting = ssl.create_default_context(cafile=str(authority.ca_file))
        try:
            async with (
                aiohttp.ClientSession() as client,
                client.get(f"https://127.0.0.1:{port}/ready", ssl=trusting) as response,
            ):
                assert (response.status, await response.text()) == (200, "ready\n")
            # A client that never begins its handshake is dropped as one that never sends a request.
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            async with asyncio.timeout(5):
                assert await reader.read() == b""
            writer.close()
        finally:
            await gateway.stop(0.1)

    asyncio.run(test())
