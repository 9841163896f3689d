"""Which shipped recipes a model's inputs, outputs and metadata meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.heads import head_of
from edgeopt.recipes.heads._shapes import STRIDES, count_cells
from edgeopt.recipes.inputs.picture_inputs import size_of, why_other_channels
from edgeopt.recipes.inputs.preprocess import PICTURE_TYPES, Layout
from edgeopt.recipes.metadata import class_names_of, contradicts, with_points
from edgeopt.recipes.outputs.columns import columns_in_name
from edgeopt.recipes.outputs.output_shapes import SPREADING, knows_shapes, why_unfit
from edgeopt.recipes.recipe import Match, Recipe, read_recipe, read_term
from edgeopt.system.disk import assets

_PRIORS = ((8, 3), (16, 2), (32, 2), (64, 3))
"""Strides of UltraFace, and its boxes a cell."""
_MOST_QUERIES = 1000
"""Boxes of a transformer; more are anchors."""


@dataclass(frozen=True, slots=True)
class Interface:
    """The tensors that a model takes and gives, by which recipes are matched."""

    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    metadata: Mapping[str, str]
    """The exporter's metadata, by key."""


def recognised(model: Interface) -> tuple[list[Recipe], list[Recipe]]:
    """Return the shipped recipes whose `match` a model meets, and all that could feed and read it."""
    possible = possible_recipes(model)
    by_graph = [recipe for recipe in possible if _fits(recipe, model, by_graph=True)]
    fitting = by_graph or _explaining([recipe for recipe in possible if _fits(recipe, model)], model.outputs)
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


def possible_recipes(model: Interface) -> list[Recipe]:
    """Return the shipped recipes that could feed a model and read its outputs."""
    recipes = [with_told_columns(with_points(recipe, model.metadata), model.outputs) for recipe in shipped_recipes()]
    return [other for other in recipes if _is_possible(other, model)]


def with_told_columns(recipe: Recipe, outputs: Sequence[TensorSpec]) -> Recipe:
    """Return a recipe of a detector with what its outputs tell and it leaves open; what it says stays."""
    head = head_of(recipe.postprocess.decoder)
    return replace(recipe, postprocess=head.complete(recipe.postprocess, outputs)) if head else recipe


def told_by(recipe: Recipe, model: Interface) -> str:
    """Return what a recipe that is recognised is recognised by, such as `the names of tensors and the shapes`."""
    size = size_of(model.inputs[0], recipe, model.metadata)
    met = [match for match in recipe.match if size and _matches(match, size, model)]
    first = next((match for match in met if match.sees_graph), met[0])
    signs = {
        "the exporter's metadata": first.metadata or "names" in model.metadata,
        "the names of tensors": first.input_names or first.output_names or first.columns_in_name,
        "the operators that make the outputs": first.ops,
    }
    asked = ", ".join(sign for sign, is_asked in signs.items() if is_asked)
    return f"{asked} and the shapes" if asked else "the shapes"


def _is_possible(recipe: Recipe, model: Interface) -> bool:
    """Return whether a recipe can feed this model and read its outputs; others are never offered."""
    if (
        len(model.inputs) != 1
        or model.inputs[0].dtype not in PICTURE_TYPES
        or why_other_channels(recipe, model.inputs[0])
    ):
        return False
    size = size_of(model.inputs[0], recipe, model.metadata)
    if size is None or contradicts(model.metadata, recipe):
        return False
    strides, head = recipe.postprocess.strides, head_of(recipe.postprocess.decoder)
    if strides and not (head and head.rounds_up) and any(side % max(strides) for side in size):
        return False
    if not knows_shapes(recipe):
        return _fits(recipe, model)
    if head and head.needs_match and not _fits(recipe, model):
        return False
    return not why_unfit(recipe.with_size(*size), model.outputs)


def _fits(recipe: Recipe, model: Interface, *, by_graph: bool = False) -> bool:
    """Return whether one of the recipe's matches has these shapes; `by_graph`: one that asks for names or operators."""
    size = size_of(model.inputs[0], recipe, model.metadata) if len(model.inputs) == 1 else None
    matches = [match for match in recipe.match if match.sees_graph or not by_graph]
    return size is not None and any(_matches(match, size, model) for match in matches)


def _matches(match: Match, size: tuple[int, int], model: Interface) -> bool:
    if any(text not in model.metadata.get(key, "") for key, text in match.metadata.items()):
        return False
    if match.input_names and set(match.input_names) != {spec.name for spec in model.inputs}:
        return False
    if len(match.outputs) != len(model.outputs):
        return False
    if match.columns_in_name and not columns_in_name(model.outputs[0].name):
        return False
    known = {"height": size[0], "width": size[1], "cells": count_cells(size, STRIDES), "priors": _priors(size)}
    if names := class_names_of(model.metadata):
        known["classes"] = len(names)
    remaining = list(model.outputs)
    for i, pattern in enumerate(match.outputs):  # exporters order outputs as they like
        able = [
            spec
            for spec in remaining
            if (not match.output_names or spec.name == match.output_names[i])
            and (not match.ops or _is_made_by(match.ops[i], spec))
        ]
        if pattern and pattern[0] == "rows":  # the batch of the input is none, however it is called
            able = [
                spec
                for spec in able
                if spec.op not in SPREADING and {*spec.shape[:1]}.isdisjoint(model.inputs[0].shape)
            ]
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
