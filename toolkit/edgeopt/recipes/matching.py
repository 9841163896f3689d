"""Which shipped recipes a model's inputs, outputs and metadata meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.heads import head_of
from edgeopt.recipes.heads._shapes import STRIDES, count_cells
from edgeopt.recipes.inputs.preprocess import PICTURE_TYPES, Colour, Layout
from edgeopt.recipes.metadata import class_names_of, contradicts, input_size_of, with_points
from edgeopt.recipes.outputs.columns import columns_in_name
from edgeopt.recipes.outputs.output_shapes import SPREADING, knows_shapes, why_unfit
from edgeopt.recipes.outputs.told_outputs import with_told_columns
from edgeopt.recipes.recipe import Match, Recipe, read_recipe, read_term
from edgeopt.system.disk import assets
from edgeopt.system.text import plural

_PRIORS = ((8, 3), (16, 2), (32, 2), (64, 3))
"""Strides of UltraFace, and its boxes a cell."""
_MOST_QUERIES = 1000
"""Boxes of a transformer; more are anchors."""


def recognised(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], metadata: Mapping[str, str]
) -> tuple[list[Recipe], list[Recipe]]:
    """Return the shipped recipes whose `match` a model meets, and all that could feed and read it."""
    possible = possible_recipes(inputs, outputs, metadata)
    by_graph = [recipe for recipe in possible if _fits(recipe, inputs, outputs, metadata, by_graph=True)]
    fitting = by_graph or _explaining(
        [recipe for recipe in possible if _fits(recipe, inputs, outputs, metadata)], outputs
    )
    return fitting, possible


def _explaining(fitting: list[Recipe], outputs: Sequence[TensorSpec]) -> list[Recipe]:
    """Return the recipes that explain the number of boxes, if any does: 3549 is the number of cells of 416 x 416."""
    if not all(output.is_static for output in outputs):
        return fitting
    terms = {
        recipe.name: {term for match in recipe.match for shape in match.outputs for term in shape} for recipe in fitting
    }
    exact = [recipe for recipe in fitting if any("cells" in term for term in terms[recipe.name])]
    return exact or fitting


def unlikeness(
    recipe: Recipe, outputs: Sequence[TensorSpec], layout: Layout, metadata: Mapping[str, str]
) -> tuple[bool, bool, bool]:
    """Return what speaks against a recipe that could read the outputs; sorted by it the likely recipes come first.

    Args:
        recipe: One of the possible ones.
        outputs: Of the model.
        layout: Of its picture.
        metadata: What the exporter wrote: who exports queries in one output writes there what they are.
    """
    are_many = any(isinstance(size, int) and size > _MOST_QUERIES for output in outputs for size in output.shape[1:2])
    is_untold, head = len(outputs) == 1 and not metadata, head_of(recipe.postprocess.decoder)
    return (
        head is not None and head.are_queries and (are_many or is_untold),
        all(len(match.outputs) != len(outputs) for match in recipe.match),
        (recipe.input.layout is Layout.NHWC) is not (layout is Layout.NHWC),
    )


def shipped_recipes() -> list[Recipe]:
    """Return the shipped recipes that are chosen by what a model is."""
    recipes = (read_recipe(folder / "recipe.toml") for folder in assets.model_folders().values())
    return [recipe for recipe in recipes if recipe.match]


def possible_recipes(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], metadata: Mapping[str, str]
) -> list[Recipe]:
    """Return the shipped recipes that could feed a model and read its outputs."""
    recipes = [with_told_columns(with_points(recipe, metadata), outputs) for recipe in shipped_recipes()]
    return [other for other in recipes if _is_possible(other, inputs, outputs, metadata)]


def told_by(
    recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], metadata: Mapping[str, str]
) -> str:
    """Return what a recipe that is recognised is recognised by, such as `the names of tensors and the shapes`."""
    size = size_of(inputs[0], recipe, metadata)
    met = [match for match in recipe.match if size and _matches(match, size, inputs, outputs, metadata)]
    first = next((match for match in met if match.sees_graph), met[0])
    signs = {
        "the exporter's metadata": first.metadata or "names" in metadata,
        "the names of tensors": first.input_names or first.output_names or first.columns_in_name,
        "the operators that make the outputs": first.ops,
    }
    asked = ", ".join(sign for sign, is_asked in signs.items() if is_asked)
    return f"{asked} and the shapes" if asked else "the shapes"


def _is_possible(
    recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], metadata: Mapping[str, str]
) -> bool:
    """Return whether a recipe can feed this model and read its outputs; others are never offered."""
    if len(inputs) != 1 or inputs[0].dtype not in PICTURE_TYPES or why_other_channels(recipe, inputs[0]):
        return False
    size = size_of(inputs[0], recipe, metadata)
    if size is None or contradicts(metadata, recipe):
        return False
    strides, head = recipe.postprocess.strides, head_of(recipe.postprocess.decoder)
    if strides and not (head and head.rounds_up) and any(side % max(strides) for side in size):
        return False
    if not knows_shapes(recipe):
        return _fits(recipe, inputs, outputs, metadata)
    if head and head.needs_match and not _fits(recipe, inputs, outputs, metadata):
        return False
    return not why_unfit(recipe.with_size(*size), outputs)


def _fits(
    recipe: Recipe,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
    *,
    by_graph: bool = False,
) -> bool:
    """Return whether one of the recipe's matches has these shapes; `by_graph`: one that asks for names or operators."""
    size = size_of(inputs[0], recipe, metadata) if len(inputs) == 1 else None
    matches = [match for match in recipe.match if match.sees_graph or not by_graph]
    return size is not None and any(_matches(match, size, inputs, outputs, metadata) for match in matches)


def _matches(
    match: Match,
    size: tuple[int, int],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
) -> bool:
    if any(text not in metadata.get(key, "") for key, text in match.metadata.items()):
        return False
    if match.input_names and set(match.input_names) != {spec.name for spec in inputs}:
        return False
    if len(match.outputs) != len(outputs):
        return False
    if match.columns_in_name and not columns_in_name(outputs[0].name):
        return False
    known = {"height": size[0], "width": size[1], "cells": count_cells(size, STRIDES), "priors": _priors(size)}
    if names := class_names_of(metadata):
        known["classes"] = len(names)
    remaining = list(outputs)
    for i, pattern in enumerate(match.outputs):  # exporters order outputs as they like
        able = [
            spec
            for spec in remaining
            if (not match.output_names or spec.name == match.output_names[i])
            and (not match.ops or _is_made_by(match.ops[i], spec))
        ]
        if pattern and pattern[0] == "rows":  # the batch of the input is none, however it is called
            able = [spec for spec in able if spec.op not in SPREADING and {*spec.shape[:1]}.isdisjoint(inputs[0].shape)]
        tensor_spec = next((spec for spec in able if shape_matches(pattern, spec.shape, known)), None)
        if tensor_spec is None:
            return False
        remaining.remove(tensor_spec)
    return True


def _priors(size: tuple[int, int]) -> int:
    """Return how many boxes UltraFace has. Source: `define_img_size` in vision/ssd/config/fd_config.py."""
    return sum(-(-size[0] // stride) * -(-size[1] // stride) * boxes for stride, boxes in _PRIORS)


def _is_made_by(asked: str, output: TensorSpec) -> bool:
    """Return whether one of the operators that a match asks for makes an output."""
    made = output.op, f"{output.before} > {output.op}"
    return not asked or any(part in made for part in asked.split(" or "))


def shape_matches(pattern: Sequence[str], shape: Sequence[int | str | None], known: dict[str, int]) -> bool:
    """Return whether a shape fits its terms; free dimensions fit any, and the first use of `classes` sets its value."""
    if len(pattern) != len(shape):
        return False
    learnt = dict(known)
    for term, size in zip(pattern, shape, strict=True):
        if not isinstance(size, int) or term == "any":
            continue
        if term == "rows":
            return False
        if term.isdigit():
            if int(term) != size:
                return False
            continue
        times, name, over, plus = read_term(term)
        value = (size - plus) / times * over
        if value < 1 or value != int(value) or learnt.setdefault(name, int(value)) != int(value):
            return False
    known.update(learnt)
    return True


def size_of(tensor: TensorSpec, recipe: Recipe, metadata: Mapping[str, str]) -> tuple[int, int] | None:
    """Return height and width: the model's own, the recipe's, or the exporter's."""
    if not has_axes_of_picture(tensor, recipe):
        return None
    height, width = (tensor.shape[axis] for axis in layout_of(tensor, recipe).plane)
    if isinstance(height, int) and isinstance(width, int):
        return height, width
    if recipe.input.size:
        return recipe.input.size[0], recipe.input.size[1]
    return input_size_of(metadata)


def has_axes_of_picture(tensor: TensorSpec, recipe: Recipe) -> bool:
    """Return whether an input has four dimensions, or three where the recipe's layout has no batch."""
    return len(tensor.shape) == 4 or (len(tensor.shape) == 3 and recipe.input.layout is Layout.CHW)


def layout_of(tensor: TensorSpec, recipe: Recipe) -> Layout:
    """Return the recipe's layout, or the other one where only that one has 1 or 3 channels.

    A model may have a batch where the recipe has none.
    """
    if len(tensor.shape) == 3:
        return Layout.CHW
    channels = {Layout.NCHW: tensor.shape[1], Layout.NHWC: tensor.shape[3]}
    own = Layout.NCHW if recipe.input.layout is Layout.CHW else recipe.input.layout
    other = Layout.NHWC if own is Layout.NCHW else Layout.NCHW
    is_other = isinstance(channels[own], int) and channels[own] not in (1, 3) and channels[other] in (1, 3)
    return other if is_other else own


def why_other_channels(recipe: Recipe, tensor: TensorSpec) -> str:
    """Return why the recipe's channels do not fit the input; empty where they do."""
    channels = 1 if recipe.preprocess.colour is Colour.GREY else 3
    if not has_axes_of_picture(tensor, recipe):
        return "it has not four dimensions"
    result = tensor.shape[layout_of(tensor, recipe).channels]
    if not isinstance(result, int) or result == channels:
        return ""
    return f"it has {plural(result, 'channel')}, {recipe.preprocess.colour} has {channels}"
