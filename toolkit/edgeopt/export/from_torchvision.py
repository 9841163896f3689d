"""Recipes from torchvision: its weights know how pictures were shown to them, and the names of classes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from edgeopt.errors import Note, NoteKind
from edgeopt.export.network import NetworkInput
from edgeopt.recipes.inputs.preprocess import Input, Preprocess, Resize
from edgeopt.recipes.recipe import Evaluation, Postprocess, Recipe

_PACKAGE = "torchvision.models"
_RANDOM = Note(
    NoteKind.WARNING,
    "torchvision makes it with random weights",
    'write nets.py: def net(): return torchvision.models.NAME(weights="DEFAULT"), and name torch:nets:net',
)
_TASKS = {"ImageClassification": "classification", "SemanticSegmentation": "segmentation"}
"""Preset of torchvision's transforms to the task that reads its networks."""


def recipe_of_torchvision(
    module: Any, place: str, name: str, inputs: Sequence[NetworkInput]
) -> tuple[Recipe | None, tuple[Note, ...]]:
    """Return the recipe of a network of torchvision, and what is to be said of it; None: it is another's, or unknown.

    It is known by its number of parameters, so that one with other classes, or another head, gets none.

    Args:
        module: That is exported.
        place: Module of the factory.
        name: Of the network.
        inputs: Of the network.
    """
    notes = (_RANDOM,) if place.startswith(_PACKAGE) else ()
    if not type(module).__module__.startswith(_PACKAGE) or len(inputs) != 1 or len(inputs[0].shape) != 4:
        return None, notes
    weights = next(_fitting(sys.modules[_PACKAGE], module), None)
    how: Any = weights.transforms() if weights else None
    task = _TASKS.get(type(how).__name__, "")
    if not weights or not task:
        return None, notes
    side, crop = how.resize_size[0], getattr(how, "crop_size", [0])[0]
    fit = Preprocess(scale=1 / 255, mean=tuple(map(float, how.mean)), std=tuple(map(float, how.std)))
    if crop and inputs[0].shape[2] == inputs[0].shape[3]:
        from_side = round(side * inputs[0].shape[2] / crop)
        fit = Preprocess(resize=Resize.CENTRE_CROP, crop_from=from_side, scale=fit.scale, mean=fit.mean, std=fit.std)
    is_class = task == "classification"
    return Recipe(
        name=name,
        task=task,
        description=f"{type(module).__name__} of torchvision, as {weights} was trained",
        license="that of the weights",
        source=_PACKAGE,
        postprocess=Postprocess("logits") if is_class else Postprocess("argmax", background=True),
        evaluation=Evaluation("top1" if is_class else "mIoU"),
        input=Input(size=inputs[0].shape[2:]),
        preprocess=fit,
        class_names=tuple(weights.meta["categories"]),
    ), notes


def _fitting(models: Any, module: Any) -> Iterator[Any]:
    """Return the weights of the package that have as many parameters, those of its own file first."""
    count = sum(parameter.numel() for parameter in module.parameters())
    found = [weights for name in models.list_models() for weights in models.get_model_weights(name)]
    fitting = [value for value in found if value.meta.get("num_params") == count]
    own = type(module).__module__
    yield from sorted(fitting, key=lambda value: type(value).__module__ != own)
