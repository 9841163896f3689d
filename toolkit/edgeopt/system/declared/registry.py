"""Interchangeable parts: the folder of a package is its registry. It imports one part, never all."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from edgeopt.errors import NotFoundError


def names(package: ModuleType) -> tuple[str, ...]:
    """Return the file names in `package`, plus what installed packages offer under its name."""
    return names_in(package.__name__.removeprefix("edgeopt."))


@cache
def names_in(folder: str) -> tuple[str, ...]:
    """Return the names of the parts in one of our folders, which is not imported; `_name` is never a part.

    Args:
        folder: Below the package, with dots: `passes`, `recipes.metrics`.
    """
    return tuple(sorted({*_ours(folder), *_installed(f"edgeopt.{folder}")}))


@cache
def _ours(folder: str) -> frozenset[str]:
    """Return the names of the parts that lie in the folder itself."""
    path = Path(__file__).parents[2].joinpath(*folder.split("."))
    return frozenset(other.name for other in iter_modules([str(path)]) if not other.name.startswith("_"))


@cache
def _installed(package: str) -> Mapping[str, str]:
    """Return the modules that installed packages offer under the name of one of ours, by name."""
    return {name: value for group, name, value in _offered(tuple(sys.path)) if group == package}


@cache
def _offered(places: tuple[str, ...]) -> tuple[tuple[str, str, str], ...]:
    """Return group, name and module of each part that installed packages offer; a look through 116 takes 8 ms.

    Args:
        places: Where packages lie: `sys.path`.
    """
    from importlib.metadata import entry_points  # 40 ms, which an import of the runtime does not pay

    groups = entry_points()
    ours = [group for group in groups.groups if group.startswith("edgeopt.")]
    return tuple((group, entry.name, entry.value) for group in ours for entry in groups.select(group=group))


def load(package: ModuleType, name: str) -> ModuleType:
    """Import the one part called `name`; the others stay unimported.

    One of ours is imported without a look at what installed packages offer: none takes its place, and a bundle that is
    opened does not wait for it.

    Raises:
        NotFoundError: If neither the folder nor an installed package offers it.
    """
    if name in _ours(package.__name__.removeprefix("edgeopt.")):
        return import_module(f"{package.__name__}.{name}")
    known = names(package)
    if name not in known:
        raise NotFoundError(package.__name__.split(".")[-1].removesuffix("s"), name, known)
    return import_module(_installed(package.__name__).get(name, f"{package.__name__}.{name}"))


def joined(package: ModuleType, table: str) -> dict[str, Any]:
    """Return the tables of that name in all parts of a package as one; a part may have none."""
    made = dict[str, Any]()
    for name in names(package):
        made |= getattr(load(package, name), table, {})
    return made
