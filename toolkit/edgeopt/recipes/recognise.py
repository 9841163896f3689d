"""Which recipe belongs to a model."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnsupportedError
from edgeopt.graph.files.exported_folder import folder_name
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.binding import ARRAYS_RECIPE, Choice, ChosenRecipe, bind_recipe
from edgeopt.recipes.drafting.hugging_face import folder_of, read_configuration, recipe_told
from edgeopt.recipes.drafting.sound_reading import sound_recipe
from edgeopt.recipes.drafting.text_drafting import NOT_KNOWN, text_recipe
from edgeopt.recipes.inputs.input_shapes import Shapes, sample_shape
from edgeopt.recipes.inputs.preprocess import PICTURE_TYPES
from edgeopt.recipes.matching import Interface, recognised, shipped_recipes, told_by
from edgeopt.recipes.metadata import named_task, other_task
from edgeopt.recipes.recipe import find_recipe, read_recipe
from edgeopt.system.disk.links import beside


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

    The order is: the recipe asked for, the `recipe.toml` beside the model, the task that a `config.json` of Hugging
    Face names there, what the exporter wrote into the metadata together with the shapes, the inputs of a model
    that hears. If nothing else fits, the recipe `tensors` where that `config.json` says what is fed, or there are
    tensors to feed.

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
    model = Interface(inputs, outputs, metadata)
    chosen = _choose(asked, path, model, has_tensors=bool(given), may_rival=may_rival)
    first, *rest = (bind_recipe(each, inputs, outputs, metadata, taken) for each in chosen)
    return replace(first, rivals=tuple(rest))


def _choose(
    asked: str | None, path: Path | None, model: Interface, *, has_tensors: bool, may_rival: bool
) -> list[ChosenRecipe]:
    """Return the recipe for a model; several only where they may rival."""
    if asked is not None:
        return [ChosenRecipe(find_recipe(asked), "asked for with --recipe", is_given=True)]
    own = beside(path, "recipe.toml") if path else None
    if own is not None and own.is_file():
        return [ChosenRecipe(read_recipe(own, stays_inside=True), f"{own.name} lies beside the model", is_given=True)]
    beside_it = configured(path, model.inputs, model.outputs)
    if beside_it and beside_it.recipe.task != ARRAYS_RECIPE:
        return [beside_it]
    fitting, possible = recognised(model)
    if not fitting and beside_it:
        return [beside_it]
    shapes = f"inputs {', '.join(map(str, model.inputs))}; outputs {', '.join(map(str, model.outputs))}"
    if not fitting and not has_tensors and (heard := _heard(model.inputs, model.outputs)):
        return [heard]
    if not fitting and has_tensors:
        return [_as_tensors(shapes, path)]
    if not fitting and (task := other_task(model.metadata, shipped_recipes())):
        raise UnsupportedError(
            f"the exporter says that this model is for {named_task(task)}, which no recipe reads",
            remedy=f"judge its outputs as they are: --recipe {ARRAYS_RECIPE} and --calib FILE.npz, or a recipe of its "
            f"own: edgeopt recipe {_told_path(path)}",
        )
    if not fitting:
        named = f"; or pass --recipe with one of {', '.join(recipe.name for recipe in possible)}" if possible else ""
        raise EdgeoptError(
            f"no recipe fits this model ({shapes})",
            remedy=f"write one: edgeopt recipe {_told_path(path)}{_as_they_are(model.inputs)}; "
            "or pass its inputs as arrays: --calib FILE.npz "
            f"(edgeopt bench: --source){named}",
        )
    if len(fitting) > 1 and not may_rival:
        names = ", ".join(recipe.name for recipe in fitting)
        raise EdgeoptError(
            f"{len(fitting)} recipes fit this model: {names} ({shapes})",
            remedy=f"pass --recipe with one of {names}{f', or {ARRAYS_RECIPE}' if has_tensors else ''}",
        )
    alone = "alone" if len(fitting) == 1 else "too"
    return [ChosenRecipe(other, f"{told_by(other, model)} fit it {alone} ({shapes})") for other in fitting]


def _heard(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> ChosenRecipe | None:
    """Return the recipe of a model that hears, as `edgeopt recipe` drafts it without a question; None: it is none."""
    if (drafted := sound_recipe(inputs, outputs)) is None:
        return None
    recipe, comments = drafted
    guesses = tuple(key for key, comment in comments.items() if comment.startswith(NOT_KNOWN))
    return ChosenRecipe(replace(recipe, guesses=guesses), comments.get("task", "the names and shapes of its inputs"))


def _as_they_are(inputs: Sequence[TensorSpec]) -> str:
    """Return what a recipe says where outputs are no known answer to a picture; nothing where none goes in."""
    takes_picture = len(inputs) == 1 and len(inputs[0].shape) == 4 and inputs[0].dtype in PICTURE_TYPES
    text = ' ([preprocess] says how a picture goes in; task = "tensors" where nothing reads the outputs)'
    return text if takes_picture else ""


def _told_path(path: Path | None) -> str:
    return shlex.quote(str(path)) if path else "MODEL"


def _as_given(inputs: Sequence[TensorSpec], values: Shapes) -> tuple[tuple[TensorSpec, ...], Shapes]:
    """Return the inputs with free dimensions fixed, and the shapes of the inputs that had free ones."""
    bound, taken = [], {}
    for spec in inputs:
        sizes = sample_shape(values.get(spec.name, ()), spec)
        if spec.name in values and not spec.is_static and spec.takes_shape(sizes):
            spec, taken[spec.name] = replace(spec, shape=sizes, is_unranked=False), sizes
        bound.append(spec)
    return tuple(bound), taken


def _as_tensors(shapes: str, path: Path | None) -> ChosenRecipe:
    """Return the recipe whose answer is the outputs, and a warning that agreement alone judges."""
    recipe = find_recipe(ARRAYS_RECIPE)
    note = Note(
        NoteKind.WARNING,
        f"no recipe fits this model, so recipe {recipe.name!r} is taken: accuracy is judged by the agreement of "
        f"outputs alone, at least {recipe.least_agreement:g} is asked",
        f"for a metric on labels write a recipe: edgeopt recipe {_told_path(path)}",
    )
    return ChosenRecipe(recipe, f"no other recipe fits, and tensors are given ({shapes})", (note,))


# The recipe that configurations of Hugging Face beside a model tell.


def configured(path: Path | None, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> ChosenRecipe | None:
    """Return the recipe that the configurations beside a model tell; None where they tell too little.

    Args:
        path: Of the model.
        inputs: Of the model.
        outputs: Of the model.

    Raises:
        EdgeoptError: If a configuration cannot be read.
    """
    folder = folder_of(path) if path else None
    if folder is None or (configuration := read_configuration(folder)) is None:
        return None
    names = [output.name for output in outputs]
    task = configuration.task_of([spec.name for spec in inputs], names)
    reason = f"told by the configurations in {folder}" + (f": {task.name}" if task else "")
    if of_texts := text_recipe(folder, configuration, inputs, outputs):
        return ChosenRecipe(of_texts[0], reason, is_given=True)
    recipe, notes = recipe_told(configuration, inputs, names, name=folder_name(folder), source=folder.name)
    return ChosenRecipe(recipe, reason, tuple(notes), is_given=True) if recipe else None
