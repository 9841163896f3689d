"""Where the shipped models and targets lie: in the wheel, or in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[2]


def folder(name: str) -> Path:
    """Return the folder of shipped data called `name`: `models` or `targets`."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parents[1] / name


def model_folders() -> dict[str, Path]:
    """Return every folder in `models/` that holds a recipe, by name."""
    return {path.parent.name: path.parent for path in sorted(folder("models").glob("*/recipe.toml"))}
