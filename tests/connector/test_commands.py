"""`penstock connector send`, `status` and `migrate` against workers that are processes: output, exit codes, advice."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.connector.rig import frames_of
from tests.servers.ports import free_port

from penstock.cli import cli
from penstock.connector import directory
from penstock.connector import frames as fr
from penstock.connector.frames import Message
from penstock.connector.framing import Splitter
from penstock.connector.registry import Owner
from penstock.connector.settings import split
from penstock.journal.client import AsyncClient, JournalError
from penstock.journal.embedded import EmbeddedBroker, connect

PENSTOCK = (sys.executable, "-m", "penstock")
WAIT = 60.0


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@dataclass
class Place:
    """Two workers over one data directory."""

    path: Path
    addresses: list[str]

    @property
    def data(self) -> tuple[str, str]:
        return "--data-dir", str(self.path / "data")

    @property
    def cookie(self) -> tuple[str, str]:
        return "--cookie-file", str(self.path / "cookie")

    def sending(self, instance: str, *arguments: str) -> list[str]:
        return [
            *("connector", "send", "--to", self.addresses[0], "--to", self.addresses[1]),
            *("--instance", instance, *self.cookie, *arguments),
        ]

    def bodies(self, instance: str) -> list[bytes]:
        with connect(self.path / "data") as client:
            journal = f"connectors/{instance}"
            found = frames_of(client.read_bytes(journal, 0, client.head(journal)))
        return [bytes(frame.body) for frame in found if isinstance(frame, Message)]

    def durable(self, instance: str) -> list[bytes]:
        """As `bodies`; nothing while the journal is not there."""
        try:
            return self.bodies(instance)
        except JournalError:
            return []


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    path = tmp_path_factory.mktemp("place")
    (path / "cookie").write_text("secret\n")
    made = Place(path, [])
    running: list[subprocess.Popen[str]] = []
    try:
        for name in ("a", "b"):
            command = (
                *PENSTOCK, "connector", "worker", "--json", "--listen", "127.0.0.1:0", "--name", name,
                *made.cookie, *made.data,
            )  # fmt: skip
            running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stdout = running[-1].stdout
            assert stdout is not None
            made.addresses.append(json.loads(stdout.readline())["listen"])
        yield made
    finally:
        for process in reversed(running):
            process.terminate()
            assert process.wait(WAIT) == 0


def penstock(*arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PENSTOCK, *arguments], input=given, capture_output=True, text=True, timeout=WAIT, check=False
    )


def inside(*arguments: str) -> Result:
    """In this process, which is quicker."""
    return CliRunner().invoke(cli, list(arguments), prog_name="penstock")


def test_send_ends_when_all_is_durable_and_a_second_time_adds_nothing(place: Place) -> None:
    file = place.path / "access.log"
    file.write_bytes(b"one\ntwo\nthree\n")
    done = penstock(*place.sending("web", str(file)))
    assert (done.returncode, done.stdout, done.stderr) == (0, "access.log: durable up to 14\n", "")
    again = inside(*place.sending("web", str(file), "--json"))
    assert (again.exit_code, json.loads(again.output)) == (
        0,
        {"instance": "web", "durable": {"access.log": 14}},
    )
    piped = penstock(*place.sending("web", "--stream", "boot"), given="four\nfive\n")
    assert (piped.returncode, piped.stdout) == (0, "boot: durable up to 2\n")
    assert place.bodies("web") == [b"one", b"two", b"three", b"four", b"five"]


def test_send_takes_lines_as_they_come_and_ends_when_told_though_the_pipe_is_open(place: Place) -> None:
    command = [*PENSTOCK, *place.sending("piped", "--stream", "live")]
    running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    assert running.stdin is not None
    running.stdin.write("one\ntwo\nthr")
    running.stdin.flush()
    eventually(lambda: place.durable("piped") == [b"one", b"two"])
    running.terminate()
    assert running.wait(WAIT) == 0, "what the pipe does is nothing to wait for"
    running.communicate()


PATIENT = (
    "from penstock.cli import connector_sending; connector_sending._LAST_ACKS = 60.0; "
    "from penstock.__main__ import main; main()"
)
"""The command, with more time behind a signal than a busy machine can need."""
BUSY = "import time\nwhile True:\n print('line', flush=True)\n time.sleep(0.001)"


def test_send_of_a_busy_pipe_that_is_told_to_end_has_sent_all_that_it_had_read(place: Place) -> None:
    """It always ended with 1, as more came that nobody sent."""
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as busy:
        command = [sys.executable, "-c", PATIENT, *place.sending("busy", "--stream", "live", "--json")]
        running = subprocess.Popen(command, stdin=busy.stdout, stdout=subprocess.PIPE, text=True)
        try:
            eventually(lambda: len(place.durable("busy")) > 100)
            running.send_signal(signal.SIGINT)
            out, _ = running.communicate(timeout=WAIT)
        finally:
            running.kill()
            busy.kill()
    assert running.returncode == 0
    sent = place.bodies("busy")
    assert set(sent) == {b"line"}
    assert json.loads(out) == {"instance": "busy", "durable": {"live": len(sent)}}


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["nowhere.log"], 2, ["there is no nowhere.log"]),
        (["{path}/caf\udce9.log"], 2, ["is not UTF-8", "--stream NAME"]),
        (["--to", "nonsense", "--stream", "s"], 2, ["expected HOST:PORT", "127.0.0.1:7110"]),
        (["--to", "127.0.0.1:0", "--stream", "s"], 2, ["nobody listens at port 0"]),
        (["--to", "..:7110", "--stream", "s"], 2, ["expected HOST:PORT"]),
        (["--instance", "../x", "--stream", "s"], 1, ["no instance can be called '../x'"]),
        (["--cookie-file", "{path}/other", "--stream", "s"], 1, ["Bad cookie", "--cookie-file"]),
        (["--cookie-file", "{path}/empty", "--stream", "s"], 2, ["empty", "put a secret into it"]),
        (
            ["--to", "127.0.0.1:{free}", "--patience", "0", "--stream", "s"],
            1,
            ["no worker answered", "start one"],
        ),
    ],
)
def test_what_send_cannot_do_it_says_with_what_to_do(
    place: Place, arguments: list[str], code: int, told: list[str]
) -> None:
    (place.path / "other").write_text("guess")
    (place.path / "empty").write_text("")
    (place.path / "caf\udce9.log").write_text("")
    given = [each.format(path=place.path, free=free_port()) for each in arguments]
    plain = ["--to", place.addresses[0], "--instance", "i", *place.cookie]
    left = [each for at in range(0, len(plain), 2) if plain[at] not in given for each in plain[at : at + 2]]
    done = inside("connector", "send", *left, *given)
    assert done.exit_code == code
    for text in told:
        assert text in done.output
    assert "unexpected" not in done.output


def test_status_shows_workers_sessions_and_streams(place: Place) -> None:
    file = place.path / "status.log"
    file.write_bytes(b"one\n")
    assert inside(*place.sending("shown", str(file))).exit_code == 0
    done = penstock("connector", "status", *place.data, "--json")
    assert done.returncode == 0
    workers = {each["address"]: each for each in json.loads(done.stdout)}
    assert {each["name"] for each in workers.values() if each["answers"]} == {"a", "b"}
    streams = [
        each for worker in workers.values() for each in worker["streams"] if each["instance"] == "shown"
    ]
    assert [(each["name"], each["state"], each["last_acked"], each["ended"]) for each in streams] == [
        ("status.log", "inactive", 4, True)
    ]
    people = inside("connector", "status", *place.data)
    assert people.exit_code == 0
    assert all(f"at {address}: 0 sessions" in people.output for address in place.addresses)
    assert "status.log" in people.output


def test_status_without_a_broker_or_a_worker_says_so(tmp_path: Path) -> None:
    nothing = inside("connector", "status", "--data-dir", str(tmp_path / "none"))
    assert (nothing.exit_code, "name one, or a broker with --broker" in nothing.output) == (2, True)
    with EmbeddedBroker(tmp_path / "empty"):
        assert inside("connector", "status", "--data-dir", str(tmp_path / "empty")).output == "no worker\n"


def test_status_finds_workers_whatever_prefix_their_journals_have(tmp_path: Path) -> None:
    async def enter(address: str, prefix: str, name: str, http: str = "") -> None:
        async with AsyncClient(address) as client:
            entry = directory.Entry(Owner(name, "127.0.0.1:1", name), http)
            await directory.enter(client, prefix, entry, replication=1, store="file:///")

    def told(*arguments: str) -> list[tuple[str, str]]:
        done = inside("connector", "status", "--broker", broker.address, "--json", *arguments)
        return [(each["name"], each["journals"]) for each in json.loads(done.output)]

    with EmbeddedBroker(tmp_path / "data") as broker:
        asyncio.run(enter(broker.address, "connectors", "usual"))
        asyncio.run(enter(broker.address, "tenants/a", "other", "127.0.0.1:1"))
        assert told() == [("usual", "connectors"), ("other", "tenants/a")]
        assert told("--journals", "tenants/a") == [("other", "tenants/a")]
        assert told("--journals", "tenants/b") == []
        people = inside("connector", "status", "--broker", broker.address).output.splitlines()
    assert people == [
        "usual at 127.0.0.1:1: tells nothing (--http off)",
        "other at 127.0.0.1:1: does not answer, journals tenants/a/INSTANCE",
    ]


def test_migrate_moves_a_connector_that_goes_on_sending(place: Place) -> None:
    file = place.path / "moving.log"
    file.write_bytes(b"one\n")
    sender = subprocess.Popen(
        [*PENSTOCK, *place.sending("moving", str(file), "--follow")], stdout=subprocess.PIPE, text=True
    )
    try:
        eventually(lambda: at(place, "moving") == place.addresses[0])
        old, new = place.addresses
        command = ("connector", "migrate", "moving.log", "--to", new, *place.data)
        done = penstock(*command, *place.cookie, "--json")
        assert (done.returncode, json.loads(done.stdout)) == (
            0,
            {"instance": "moving", "from": old, "to": new},
        )
        eventually(lambda: at(place, "moving") == new)
        (deed,) = inside(
            "journals", "history", "connectors/moving", *place.data, "--json"
        ).output.splitlines()
        assert json.loads(deed)["outcome"] == f"moves from {old} to {new}"
        with file.open("ab") as more:
            more.write(b"two\n")
        eventually(lambda: place.bodies("moving") == [b"one", b"two"])
        sender.send_signal(signal.SIGTERM)
        assert sender.wait(WAIT) == 0
    finally:
        if sender.poll() is None:
            sender.kill()
            sender.wait()


def at(place: Place, instance: str) -> str | None:
    """The worker that has the instance's stream open."""
    done = inside("connector", "status", *place.data, "--json")
    for worker in json.loads(done.output):
        if any(each["instance"] == instance and each["state"] == "active" for each in worker["streams"]):
            return str(worker["address"])
    return None


@pytest.mark.parametrize(
    ("what", "to", "cookie", "code", "told"),
    [
        ("nothing", "{b}", True, 1, ["called 'nothing'", "penstock connector status"]),
        ("web", "nonsense", True, 2, ["expected HOST:PORT"]),
        ("web", "127.0.0.1:0", True, 2, ["nobody listens at port 0"]),
        ("web", "no host:7110", True, 2, ["expected HOST:PORT"]),
        ("web", "{b}", False, 1, ["refused: the cookie", "--cookie-file"]),
    ],
)
def test_what_migrate_cannot_do_it_says_with_what_to_do(
    place: Place, what: str, to: str, cookie: bool, code: int, told: list[str]
) -> None:
    target = to.format(b=place.addresses[1])
    secret = place.cookie if cookie else ()
    done = inside("connector", "migrate", what, "--to", target, *place.data, *secret)
    assert done.exit_code == code
    for text in told:
        assert text in done.output


def test_migrate_without_workers_says_so(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "empty"):
        done = inside(
            "connector", "migrate", "i", "--to", "127.0.0.1:1", "--data-dir", str(tmp_path / "empty")
        )
    assert done.exit_code == 1
    assert "no worker answers" in done.output
    assert "start one" in done.output


def said(address: str, *frames: fr.Frame) -> None:
    """What a peer of any make says, each frame once the one before was answered."""
    splitter = Splitter()
    with socket.create_connection(split(address), WAIT) as peer:
        for frame in frames:
            peer.sendall(fr.encode(frame))
            while data := peer.recv(65536):
                if any(not isinstance(fr.frame_of(one), fr.Ack) for one in splitter.feed(data)):
                    break


def test_no_text_of_a_peer_makes_a_line_or_a_row_of_its_own(place: Place) -> None:
    address, long = place.addresses[0], "x" * 60_000
    hello = fr.Hello("0.0.1", b"secret", "pro\ngram", "forged")
    said(
        address, hello, fr.Notify(1, "two\nlines\tand a tab", 0), fr.Notify(2, long, 0),
        fr.Error("bye\n  worker at 1.2.3.4:1: 9 sessions \x1b[31m"),
    )  # fmt: skip
    people = inside("connector", "status", *place.data).output
    assert r"  connector of forged: bye\n  worker at 1.2.3.4:1: 9 sessions \x1b[31m" in people.splitlines()
    assert r"two\nlines\tand a tab" in people
    assert f"{'x' * 80}..." in people
    assert "x" * 81 not in people
    workers = json.loads(inside("connector", "status", *place.data, "--json").output)
    names = {stream["name"] for worker in workers for stream in worker["streams"]}
    assert {"two\nlines\tand a tab", long} <= names


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_send_that_is_ended_before_all_is_durable_says_so(place: Place, number: signal.Signals) -> None:
    file = place.path / f"cut-{number.name}.log"
    file.write_bytes(b"line\n" * 3)
    nowhere = ("--to", f"127.0.0.1:{free_port()}", "--instance", "cut", *place.cookie, str(file))
    code, out, err = told(number, "send", *nowhere)
    assert (code, out) == (1, f"{file.name}: nothing is durable\n")
    assert f"stopped, and not all of '{file.name}' is durable" in err
    code, out, err = told(number, "send", *nowhere, "--follow", "--json")
    assert (code, json.loads(out)) == (1, {"instance": "cut", "durable": {}, "behind": [file.name]})


def told(number: int, *command: str) -> tuple[int, str, str]:
    """What a sender that reaches nobody says when it is told to end."""
    running = subprocess.Popen(
        [*PENSTOCK, "connector", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stderr is not None
    assert "trying again" in running.stderr.readline()
    running.send_signal(number)
    out, err = running.communicate(timeout=WAIT)
    return running.returncode, out, err
