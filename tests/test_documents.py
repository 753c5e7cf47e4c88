"""The documents stay true where a machine can tell: links, names of tests, commands, options, settings."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import click
import pytest

from penstock.cli import cli
from penstock.pipeline.settings import PipelineSettings

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def outside_of_code(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The names that headings have as link targets."""
    headings = re.findall(r"^#+ (.*)$", outside_of_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", outside_of_code(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


@pytest.mark.parametrize("page", ["guarantees.md", "testing.md", "types.md", "connector-sinks.md"])
def test_the_tests_that_a_page_names_are_there(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:tests/)?((?:[a-z]+/)?test_\w+\.py)`", text)) - {"test_notebook.py"}
    there = {str(path.relative_to(ROOT / "tests")) for path in (ROOT / "tests").rglob("test_*.py")}
    there |= {Path(path).name for path in there}
    assert named
    assert named <= there


def test_every_command_is_on_the_page_for_operators() -> None:
    table = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = table.partition("\n## Commands\n")[2].partition("\n### ")[0]
    for name, command in cli.commands.items():
        rows = [row for row in table.splitlines() if re.match(rf"\| `.*\b{re.escape(name)}\b", row)]
        assert rows, name
        if isinstance(command, click.Group):
            for sub in command.commands:
                assert any(re.search(rf"\b{re.escape(sub)}\b", row) for row in rows), f"{name} {sub}"


def test_options_of_run_and_settings_of_a_pipeline_are_on_their_page() -> None:
    page = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    running = page.partition("\n## Running\n")[2]
    for option in cli.commands["run"].params:
        if isinstance(option, click.Option):
            assert any(f"`{name}" in running or f" {name}" in running for name in option.opts), option.opts
    table = page.partition("\n## Settings\n")[2].partition("\n### ")[0]
    for setting in dataclasses.fields(PipelineSettings):
        assert f"`{setting.name}`" in table, setting.name
