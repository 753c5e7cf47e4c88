"""The command as a process: exit codes, streams, speed; and help for each command."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import penstock
from penstock.cli import cli

from .conftest import Invoke
from .operating import Shop

SOURCE_ROOT = Path(penstock.__file__).parents[1]
START = "import sys; sys.argv[0] = 'penstock'; from penstock.cli import main; main()"


def penstock_process(
    *arguments: str, cwd: Path, code: str = START, **variables: str
) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    environment = {**kept, "PYTHONPATH": str(SOURCE_ROOT), **variables}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def every_command(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, command in sorted(group.commands.items()):
        found.append((*path, name))
        if isinstance(command, click.Group):
            found += every_command(command, (*path, name))
    return found


@pytest.mark.parametrize("command", every_command(cli), ids=" ".join)
def test_each_command_has_help_with_examples(invoke: Invoke, command: tuple[str, ...]) -> None:
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert f"penstock {' '.join(command)}" in result.stdout.partition("Examples:")[2]


def test_help_lists_commands_by_section_and_exit_codes(invoke: Invoke) -> None:
    shown = invoke("--help").stdout
    for text in ("A pipeline:", "Look:", "Operate:", "Exit codes:", "130  interrupted", "PENSTOCK_DATA_DIR"):
        assert text in shown
    for command in cli.commands:
        assert f"\n  {command} " in shown
    assert "..." not in shown.partition("A pipeline:")[2]


def without_help(command: click.Command, words: str = "penstock") -> list[str]:
    """The options below a command that do not say what they are for."""
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    silent = [f"{words} {one.opts[0]}" for one in options if not one.help]
    below = command.commands if isinstance(command, click.Group) else {}
    return silent + [found for name in below for found in without_help(below[name], f"{words} {name}")]


def test_every_option_says_what_it_is_for() -> None:
    assert without_help(cli) == []


def test_no_arguments_show_help_and_end_with_2(tmp_path: Path) -> None:
    done = penstock_process(cwd=tmp_path)
    assert done.returncode == 2
    assert "Start here:" in done.stderr + done.stdout


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_a_command_that_was_started_without_streams_does_its_work(
    shop: Shop, closed: tuple[int, ...]
) -> None:
    """Without an output `status` and `run` ended in an error of Python's, and a question without an input did."""
    redirected = " ".join(f"{number}{'<' if number == 0 else '>'}&-" for number in closed)
    script = f'exec "$@" {redirected}'
    for arguments, code in ((["status"], 0), (["offset", "mark", "audit", "0"], 2)):
        words = [sys.executable, "-c", START, *arguments, "--data-dir", str(shop.data)]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE_ROOT)}
        command = ["sh", "-c", script, "sh", *words]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, "unexpected" in done.stderr) == (code, False), done.stderr


def test_the_version_imports_nothing_heavy(tmp_path: Path) -> None:
    """What makes a command slow to start are its imports; a clock would only measure the machine."""
    done = penstock_process("--version", cwd=tmp_path)
    assert done.stdout == f"penstock {penstock.__version__}\n"
    look = "import sys, penstock.cli; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"pyspark", "pyarrow", "numpy", "pandas", "grpc", "py4j"} & set(loaded)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nonsense",), 2, "No such command 'nonsense'"),
        (("status", "--nonsense"), 2, "No such option"),
        (("status",), 2, "no data directory"),
        (("plan", "none.py"), 2, "there is no pipeline file"),
        (("init", "sqlite"), 2, "Missing argument"),
        (("run", "none.py", "--cores", "0"), 2, "'--cores': 0 is not in the range"),
    ],
)
def test_what_was_asked_wrongly_ends_with_2_and_leaves_stdout_alone(
    tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = penstock_process(*arguments, cwd=tmp_path)
    assert done.returncode == code
    assert words in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def failing(error: str) -> str:
    """A program in which `about` fails with this error."""
    return f"import penstock.cli.catalogue as c\ndef fail(*_): raise {error}\nc.entries = fail\n{START}"


def test_a_broker_that_does_not_answer_is_told_with_the_variable_that_named_it(tmp_path: Path) -> None:
    away = "http://127.0.0.1:1"
    named = penstock_process("status", cwd=tmp_path, PENSTOCK_BROKER=away)
    assert named.returncode == 1
    assert (
        "the address is that of PENSTOCK_BROKER: unset that to use the data directory's own" in named.stderr
    )
    typed = penstock_process("status", "--broker", away, cwd=tmp_path)
    assert typed.returncode == 1
    assert "Hint: see whether it is running\n" in typed.stderr


def test_an_unforeseen_error_is_told_shortly_and_in_full_when_asked(tmp_path: Path) -> None:
    code = failing("ValueError('odd')")
    done = penstock_process("about", cwd=tmp_path, code=code)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: unexpected ValueError: odd\nHint: ")
    assert "Traceback" not in done.stderr
    for full in (
        penstock_process("--debug", "about", cwd=tmp_path, code=code),
        penstock_process("about", cwd=tmp_path, code=code, PENSTOCK_DEBUG="1"),
    ):
        assert full.returncode == 1
        assert "Traceback" in full.stderr


LOADING = """
import sys
class Interrupt:
    def find_spec(self, name, *rest):
        if name == "penstock.cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from penstock.__main__ import main
main()
"""


def test_an_interrupt_while_modules_are_loaded_ends_as_any_other(tmp_path: Path) -> None:
    ended = penstock_process("about", cwd=tmp_path, code=LOADING)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_an_interrupt_ends_with_130(tmp_path: Path) -> None:
    assert penstock_process("about", cwd=tmp_path, code=failing("KeyboardInterrupt")).returncode == 130


@pytest.mark.parametrize(("kind", "code"), [("RefusedError", 3), ("InUseError", 4), ("PenstockError", 1)])
def test_each_error_has_its_exit_code(tmp_path: Path, kind: str, code: int) -> None:
    program = "from penstock.base.errors import *\n" + failing(f"{kind}('what', hint='then')")
    done = penstock_process("about", cwd=tmp_path, code=program)
    assert done.returncode == code
    assert done.stderr == "Error: what\nHint: then\n"


def test_a_reader_that_goes_away_is_no_drama(tmp_path: Path) -> None:
    command = f'{sys.executable} -c "{START}" about --json | true'
    done = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "PYTHONPATH": str(SOURCE_ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr


def test_no_colour_away_from_a_terminal(invoke: Invoke, shop: Shop) -> None:
    for command in (("about",), ("status",), ("plan", "shop.py", "--offline"), ("status", "--pipeline", "x")):
        result = invoke(*command)
        assert "\x1b" not in result.output


def test_json_is_asked_for_before_or_behind_the_command(invoke: Invoke, shop: Shop) -> None:
    before, behind = invoke("--json", "offset", "list"), invoke("offset", "list", "--json")
    assert before.stdout == behind.stdout
    assert json.loads(before.stdout.splitlines()[0])["sink"] == "audit"


SPARKLESS = [
    ("--version",),
    ("--help",),
    ("about",),
    ("about", "file"),
    ("init", "sqlite", "file", "new.py"),
    ("plan", "shop.py", "--offline"),
    ("run", "none.py"),
    ("status",),
    ("xlog", "show", "0"),
    ("offset", "list"),
]


@pytest.mark.parametrize("arguments", SPARKLESS, ids=" ".join)
def test_commands_without_spark_do_not_import_it(
    tmp_path: Path, shop_file: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / ".penstock").mkdir()
    code = (
        "import sys; sys.argv[0] = 'penstock'\n"
        "from penstock.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    print('pyspark' in sys.modules, 'py4j' in sys.modules, file=sys.stderr)\n"
    )
    done = penstock_process(*arguments, cwd=tmp_path, code=code)
    assert done.stderr.splitlines()[-1] == "False False", done.stderr


def test_a_command_that_has_ended_looks_for_no_garbage(tmp_path: Path) -> None:
    code = f"import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 1000)); {START}"
    assert penstock_process("--version", cwd=tmp_path, code=code).stdout.splitlines()[-1] == "True"


FAKE_RUNNER = f"""
import sys, types
from penstock.pipeline.progress import NodeProgress, Progress, SinkSummary, Summary
def run(pipeline, *, report, **_):
    report(Progress("shop", 1.0, "running", 10, [NodeProgress("audit", "sink", "file", "running")]))
    return Summary("shop", 2.0, 10, 10, [SinkSummary("audit", 10, 10, 0, 0, 0, 10, "file://audit")], True, 3)
sys.modules["penstock.pipeline.runner"] = types.ModuleType("runner")
sys.modules["penstock.pipeline.runner"].run = run
{START}
"""


def on_a_terminal(*arguments: str, cwd: Path, **variables: str) -> tuple[int, str]:
    """Run a command on a pseudo terminal; returns its exit code and all that it showed."""
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    environment = {**kept, "PYTHONPATH": str(SOURCE_ROOT), "TERM": "xterm", **variables}
    command = [sys.executable, "-c", FAKE_RUNNER, *arguments]
    shown = b""
    with subprocess.Popen(command, cwd=cwd, env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        with contextlib.suppress(
            OSError
        ):  # which is how Linux tells that nobody writes to a terminal any more
            while chunk := os.read(ours, 65536):
                shown += chunk
    os.close(ours)
    return process.returncode, shown.decode()


def test_on_a_terminal_run_shows_a_table_and_a_summary(tmp_path: Path, shop_file: Path) -> None:
    code, shown = on_a_terminal("run", "shop.py", "--once", cwd=tmp_path)
    assert code == 3
    assert "What to try next" not in shown, "what failed says by itself what to do"
    assert "\x1b[" in shown
    assert '"event"' not in shown


def test_on_a_terminal_json_is_json(tmp_path: Path, shop_file: Path) -> None:
    _, shown = on_a_terminal("run", "shop.py", "--once", "--json", cwd=tmp_path)
    assert [json.loads(line)["event"] for line in shown.splitlines()] == ["progress", "summary"]


def test_no_color_is_respected(tmp_path: Path, shop_file: Path) -> None:
    colours = re.compile(r"\x1b\[[0-9;]*[34][0-7]m")
    for command in (("about",), ("status",), ("run", "shop.py")):
        assert not colours.search(on_a_terminal(*command, cwd=tmp_path, NO_COLOR="1")[1])
    assert colours.search(on_a_terminal("status", cwd=tmp_path)[1])
