"""Open a language model from its file, with the recipe and the tokenizer beside it."""

from __future__ import annotations

from pathlib import Path

from edgeopt.errors import UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.recipes.generation import GENERATION
from edgeopt.recipes.generation_drafting import drafted_generation
from edgeopt.recipes.recipe import Recipe, read_recipe
from edgeopt.recipes.tokens import read_tokens
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.system.files import require_regular

_REMEDY = "edgeopt export hf:FOLDER -o model.onnx writes the recipe and the tokenizer beside a model"


def recipe_beside(model: Path) -> Recipe:
    """Return the recipe beside a model: its own, or what configurations of other tools tell.

    Raises:
        InvalidFileError: If there is none, or one is damaged.
    """
    file = model.parent / "recipe.toml"
    if not file.is_file() and (drafted := drafted_generation(model.parent)):
        return drafted
    require_regular(file, remedy=_REMEDY)
    return read_recipe(file, stays_inside=True)


def open_language_model(model: Path, threads: int) -> tuple[LanguageModel, Recipe]:
    """Return an open language model and its recipe.

    Args:
        model: The ONNX file; `recipe.toml` and the tokenizer that it names lie beside it, or the configurations of
            onnxruntime-genai's builder, of optimum or of Hugging Face with their `tokenizer.json`.
        threads: Of the engine.

    Raises:
        InvalidFileError: If one of them is absent or damaged.
        UnsupportedError: If the recipe is of another task, or they do not fit each other.
    """
    recipe = recipe_beside(model)
    file = model.parent / "recipe.toml"
    if recipe.task != GENERATION or not recipe.tokenizer.file or not recipe.generation.context:
        raise UnsupportedError(f"{file} is not the recipe of a language model that writes", remedy=_REMEDY)
    tokenizer = read_tokens(recipe.folder / recipe.tokenizer.file)
    session = EXECUTOR.open(model, SessionOptions(threads=threads))
    told = recipe.generation
    return LanguageModel(session, tokenizer, told.context, told.end, told.begin, told.head), recipe
