"""Interchangeable parts: the folder of a package is its registry. It imports one part, never all."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from types import ModuleType

from edgeopt.errors import NotFoundError


def names(package: ModuleType) -> list[str]:
    """Return the file names in `package`, plus what installed packages offer under its name."""
    ours = [one.name for one in iter_modules(package.__path__) if not one.name.startswith("_")]
    return sorted({*ours, *entry_points(group=package.__name__).names})


def load(package: ModuleType, name: str) -> ModuleType:
    """Import the one part called `name`; the others stay unimported.

    Raises:
        NotFoundError: If neither the folder nor an installed package offers it.
    """
    known = names(package)
    if name not in known:
        raise NotFoundError(package.__name__.split(".")[-1].removesuffix("s"), name, known)
    for entry in entry_points(group=package.__name__, name=name):
        return import_module(entry.value)
    return import_module(f"{package.__name__}.{name}")
