"""What the page asks for beyond the live picture: a sink in trouble, parts of the log, traces, letters, the record.

Each method blocks and answers with plain values; all of it comes from the operations that the commands use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from penstock.base.errors import PenstockError, UsageError
from penstock.base.secrets import mask
from penstock.console.answers import masked
from penstock.console.definitions import Definitions
from penstock.console.reaching import Reaching
from penstock.console.views import Json
from penstock.log.record import Record
from penstock.pipeline import tracing
from penstock.pipeline.browsing import Search, offset_at, page
from penstock.pipeline.definition import Pipeline
from penstock.pipeline.letters import grouped, numbered
from penstock.pipeline.namespace import Namespace
from penstock.pipeline.operations import Directory
from penstock.pipeline.recompute import AnyOf, Tapped, tapped
from penstock.pipeline.records import Passing, entry, passing

MOST_ENTRIES = 200
MOST_LETTERS = 500
_AROUND = 4
_AUDIT = 500
_SHOWN_BYTES = 256 << 10
"""Of a longer message, so much is shown."""


class Questions:
    """Answers about the pipelines of one place."""

    def __init__(self, reaching: Reaching, definitions: Definitions) -> None:
        self._reaching = reaching
        self._definitions = definitions

    def log(self, pipeline: str, asked: Mapping[str, str]) -> Json:
        """A page of the log: `from` an offset or `at` a time (us), `back`wards or not, of `ns`, with `text`."""
        count = min(_number(asked, "count", 50), MOST_ENTRIES)
        search = Search(Namespace(asked["ns"]) if asked.get("ns") else None, asked.get("text", ""))
        backwards = asked.get("back") == "1"
        with self._reaching.looking() as directory:
            current = directory.current(pipeline)
            start = _number(asked, "from", current if backwards else 0)
            if "at" in asked:
                start = offset_at(directory, pipeline, _number(asked, "at", 0))
            found = page(directory, pipeline, search, start=start, count=count, backwards=backwards)
            oldest = directory.oldest(pipeline)
        return {
            "entries": [_cut(msgspec.to_builtins(one)) for one in found.entries],
            "looked": found.looked,
            "more": found.more,
            "start": start,
            "oldest": oldest,
            "current": current,
        }

    def sink(self, pipeline: str, sink: str) -> Json:
        """Where a sink stands: the message before which it is, its neighbours, and what came of it so far."""
        with self._reaching.looking() as directory:
            directory.require_sink(pipeline, sink)
            held = directory.loaded(pipeline, sink)
            at, end = held.commit.watermark, directory.current(pipeline) + 1
            around: list[Json] = []
            if end:
                first, last = max(at - _AROUND, 0), min(at + _AROUND, end - 1)
                around = [
                    _cut(msgspec.to_builtins(entry(r))) for r in directory.reader(pipeline).show(first, last)
                ]
            control = directory.control(pipeline).state()
            file = self._definitions.file(pipeline, control)
            edits = [
                e for e in directory.audit(pipeline) if e.sink == sink and not e.action.startswith("run-")
            ]
        return {
            "sink": sink,
            "watermark": at,
            "end": end,
            "commit": msgspec.to_builtins(held.commit),
            "namespaces": [{"ns": ns, "offset": last} for ns, last in sorted(held.namespaces.items())[:500]],
            "around": around,
            "file": file,
            "history": [_edit(one) for one in edits[-50:]][::-1],
        }

    def trace(self, pipeline: str, offset: int) -> Json:
        """What became of one message at every node; functions only if the pipeline's file can be read."""
        with self._reaching.looking() as directory:
            control = directory.control(pipeline).state()
            definition, problem = self._definition(pipeline, directory)
            found = tracing.trace(directory, pipeline, offset, definition)
            file = self._definitions.file(pipeline, control)
        shown: Json = msgspec.to_builtins(found)
        return {**shown, "entry": _cut(shown["entry"]), "file": file, "problem": problem}

    def letters(self, pipeline: str, *, settled: bool) -> Json:
        """The dead letters by their reasons."""
        with self._reaching.looking() as directory:
            found = [one for one in directory.dead(pipeline) if settled or one.state == "dead"]
        groups = [
            {
                **msgspec.to_builtins(reason),
                "numbers": list(reason.numbers[:MOST_LETTERS]),
                "count": len(reason.numbers),
                "source": any(one.place is not None for one in found if one.number == reason.numbers[0]),
            }
            for reason in grouped(found)
        ]
        return {"groups": groups[:MOST_LETTERS], "count": len(found), "settled": settled}

    def letter(self, pipeline: str, number: int) -> Json:
        with self._reaching.looking() as directory:
            [found] = numbered(directory.dead(pipeline), [number], pipeline)
        return _cut(msgspec.to_builtins(found))

    def audit(self, pipeline: str) -> Json:
        """What operators did, and when runs began and ended; the newest first."""
        with self._reaching.looking() as directory:
            directory.reader(pipeline)
            found = [one for one in directory.audit(pipeline) if one.action != "run-beat"]
        return {"entries": [_edit(one) for one in found[-_AUDIT:]][::-1]}

    def tap(self, pipeline: str, node: str, side: str | None) -> Tapped:
        """A node to look at. The source needs no file: what passes it is the log."""
        with self._reaching.looking() as directory:
            control = directory.control(pipeline).state()
            graph = (control.run.graph if control.run else None) or {}
        nodes = graph.get("nodes")
        kinds = (
            {str(n["name"]): n["kind"] for n in nodes if isinstance(n, dict)}
            if isinstance(nodes, list)
            else {}
        )
        if node == "" or kinds.get(node) == "source":
            return Tapped(node, "source", "out", AnyOf(()))
        return tapped(self._definitions.load(pipeline, control), node, side)

    def passed(self, pipeline: str, at: Tapped, start: int | None) -> tuple[int, list[Json], dict[int, str]]:
        """What passes a node from offset `start` on (None: nothing yet): where to go on, the messages, refusals."""
        with self._reaching.looking() as directory:
            end = directory.current(pipeline) + 1
            if start is None or start >= end:
                return end, [], {}
            last = min(start + MOST_ENTRIES, end) - 1
            records: Sequence[Record] = list(directory.reader(pipeline).show(start, last))
        rows, refused = at.seen(records) if records else ([], {})
        shown: list[Passing] = list(rows) if at.kind != "source" else [passing(one) for one in records]
        return (
            last + 1,
            [_cut(msgspec.to_builtins(one)) for one in shown],
            {n: mask(text) for n, text in refused.items()},
        )

    def _definition(self, pipeline: str, directory: Directory) -> tuple[Pipeline | None, str | None]:
        try:
            return self._definitions.load(pipeline, directory.control(pipeline).state()), None
        except PenstockError as error:
            return None, mask(error.message)


def _number(asked: Mapping[str, str], name: str, default: int) -> int:
    text = asked.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"'{text}' is no number for '{name}'") from None


def _cut(message: object) -> Json:
    """The message, as far as a page can show it."""
    if not isinstance(message, dict):
        return {}
    data = message.get("data")
    if isinstance(data, str) and len(data) > _SHOWN_BYTES:
        return {**message, "data": data[:_SHOWN_BYTES], "cut": len(data)}
    return message


def _edit(one: object) -> Json:
    shown: Json = msgspec.to_builtins(one)
    detail = shown.get("detail")
    if isinstance(detail, dict):
        shown["detail"] = masked({name: value for name, value in detail.items() if name != "graph"})
    return {"sink": None, **shown}
