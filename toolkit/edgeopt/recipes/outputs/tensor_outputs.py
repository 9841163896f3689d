"""Kinds of outputs that are the answer themselves, read from the graph: states, probabilities, whole numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from edgeopt.errors import InvalidFileError, Note, NoteKind, NotFoundError
from edgeopt.graph.facts.states import find_states
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.recipe import LEAST_EQUAL, Recipe

_PROBABLE = ("Sigmoid", "HardSigmoid", "Softmax")


def with_outputs(recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Recipe:
    """Return a recipe without a decoder, with states and kinds read from the graph; the recipe's own entries win.

    Raises:
        NotFoundError: If the recipe names an input or an output that the model lacks.
    """
    said, scoring = recipe.input.states, recipe.evaluation
    require_states(recipe, inputs, outputs)
    _require_known("output", scoring.kinds, outputs)
    kinds = {output.name: "probability" for output in outputs if output.op in _PROBABLE} | dict(scoring.kinds)
    least = scoring.least_agreement
    if not least and not any("float" in output.dtype for output in outputs):
        least = LEAST_EQUAL
    return replace(
        recipe,
        input=replace(recipe.input, states=said or find_states(inputs, outputs)),
        evaluation=replace(scoring, kinds=kinds, least_agreement=least),
    )


def require_states(recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Raise unless the states of a recipe are inputs of the model, each fed by one of its outputs.

    Raises:
        NotFoundError: On a name that the model lacks.
    """
    _require_known("input", recipe.input.states, inputs)
    _require_known("output", recipe.input.states.values(), outputs)


def require_bound(recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Raise unless a recipe that somebody bound, in a bundle, is one of this model.

    Raises:
        NotFoundError: On a name that the model lacks.
        InvalidFileError: If it reads pictures and has no size.
    """
    require_states(recipe, inputs, outputs)
    if not recipe.decodes or recipe.kind != "picture":
        return
    _require_known("input", [recipe.input.tensor] if recipe.input.tensor else [], inputs)
    if len(recipe.input.size) != 2:
        raise InvalidFileError(
            f"recipe {recipe.name!r} feeds pictures and has no size", remedy="make the bundle again: edgeopt optimize"
        )


def _require_known(what: str, names: Iterable[str], known: Sequence[TensorSpec]) -> None:
    for name in names:
        if name not in {spec.name for spec in known}:
            raise NotFoundError(f"{what} of the model", name, [spec.name for spec in known])


def recurrent_notes(recipe: Recipe) -> tuple[Note, ...]:
    """Return a note that the model is recurrent; none where it is not."""
    if not recipe.input.states:
        return ()
    pairs = ", ".join(f"{output} feeds {name}" for name, output in recipe.input.states.items())
    return (Note(NoteKind.INFO, f"recurrent: {pairs}; agreement is judged along the samples in their order"),)
