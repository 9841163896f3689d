"""Which recipe belongs to a model, and the recipe bound to the model's own tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnsupportedError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.input_shapes import Shapes, sample_shape
from edgeopt.recipes.metadata import class_names_of, contradicts, input_size_of, other_task
from edgeopt.recipes.output_shapes import ROUNDS_UP, STRIDES, count_cells, knows_shapes, why_unfit
from edgeopt.recipes.preprocess import PICTURE_TYPES, Colour, Layout
from edgeopt.recipes.recipe import (
    Match,
    Recipe,
    find_recipe,
    read_recipe,
    read_term,
)
from edgeopt.recipes.tensor_outputs import recurrent_notes, with_outputs
from edgeopt.system import assets
from edgeopt.system.text import plural, short

ARRAYS_RECIPE = "tensors"
"""The shipped recipe of any model: arrays in, outputs as they are."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A recipe bound to a model, and why it was chosen."""

    recipe: Recipe
    reason: str
    notes: tuple[Note, ...] = ()
    is_given: bool = False
    """Whether the user named the recipe or laid it beside the model; else it was recognised."""
    rivals: tuple[Choice, ...] = ()
    """Others that fit as well: labels must tell."""


def choose_recipe(
    asked: str | None,
    path: Path | None,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
    given: Shapes | None = None,
    *,
    may_rival: bool = False,
) -> Choice:
    """Return the recipe for a model, bound to its tensors.

    The order is: the recipe asked for, the `recipe.toml` beside the model, what the exporter wrote into the metadata
    together with the shapes; where there are tensors to feed, the recipe `tensors` if nothing else fits.

    Args:
        asked: Shipped name, or path of a TOML file.
        path: Where the model lies.
        inputs: Of the model.
        outputs: Of the model.
        metadata: What the exporter wrote.
        given: Shapes of the tensors that will be fed, one sample; they fix free dimensions. None: pictures.
        may_rival: Whether several may fit, since there are labels to tell.

    Raises:
        EdgeoptError: If no recipe fits, or more than one; the message lists them.
        UnsupportedError: If an input dimension is free and nothing fixes it.
    """
    inputs, taken = _as_given(inputs, given or {})
    if asked is not None:
        told = "asked for with --recipe"
        return replace(bind_recipe(find_recipe(asked), told, inputs, outputs, metadata, taken), is_given=True)
    beside = path.parent / "recipe.toml" if path else None
    if beside is not None and beside.is_file():
        found, told = read_recipe(beside, stays_inside=True), f"{beside.name} lies beside the model"
        return replace(bind_recipe(found, told, inputs, outputs, metadata, taken), is_given=True)
    fitting, possible = recognised(inputs, outputs, metadata)
    shapes = f"inputs {', '.join(map(str, inputs))}; outputs {', '.join(map(str, outputs))}"
    if not fitting and given:
        return _as_tensors(shapes, inputs, outputs, metadata, taken)
    if not fitting and (task := other_task(metadata, shipped_recipes())):
        raise UnsupportedError(
            f"the exporter says that this model is for {short(task)}, which no recipe reads",
            remedy=f"judge its outputs as they are: --recipe {ARRAYS_RECIPE} and --calib FILE.npz"
            f"{_of_pictures(inputs)}",
        )
    if not fitting:
        named = f"; or pass --recipe with one of {', '.join(one.name for one in possible)}" if possible else ""
        raise EdgeoptError(
            f"no recipe fits this model ({shapes})",
            remedy="pass its inputs as arrays: --calib FILE.npz (edgeopt bench: --source)"
            f"{_of_pictures(inputs)}{named}",
        )
    if len(fitting) > 1 and not may_rival:
        names = ", ".join(recipe.name for recipe in fitting)
        raise EdgeoptError(
            f"{len(fitting)} recipes fit this model: {names} ({shapes})",
            remedy=f"pass --recipe with one of {names}{f', or {ARRAYS_RECIPE}' if given else ''}",
        )
    told = "the exporter's metadata and the shapes" if "names" in metadata else "the shapes"
    told = f"{told} fit it {'alone' if len(fitting) == 1 else 'too'} ({shapes})"
    first, *rest = (bind_recipe(one, told, inputs, outputs, metadata, taken) for one in fitting)
    return replace(first, rivals=tuple(rest))


def recognised(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], metadata: Mapping[str, str]
) -> tuple[list[Recipe], list[Recipe]]:
    """Return the shipped recipes whose `match` a model meets, and all that could feed and read it."""
    possible = _possible(inputs, outputs, metadata)
    by_graph = [one for one in possible if _fits(one, inputs, outputs, metadata, by_graph=True)]
    fitting = by_graph or _explaining([one for one in possible if _fits(one, inputs, outputs, metadata)], outputs)
    return fitting, possible


def _explaining(fitting: list[Recipe], outputs: Sequence[TensorSpec]) -> list[Recipe]:
    """Return the recipes that explain the number of boxes, if any does: 3549 is the number of cells of 416 x 416."""
    if not all(one.is_static for one in outputs):
        return fitting
    terms = {one.name: {term for match in one.match for shape in match.outputs for term in shape} for one in fitting}
    exact = [one for one in fitting if any("cells" in term for term in terms[one.name])]
    return exact or fitting


def _of_pictures(inputs: Sequence[TensorSpec]) -> str:
    """Return the advice to write a recipe, where the model may take a picture."""
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].dtype not in PICTURE_TYPES:
        return ""
    return (
        '; or pictures, with a recipe.toml of your own (task = "tensors", and under [input] and [preprocess] how a '
        "picture becomes the input)"
    )


def _as_given(inputs: Sequence[TensorSpec], given: Shapes) -> tuple[tuple[TensorSpec, ...], Shapes]:
    """Return the inputs with free dimensions fixed, and the shapes of the inputs that had free ones."""
    bound, taken = [], {}
    for one in inputs:
        sizes = sample_shape(given.get(one.name, ()), len(one.shape))
        fits = all(mine == size or not isinstance(mine, int) for mine, size in zip(one.shape, sizes, strict=False))
        if not one.is_static and len(sizes) == len(one.shape) and fits:
            one, taken[one.name] = replace(one, shape=sizes), sizes
        bound.append(one)
    return tuple(bound), taken


def _as_tensors(
    shapes: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
    taken: Shapes,
) -> Choice:
    """Return the recipe whose answer is the outputs, and a warning that agreement alone judges."""
    recipe = find_recipe(ARRAYS_RECIPE)
    choice = bind_recipe(
        recipe, f"no other recipe fits, and tensors are given ({shapes})", inputs, outputs, metadata, taken
    )
    note = Note(
        NoteKind.WARNING,
        f"no recipe fits this model, so recipe {recipe.name!r} is taken: accuracy is judged by the agreement of "
        f"outputs alone, at least {choice.recipe.least_agreement:g} is asked",
        "write a recipe.toml for a metric on labels",
    )
    return replace(choice, notes=(note, *choice.notes))


def shipped_recipes() -> list[Recipe]:
    """Return the shipped recipes that are chosen by what a model is."""
    recipes = (read_recipe(folder / "recipe.toml") for folder in assets.model_folders().values())
    return [recipe for recipe in recipes if recipe.match]


def _possible(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> list[Recipe]:
    return [one for one in shipped_recipes() if _is_possible(one, inputs, outputs, metadata)]


def _other_recipes(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> str:
    """Return the advice to pass a shipped recipe that fits, `tensors` among them."""
    names = [one.name for one in _possible(inputs, outputs, metadata)]
    return f"pass --recipe with one of {', '.join([*names, ARRAYS_RECIPE])}; or "


def _is_possible(
    recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], metadata: Mapping[str, str]
) -> bool:
    """Return whether a recipe can feed this model and read its outputs; others are never offered."""
    if len(inputs) != 1 or inputs[0].dtype not in PICTURE_TYPES or _why_other_channels(recipe, inputs[0]):
        return False
    size = _size_of(inputs[0], recipe, metadata)
    if size is None or contradicts(metadata, recipe):
        return False
    strides = recipe.postprocess.strides
    if strides and recipe.postprocess.decoder not in ROUNDS_UP and any(side % max(strides) for side in size):
        return False
    if not knows_shapes(recipe):
        return _fits(recipe, inputs, outputs, metadata)
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
    size = _size_of(inputs[0], recipe, metadata) if len(inputs) == 1 else None
    told = [match for match in recipe.match if match.sees_graph or not by_graph]
    return size is not None and any(_matches(match, size, inputs, outputs, metadata) for match in told)


def _matches(
    match: Match,
    size: tuple[int, int],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
) -> bool:
    if any(text not in metadata.get(key, "") for key, text in match.metadata.items()):
        return False
    if match.input_names and set(match.input_names) != {one.name for one in inputs}:
        return False
    if len(match.outputs) != len(outputs):
        return False
    known = {"height": size[0], "width": size[1], "cells": count_cells(size, STRIDES)}
    if names := class_names_of(metadata):
        known["classes"] = len(names)
    remaining = list(outputs)
    for i, pattern in enumerate(match.outputs):  # exporters order outputs as they like
        able = [
            one
            for one in remaining
            if (not match.output_names or one.name == match.output_names[i])
            and (not match.ops or match.ops[i] in (one.op, f"{one.before} > {one.op}"))
        ]
        found = next((one for one in able if _shape_matches(pattern, one.shape, known)), None)
        if found is None:
            return False
        remaining.remove(found)
    return True


def _shape_matches(pattern: Sequence[str], shape: Sequence[int | str | None], known: dict[str, int]) -> bool:
    """Return whether a shape fits its terms; free dimensions fit any, and the first use of `classes` sets its value."""
    if len(pattern) != len(shape):
        return False
    learnt = dict(known)
    for term, size in zip(pattern, shape, strict=True):
        if not isinstance(size, int) or term == "any":
            continue
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


def _size_of(tensor: TensorSpec, recipe: Recipe, metadata: Mapping[str, str]) -> tuple[int, int] | None:
    """Return height and width: the model's own, the recipe's, or the exporter's."""
    if len(tensor.shape) != 4:
        return None
    height, width = tensor.shape[2:] if _layout_of(tensor, recipe) is Layout.NCHW else tensor.shape[1:3]
    if isinstance(height, int) and isinstance(width, int):
        return height, width
    if recipe.input.size:
        return recipe.input.size[0], recipe.input.size[1]
    return input_size_of(metadata)


def _layout_of(tensor: TensorSpec, recipe: Recipe) -> Layout:
    """Return the recipe's layout, or the other one where only that one has 1 or 3 channels."""
    channels = {Layout.NCHW: tensor.shape[1], Layout.NHWC: tensor.shape[3]}
    own = recipe.input.layout
    other = Layout.NHWC if own is Layout.NCHW else Layout.NCHW
    is_other = isinstance(channels[own], int) and channels[own] not in (1, 3) and channels[other] in (1, 3)
    return other if is_other else own


def _why_other_channels(recipe: Recipe, tensor: TensorSpec) -> str:
    """Return why the recipe's channels do not fit the input; empty where they do."""
    channels = 1 if recipe.preprocess.colour is Colour.GREY else 3
    if len(tensor.shape) != 4:
        return "it has not four dimensions"
    found = tensor.shape[1 if _layout_of(tensor, recipe) is Layout.NCHW else 3]
    if not isinstance(found, int) or found == channels:
        return ""
    return f"it has {plural(found, 'channel')}, {recipe.preprocess.colour} has {channels}"


def bind_recipe(
    recipe: Recipe,
    reason: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
    taken: Shapes,
) -> Choice:
    """Return a recipe bound to a model's tensors.

    Args:
        recipe: Any.
        reason: Why it was chosen.
        inputs: Of the model.
        outputs: Of the model.
        metadata: What the exporter wrote.
        taken: Shapes of the tensors that are fed, of inputs with free dimensions.

    Raises:
        UnsupportedError: If it does not fit, or a height or width is free and nothing fixes it.
    """
    if taken:
        recipe = replace(recipe, input=replace(recipe.input, shapes={**recipe.input.shapes, **taken}))
        told = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in taken.items())
        choice = bind_recipe(recipe, reason, inputs, outputs, metadata, {})
        return replace(choice, notes=(*choice.notes, Note(NoteKind.INFO, f"shapes fixed as the tensors have: {told}")))
    if not recipe.decodes:
        recipe = with_outputs(recipe, inputs, outputs)
    if recipe.takes_arrays and not _takes_pictures(recipe, inputs, metadata):
        return Choice(replace(recipe, input=replace(recipe.input, size=())), reason, recurrent_notes(recipe))
    tensor = _input_tensor(recipe, inputs)
    if why := _why_other_channels(recipe, tensor):
        raise UnsupportedError(
            f"recipe {recipe.name!r} cannot feed input {tensor}: {why}",
            remedy=f'write colour = "GREY" under [preprocess] in a recipe.toml where one channel is grey, or feed the '
            f"inputs as they are: --recipe {ARRAYS_RECIPE} and --calib FILE.npz",
        )
    size = _size_of(tensor, recipe, metadata)
    if size is None:
        raise UnsupportedError(
            f"input {tensor} has a free height or width and recipe {recipe.name!r} does not fix it",
            remedy="write size = [height, width] under [input] in a recipe.toml and pass it with --recipe",
        )
    if why := why_unfit(recipe.with_size(*size), outputs):
        raise UnsupportedError(
            f"recipe {recipe.name!r} does not fit this model: {why}",
            remedy=_other_recipes(inputs, outputs, metadata) + "correct the recipe's [postprocess]",
        )
    layout = _layout_of(tensor, recipe)
    if not isinstance(tensor.shape[2], int) and recipe.input.size == () and input_size_of(metadata):
        reason += f"; size {size[0]}x{size[1]} from the metadata"
    names, notes = _class_names(recipe, outputs, metadata)
    bound = replace(recipe.input, tensor=tensor.name, size=size, layout=layout, dtype=tensor.dtype)
    return Choice(replace(recipe, input=bound, class_names=names), reason, notes)


def _takes_pictures(recipe: Recipe, inputs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> bool:
    """Whether the only input has the type and the shape of a picture."""
    channels = (1,) if recipe.preprocess.colour is Colour.GREY else (3,)
    if len(inputs) != 1 or inputs[0].dtype not in PICTURE_TYPES or _size_of(inputs[0], recipe, metadata) is None:
        return False
    found = inputs[0].shape[1 if _layout_of(inputs[0], recipe) is Layout.NCHW else 3]
    return recipe.input.tensor in ("", inputs[0].name) and (found in channels or not isinstance(found, int))


def _input_tensor(recipe: Recipe, inputs: Sequence[TensorSpec]) -> TensorSpec:
    wanted = recipe.input.tensor
    found = [one for one in inputs if not wanted or one.name == wanted]
    shown = ", ".join(map(str, inputs))
    if len(found) != 1 or len(inputs) != 1:
        raise UnsupportedError(
            f"recipe {recipe.name!r} feeds one picture, the model has inputs {shown}",
            remedy=f"feed the inputs as they are: --recipe {ARRAYS_RECIPE} and --calib FILE.npz",
        )
    if len(found[0].shape) != 4:
        raise UnsupportedError(
            f"input {found[0]} is no picture of four dimensions",
            remedy=f"feed the inputs as they are: --recipe {ARRAYS_RECIPE} and --calib FILE.npz",
        )
    if found[0].dtype not in PICTURE_TYPES:
        raise UnsupportedError(
            f"input {found[0]} is no picture: its type is none of {', '.join(PICTURE_TYPES)}",
            remedy=f"feed the inputs as they are: --recipe {ARRAYS_RECIPE} and --calib FILE.npz",
        )
    return found[0]


def _class_names(
    recipe: Recipe, outputs: Sequence[TensorSpec], metadata: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[Note, ...]]:
    if names := class_names_of(metadata):
        return names, ()
    known: dict[str, int] = {}
    for match in recipe.match:
        for pattern, output in zip(match.outputs, outputs, strict=False):
            _shape_matches([t if "classes" in t else "any" for t in pattern], output.shape, known)
    count = known.get("classes")
    if count is None or not recipe.class_names or count == len(recipe.class_names):
        return recipe.class_names, ()
    note = Note(
        NoteKind.WARNING,
        f"the {len(recipe.class_names)} class names of recipe {recipe.name!r} do not fit {count} classes; "
        "classes are numbered",
        "put labels.txt in a recipe of your own",
    )
    return (), (note,)
