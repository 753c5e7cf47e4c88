"""More of clusters as processes, each with brokers of its own: a primary that wrote what nobody else got, links with a
delay, an etcd with users, and signals. The longer ones are for the long runs.
"""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.servers.etcd import PASSWORD, ServerFiles, running
from tests.servers.proxy import Proxy

from penstock.base.errors import PenstockError
from penstock.cli import cli
from penstock.journal.auth import ALLOW_MISSING, FixedToken, keys_from, sign
from penstock.journal.claims import Capability, Claims
from penstock.journal.client import AsyncClient, Client
from penstock.journal.labels import parse_selector
from penstock.journal.tls import ClientTls

from ..authority import Authority, Pair
from .checker import spooled
from .processes import Running, cluster, until

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(300)]

JOURNAL = "a/journal"


def test_what_only_a_killed_primary_had_is_set_aside_and_reported_when_it_returns(tmp_path: Path) -> None:
    """Its own disk has the append, no peer has; the others go on over the same offsets."""
    with cluster(tmp_path / "cluster", links=True) as four:
        four.create(JOURNAL)
        primary, *replicas = four.members(JOURNAL)
        with four[primary].client() as client:
            end = client.append(JOURNAL, b"all have this").end
        for name in replicas:
            _link(four, name).stall()
        losing = threading.Thread(target=_append, args=(four, primary, b"only I have this"), daemon=True)
        losing.start()
        until(lambda: any(b"only I have this" in committed for committed in _committed(four, primary)))
        four[primary].kill()
        losing.join(60)
        for name in replicas:
            _link(four, name).cut()  # what was under way is lost with it
            _link(four, name).heal()
        until(lambda: _appended(four, replicas[0], b"this instead"))
        four[primary].start()
        # Somebody else goes, so that it is needed again.
        assert four[replicas[1]].stop() == 0
        until(lambda: primary in four.members(JOURNAL))
        four.settled(JOURNAL)
        for name in four.members(JOURNAL):
            with four[name].client() as client:
                content = client.read_bytes(JOURNAL, 0, client.head(JOURNAL))
            assert content[:end] == b"all have this"
            assert b"this instead" in content
            assert b"only I" not in content
        assert [b"only I have this" in path.read_bytes() for path in four[primary].set_aside()] == [True]
        assert "is not what the journal has" in four[primary].log.read_text()
        assert not any(b"only I" in path.read_bytes() for path in four.store.rglob("*.raw"))


def _link(four: Running, name: str) -> Proxy:
    link = four[name].link
    assert link is not None
    return link


def _committed(four: Running, name: str) -> list[bytes]:
    """What is in the spools of a broker, and would still be there after a crash."""
    spools = (four[name].directory / "spools" / JOURNAL / "#").glob("*.spool")
    return [spooled(path, JOURNAL)[2] for path in spools]


def _append(four: Running, name: str, content: bytes) -> None:
    with suppress(PenstockError), four[name].client() as client:
        client.append(JOURNAL, content, timeout=30)


def _appended(four: Running, name: str, content: bytes) -> bool:
    with four[name].client() as client:
        client.append(JOURNAL, content, timeout=5)
    return True


@pytest.mark.soak
def test_soak_twenty_appends_at_once_take_one_round_trip_of_a_slow_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One begins a moment after the other, so that nothing but their overlapping can save round trips.

    The best of some rounds, since the machine may have other things to do in between.
    """
    with cluster(tmp_path / "cluster", "abc", links=True, delay=0.05) as three:
        three.create(JOURNAL)
        primary = three.members(JOURNAL)[0]

        async def took(appends: int) -> float:
            async with AsyncClient(three[primary].address) as client:
                await client.append(JOURNAL, b"builds the pipeline")
                begin = time.monotonic()

                async def append(number: int) -> None:
                    await asyncio.sleep(number * 0.005)
                    await client.append(JOURNAL, b"%d" % number)

                await asyncio.gather(*(append(number) for number in range(appends)))
                return time.monotonic() - begin

        one, twenty = (min(asyncio.run(took(appends)) for _ in range(5)) for appends in (1, 20))
        with capsys.disabled():
            print(f"\n50 ms each way to peers: one append {one:.3f} s, twenty at once {twenty:.3f} s")  # noqa: T201 - for whoever runs it
        assert one >= 0.1
        assert twenty < 0.3, "20 of them one by one would be 2 s"


def test_brokers_speak_tls_to_etcd_to_each_other_and_to_clients_with_certificates_on_both_sides(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path, "authority")
    server, broker, client = (authority.pair(name) for name in ("etcd", "broker", "client"))
    etcd_files = ServerFiles(server.cert_file, server.key_file, authority.ca_file, ask_clients=True)
    options = ["--cert-file", str(broker.cert_file), "--key-file", str(broker.key_file)]
    options += ["--client-ca-file", str(authority.ca_file), *_shown(authority, broker, "--etcd-", "--peer-")]
    tls = ClientTls(authority.ca_file, client.cert_file, client.key_file)
    with (
        running(tmp_path / "etcd", tls=etcd_files) as etcd,
        cluster(tmp_path / "cluster", "ab", etcds=[etcd], options=options, tls=tls) as two,
    ):
        assert etcd.uri.startswith("https://")
        two.create(JOURNAL, replication=2)
        assert all(one.startswith("https://") for one in two.listed(JOURNAL).route.endpoints)
        for name in "ab":  # one of them passes it on
            with two[name].client() as there:
                there.append(JOURNAL, name.encode())
        for name in "ab":
            with two[name].client() as there:
                assert there.read_bytes(JOURNAL, 0, 2) == b"ab"
        with (
            Client(two["a"].address, tls=ClientTls(authority.ca_file)) as stranger,
            pytest.raises(PenstockError),
        ):
            stranger.list()
        shown = CliRunner().invoke(
            cli,
            ["cluster", "status", "--json", "--etcd", etcd.uri, *_shown(authority, client, "--etcd-", "--")],
        )
        assert json.loads(shown.output)["well"], shown.output


def test_any_broker_tells_where_all_journals_end_as_their_primaries_know_it(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{base64.b64encode(bytes(32)).decode()} {ALLOW_MISSING}")
    keys.chmod(0o600)
    names = [f"log/{number}" for number in range(9)]
    with cluster(tmp_path / "cluster", "abc", options=["--auth-keys", f"@{keys}"]) as three:
        for name in names:
            three.create(name, replication=1)
        with three["a"].client() as client:
            ends = {name: client.append(name, bytes(number)).end for number, name in enumerate(names)}
        primaries = {name: three.members(name)[0] for name in names}
        assert set(primaries.values()) == set("abc")
        limited = Claims(Capability.LIST | Capability.READ, parse_selector("name in (log/1, log/2, log/3)"))
        token = sign(keys_from(f"@{keys}"), limited, now=time.time(), lifetime=60)
        for broker in three.brokers.values():
            with broker.client() as client:
                assert client.heads() == ends
                assert client.heads(parse_selector("name in (log/3, log/4)")) == {"log/3": 3, "log/4": 4}
            with Client(broker.address, tokens=FixedToken(token)) as client:
                assert client.heads() == {"log/1": 1, "log/2": 2, "log/3": 3}
        three["c"].freeze()
        with three["a"].client() as client:
            assert client.heads() == {name: ends[name] for name in names if primaries[name] != "c"}
        three["c"].thaw()


def _shown(authority: Authority, pair: Pair, *prefixes: str) -> list[str]:
    """The options that have one certificate shown to several servers of an authority."""
    files = {"ca-file": authority.ca_file, "cert-file": pair.cert_file, "key-file": pair.key_file}
    return [
        part for prefix in prefixes for name, file in files.items() for part in (prefix + name, str(file))
    ]


def test_etcd_with_users_is_joined_with_a_password_and_not_without(tmp_path: Path) -> None:
    with running(tmp_path / "etcd") as etcd:
        etcd.enable_authentication()
        with cluster(tmp_path / "cluster", "", etcds=[etcd], options=("--etcd-user", "root")) as none:
            broker = none.add("a", "x", options=("--etcd-user", "root"))
            broker.environment["PENSTOCK_ETCD_PASSWORD"] = "wrong"
            broker.begin()
            assert broker.wait() == 1
            assert "authentication failed" in broker.log.read_text()
            broker.environment["PENSTOCK_ETCD_PASSWORD"] = PASSWORD
            broker.start()
            none.create(JOURNAL, replication=1)
            assert PASSWORD not in broker.log.read_text()
            assert broker.stop() == 0, "nobody can take over: it leaves all the same"
            broker.log.unlink()
            broker.start()
            etcd.freeze()  # the way out begins with a word to etcd, and waits for it
            broker.send(signal.SIGTERM)
            until(lambda: "on the way out" in broker.log.read_text())
            broker.send(signal.SIGTERM)
            assert broker.wait() == 128 + signal.SIGTERM
