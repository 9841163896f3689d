"""The step `resolution`: the same network on smaller pictures, as candidates like any other."""

from __future__ import annotations

from edgeopt.errors import Note, NoteKind, UnsupportedError
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.recipes.recipe import Recipe
from edgeopt.steps import Step
from edgeopt.steps._checked import Expectation
from edgeopt.steps._context import Context, Setting
from edgeopt.steps.resolution.sizes import smaller_sizes, stride_of
from edgeopt.steps.resolution.smaller import Size, with_input_size


def why_fixed(recipe: Recipe) -> str:
    """Return why a recipe has no smaller pictures; empty where it may."""
    if not recipe.input.size:
        return "the model takes arrays, not pictures"
    if not recipe.decodes:
        return f"recipe {recipe.name!r} reads outputs as they are, and they follow the size"
    if not recipe.input.smaller:
        return f"recipe {recipe.name!r} says that the size is fixed"
    return ""


def _make(model: Model, context: Context, _: Setting) -> list[Outcome]:
    recipe = context.recipe_of(model)
    if reason := why_fixed(recipe):
        raise UnsupportedError(reason, remedy="leave the step resolution out")
    height, width = recipe.input.size
    unit = stride_of(Graph.from_model(model), recipe)
    made, refused = list[Outcome](), ""
    for size in smaller_sizes((height, width), unit):
        try:
            made.append(_smaller(model, context, recipe, size))
        except UnsupportedError as error:
            refused = error.problem
    if not made:
        text = refused or f"no multiple of its stride of {unit} pixels lies between half of {height}x{width} and it"
        raise UnsupportedError(text, remedy="export the model at the size wanted")
    return made


def _smaller(model: Model, context: Context, recipe: Recipe, size: Size) -> Outcome:
    """Return the model for a smaller size, which its task and ONNX Runtime take.

    Raises:
        UnsupportedError: If a part of it holds for its own size only.
    """
    made = with_input_size(model, context.recipe.input.tensor, recipe.input.layout, size)
    context.task(made, evaluating=True)
    Expectation.of(made, context.inputs(1, made))
    (height, width), (old_height, old_width) = size, recipe.input.size
    share = height * width / (old_height * old_width)
    text = f"input {height}x{width} in place of {old_height}x{old_width}, {share:.0%} of the pixels: same weights"
    return Outcome(made, {"resolution": 1}, (Note(NoteKind.INFO, text, "small things are lost first"),))


STEP = Step(
    _make,
    does="the same network on smaller pictures, in multiples of its strides",
    order=25,
    is_default=False,
    beside=True,
    is_healed=False,
)
