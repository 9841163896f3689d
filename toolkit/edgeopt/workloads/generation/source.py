"""Which sources are models that write tokens."""

from __future__ import annotations

from pathlib import Path

from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.recipes.texts.generation import GENERATION
from edgeopt.running.writing import find_language_model
from edgeopt.runtime.bundle import told_task
from edgeopt.runtime.decoding.opening import bundle_of, holds_pair, recipe_beside
from edgeopt.system.toml import read_toml


def is_encoder_decoder(source: str) -> bool:
    """Return whether a source is a folder with an encoder, and a decoder with its cache."""
    return holds_pair(Path(source))


def is_language_model(source: str) -> bool:
    """Return whether a source is a model whose recipe, beside it, says that it writes token after token."""
    if is_encoder_decoder(source):
        return False
    path = Path(source)
    try:
        path = find_language_model(source)
        if bundle := bundle_of(path):
            return told_task(bundle) == GENERATION
        return recipe_beside(path).task == GENERATION
    except InvalidFileError:
        return _says_so(path.parent / "recipe.toml")
    except (EdgeoptError, OSError):
        return False  # the kind that takes what is left says what is wrong


def _says_so(recipe: Path) -> bool:
    """Return whether a recipe with a fault is one of a model that writes: the verb then names the fault."""
    try:
        return read_toml(recipe).get("task") == GENERATION
    except (EdgeoptError, OSError):
        return False
