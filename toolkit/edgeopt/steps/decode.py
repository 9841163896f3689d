"""The step `decode`: JPEG files are decoded at half, a quarter or an eighth of their size where the input is small.

It changes no model. The recipe of the bundle says it, for whatever reads pictures from files: `Runtime.read_picture`,
`edgeopt run`, `serve`, `bench` and `compare`; frames that come as arrays are resized as before. It loses little, but
not nothing: what is averaged is another set of pixels, so it is judged like any other form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.recipes.inputs.preprocess import Decode
from edgeopt.recipes.recipe import Recipe
from edgeopt.steps import Step
from edgeopt.steps._context import Context, Setting
from edgeopt.system.declared.target import Target


def reduce_decoding(recipe: Recipe) -> Recipe:
    """Return a recipe that has JPEG files decoded at a part of their size."""
    return replace(recipe, preprocess=replace(recipe.preprocess, decode=Decode.REDUCED))


def _why_not(target: Target) -> str:
    return f"an app on {target.name!r} decodes pictures itself" if target.embeds else ""


def _why_not_of(recipe: Recipe) -> str:
    if recipe.kind != "picture" or not recipe.input.size:
        return "the model takes arrays, not pictures"
    if recipe.preprocess.decode is Decode.REDUCED:
        return f"recipe {recipe.name!r} says so already"
    return ""


def _make(_model: Model, _context: Context, _setting: Setting) -> Sequence[Outcome]:
    return []


STEP = Step(
    _make,
    does="JPEG files are decoded at half, a quarter or an eighth of their size, never below the model's input",
    order=68,
    why_not=_why_not,
    why_not_of=_why_not_of,
    in_line=False,
    feeds=reduce_decoding,
    is_default=False,
)
