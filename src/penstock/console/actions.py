"""What an operator can do from the page. Each action is one of the command line, and says beforehand what it changes.

`plan` tells exactly what would happen, and whether it can happen now; `carry_out` does it, and leaves the record that
the command leaves, with the name of who did it. Nothing is done that `plan` refuses.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from penstock.base.errors import PenstockError, UsageError, did_you_mean
from penstock.base.secrets import mask
from penstock.base.units import counted
from penstock.console.definitions import Definitions
from penstock.console.reaching import Reaching
from penstock.console.stepping import Stepping, stepping
from penstock.log.control import STANDING, ControlState
from penstock.log.deadletters import DeadLetter
from penstock.pipeline import delivering, editing
from penstock.pipeline.clock import now_us
from penstock.pipeline.definition import Pipeline
from penstock.pipeline.letters import replayable, still_dead
from penstock.pipeline.moves import in_words, planned
from penstock.pipeline.operations import Directory
from penstock.pipeline.records import Acknowledged, Move, Replayed, RunStatus, Stepped

T = TypeVar("T")

_MOST_STEPS = 1000
_MOST_OFFSETS = 1000


class Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the page asks for."""

    action: str
    sink: str = ""
    offset: int | None = None
    offsets: tuple[int, ...] = ()
    count: int = 1
    numbers: tuple[int, ...] = ()
    to: str = ""
    """Of an instance that moves: the worker to go to."""
    journals: str = ""
    """Of an instance: the prefix of its journal."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What would happen. `reason` says why it cannot happen now."""

    title: str
    verb: str
    """What the button says."""
    changes: Sequence[str]
    command: str
    danger: bool = False
    reason: str | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What did happen. `ok` is False if a message was refused: then nothing but the record of it has changed."""

    ok: bool
    lines: Sequence[str]
    detail: object = field(default=None)


class Actions:
    """The actions on one place."""

    def __init__(self, reaching: Reaching, definitions: Definitions) -> None:
        self._reaching = reaching
        self._definitions = definitions

    def of(self, pipeline: str) -> PipelineActions:
        """Those on one pipeline."""
        return PipelineActions(self, pipeline)

    def plan(self, pipeline: str, wish: Wish) -> Plan:
        """What the wish would do."""
        with self._reaching.looking() as directory:
            make = _known(_PLANS, wish.action)
            control = directory.control(pipeline).state()
            file = self._definitions.file(pipeline, control)
            definition, missing = self._defined(pipeline, control, wish)
            plan = make(_Asked(directory, pipeline, wish, self._reaching.options, file, definition))
            run = directory.run(pipeline, now_us())
            state = directory.told_state(pipeline, wish.sink)
        if run is not None and wish.action not in _ANYTIME:
            if wish.action not in _WHILE_STANDING or state not in STANDING:
                return _refused(plan, *_while_running(pipeline, run))
            plan = replace(plan, changes=[*plan.changes, _THEN.format(sink=wish.sink)])
        if missing is not None:
            return _refused(plan, missing.message, missing.hint)
        return plan

    def _defined(
        self, pipeline: str, control: ControlState, wish: Wish
    ) -> tuple[Pipeline | None, PenstockError | None]:
        """The pipeline as its file has it now, for what goes by it; or why it cannot be had."""
        if wish.action not in _NEED_FILE:
            return None, None
        try:
            return self._definitions.load(pipeline, control), None
        except PenstockError as error:
            return None, error

    def carry_out(self, pipeline: str, wish: Wish, who: str) -> Outcome:
        """Do it; raises what the command would end with."""
        do = _known(_DEEDS, wish.action)
        return do(self, pipeline, wish, who)

    def _pause(self, pipeline: str, wish: Wish, who: str) -> Outcome:
        paused = wish.action == "pause"
        with self._reaching.looking() as directory:
            changed = editing.pause(directory, pipeline, wish.sink, who, paused=paused)
        if paused:
            return Outcome(True, [f"{wish.sink} is paused{'' if changed else ' already'}."])
        return Outcome(True, [f"{wish.sink} {'goes on' if changed else 'was not paused'}."])

    def _ack(self, pipeline: str, wish: Wish, who: str) -> Outcome:
        _require(bool(wish.offsets) and len(wish.offsets) <= _MOST_OFFSETS, "offsets to acknowledge")
        with self._reaching.editing(who) as editor:
            done: Acknowledged = editor.ack(pipeline, wish.sink, wish.offsets)
        lines = [f"{wish.sink}: offset {done.before} -> {done.after}"]
        if done.ahead:
            lines.append(f"Waiting for their turn: {', '.join(map(str, done.ahead))}")
        return Outcome(True, lines, msgspec.to_builtins(done))

    def _mark(self, pipeline: str, wish: Wish, who: str) -> Outcome:
        offset = _offset(wish)
        with self._reaching.editing(who) as editor:
            done: Move = editor.mark(pipeline, wish.sink, offset)
        if not done.changes:
            return Outcome(True, [f"{wish.sink} is at {offset} already."])
        return Outcome(
            True, [f"{wish.sink}: offset {done.before} -> {done.after}, generation {done.generation}"]
        )

    def _step(self, pipeline: str, wish: Wish, who: str) -> Outcome:
        _require(1 <= wish.count <= _MOST_STEPS, f"a count from 1 to {_MOST_STEPS}")
        bury = wish.action == "dead-letter"
        with self._reaching.editing(who) as editor:
            control = editor.directory.control(pipeline).state()
            definition = self._definitions.load(pipeline, control)
            done: list[Stepped] = list(delivering.step(editor, definition, wish.sink, wish.count, bury=bury))
        return Outcome(
            all(one.outcome != "refused" for one in done),
            [mask(one.words) for one in done],
            msgspec.to_builtins(done),
        )

    def _replay(self, pipeline: str, wish: Wish, who: str) -> Outcome:
        with self._reaching.editing(who) as editor:
            editor.require_still(pipeline)
            control = editor.directory.control(pipeline).state()
            definition = self._definitions.load(pipeline, control)
            letters = _chosen(editor.directory, pipeline, wish)
            sent = replayable(letters, meant=bool(wish.numbers))
            done: list[Replayed] = list(delivering.replay(editor, definition, sent))
        refused = [one for one in done if one.outcome == "refused"]
        lines = [f"{counted(len(done) - len(refused), 'message')} replayed, {len(refused)} refused again."]
        lines += [f"{one.number}: '{one.node}' refused it: {one.error}" for one in refused[:10]]
        return Outcome(not refused, [mask(line) for line in lines], msgspec.to_builtins(done))

    def _drop(self, pipeline: str, wish: Wish, who: str) -> Outcome:
        with self._reaching.editing(who) as editor:
            letters = _chosen(editor.directory, pipeline, wish)
            editor.drop_letters(pipeline, letters)
        return Outcome(True, [f"{counted(len(letters), 'dead letter')} given up."])


@dataclass(frozen=True, slots=True)
class PipelineActions:
    """The actions on one pipeline."""

    actions: Actions
    pipeline: str

    def plan(self, wish: Wish) -> Plan:
        return self.actions.plan(self.pipeline, wish)

    def carry_out(self, wish: Wish, who: str) -> Outcome:
        return self.actions.carry_out(self.pipeline, wish, who)


@dataclass(frozen=True, slots=True)
class _Asked:
    directory: Directory
    pipeline: str
    wish: Wish
    options: str
    file: str | None
    definition: Pipeline | None

    @property
    def sink(self) -> str:
        self.directory.require_sink(self.pipeline, self.wish.sink)
        return self.wish.sink

    def stepping(self) -> Stepping:
        return stepping(self.directory, self.pipeline, self.sink, self.definition)

    def command(self, *words: str) -> str:
        name = f" --pipeline {shlex.quote(self.pipeline)}" if words[0] not in ("step", "dead replay") else ""
        text = " ".join([words[0], *(shlex.quote(word) for word in words[1:])])
        return f"penstock {text}{name}{self.options}"

    @property
    def shown_file(self) -> str:
        return self.file or "FILE"


def _plan_pause(asked: _Asked) -> Plan:
    sink = asked.sink
    return Plan(
        f"Pause {sink}",
        "Pause",
        [
            f"{sink} ends the batch under way and takes nothing more until it is resumed, in this run and in later "
            "ones.",
            "Reading and the other sinks go on. The log keeps what it lacks.",
        ],
        asked.command("pause", sink),
    )


def _plan_resume(asked: _Asked) -> Plan:
    sink = asked.sink
    return Plan(
        f"Resume {sink}",
        "Resume",
        [f"{sink} goes on where its offset is, in the run that is under way or in the next one."],
        asked.command("resume", sink),
    )


def _plan_ack(asked: _Asked) -> Plan:
    sink, offsets = asked.sink, sorted(set(asked.wish.offsets))
    _require(bool(offsets), "offsets to acknowledge")
    at = asked.directory.loaded(asked.pipeline, sink).commit.watermark
    what = f"message {offsets[0]}" if len(offsets) == 1 else counted(len(offsets), "message")
    changes = [
        f"{what[0].upper()}{what[1:]} counts as acknowledged without being sent: {sink} never gets it."
        if len(offsets) == 1
        else f"{what} count as acknowledged without being sent: {sink} never gets them.",
        f"The offset of {sink} moves from {at - 1} to {at}; message {at + 1} is next."
        if offsets == [at]
        else f"The offset of {sink} is {at - 1}; what is not next waits for its turn.",
        "It counts as dropped. To keep it for later instead, send it to the dead letters.",
    ]
    return Plan(
        f"Pass over {what}",
        "Pass over it",
        changes,
        asked.command("offset ack", sink, *map(str, offsets)),
        danger=True,
    )


def _plan_mark(asked: _Asked) -> Plan:
    sink, offset = asked.sink, _offset(asked.wish)
    held = asked.directory.loaded(asked.pipeline, sink)
    move = planned(sink, held, offset, asked.directory.reader(asked.pipeline))
    changes = [in_words(move), f"The offset of {sink} moves from {move.before} to {move.after}."]
    if move.generation > held.commit.generation:
        changes.append(
            f"A new generation begins ({move.generation}): its target must not take what comes for a repetition. "
            "What the target does with rows that it has already is the target's affair."
        )
    reason = None if move.changes else f"{sink} is at {offset} already."
    return Plan(
        f"{'Rewind' if offset < move.before else 'Move'} {sink} to offset {offset}",
        "Rewind" if offset < move.before else "Move",
        changes,
        asked.command("offset mark", sink, "--", str(offset)),
        danger=True,
        reason=reason,
    )


def _plan_step(asked: _Asked) -> Plan:
    step, count = asked.stepping(), asked.wish.count
    what = f"message {step.at}" if count == 1 else f"up to {count} messages, from {step.at} on,"
    changes = [
        f"{what[0].upper()}{what[1:]} {'goes' if count == 1 else 'go'} through the functions to {step.names} now, "
        "by the pipeline file as it is at this moment.",
        "What the target takes is acknowledged. One that is refused stays the next one, and nothing else changes.",
    ]
    if step.together:
        changes.append(
            "They commit together: each message by one decision, to all of them that lack it, or to none."
        )
    more = ("-n", str(count)) if count > 1 else ()
    return Plan(
        f"Deliver {what.rstrip(',')} to {step.names}",
        "Deliver",
        changes,
        asked.command("step", asked.shown_file, asked.wish.sink, *more),
        reason=step.obstacle,
    )


def _plan_dead_letter(asked: _Asked) -> Plan:
    step = asked.stepping()
    changes = [
        f"Message {step.at} is tried once more. If it is delivered, all is well.",
        "If it is refused again, it is kept among the dead letters with its reason, and "
        f"{step.names} {'go' if step.together else 'goes'} on with message {step.at + 1}.",
        "A dead letter can be replayed later, long after the log let the message go.",
    ]
    if step.together:
        changes.append(
            "They commit together: what the target of one does not vote for is kept for all of them, what a function "
            "refuses for the sinks behind it."
        )
    return Plan(
        f"Send message {step.at} to the dead letters",
        "Keep for later",
        changes,
        asked.command("step", asked.shown_file, asked.wish.sink, "--dead-letter"),
        reason=step.obstacle,
    )


def _plan_replay(asked: _Asked) -> Plan:
    letters = replayable(_chosen(asked.directory, asked.pipeline, asked.wish), meant=bool(asked.wish.numbers))
    sinks = ", ".join(sorted({letter.sink for letter in letters}))
    return Plan(
        f"Replay {counted(len(letters), 'dead letter')}",
        "Replay",
        [
            f"{counted(len(letters), 'message')} will be sent through the functions to {sinks} again, behind what "
            "the sink has got meanwhile.",
            "No offset moves. One that is refused again stays a dead letter, with the new reason.",
            "Replay is at least once: after a crash in the middle, a letter may be sent a second time.",
        ],
        asked.command("dead replay", asked.shown_file, *_selected(asked.wish)),
    )


def _plan_drop(asked: _Asked) -> Plan:
    letters = _chosen(asked.directory, asked.pipeline, asked.wish)
    return Plan(
        f"Give up {counted(len(letters), 'dead letter')}",
        "Give up",
        [
            f"{counted(len(letters), 'message')} will never be sent.",
            "They can still be looked at among the settled letters, and cannot be replayed any more.",
        ],
        asked.command("dead drop", *_selected(asked.wish)),
        danger=True,
    )


def _selected(wish: Wish) -> Sequence[str]:
    if wish.numbers:
        return [str(number) for number in wish.numbers]
    return ["--sink", wish.sink] if wish.sink else ["--all"]


def _chosen(directory: Directory, pipeline: str, wish: Wish) -> list[DeadLetter]:
    return still_dead(directory.dead(pipeline), pipeline, wish.numbers, wish.sink or None)


def _offset(wish: Wish) -> int:
    if wish.offset is None:
        raise UsageError("an offset is missing", hint="-1 means everything again")
    return wish.offset


def _require(true: bool, what: str) -> None:
    if not true:
        raise UsageError(f"expected {what}")


def _while_running(pipeline: str, run: RunStatus) -> tuple[str, str]:
    return (
        f"'{pipeline}' is running (process {run.pid} on {run.host}), so it cannot be edited.",
        f"Stop it (Ctrl-C, or kill {run.pid}). While it runs a sink can be paused and resumed, and one that is paused "
        "or has stopped can be led past a message.",
    )


def _refused(plan: Plan, reason: str, hint: str | None) -> Plan:
    return Plan(plan.title, plan.verb, plan.changes, plan.command, plan.danger, reason, hint)


_PLANS: dict[str, Callable[[_Asked], Plan]] = {
    "pause": _plan_pause,
    "resume": _plan_resume,
    "ack": _plan_ack,
    "mark": _plan_mark,
    "step": _plan_step,
    "dead-letter": _plan_dead_letter,
    "replay": _plan_replay,
    "drop": _plan_drop,
}
_DEEDS: dict[str, Callable[[Actions, str, Wish, str], Outcome]] = {
    "pause": Actions._pause,
    "resume": Actions._pause,
    "ack": Actions._ack,
    "mark": Actions._mark,
    "step": Actions._step,
    "dead-letter": Actions._step,
    "replay": Actions._replay,
    "drop": Actions._drop,
}
_ANYTIME = {"pause", "resume"}
_WHILE_STANDING = {"step", "dead-letter", "ack"}
"""These work in a run as well, on a sink that it does not feed at the moment."""
_THEN = "The pipeline runs, and does not feed {sink} now. When you are done, resume it: the run then goes on with it."
_NEED_FILE = {"step", "dead-letter", "replay"}


def _known(table: Mapping[str, T], action: str) -> T:
    if action not in table:
        raise UsageError(f"there is no action '{action}'{did_you_mean(action, table)}")
    return table[action]
