"""Which recipe belongs to a model."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnsupportedError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.binding import ARRAYS_RECIPE, Choice, bind_recipe
from edgeopt.recipes.drafting.configured import configured
from edgeopt.recipes.drafting.sound_reading import sound_recipe
from edgeopt.recipes.drafting.text_drafting import NOT_KNOWN
from edgeopt.recipes.inputs.input_shapes import Shapes, sample_shape
from edgeopt.recipes.inputs.preprocess import PICTURE_TYPES
from edgeopt.recipes.matching import recognised, shipped_recipes, told_by
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
    if asked is not None:
        text = "asked for with --recipe"
        return replace(bind_recipe(find_recipe(asked), text, inputs, outputs, metadata, taken), is_given=True)
    own = beside(path, "recipe.toml") if path else None
    if own is not None and own.is_file():
        result, text = read_recipe(own, stays_inside=True), f"{own.name} lies beside the model"
        return replace(bind_recipe(result, text, inputs, outputs, metadata, taken), is_given=True)
    beside_it = configured(path, inputs, outputs, metadata, taken)
    if beside_it and beside_it.recipe.task != ARRAYS_RECIPE:
        return beside_it
    fitting, possible = recognised(inputs, outputs, metadata)
    if not fitting and beside_it:
        return beside_it
    shapes = f"inputs {', '.join(map(str, inputs))}; outputs {', '.join(map(str, outputs))}"
    if not fitting and not given and (heard := _heard(inputs, outputs, metadata, taken)):
        return heard
    if not fitting and given:
        return _as_tensors(shapes, path, inputs, outputs, metadata, taken)
    if not fitting and (task := other_task(metadata, shipped_recipes())):
        raise UnsupportedError(
            f"the exporter says that this model is for {named_task(task)}, which no recipe reads",
            remedy=f"judge its outputs as they are: --recipe {ARRAYS_RECIPE} and --calib FILE.npz, or a recipe of its "
            f"own: edgeopt recipe {_told_path(path)}",
        )
    if not fitting:
        named = f"; or pass --recipe with one of {', '.join(recipe.name for recipe in possible)}" if possible else ""
        raise EdgeoptError(
            f"no recipe fits this model ({shapes})",
            remedy=f"write one: edgeopt recipe {_told_path(path)}{_as_they_are(inputs)}; or pass its inputs as arrays: "
            "--calib FILE.npz "
            f"(edgeopt bench: --source){named}",
        )
    if len(fitting) > 1 and not may_rival:
        names = ", ".join(recipe.name for recipe in fitting)
        raise EdgeoptError(
            f"{len(fitting)} recipes fit this model: {names} ({shapes})",
            remedy=f"pass --recipe with one of {names}{f', or {ARRAYS_RECIPE}' if given else ''}",
        )
    first, *rest = (
        bind_recipe(
            other,
            f"{told_by(other, inputs, outputs, metadata)} fit it {'alone' if len(fitting) == 1 else 'too'} ({shapes})",
            inputs,
            outputs,
            metadata,
            taken,
        )
        for other in fitting
    )
    return replace(first, rivals=tuple(rest))


def _heard(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], metadata: Mapping[str, str], taken: Shapes
) -> Choice | None:
    """Return the recipe of a model that hears, as `edgeopt recipe` drafts it without a question; None: it is none."""
    if (found := sound_recipe(inputs, outputs)) is None:
        return None
    recipe, comments = found
    guesses = tuple(key for key, comment in comments.items() if comment.startswith(NOT_KNOWN))
    reason = comments.get("task", "the names and shapes of its inputs")
    return bind_recipe(replace(recipe, guesses=guesses), reason, inputs, outputs, metadata, taken)


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


def _as_tensors(
    shapes: str,
    path: Path | None,
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
        f"for a metric on labels write a recipe: edgeopt recipe {_told_path(path)}",
    )
    return replace(choice, notes=(note, *choice.notes))
