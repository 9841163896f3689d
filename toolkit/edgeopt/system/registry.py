"""Interchangeable parts: the folder of a package is its registry. It imports one part, never all."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from edgeopt.errors import NotFoundError


def names(package: ModuleType) -> list[str]:
    """Return the file names in `package`, plus what installed packages offer under its name."""
    return names_in(package.__name__.removeprefix("edgeopt."))


def names_in(folder: str) -> list[str]:
    """Return the names of the parts in one of our folders, which is not imported; `_name` is never a part.

    Args:
        folder: Below the package, with dots: `passes`, `recipes.metrics`.
    """
    path = Path(__file__).parents[1].joinpath(*folder.split("."))
    ours = [one.name for one in iter_modules([str(path)]) if not one.name.startswith("_")]
    return sorted({*ours, *entry_points(group=f"edgeopt.{folder}").names})


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
