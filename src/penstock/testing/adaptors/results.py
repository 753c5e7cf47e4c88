"""What the kit found, kept in a file, and the table for the documentation that is made from it.

    pytest -p penstock.testing.adaptors.results --conformance docs/conformance.json tests/adaptors
    python -m penstock.testing.adaptors.results docs/conformance.json docs/adaptors.md

The first command runs tests and keeps what they came to for each adaptor and aspect, with the server that it ran
against; adaptors that it did not test stay in the file as they are. The second one puts the tables between the two
marks of the document.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from penstock.base.errors import UsageError
from penstock.testing.adaptors.aspects import Aspect, Told

BEGIN, END = "<!-- conformance -->", "<!-- /conformance -->"

SOURCES = (
    Aspect.COPY, Aspect.TAIL, Aspect.RESUME, Aspect.HAND_OVER, Aspect.ONCE, Aspect.UPDATES, Aspect.DELETES, Aspect.KEYS,
    Aspect.TYPES, Aspect.SCHEMA, Aspect.RESTART,
)  # fmt: skip
SINKS = (
    Aspect.WRITE, Aspect.ONCE, Aspect.UPDATES, Aspect.DELETES, Aspect.KEYS, Aspect.TYPES, Aspect.SCHEMA,
    Aspect.REFUSALS, Aspect.RESTART,
)  # fmt: skip


class Outcome(msgspec.Struct):
    """Of one aspect: how many tests passed and failed, and what was declared, with its reasons."""

    passed: int = 0
    failed: int = 0
    declared: list[str] = []

    @property
    def word(self) -> str:
        if self.failed:
            return "**fails**"
        if not self.passed:
            return "no"
        return "partly" if self.declared else "yes"


class Ran(msgspec.Struct):
    """One side of an adaptor."""

    adaptor: str
    side: str
    server: str
    once: str
    aspects: dict[str, Outcome] = {}

    def word(self, aspect: Aspect) -> str:
        outcome = self.aspects.get(aspect.value, Outcome())
        if aspect is not Aspect.ONCE or outcome.failed:
            return outcome.word
        resumed = self.aspects.get(
            Aspect.RESUME.value, Outcome()
        )  # of a source that only copies, this tells it
        if not outcome.passed and not resumed.passed:
            return outcome.word
        return "yes" if self.once == "exactly once" else self.once


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--conformance", type=Path, metavar="FILE", help="keep what the conformance kit finds here"
    )


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--conformance")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(path), "penstock conformance")


class Recorder:
    """Listens to the tests, and writes at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[tuple[str, str], Ran] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = next((value for name, value in report.user_properties if name == "conformance"), None)
        if told is None or (report.when != "call" and report.passed):
            return
        if report.when == "teardown" and not report.failed:
            return
        self.add(msgspec.convert(told, Told), report.outcome, _reason(report))

    def add(self, told: Told, outcome: str, reason: str) -> None:
        """Take the outcome of one test."""
        if not told.aspect:
            return
        new = Ran(told.adaptor, told.side, told.server, told.once)
        tested = self._found.setdefault((told.adaptor, told.side), new)
        found = tested.aspects.setdefault(told.aspect, Outcome())
        if outcome == "passed":
            found.passed += 1
        elif outcome == "failed":
            found.failed += 1
        elif reason not in found.declared:
            found.declared.append(reason)

    def pytest_sessionfinish(self) -> None:
        if not self._found:
            return
        kept = {(one.adaptor, one.side): one for one in load(self._path)} if self._path.exists() else {}
        save(self._path, (kept | self._found).values())


def _reason(report: pytest.TestReport) -> str:
    """Of a test that was skipped: the words of the declaration."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    return text.removeprefix("Skipped: ").partition(": ")[2]


def load(path: Path) -> list[Ran]:
    return msgspec.json.decode(path.read_bytes(), type=list[Ran])


def save(path: Path, tested: Iterable[Ran]) -> None:
    """In an order that does not depend on that of the tests, so that a difference is one."""
    content = sorted(tested, key=lambda one: (one.adaptor, one.side))
    for one in content:
        one.aspects = dict(sorted(one.aspects.items()))
        for outcome in one.aspects.values():
            outcome.declared.sort()
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")


def tables(tested: Sequence[Ran]) -> str:
    """The tables as Markdown: sources, sinks, and what was declared."""
    sources = [one for one in tested if one.side == "source"]
    sinks = [one for one in tested if one.side == "sink"]
    parts = [_table("source", SOURCES, sources), _table("sink", SINKS, sinks), "\n".join(_notes(tested))]
    return "\n\n".join(part for part in parts if part)


def _table(title: str, columns: Sequence[Aspect], tested: Sequence[Ran]) -> str:
    if not tested:
        return ""
    lines = [
        f"| {title} | ran against | {' | '.join(column.value for column in columns)} |",
        f"|---|---|{'---|' * len(columns)}",
    ]
    for one in tested:
        words = " | ".join(one.word(column) for column in columns)
        lines.append(f"| {one.adaptor} | {one.server or 'no server needed'} | {words} |")
    return "\n".join(lines)


def _notes(tested: Sequence[Ran]) -> Iterator[str]:
    """Why something is `no` or `partly`, each reason once for an adaptor."""
    for one in tested:
        reasons: dict[str, list[str]] = {}
        for aspect in SOURCES if one.side == "source" else SINKS:
            for reason in one.aspects.get(aspect.value, Outcome()).declared:
                reasons.setdefault(reason, []).append(aspect.value)
        if reasons:
            told = "; ".join(f"{', '.join(aspects)}: {reason}" for reason, aspects in reasons.items())
            yield f"- {one.adaptor} as a {one.side}: {told}."


def put_into(document: str, tested: Sequence[Ran]) -> str:
    """The document with the tables between its marks."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"the document has no place for the tables: expected {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{tables(tested)}\n{END}{after}"


def main(arguments: Sequence[str]) -> None:
    results, document = map(Path, arguments)
    document.write_text(put_into(document.read_text(encoding="utf-8"), load(results)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
