"""Namespaces of tests leave nothing behind on the machine, and where they cannot be made nothing of them is passed."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from tests.servers import namespaces as module
from tests.servers.namespaces import _ip, namespaces

LISTENING = """
import socket, sys
server = socket.create_server(("0.0.0.0", 0))
print(server.getsockname()[1], flush=True)
connection = server.accept()
sys.stdin.read()
"""


def left(tag: str) -> list[str]:
    """What the machine still has of those that were made under a tag."""
    listed = _ip("-brief", "link") + _ip("netns", "list")
    return [line for line in listed.splitlines() if line.startswith(tag)]


def test_a_machine_that_was_cut_off_in_the_midst_of_a_connection_leaves_no_cable() -> None:
    """What it had to say at its end cannot get out, so the kernel keeps its namespace for minutes."""
    with namespaces("a") as spaces:
        space = spaces["a"]
        tag = space.enter[-1][:-1]
        assert left(tag)
        command = [*space.enter, sys.executable, "-c", LISTENING]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as far:
            assert far.stdout is not None
            port = int(far.stdout.readline())
            with socket.create_connection((space.among_others, port), 60):
                space.cut()
                far.kill()
                far.wait()
    assert left(tag) == []


@pytest.mark.parametrize("verb", ["netns", "-n"])
def test_one_that_cannot_be_made_is_missing_and_leaves_nothing(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, ...]] = []

    def failing(*arguments: str) -> str:
        made.append(arguments)
        if arguments[0] == verb and "delete" not in arguments:
            raise subprocess.CalledProcessError(1, "ip", stderr="not here")
        return _ip(*arguments)

    with namespaces("a"):
        pass  # where they cannot be made at all, that is said here
    monkeypatch.setattr(module, "_ip", failing)
    for ci, told in (("true", pytest.fail.Exception), ("", pytest.skip.Exception)):
        monkeypatch.setenv("CI", ci)
        with pytest.raises(told, match="there is no network namespace here: not here"), namespaces("a"):
            raise AssertionError("made")
    tags = {arguments[2][:6] for arguments in made if arguments[:2] == ("link", "add")}
    assert tags
    assert [line for tag in tags for line in left(tag)] == []
