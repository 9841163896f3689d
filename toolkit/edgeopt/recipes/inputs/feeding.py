"""The frames that a model is fed: the user's pictures or arrays, in its own shapes and types, or made-up ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, Note, NoteKind
from edgeopt.graph.tensors import Tensors, TensorSpec
from edgeopt.recipes.inputs.frames import Frames, find_kind
from edgeopt.recipes.inputs.input_shapes import beginning_of, fixed_shapes, sample_shape
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
        frames = _with_beginning(frames, recipe, inputs)
        _require_arrays(frames, inputs)
        return _fitted(frames, inputs, fixed_shapes(recipe, inputs), recipe.input.states)
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


def _with_beginning(frames: Frames, recipe: Recipe, inputs: Sequence[TensorSpec]) -> Frames:
    """Return samples with the states that they leave out: zeros, as a stream begins."""
    take, held = frames.tensors, frames.shapes
    absent = [spec for spec in inputs if spec.name in recipe.input.states and spec.name not in held]
    if not absent or take is None:
        return frames
    zeros = beginning_of(recipe, absent)

    def whole(index: int) -> Tensors:
        return {**take(index), **zeros}

    return replace(frames, read=whole, tensors=whole)


def _require_arrays(frames: Frames, inputs: Sequence[TensorSpec]) -> None:
    """Raise unless there is an array for each input, of its rank, and one size for each named dimension."""
    shapes = frames.shapes
    missing = [str(spec) for spec in inputs if spec.name not in shapes]
    unknown = sorted(shapes.keys() - {spec.name for spec in inputs})
    if missing or unknown:
        parts = [f"lacks {', '.join(missing)}"] if missing else []
        parts += [f"holds {', '.join(unknown)}, which the model does not take"] if unknown else []
        raise InvalidFileError(
            f"{frames.source} {' and '.join(parts)}",
            remedy="name the arrays as the model's inputs, samples first, or store uint8 pictures as `images`",
        )
    known: dict[str, tuple[int, str]] = {}
    for input_ in inputs:
        shape = sample_shape(shapes[input_.name], input_)
        if input_.is_unranked:
            continue
        if len(shape) != len(input_.shape):
            raise _wrong_shape(frames, input_, input_.shape)
        for name, size in zip(input_.shape, shape, strict=True):
            if isinstance(name, str) and known.setdefault(name, (size, input_.name))[0] != size:
                text = f"{known[name][0]} in {known[name][1]} and {size} in {input_.name}"
                raise InvalidFileError(f"{frames.source}: {name} is {text}", remedy=f"give {name} one size")


def _fitted(
    frames: Frames, inputs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]], states: Mapping[str, str]
) -> Frames:
    assert frames.tensors is not None
    take, first = frames.tensors, frames.tensors(0)
    for spec in inputs:
        if sample_shape(first[spec.name].shape, spec) != shapes[spec.name]:
            raise _wrong_shape(frames, spec, shapes[spec.name])
    cast = [spec for spec in inputs if str(first[spec.name].dtype) != spec.dtype]
    text = ", ".join(f"{spec.name} {first[spec.name].dtype} as {spec.dtype}" for spec in cast)
    notes = (Note(NoteKind.INFO, f"{frames.source}: {text}"),) if cast else ()

    def fitted(index: int) -> Tensors:
        sample = take(index)
        return {
            spec.name: _cast(sample[spec.name].reshape(shapes[spec.name]), spec, frames.names[index]) for spec in inputs
        }

    fitted(0)
    return replace(frames, read=fitted, tensors=fitted, notes=(*frames.notes, *notes), states=states)


def _wrong_shape(frames: Frames, wanted: TensorSpec, shape: Sequence[int | str | None]) -> InvalidFileError:
    array = (frames.tensors(0) if frames.tensors else {})[wanted.name]
    is_batch = bool(shape) and (shape[0] == 1 or (bool(wanted.shape) and isinstance(wanted.shape[0], str)))
    rest = [str(size or "?") for size in (shape[1:] if is_batch else shape)]
    return InvalidFileError(
        f"{frames.source}: a sample of {wanted.name} is {array.dtype} {'x'.join(map(str, array.shape))}; the model "
        f"takes {wanted}",
        remedy=f"store it as ({', '.join(['samples', *rest])})",
    )


def _cast(array: NDArray[Any], wanted: TensorSpec, where: str) -> NDArray[Any]:
    """Return an array in a model's type; what would become another number is refused.

    Real numbers are rounded to the model's precision; whole numbers, truth values and what turns into them must stay
    what they are.
    """
    if str(array.dtype) == wanted.dtype:
        return array
    if wanted.dtype in ("object", "string"):
        return array.astype(object)
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            made: NDArray[Any] = array.astype(wanted.dtype)
    except (TypeError, ValueError) as error:
        raise _wrong_type(array, wanted, where, str(error)) from error
    is_real = array.dtype.kind == made.dtype.kind == "f"
    beyond = np.isfinite(array) & ~np.isfinite(made) if is_real else np.zeros(0, bool)
    if beyond.any():
        raise _wrong_type(array, wanted, where, f"{wanted.dtype} does not reach {np.abs(array[beyond]).max():g}")
    if not is_real and not np.array_equal(made, array):
        raise _wrong_type(array, wanted, where, "numbers would change")
    return made


def _wrong_type(array: NDArray[Any], wanted: TensorSpec, where: str, reason: str) -> InvalidFileError:
    return InvalidFileError(
        f"{where}: {wanted.name} is {array.dtype}, the model takes {wanted.dtype}: {reason}",
        remedy=f"store {wanted.name} as {wanted.dtype}",
    )
