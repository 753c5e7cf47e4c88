"""The layout of `DESIGN.md`: who may import whom, and what the documents must not say.

    cli -> console -> pipeline -> spark -> adaptors, functions -> connector, immortal -> log -> journal -> base

A room may import the rooms to its right, never its neighbours or those to its left. `testing` may import all
and is imported by none.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock

PACKAGE = Path(penstock.__file__).parent
REPOSITORY = Path(__file__).parents[1]

FLOORS = (
    ("cli",),
    ("console",),
    ("pipeline",),
    ("spark",),
    ("adaptors", "functions"),
    ("connector", "immortal"),
    ("log",),
    ("journal",),
    ("base",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
SPARK_ROOMS = {"spark", "pipeline", "testing"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def module_name(file: Path) -> str:
    parts = ("penstock", *file.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """The room of a module of Penstock; empty for the house itself, whose front door is `__main__`."""
    room = [*module.split("."), ""][1]
    return "" if room == "__main__" else room


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Every module that a file imports, wherever in it and for whatever purpose, with the line."""
    package = module_name(file) if file.name == "__init__.py" else module_name(file).rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            # `from penstock import log` names a module; `from penstock.log import x` may.
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def complaint(file: Path, imported: str) -> str | None:
    """Why this import breaks the rule, if it does."""
    room, target = room_of(module_name(file)), room_of(imported)
    if imported.split(".")[0] == "pyspark":
        return None if room in SPARK_ROOMS else f"'{room}' may not import pyspark"
    if imported.split(".")[0] != "penstock" or not room or room in ("testing", target):
        return None
    if target == "testing":
        return "nobody imports testing"
    if target not in FLOOR:
        return None if room in ("cli", "console") else "only the top floors import the house itself"
    return None if FLOOR[target] > FLOOR[room] else f"'{room}' may not import '{target}'"


@pytest.mark.parametrize("file", MODULES, ids=module_name)
def test_imports_point_one_way(file: Path) -> None:
    room = room_of(module_name(file))
    assert not room or room in FLOOR or room == "testing", f"'{room}' is not a room of DESIGN.md"
    broken = [f"line {line}: {why}" for line, name in imports(file) if (why := complaint(file, name))]
    assert not broken


@pytest.mark.parametrize(
    ("room", "imported", "allowed"),
    [
        ("cli", "penstock.pipeline.plan", True),
        ("cli", "penstock.base.errors", True),
        ("cli", "penstock.__version__", True),
        ("cli", "penstock.console", True),
        ("console", "penstock.cli", False),
        ("pipeline", "penstock.cli", False),
        ("pipeline", "pyspark.sql", True),
        ("adaptors", "penstock.functions.base", False),
        ("adaptors", "pyspark", False),
        ("functions", "penstock.log.message", True),
        ("functions", "penstock.Pipeline", False),
        ("log", "penstock.spark", False),
        ("journal", "penstock.testing.faults", False),
        ("testing", "penstock.cli", True),
        ("base", "penstock.base.errors", True),
        ("base", "json", True),
    ],
)
def test_the_rule_itself(room: str, imported: str, allowed: bool) -> None:
    assert (complaint(PACKAGE / room / "module.py", imported) is None) is allowed


def test_relative_imports_are_seen_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    (tmp_path / "log").mkdir()
    file = tmp_path / "log" / "x.py"
    file.write_text(
        "from ..spark import session\nfrom . import message\nfrom .. import cli\ndef f():\n    import a.b\n"
    )
    assert [name for _, name in imports(file)] == [
        "penstock.spark.session",
        "penstock.log.message",
        "penstock.cli",
        "a.b",
    ]


def test_importing_penstock_does_not_import_spark() -> None:
    code = "import sys, penstock, penstock.cli; sys.exit('pyspark' in sys.modules or 'py4j' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, check=True, timeout=60)


DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])

REGISTRIES = re.compile(
    r"pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)|maven\.(?:org|apache\.org)|crates\.io|--(?:extra-)?index-url"
    r"|https?://\S+/simple\b"
)
MACHINE_PATHS = re.compile(r"(?<![\w.~-])/(?:work|home|root|Users|mnt|private)/[\w.-]+")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: str(file.relative_to(REPOSITORY)))
@pytest.mark.parametrize("foreign", [REGISTRIES, MACHINE_PATHS], ids=["registries", "machine paths"])
def test_documents_hold_on_any_machine(document: Path, foreign: re.Pattern[str]) -> None:
    lines = document.read_text(encoding="utf-8").splitlines()
    assert [(number, line) for number, line in enumerate(lines, 1) if foreign.search(line)] == []


@pytest.mark.parametrize("text", ["see /home/me/x", "cd /work/main", "(/root/.cache)", "`/Users/me/shop.db`"])
def test_machine_paths_are_recognised(text: str) -> None:
    assert MACHINE_PATHS.search(text)


@pytest.mark.parametrize(
    "text", ["src/work/x", "/var/lib/penstock", "a/home/b", "https://host/home/x", "./root/x"]
)
def test_ordinary_paths_are_not(text: str) -> None:
    assert not MACHINE_PATHS.search(text)
