"""Find a class that somebody names: `FILE.py:CLASS`, or `package.module:CLASS`.

Two files of the same name, an old and a new version say, can be loaded side by side.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from penstock.base.errors import UsageError, did_you_mean
from penstock.immortal.binding.app import Immortal, spec_of


def load_class(place: str) -> type[Immortal]:
    """The immortal class at a place."""
    where, _, name = place.rpartition(":")
    if not where:
        where, name = place, ""
    module = _from_file(Path(where)) if where.endswith(".py") else _by_name(where)
    found = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Immortal) and value.__module__ == module.__name__
    }
    if not name and len(found) == 1:
        name = next(iter(found))
    if name not in found:
        what = (
            f"no immortal class '{name}' in {where}"
            if name
            else f"{where} defines {len(found)} immortal classes"
        )
        raise UsageError(f"{what}{did_you_mean(name, found)}", hint="name it: FILE:CLASS")
    spec_of(found[name])
    return found[name]


def _by_name(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(f"no module '{name}': {error}", hint="FILE.py:CLASS names a file") from error


def _from_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    name, count = path.stem, 1
    while name in sys.modules and getattr(sys.modules[name], "__file__", None) != str(path):
        count += 1
        name = f"{path.stem}_{count}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    module.__dict__["__immortal_file__"] = path.stem
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
