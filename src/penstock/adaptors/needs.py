"""Libraries that only some adaptors need: an import that says what to install if it is not there."""

from __future__ import annotations

import importlib
from types import ModuleType

from penstock.base.errors import UsageError


def need(module: str, extra: str) -> ModuleType:
    """Import `module`, which `penstock[extra]` brings."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"adaptor '{extra}' needs the module '{module}', which is not here: {error}",
            hint=f"install it with `pip install 'penstock[{extra}]'`",
        ) from None
