"""Metadata that an exporter wrote into the model. Absurd entries count as absent."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from edgeopt.recipes.heads import Exported, head_of
from edgeopt.recipes.inputs.preprocess import MOST_PIXELS_A_SIDE
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.scoring.keypoints import told_shape
from edgeopt.system.text import short

_MOST_CHARACTERS = 2**18
"""Most characters of one entry; a thousand class names have 20,000."""
_DETECT = "detect"
"""Ultralytics' task whose recipes also serve other exporters; a recipe of another of its tasks names it in `match`."""
_END_TO_END = ("end_to_end_pose", "end_to_end_segment")
"""Decoders of Ultralytics' poses and masks that are suppressed already; heads of detectors say so."""
_QUERIES = (Exported.QUERIES, Exported.CHOSEN_QUERIES)
_MEANINGS = {"obb": "oriented bounding boxes: turned ones"}
"""Tasks of Ultralytics without a recipe, whose names do not say what they are."""


def class_names_of(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Return the class names that Ultralytics writes: `{0: 'person', 1: 'bicycle'}`."""
    names = _literal(metadata, "names")
    if isinstance(names, dict):
        names = [names.get(i) for i in range(len(names))]
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return ()
    return tuple(names)


def input_size_of(metadata: Mapping[str, str]) -> tuple[int, int] | None:
    """Return height and width as Ultralytics writes them, `imgsz = [640, 640]`; None where absent or absurd."""
    size = _literal(metadata, "imgsz")
    if not isinstance(size, list | tuple) or len(size) != 2:
        return None
    height, width = size
    if not all(type(side) is int and 1 <= side <= MOST_PIXELS_A_SIDE for side in (height, width)):
        return None
    return height, width


def strides_of(metadata: Mapping[str, str]) -> tuple[int, ...]:
    """Return a detector's strides, 8 to the largest, which Ultralytics writes; none where absent or absurd."""
    largest = _literal(metadata, "stride")
    return tuple(one for one in (8, 16, 32, 64) if one <= largest) if largest in (32, 64) else ()


def with_points(recipe: Recipe, metadata: Mapping[str, str]) -> Recipe:
    """Return the recipe with the points of a pose as Ultralytics writes them, where the recipe does not tell them."""
    shape = _literal(metadata, "kpt_shape")
    told = told_shape(shape) if isinstance(shape, list | tuple) else None
    if recipe.task != "keypoints" or told is None:
        return recipe
    own = recipe.keypoints
    try:
        points = replace(own, count=own.count or told[0], values=own.values or told[1])
    except ValueError:  # names of another number: the outputs' shape refuses the recipe
        return recipe
    return replace(recipe, keypoints=points)


def is_ultralytics(metadata: Mapping[str, str]) -> bool:
    """Return whether Ultralytics wrote the model, or YOLOv5: all of theirs are fed alike."""
    return metadata.keys() >= {"names", "stride"}


def contradicts(metadata: Mapping[str, str], recipe: Recipe) -> bool:
    """Return whether the metadata says that the model needs another recipe.

    Source: Ultralytics, `Exporter`, which writes description, task, stride, names, imgsz, args and end2end; YOLOv5
    writes stride and names.
    """
    if not is_ultralytics(metadata):
        return False
    decoder, task = recipe.postprocess.decoder, metadata.get("task")
    head = head_of(decoder)
    exported = head.exported if head else None
    is_end_to_end = exported is Exported.SUPPRESSED or decoder in _END_TO_END
    if task is not None and task != _DETECT:
        is_other_end = recipe.task != "classification" and _is_end_to_end(metadata) != is_end_to_end
        return is_other_end or task not in _tasks_named_by(recipe)
    if task is not None and exported is None:
        return True
    if ("rtdetr" in metadata.get("description", "").lower()) != (exported in _QUERIES):
        return True
    if exported is Exported.QUERIES and "head" in metadata and len(class_names_of(metadata)) == 2:
        return True  # older ones name no head; with two classes both have six columns
    return _is_end_to_end(metadata) != (exported is Exported.SUPPRESSED)


def other_task(metadata: Mapping[str, str], recipes: Iterable[Recipe]) -> str:
    """Return the exporter's task, such as `segment`, where it is neither detection nor one that a recipe names.

    Args:
        metadata: What the exporter wrote.
        recipes: All that are shipped.
    """
    task = metadata.get("task", "")
    if not is_ultralytics(metadata) or task in ("", _DETECT):
        return ""
    return "" if any(task in _tasks_named_by(recipe) for recipe in recipes) else task


def named_task(task: str) -> str:
    """Return an exporter's task as a message tells it: quoted, with what it means where its name does not say."""
    return f"{short(task)} ({_MEANINGS[task]})" if task in _MEANINGS else short(task)


def _tasks_named_by(recipe: Recipe) -> set[str | None]:
    """Return the exporter's tasks, such as `classify`, for which a recipe says that it is made."""
    return {match.metadata.get("task") for match in recipe.match}


def _is_end_to_end(metadata: Mapping[str, str]) -> bool:
    arguments, text = _literal(metadata, "args"), metadata.get("end2end", "").lower()
    if isinstance(arguments, dict) and arguments.get("nms") is True:
        return True
    words = metadata.get("description", "").lower()
    return text == "true" if text else "yolov10" in words or "yolo26" in words


def _literal(metadata: Mapping[str, str], key: str) -> Any:
    """Return a Python literal; None where it is none, or absurdly long."""
    text = metadata.get(key, "")
    if len(text) > _MOST_CHARACTERS:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # 100,000 brackets end in the last two
        return None
