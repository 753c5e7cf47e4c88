"""Pipeline files: read, run, and told about with file and line.

A `.py` file is a program of its own: it may import modules that lie beside it, and every pipeline that one of its
variables leads to can be chosen by name. A `.yaml` or `.yml` file says the same in YAML (`penstock.pipeline.yamlfile`).
Nothing connects while a file is read.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import linecache
import os
import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, ModuleType

from penstock import adaptors, functions
from penstock.base.errors import PenstockError, UsageError, did_you_mean
from penstock.base.variables import scope
from penstock.pipeline.definition import Node, Pipeline
from penstock.pipeline.saving import retry

YAML_SUFFIXES = (".yaml", ".yml")


def load_pipeline(
    path: Path,
    name: str | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> Pipeline:
    """The pipeline that a file defines: the only one, or the one called `name`.

    `settings` and `secrets` are what `${NAME}` and `${secret:NAME}` in it may stand for, besides the environment
    (`penstock.base.settingsfile` reads them from files).
    """
    _import_from(path.resolve().parent)
    with scope(path.parent, settings, secrets):
        if path.suffix in YAML_SUFFIXES:
            from penstock.pipeline.yamlfile import read_pipeline

            pipeline, module = read_pipeline(path), None
            pipelines = [pipeline]
        else:
            module = _run(path)
            pipelines = _pipelines_of(module)
    pipeline = _chosen(path, pipelines, name)
    pipeline.check()
    pipeline.modules = modules_beside(path, module)
    pipeline.file = f"{path.resolve()}:{pipeline.name}"
    return pipeline


def _import_from(directory: Path) -> None:
    """Modules that lie beside the file come before all others."""
    if str(directory) in sys.path:
        sys.path.remove(str(directory))
    sys.path.insert(0, str(directory))


def _run(path: Path) -> ModuleType:
    code = _compile(path)
    module = _fresh_module(path)
    try:
        exec(code, module.__dict__)
    except (Exception, SystemExit) as error:
        raise told_in_the_file(path, error) from error
    return module


def _compile(path: Path) -> CodeType:
    try:
        text = importlib.util.decode_source(path.read_bytes())
        return compile(text, str(path), "exec", dont_inherit=True)
    except FileNotFoundError:
        raise UsageError(
            f"there is no pipeline file {path}",
            hint="make one with `penstock init SOURCE SINK`; see `penstock about`",
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read the pipeline file {path}: {error.strerror}") from None
    except SyntaxError as error:
        line = f"\n    {error.text.strip()}" if error.text else ""
        raise UsageError(f"{path}, line {error.lineno or 1}: {error.msg}{line}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not Python text: {error}") from None


def _fresh_module(path: Path) -> ModuleType:
    """An empty module for the file, known to Python so that classes in it find their own module.

    The name is one that no worker process can import by accident; see `Pipeline.modules`.
    """
    digest = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:8]
    module = ModuleType(f"penstock_pipeline_{digest}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    linecache.checkcache(str(path))
    return module


def _pipelines_of(module: ModuleType) -> list[Pipeline]:
    """Every pipeline that a variable of the file leads to, once, in the file's order."""
    found: dict[int, Pipeline] = {}
    for value in vars(module).values():
        if isinstance(value, Node):
            value = value.pipeline
        if isinstance(value, Pipeline):
            found[id(value)] = value
    return list(found.values())


def _chosen(path: Path, pipelines: list[Pipeline], name: str | None) -> Pipeline:
    if not pipelines:
        raise UsageError(f"{path} defines no pipeline", hint='start with: shop = Pipeline("shop")')
    names = [pipeline.name for pipeline in pipelines]
    for given in names:
        if names.count(given) > 1:
            raise UsageError(f"{path} defines two pipelines named '{given}'", hint="give each its own name")
    if name is None and len(pipelines) > 1:
        raise UsageError(
            f"{path} defines {len(pipelines)} pipelines: {', '.join(names)}",
            hint=f"say which one: {path}:{names[0]}",
        )
    for pipeline in pipelines:
        if name is None or pipeline.name == name:
            return pipeline
    raise UsageError(f"{path} has no pipeline '{name}'{did_you_mean(name or '', names)}")


def modules_beside(path: Path, module: ModuleType | None) -> tuple[str, ...]:
    """The file's own module, if it is one, and those it imported from its directory."""
    directory = path.resolve().parent
    beside = [module.__name__] if module else []
    for name, other in list(sys.modules.items()):
        file = Path(getattr(other, "__file__", None) or "")
        home = file.parent.parent if file.name == "__init__.py" else file.parent
        own = name in (*beside, "__main__", "penstock")
        if file.name and "." not in name and not own and home.resolve() == directory:
            beside.append(name)
    return tuple(beside)


def told_in_the_file(path: Path, error: BaseException) -> UsageError:
    """What went wrong, and where in the file or in a module beside it: the innermost line a person wrote."""
    place, line = str(path), None
    for frame in traceback.extract_tb(error.__traceback__):
        beside = Path(frame.filename).resolve().parent == path.resolve().parent
        if beside and not frame.filename.startswith("<"):  # as Python calls code that has no file
            place, line = f"{frame.filename}, line {frame.lineno}", frame.line
    if isinstance(error, SyntaxError):
        place, line = f"{error.filename}, line {error.lineno}", (error.text or "").strip()
    shown = f"\n    {line}" if line else ""
    if isinstance(error, PenstockError):
        return UsageError(f"{place}: {error.message}{shown}", hint=error.hint)
    if isinstance(error, SystemExit):
        return UsageError(f"{place}: the file ended itself with exit({error.code}){shown}")
    text, hint = f"{type(error).__name__}: {error}", None
    if isinstance(error, TypeError) and "missing 1 required positional argument" in str(error):
        hint = 'a node\'s name comes first, as in node.save("audit", a.file(uri="file://audit.jsonl"))'
    if isinstance(error, TypeError) and "takes 0 positional arguments" in str(error):
        hint = 'settings are given by name, as in a.file(uri="file://audit.jsonl")'
    if isinstance(error, TypeError) and (unknown := _UNKNOWN.search(str(error))):
        text = f"{unknown[1]}() has no '{unknown[2]}'{did_you_mean(unknown[2], _ARGUMENTS[unknown[1]])}"
    if isinstance(error, AttributeError):
        text += _suggestion(error)
    return UsageError(f"{place}: {text}{shown}", hint=hint)


def _suggestion(error: AttributeError) -> str:
    """What was meant by a word that one of ours does not have: an adaptor, a function, a call of a node."""
    word: object = error.name
    if not isinstance(word, str):
        return ""
    if error.obj in (adaptors, functions):
        return did_you_mean(word, error.obj.__all__)
    if isinstance(error.obj, (Pipeline, Node)):
        return did_you_mean(word, [name for name in dir(error.obj) if not name.startswith("_")])
    return ""


_ARGUMENTS = {
    call.__name__: [name for name in inspect.signature(call).parameters if name != "self"]
    for call in (Pipeline.source, Node.transform, Node.save, retry)
}
_UNKNOWN = re.compile(rf"({'|'.join(_ARGUMENTS)})\(\) got an unexpected keyword argument '(\w+)'")
"""Python's own complaint about a misspelt argument; it has no suggestion in all versions."""
