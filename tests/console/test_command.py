"""`penstock console` as it is typed."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import cli

from .asking import Asker
from .places import stuck
from .test_live import said, started


def test_it_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    place = stuck(tmp_path)
    with started(
        "console", "shop.py", "--data-dir", "data", "--listen", "127.0.0.1:0", "--json", cwd=tmp_path
    ) as one:
        said(one, tmp_path / "out", "{")
        told = json.loads((tmp_path / "out").read_text())
        ask = Asker(told["console"])
        ask.come_in()
        assert told["place"] == str(place.data)
        plan = ask("/api/pipelines/shop/plan", {"action": "step", "sink": "sales"}).value
        assert plan["command"] == f"penstock step {tmp_path}/shop.py sales --data-dir data"
        assert plan["reason"] is None
        one.send_signal(signal.SIGTERM)
        assert one.wait() == 0
    assert (tmp_path / "err").read_text() == ""


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--listen", "0.0.0.0:0"], "everybody could read and change"),
        (["--listen", "0.0.0.0:0", "--token", "long-enough-secret"], "in the open"),
        (["--token", "short"], "at least 12 are needed"),
        (["--token", "@nothing"], "cannot read the token from nothing"),
        (["nothing.py"], "there is no pipeline file nothing.py"),
    ],
)
def test_what_is_wrong_is_told_at_once(
    arguments: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["console", *arguments])
    assert result.exit_code == 2
    assert complaint in result.stderr


@pytest.mark.parametrize(
    ("command", "option"),
    [(["console"], "--listen"), (["run", "shop.py", "--once", "--console"], "--console-listen")],
)
def test_a_port_that_is_taken_is_told_with_the_option_that_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], option: str
) -> None:
    stuck(tmp_path)
    monkeypatch.chdir(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = CliRunner().invoke(cli, [*command, "--data-dir", "data", option, listen])
    assert refused.exit_code == 2
    assert f"cannot listen on {listen}" in refused.stderr
    assert f"give another {option} HOST:PORT" in refused.stderr
