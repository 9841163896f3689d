"""The frames that a model is fed: the user's pictures or arrays, in its own shapes and types, or made-up ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgeopt.errors import InvalidFileError, Note, NoteKind
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.inputs.frames import Frames, find_kind
from edgeopt.recipes.inputs.input_shapes import fed_arrays, fixed_shapes
from edgeopt.recipes.inputs.made_up import synthetic_frames, synthetic_tensors
from edgeopt.recipes.inputs.preprocess import Preprocess
from edgeopt.recipes.inputs.text_input import TextInput
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.sources.sound import windows_of
from edgeopt.system.text import plural

_MADE_UP = 16
"""Samples."""
_SEEN = 256
"""Texts whose length is looked at."""


def fed(frames: Frames, recipe: Recipe, inputs: Sequence[TensorSpec]) -> Frames:
    """Return a source as a model takes it: tensors in the model's shapes and types, pictures as they are.

    Args:
        frames: Pictures, tensors by name, or what else the recipe takes.
        recipe: Bound to the model.
        inputs: What the model takes.

    Raises:
        InvalidFileError: If the recipe takes another kind of sample, an array is missing or unknown, or its shape or
            type does not fit.
        UnsupportedError: If a dimension stays free.
    """
    if frames.tensors is None and frames.kind != recipe.kind:
        raise InvalidFileError(
            f"{frames.source} holds {frames.held}, recipe {recipe.name!r} takes {recipe.kind}s",
            remedy=f"pass {recipe.kind}s, or another recipe",
        )
    if frames.tensors is not None:
        return fed_arrays(frames, recipe, inputs)
    if recipe.kind == "text":
        return _with_note_of_cut(frames, recipe, inputs)
    if recipe.kind == "sound":
        windows = windows_of(frames, recipe.audio) if recipe.audio.streams and not frames.parts else frames
        return replace(windows, states=recipe.input.states)
    is_told = not recipe.takes_arrays or recipe.preprocess != Preprocess()
    if is_told or not recipe.input.size:  # the task refuses them
        return frames
    note = Note(
        NoteKind.WARNING,
        f"recipe {recipe.name!r} does not say how a picture becomes the input: it goes in stretched, RGB, 0 to 255",
        "write scale, mean and std under [preprocess] in a recipe.toml",
    )
    return replace(frames, notes=(*frames.notes, note))


def _with_note_of_cut(frames: Frames, recipe: Recipe, inputs: Sequence[TensorSpec]) -> Frames:
    """Return texts with a note of how many are cut; a few of them tell."""
    made, seen = TextInput(recipe, inputs), frames.spread(_SEEN)
    long = sum(made.is_cut(one) for one in seen)
    if not long:
        return frames
    text = f"{long} of {plural(len(seen), 'text')} of {frames.source} have more tokens than the model takes: cut"
    return replace(
        frames, notes=(*frames.notes, Note(NoteKind.WARNING, text, "write a larger length, or shorter texts"))
    )


def synthetic(recipe: Recipe, inputs: Sequence[TensorSpec]) -> Frames:
    """Return pictures of random colour, random tensors where the model takes no picture, or what else it takes.

    Raises:
        UnsupportedError: If a dimension stays free.
    """
    if recipe.kind != "picture":
        return replace(find_kind(recipe.kind).made_up(recipe, _MADE_UP), states=recipe.input.states)
    if recipe.input.size:
        return synthetic_frames(recipe.input.size)
    return synthetic_tensors(inputs, fixed_shapes(recipe, inputs))
