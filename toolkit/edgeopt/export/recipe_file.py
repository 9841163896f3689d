"""The recipe beside an exported model, from what its source tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.recipe_text import recipe_text
from edgeopt.recipes.texts.chat_template import chat_files
from edgeopt.recipes.texts.generation import GENERATION
from edgeopt.system.disk.files import read_file, write_beside

RECIPE, LABELS, ALPHABET = "recipe.toml", "labels.txt", "alphabet.txt"
_MOST_BYTES = 128 << 20
"""Of a tokenizer."""
_FIRST = "# Written by edgeopt export: yours to change; without this line the next export leaves it as it is."


def write_recipe(recipe: Recipe, folder: Path) -> tuple[Path, ...]:
    """Write a recipe and the files that it needs; return what was written: nothing over somebody else's recipe.

    Args:
        recipe: What the source tells.
        folder: Of the model.
    """
    file, labels = folder / RECIPE, folder / LABELS
    if file.exists() and not file.read_bytes().startswith(_FIRST.encode()):
        return ()
    names, tokenizer = recipe.class_names, recipe.path_of(recipe.tokenizer.file)
    written = [file]
    if names:
        write_beside(labels, "".join(f"{name}\n" for name in names))
        written.append(labels)
    if symbols := recipe.alphabet.symbols:
        write_beside(folder / ALPHABET, "".join(f"{symbol}\n" for symbol in symbols))
        written.append(folder / ALPHABET)
        recipe = replace(recipe, alphabet=replace(recipe.alphabet, file=ALPHABET, characters=""))
    for path in (tokenizer, *chat_files(tokenizer if recipe.task == GENERATION else None)):
        if path:
            beside = folder / (recipe.tokenizer.file if path == tokenizer else path.name)
            write_beside(beside, read_file(path, remedy="copy the folder again", most_bytes=_MOST_BYTES))
            written.append(beside)
    write_beside(file, f"{_FIRST}\n{recipe_text(recipe, name=recipe.name, labels=LABELS if names else '')}")
    return tuple(written)
