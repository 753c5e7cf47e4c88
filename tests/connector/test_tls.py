"""TLS on the workers' port: connectors, redirects and questions between workers over it, and who is not trusted."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.connector.rig import COOKIE, Numbers, Rig, eventually, ids_of, rigged
from tests.journal.authority import Authority

from penstock.cli import cli
from penstock.connector import frames as fr
from penstock.connector.link import LinkLostError, UntrustedError, connect
from penstock.connector.settings import WorkerTls
from penstock.connector.source import Connector, stream_id
from penstock.journal.tls import ClientTls, ServerTls


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


def tls_of(authority: Authority, name: str = "worker") -> WorkerTls:
    pair = authority.pair(name)
    return WorkerTls(
        ServerTls(pair.cert_file, pair.key_file).ssl_context(), ClientTls(authority.ca_file).ssl_context()
    )


def connector(addresses: list[str], streams: list[Numbers], trusts: Path) -> Connector:
    tls = ClientTls(trusts).ssl_context()
    return Connector(addresses, "i", streams, cookie=COOKIE, patience=60, migration_tries=2, tls=tls)


def test_connectors_find_the_right_worker_and_move_over_tls(tmp_path: Path, authority: Authority) -> None:
    async def test(rig: Rig) -> None:
        rig.tls = tls_of(authority)
        first, second = await rig.worker("a"), await rig.worker("b")
        mine, other = Numbers("mine", 1000), Numbers("other", 1000)
        mine.gate = 500
        one = connector([first.me.address], [mine], authority.ca_file)
        serving = asyncio.create_task(one.serve())
        await eventually(lambda: one.acked.get("mine") == 500)
        await connector([second.me.address], [other], authority.ca_file).serve()
        assert second.counters.messages == 0, "the worker that was asked took what another has"
        await first.migrate("i", second.me.address)
        mine.gate = 1000
        await serving
        assert second.counters.messages > 0
        assert ids_of(await rig.frames()) == {
            stream_id(stream.name): list(range(1, 1001)) for stream in (mine, other)
        }

    rigged(tmp_path / "d", test)


def test_a_worker_that_is_not_trusted_and_peers_without_tls_get_nowhere(
    tmp_path: Path, authority: Authority
) -> None:
    strangers = Authority(tmp_path, "strangers")

    async def test(rig: Rig) -> None:
        rig.tls = tls_of(authority)
        worker = await rig.worker()
        with pytest.raises(UntrustedError, match="not to be trusted") as caught:
            await connector([worker.me.address], [Numbers("s", 5)], strangers.ca_file).serve()
        assert "--tls-ca" in (caught.value.hint or "")
        plain = await rig.peer(worker)
        assert await plain.next() is None
        await connector([worker.me.address], [Numbers("s", 5)], authority.ca_file).serve()
        assert ids_of(await rig.frames()) == {stream_id("s"): [1, 2, 3, 4, 5]}

    rigged(tmp_path / "d", test)


def test_an_owner_whose_certificate_is_not_trusted_is_alive_all_the_same(
    tmp_path: Path, authority: Authority
) -> None:
    strangers = Authority(tmp_path, "strangers")

    async def test(rig: Rig) -> None:
        rig.tls = tls_of(strangers, "stranger")
        theirs = await rig.worker("theirs")
        stream = Numbers("s", 10)
        stream.gate = 5
        running = connector([theirs.me.address], [stream], strangers.ca_file)
        serving = asyncio.create_task(running.serve())
        await eventually(lambda: running.acked.get("s") == 5)
        rig.tls = tls_of(authority)
        ours = await rig.worker("ours")
        assert await ours._elsewhere("i") == theirs.me.address
        stream.gate = 10
        await serving
        assert theirs.counters.rollbacks == 0

    rigged(tmp_path / "d", test)


def commanded(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["connector", *arguments])


def test_the_commands_speak_tls(tmp_path: Path, authority: Authority) -> None:
    pair = authority.pair("process")
    file = tmp_path / "lines.txt"
    file.write_bytes(b"one\ntwo\n")
    command = (
        sys.executable, "-m", "penstock", "connector", "worker", "--json", "--listen", "127.0.0.1:0", "--http", "off",
        "--data-dir", str(tmp_path / "data"), "--tls-cert", str(pair.cert_file), "--tls-key", str(pair.key_file),
    )  # fmt: skip
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        to = ("--to", json.loads(worker.stdout.readline())["listen"], "--instance", "i")
        done = commanded("send", str(file), *to, "--tls-ca", str(authority.ca_file))
        assert (done.exit_code, done.output) == (0, "lines.txt: durable up to 8\n")
        refused = commanded("send", str(file), *to, "--tls")
        assert (refused.exit_code, "not to be trusted" in refused.output) == (1, True)
    finally:
        worker.terminate()
        assert worker.wait(60) == 0
    half = commanded("worker", "--tls-cert", str(pair.cert_file))
    assert (half.exit_code, "--tls-cert and --tls-key" in half.output) == (2, True)


def test_a_flood_of_connections_without_a_handshake_takes_no_more_than_its_share(
    tmp_path: Path, authority: Authority
) -> None:
    async def test(rig: Rig) -> None:
        rig.tls = tls_of(authority)
        worker = await rig.worker(max_sessions=5, hello_timeout=1)
        flood = [await rig.peer(worker, hello=False) for _ in range(30)]
        async with asyncio.timeout(0.8):
            for each in flood[5:]:
                assert await each.next() is None
        assert not any(each.closed for each in flood[:5])
        await connector([worker.me.address], [Numbers("s", 100)], authority.ca_file).serve()
        assert worker.counters.messages == 100

    rigged(tmp_path / "d", test)


def test_who_speaks_tls_to_one_who_does_not_is_told_so(tmp_path: Path, authority: Authority) -> None:
    hello = fr.Hello("0.0.1", COOKIE, "test", "i")

    async def test(rig: Rig) -> None:
        plain = await rig.worker("plain")
        with pytest.raises(LinkLostError, match="what answers does not speak TLS"):
            await connect(plain.me.address, hello, ClientTls(authority.ca_file).ssl_context())
        assert "this looks like TLS" in plain.counters.recent[-1]
        rig.tls = tls_of(authority)
        secret = await rig.worker("secret")
        with pytest.raises(LinkLostError, match="did not answer; if it speaks TLS, say --tls"):
            await connect(secret.me.address, hello)

    rigged(tmp_path / "d", test)
