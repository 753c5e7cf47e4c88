"""Choosing among dead letters, and telling many of them in few lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.base.errors import UsageError, did_you_mean
from penstock.log.deadletters import DeadLetter
from penstock.pipeline.operations import Directory


@dataclass(frozen=True, slots=True)
class Reason:
    """Letters that died of the same thing: one sink, one node, one error."""

    sink: str
    node: str
    error: str
    numbers: tuple[int, ...]
    namespaces: tuple[str, ...]
    first_time: int
    last_time: int


def grouped(letters: Sequence[DeadLetter]) -> list[Reason]:
    """The letters by reason, the most frequent first."""
    groups: dict[tuple[str, str, str], list[DeadLetter]] = {}
    for letter in letters:
        groups.setdefault((letter.sink, letter.node, letter.error), []).append(letter)
    reasons = [
        Reason(
            sink=sink,
            node=node,
            error=error,
            numbers=tuple(letter.number for letter in group),
            namespaces=tuple(sorted({letter.ns for letter in group})),
            first_time=min(letter.time for letter in group),
            last_time=max(letter.time for letter in group),
        )
        for (sink, node, error), group in groups.items()
    ]
    return sorted(reasons, key=lambda reason: (-len(reason.numbers), reason.numbers))


def of_sink(directory: Directory, pipeline: str, sink: str | None) -> list[DeadLetter]:
    """All letters, or those of one sink; a sink that nobody knows is refused."""
    letters = directory.dead(pipeline)
    if sink is None:
        return letters
    known = {letter.sink for letter in letters} | set(directory.sinks(pipeline))
    if sink not in known:
        raise UsageError(f"there is no sink '{sink}'{did_you_mean(sink, known)}")
    return [letter for letter in letters if letter.sink == sink]


def numbered(letters: Sequence[DeadLetter], numbers: Sequence[int], pipeline: str) -> list[DeadLetter]:
    """The letters with these numbers, all of which must be there."""
    known = {letter.number: letter for letter in letters}
    for number in numbers:
        if number not in known:
            raise UsageError(
                f"there is no dead letter {number} of '{pipeline}'", hint="`penstock dead list` shows them"
            )
    return [known[number] for number in dict.fromkeys(numbers)]


def replayable(letters: Sequence[DeadLetter], *, meant: bool) -> list[DeadLetter]:
    """Those that can be sent. What never was a message is refused if it was `meant`, and left out of all there are."""
    misfits = [letter for letter in letters if letter.place is not None]
    found = [letter for letter in letters if letter.place is None]
    if misfits and (meant or not found):
        first = misfits[0]
        raise UsageError(
            f"dead letter {first.number} cannot be replayed: source '{first.sink}' could make no message of it "
            f"({first.place}: {first.error})",
            hint="mend it at the source, where it is read as new; `penstock dead drop` gives the letter up",
        )
    return found


def still_dead(
    letters: Sequence[DeadLetter], pipeline: str, numbers: Sequence[int], sink: str | None
) -> list[DeadLetter]:
    """Those meant by number, else of a sink, else all; refuses one that was replayed or dropped already."""
    if numbers:
        chosen = numbered(letters, numbers, pipeline)
        for letter in chosen:
            if letter.state != "dead":
                raise UsageError(f"dead letter {letter.number} was {letter.state} already")
        return chosen
    found = [letter for letter in letters if letter.state == "dead" and sink in (None, letter.sink)]
    if not found:
        whose = f" of sink '{sink}'" if sink else ""
        raise UsageError(f"there are no dead letters{whose}")
    return found
