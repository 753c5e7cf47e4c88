"""A pipeline written as YAML, with the words of the Python form.

    pipeline: shop                            Pipeline("shop", log_limit="20GB")
    settings: {log_limit: 20GB}
    source:                                   db = shop.source("db", a.sqlite(uri="sqlite://shop.db"), ns="orders")
      name: db
      adaptor: sqlite
      settings: {uri: "sqlite://shop.db"}
      ns: orders
      then:
        - save: audit                         db.save("audit", a.file(uri="file://audit.jsonl"), on_error="dead-letter")
          adaptor: file
          settings: {uri: "file://audit.jsonl"}
          on_error: dead-letter
        - transform: slim                     slim = db.transform("slim", f.pick(fields=["id"]))
          function: pick
          settings: {fields: [id]}
          then:
            - save: ids                       slim.save("ids", a.file(uri="file://ids.jsonl"))
              ...

Instead of `function` and `settings` a transformation may have `sql: TEXT`, or one of `python`, `arrow` and `dataframe`
with `module:function`, a function in a module that Python can import; modules beside the file come first.

The file is data: nothing in it runs, tags are refused, keys that come twice as well, and every error says its line.
Both forms go through the same calls, so what is refused there is refused here, and what comes out is equal.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from penstock import adaptors, functions
from penstock.adaptors.base import Adaptor
from penstock.base.errors import UsageError, did_you_mean
from penstock.base.settings import settings_of
from penstock.base.yamltext import MAX_BYTES, Node, Scalar, fail, mapping, parse, plain, sequence, text
from penstock.base.yamltext import Mapping as Keys
from penstock.pipeline import definition
from penstock.pipeline.definition import Pipeline

_PIPELINE = ("pipeline", "settings", "source")
_SOURCE = ("name", "adaptor", "settings", "ns", "then")
_SAVE = ("save", "adaptor", "settings", "ns", "on_error", "max_lag")
_TRANSFORM = ("transform", "function", "settings", "ns", "then", "sql", "python", "arrow", "dataframe")
_REFERENCES = ("python", "arrow", "dataframe")
_WAYS = ("function", "sql", *_REFERENCES)

_REFERENCE = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)")
_SETTING = re.compile(r"setting '([^'.\[]+)")


def read_pipeline(path: Path) -> Pipeline:
    """The pipeline of a YAML file."""
    try:
        document = parse(_text_of(path))
        if document is None or (isinstance(document, Scalar) and document.is_null):
            raise fail(1, "the file is empty", hint="begin with: 'pipeline: NAME'")
        return _pipeline(path, mapping(document, "a pipeline"))
    except UsageError as error:
        placed = error.message.startswith("line ")
        raise UsageError(f"{path}{', ' if placed else ': '}{error.message}", hint=error.hint) from None


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1).decode("utf-8-sig")
    except FileNotFoundError:
        raise UsageError("there is no such pipeline file", hint="see `penstock init --help`") from None
    except OSError as error:
        raise UsageError(f"cannot read the pipeline file: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8 text (byte {error.start})") from None


def _pipeline(path: Path, keys: Keys) -> Pipeline:
    _only(keys, "a pipeline", _PIPELINE)
    name = text(_needed(keys, "pipeline", "a pipeline", "pipeline: shop"), "'pipeline'")
    given = _settings(keys)
    with _at_setting(keys, "pipeline"):
        if "name" in given:  # which is an argument in Python, but no setting
            raise UsageError("unknown setting 'name'", hint="the name stands behind 'pipeline'")
        pipeline = Pipeline(name, **cast("Any", given))
    source = mapping(_needed(keys, "source", "a pipeline", "source: {name: db, adaptor: sqlite}"), "'source'")
    _source(path, pipeline, source)
    if not pipeline.sink_nodes:
        raise fail(
            keys.lines["source"],
            "there is no sink, so nothing would leave the source",
            hint="add one under 'then', as in '- save: audit'",
        )
    return pipeline


def _source(path: Path, pipeline: Pipeline, keys: Keys) -> None:
    _only(keys, "a source", _SOURCE, _own_settings(keys))
    name = text(_needed(keys, "name", "a source", "name: db"), "'name'")
    adaptor = _adaptor(keys, f"source '{name}'")
    with _at(keys.line, keys.lines):
        node = pipeline.source(name, adaptor, **_pattern(keys))
    _branches(path, node, keys)


def _branches(path: Path, node: definition.Node, keys: Keys) -> None:
    """What stands under `then`."""
    for item in sequence(keys.items["then"], "'then'") if "then" in keys.items else ():
        branch = mapping(item, "what comes after a node")
        if "save" in branch.items:
            _save(node, branch)
        elif "transform" in branch.items:
            _transform(path, node, branch)
        else:
            found = next(iter(branch.items), "")
            guess = did_you_mean(found, ("save", "transform")) if found else ""
            raise fail(branch.line, f"expected 'save: NAME' or 'transform: NAME', got '{found}'{guess}")


def _save(node: definition.Node, keys: Keys) -> None:
    name = text(keys.items["save"], "'save'")
    if "then" in keys.items:
        raise fail(
            keys.lines["then"],
            f"sink '{name}': nothing comes after a sink",
            hint="put it under the 'then' of the node before it",
        )
    _only(keys, f"sink '{name}'", _SAVE, _own_settings(keys))
    adaptor = _adaptor(keys, f"sink '{name}'")
    more = {word: plain(keys.items[word]) for word in ("on_error", "max_lag") if word in keys.items}
    with _at(keys.lines["save"], keys.lines):
        node.save(name, adaptor, **_pattern(keys), **cast("Any", more))


def _transform(path: Path, node: definition.Node, keys: Keys) -> None:
    name = text(keys.items["transform"], "'transform'")
    where = f"transformation '{name}'"
    _only(keys, where, _TRANSFORM)
    ways = [word for word in _WAYS if word in keys.items]
    if len(ways) != 1:
        raise fail(
            keys.line,
            f"{where}: expected one of {', '.join(_WAYS)}, got {' and '.join(ways) or 'none'}",
            hint="as in 'function: pick' with its settings; see `penstock about`",
        )
    way, line = ways[0], keys.lines[ways[0]]
    if way != "function" and "settings" in keys.items:
        raise fail(keys.lines["settings"], f"{where}: '{way}' takes no settings")
    function = _function(where, keys) if way == "function" else _written(path, way, keys)
    with _at(line, keys.lines):
        behind = node.transform(name, function, **_pattern(keys))
    _branches(path, behind, keys)


def _own_settings(keys: Keys) -> set[str]:
    """What the adaptor of a node would take under `settings`, to tell a word that is in the wrong place."""
    kind = adaptors.ALL.get(text(keys.items["adaptor"], "'adaptor'")) if "adaptor" in keys.items else None
    return {known.name for known in settings_of(kind)} if kind else set()


def _adaptor(keys: Keys, where: str) -> Adaptor:
    kind = text(_needed(keys, "adaptor", where, "adaptor: file"), "'adaptor'")
    if kind not in adaptors.ALL:
        raise fail(
            keys.lines["adaptor"],
            f"{where}: there is no adaptor '{kind}'{did_you_mean(kind, adaptors.ALL)}",
            hint="see `penstock about`",
        )
    make: Callable[..., Adaptor] = getattr(adaptors, kind)
    given = _settings(keys)
    with _at_setting(keys, "adaptor"):
        return make(**given)


def _function(where: str, keys: Keys) -> Any:
    name = text(keys.items["function"], "'function'")
    if name in ("sql", *_REFERENCES):
        raise fail(keys.lines["function"], f"{where}: write '{name}:' instead of 'function: {name}'")
    if name not in functions.ALL:
        raise fail(
            keys.lines["function"],
            f"{where}: there is no function '{name}'{did_you_mean(name, functions.ALL)}",
            hint="see `penstock about`; one of your own is 'python: module:function'",
        )
    make: Callable[..., object] = getattr(functions, name)
    given = _settings(keys)
    with _at_setting(keys, "function"):
        return make(**given)


def _written(path: Path, way: str, keys: Keys) -> Any:
    """A function that the file holds, or names: SQL text, or something to import."""
    node, line = keys.items[way], keys.lines[way]
    given = text(node, f"'{way}'")
    with _at(line):
        found = given if way == "sql" else _imported(path, way, given)
        return found if way == "dataframe" else getattr(functions, way)(found)


def _imported(path: Path, way: str, reference: str) -> Any:
    from penstock.pipeline.loading import told_in_the_file

    parts = _REFERENCE.fullmatch(reference)
    if parts is None:
        raise UsageError(f"'{way}': expected module:function, got '{reference}'", hint="as in 'rules:clean'")
    try:
        found: Any = importlib.import_module(parts[1])
    except ModuleNotFoundError as error:
        if error.name not in (parts[1], parts[1].partition(".")[0]):
            raise told_in_the_file(path, error) from None
        raise UsageError(
            f"'{way}': there is no module '{parts[1]}'", hint=f"it is looked for beside {path.name} first"
        ) from None
    except Exception as error:
        raise told_in_the_file(path, error) from error
    for attribute in parts[2].split("."):
        if not hasattr(found, attribute):
            known = [name for name in vars(found) if not name.startswith("_")]
            raise UsageError(f"'{way}': '{parts[1]}' has no '{attribute}'{did_you_mean(attribute, known)}")
        found = getattr(found, attribute)
    return found


def _settings(keys: Keys) -> dict[str, object]:
    if "settings" not in keys.items:
        return {}
    given = mapping(keys.items["settings"], "'settings'")
    return cast("dict[str, object]", plain(given))


def _pattern(keys: Keys) -> dict[str, str]:
    return {"ns": text(keys.items["ns"], "'ns'")} if "ns" in keys.items else {}


def _only(keys: Keys, what: str, words: Sequence[str], settings: set[str] | None = None) -> None:
    for word in keys.items:
        if word in words:
            continue
        if settings and word in settings:
            raise fail(
                keys.lines[word],
                f"{what}: '{word}' is a setting of its adaptor",
                hint="put it under 'settings'",
            )
        raise fail(keys.lines[word], f"{what}: unknown word '{word}'{did_you_mean(word, words)}")


def _needed(keys: Keys, word: str, what: str, example: str) -> Node:
    found = keys.items.get(word)
    if found is None or (isinstance(found, Scalar) and found.is_null):
        line = keys.lines.get(word, keys.line)
        raise fail(line, f"{what}: '{word}' is missing", hint=f"as in '{example}'")
    return found


@contextmanager
def _at(line: int, lines: Mapping[str, int] | None = None) -> Iterator[None]:
    """Say where: at the line of the word that the complaint is about, of those in `lines`, else at `line`."""
    try:
        yield
    except UsageError as error:
        for word, sign in (("ns", "namespace pattern"), ("on_error", "'on_error'"), ("max_lag", "'max_lag'")):
            if lines and word in lines and sign in error.message:
                line = lines[word]
        raise fail(line, error.message, hint=error.hint) from None


@contextmanager
def _at_setting(keys: Keys, word: str) -> Iterator[None]:
    """Say where: at the line of the setting that the complaint is about, else at the line of `word`."""
    try:
        yield
    except UsageError as error:
        line = keys.lines[word]
        settings = keys.items.get("settings")
        named = _SETTING.search(error.message)
        if named and isinstance(settings, Keys):
            line = settings.lines.get(named[1], keys.lines["settings"])
        hint = "put it in quotes" if "expected str, got" in error.message else error.hint
        raise fail(line, error.message, hint=hint) from None
