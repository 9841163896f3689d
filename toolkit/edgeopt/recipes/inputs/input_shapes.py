"""Static shapes of a model's inputs, from the recipe or from samples, and arrays that are fed in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, Note, NoteKind, UnsupportedError
from edgeopt.graph.tensors import Tensors, TensorSpec
from edgeopt.recipes.inputs.preprocess import Layout
from edgeopt.recipes.recipe import Recipe

if TYPE_CHECKING:  # an app that runs a bundle reads no files of frames
    from edgeopt.recipes.inputs.frames import Frames

Shapes = Mapping[str, tuple[int, ...]]
"""Shape of each input, by name."""


def sample_shape(shape: tuple[int, ...], tensor: TensorSpec) -> tuple[int, ...]:
    """Return the shape of an input from that of one sample, which may have an axis of samples in front.

    Where the model does not tell how many axes it takes, that axis is the batch.
    """
    return shape[1:] if not tensor.is_unranked and len(shape) == len(tensor.shape) + 1 else shape


def _example(tensor: TensorSpec, sizes: Sequence[int]) -> str:
    """Return an example for `--shape`, where free dimensions stand by name."""
    names = (one if isinstance(one, str) else "N" for one in tensor.shape)
    return f"{tensor.name}={'x'.join(str(size) if size > 0 else name for size, name in zip(sizes, names, strict=True))}"


def fixed_shapes(recipe: Recipe, inputs: Sequence[TensorSpec]) -> dict[str, tuple[int, ...]]:
    """Return the static shape of every input: batch 1, the recipe's size, its named dimensions.

    Raises:
        UnsupportedError: If a dimension stays free; it is named.
    """
    shapes = {}
    for tensor in inputs:
        known = dict(zip(recipe.input.layout.plane, recipe.input.size, strict=False))  # no size: no picture
        known |= {} if recipe.input.layout is Layout.CHW else {0: 1}
        sizes = [*recipe.input.shapes.get(tensor.name, ())] or [
            size if isinstance(size, int) else recipe.input.fixed.get(str(size), known.get(axis, 0))
            for axis, size in enumerate(tensor.shape)
        ]
        if tensor.is_unranked and tensor.name not in recipe.input.shapes:
            raise UnsupportedError(
                f"input {tensor} and recipe {recipe.name!r} does not tell it either",
                remedy=f"give every size: --shape {tensor.name}=1x3x224x224 (an example), or [input.shapes] in a "
                "recipe.toml, or tensors: --calib FILE.npz",
            )
        _require_fit(tensor, sizes, recipe.name)
        if free := [axis for axis, size in enumerate(sizes) if size < 1]:
            raise UnsupportedError(
                f"dimension {free[0]} of input {tensor} {_why_free(tensor.shape[free[0]])} and recipe {recipe.name!r} "
                "does not fix it",
                remedy=f"give every size: --shape {_example(tensor, sizes)}, or [input.shapes] in a recipe.toml, or "
                "tensors: --calib FILE.npz",
            )
        shapes[tensor.name] = tuple(sizes)
    return shapes


def beginning_of(recipe: Recipe, inputs: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
    """Return what a stream of a recurrent model begins with: zeros for each state.

    Raises:
        UnsupportedError: If a dimension of a state stays free.
    """
    states = [spec for spec in inputs if spec.name in recipe.input.states]
    shapes = fixed_shapes(recipe, states)
    return {state.name: np.zeros(shapes[state.name], state.dtype) for state in states}


def _why_free(size: int | str | None) -> str:
    """Return what the model says of a dimension; one of 0 is read as one without a size, as old exporters meant it."""
    return "is free" if isinstance(size, str) else "has no size above 0 in the model (0 means no element)"


def _require_fit(tensor: TensorSpec, sizes: Sequence[int], recipe: str) -> None:
    if tensor.takes_shape(sizes):
        return
    raise UnsupportedError(
        f"recipe {recipe!r} gives input {tensor} the shape {'x'.join(map(str, sizes))}",
        remedy="correct it under [input.shapes]",
    )


def fed_arrays(frames: Frames, recipe: Recipe, inputs: Sequence[TensorSpec]) -> Frames:
    """Return arrays in the model's shapes and types; states that they leave out begin as zeros.

    Raises:
        InvalidFileError: If an array is missing or unknown, or its shape or type does not fit.
        UnsupportedError: If a dimension stays free.
    """
    frames = _with_beginning(frames, recipe, inputs)
    _require_arrays(frames, inputs)
    return _fitted(frames, inputs, fixed_shapes(recipe, inputs), recipe.input.states)


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
