"""Files of Hugging Face beside a model go with every model made of it, so that optimum loads that too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeopt.errors import Note, NoteKind
from edgeopt.recipes.drafting.hugging_face import PROCESSORS, companions_in, read_configuration
from edgeopt.recipes.drafting.optimum_tasks import loader_of
from edgeopt.recipes.recipe import Recipe
from edgeopt.system.disk.files import read_file, write_beside
from edgeopt.system.toml import read_json

_REMEDY = "copy the folder again"


def copy_companions(files: Sequence[Path], folder: Path) -> tuple[Path, ...]:
    """Copy files into a folder, unless others of their names lie there; return what lies there alike.

    Raises:
        InvalidFileError: If one cannot be read or written.
    """
    alike = []
    for file in files:
        data, there = read_file(file, remedy=_REMEDY), folder / file.name
        if not there.exists():
            write_beside(there, data)
        if read_file(there, remedy=_REMEDY) == data:
            alike.append(there)
    return tuple(alike)


def companions_of(
    source: Path, bundle: Path, model: str, recipe: Recipe, tensors: tuple[Sequence[str], Sequence[str]] | None = None
) -> tuple[dict[str, bytes], tuple[Note, ...]]:
    """Return what of the files beside the given model goes into its bundle, and the note that says what loads it.

    Args:
        source: Folder of the configurations.
        bundle: Folder of the bundle.
        model: Name of its first file.
        recipe: Of that model.
        tensors: Names of the given model's inputs and outputs; None: as its class has them.
    """
    configuration = read_configuration(source)
    if configuration is None:
        return {}, ()
    if recipe.embedded or model != "model.onnx":
        holds = "holds a part of the recipe" if recipe.embedded else "is no ONNX file"
        return {}, (Note(NoteKind.INFO, f"optimum does not load the bundle: its model {holds}"),)
    own, files = recipe.tokenizer.file, dict[str, bytes]()  # the recipe's own tokenizer is there already
    for companion in (each for each in companions_in(source) if each.name != own):
        data = read_file(companion, remedy=_REMEDY)
        if companion.name in PROCESSORS and _is_smaller(recipe, configuration.processor):
            data = _resized(companion, recipe)
        files[companion.name] = data
    loader = loader_of(configuration.task_of(*tensors or ()))
    return files, (Note(NoteKind.INFO, f"optimum loads the bundle: {loader}.from_pretrained({str(bundle)!r})"),)


def _is_smaller(recipe: Recipe, processor: Mapping[str, Any]) -> bool:
    """Whether the recipe's pictures have another size than the processor makes."""
    size = processor.get("crop_size") if processor.get("do_center_crop") else processor.get("size")
    if not recipe.input.size or not isinstance(size, Mapping) or not {"height", "width"} <= size.keys():
        return False
    return (size["height"], size["width"]) != tuple(recipe.input.size)


def _resized(file: Path, recipe: Recipe) -> bytes:
    """Return a processor's settings that make pictures of the recipe's size."""
    values = read_json(file, remedy=_REMEDY)
    height, width = recipe.input.size
    inner = values.get("image_processor", values)
    if inner.get("do_center_crop"):
        inner["crop_size"] = {"height": height, "width": width}
        inner["size"] = {"shortest_edge": recipe.preprocess.crop_from}
    else:
        inner["size"] = {"height": height, "width": width}
    return (json.dumps(values, indent=2) + "\n").encode()
