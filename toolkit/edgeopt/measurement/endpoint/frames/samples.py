"""Samples for a server of frames: the user's pictures or tensors as its model takes them, or made-up ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgeopt.errors import EdgeoptError, Note, NoteKind, NotFoundError, UnsupportedError
from edgeopt.graph.tensors import Tensors, TensorSpec
from edgeopt.measurement.endpoint.frames.exchange import FrameEndpoint, Sample
from edgeopt.recipes.inputs.frames import Frames, open_frames
from edgeopt.recipes.inputs.made_up import synthetic_frames, synthetic_tensors
from edgeopt.recipes.inputs.picture_inputs import may_be_picture, picture_layout
from edgeopt.recipes.inputs.preprocess import Colour, Input, PictureInput, Preprocess
from edgeopt.recipes.recipe import find_recipe
from edgeopt.system.machine.memory import free_bytes
from edgeopt.system.text import format_bytes, plural, shown_path

_MOST = 16
"""Samples; they are held in memory and sent in turns."""
_MADE_UP_SIZE = (480, 640)
"""Height and width of made-up pictures, where the server takes them as files."""
_EXAMPLE = 224
_ROOM = 2 * _MOST
"""A sample needs so many times its bytes: as often as it is held, and once as numbers of Python and their text."""


def samples_for(
    server: FrameEndpoint, source: str | Path | None, recipe: str | None, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[tuple[Sample, ...], str, tuple[Note, ...]]:
    """Return what is sent, in a reader's words too, and notes on it.

    Args:
        server: Whose model is asked.
        source: Pictures, or an .npz with an array for each input; None: made up.
        recipe: How a picture becomes the model's tensor; None: stretched, RGB, 0 to 255.
        shapes: Whole shapes of inputs by name, for what the server leaves free or does not tell.

    Raises:
        EdgeoptError: If a size stays free, or what the user gives does not fit.
    """
    if not server.takes_files and not server.inputs and not shapes:
        raise EdgeoptError(
            f"{server.model} does not say what it takes",
            remedy="write inputs into its configuration on the server, or name each here: --shape NAME=1x3x224x224",
        )
    if server.takes_files and shapes:
        raise EdgeoptError("--shape fixes tensors, and this server takes pictures as files", remedy="leave it out")
    if server.takes_files:
        frames = synthetic_frames(_MADE_UP_SIZE, _MOST) if source is None else open_frames(Path(source)).spread(_MOST)
        pictures = tuple(frames.picture(index) for index in range(len(frames)))
        size = "x".join(map(str, pictures[0].shape[1::-1]))
        words = (
            f"{plural(len(pictures), 'picture')} of {shown_path(frames.source)}"
            if source
            else f"made-up pictures, {size}"
        )
        return pictures, words, frames.notes
    specs = fixed(server.inputs, shapes, server.model)
    _require_room(specs)
    words = ", ".join(map(str, specs))
    if source is None:
        made = synthetic_tensors(specs, {spec.name: _sizes(spec) for spec in specs}, _MOST)
        take = made.tensors
        assert take is not None
        return tuple(take(index) for index in range(_MOST)), f"made-up numbers: {words}", ()
    frames = open_frames(Path(source)).spread(_MOST)
    if frames.tensors is not None:
        tensors = tuple(_as_wanted(frames.tensors(index), specs, frames) for index in range(len(frames)))
        return tensors, f"{plural(len(tensors), 'sample')} of {shown_path(frames.source)}: {words}", frames.notes
    make, notes = _picture_maker(specs, recipe)
    pictures = tuple(frames.picture(index) for index in range(len(frames)))
    tensors = tuple({specs[0].name: make(picture)[0].reshape(_sizes(specs[0]))} for picture in pictures)
    return tensors, f"{len(tensors)} pictures of {shown_path(frames.source)}: {words}", (*frames.notes, *notes)


def fixed(inputs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]], model: str) -> tuple[TensorSpec, ...]:
    """Return inputs without a free dimension; the first one of each is a batch of 1 where nobody says.

    Raises:
        NotFoundError: If no input has such a name.
        UnsupportedError: If a dimension stays free, or a shape contradicts the server.
    """
    if not inputs:  # the server does not tell: what the user says counts
        return tuple(TensorSpec(name, "float32", shape) for name, shape in shapes.items())
    known = {spec.name for spec in inputs}
    for name in shapes:
        if name not in known:
            raise NotFoundError("input", name, known)
    result = []
    for spec in inputs:
        sizes: tuple[int | str | None, ...] = tuple(
            1 if size is None and axis == 0 else size for axis, size in enumerate(spec.shape)
        )
        if spec.name in shapes:
            sizes = shapes[spec.name]
        if not spec.takes_shape(tuple(int(size or 1) for size in sizes)):
            raise UnsupportedError(f"--shape {spec.name} does not fit input {spec}", remedy="keep the sizes it has")
        if None in sizes:
            example = "x".join(str(size or _EXAMPLE) for size in sizes)
            raise UnsupportedError(
                f"{model} leaves a size of input {spec} free",
                remedy=f"give every size: --shape {spec.name}={example} (an example)",
            )
        result.append(replace(spec, shape=sizes))
    if objects := [spec for spec in result if spec.dtype == "object"]:
        raise UnsupportedError(
            f"{model} takes texts or files beside other inputs: {', '.join(map(str, objects))}",
            remedy="measure a model that takes numbers, or one picture as a file",
        )
    return tuple(result)


def _require_room(specs: Sequence[TensorSpec]) -> None:
    """Raise where memory does not hold what a server asks for: all samples, and one of them as text.

    Raises:
        UnsupportedError: If it does not.
    """
    needed, free = sum(math.prod(_sizes(spec)) * np.dtype(spec.dtype).itemsize for spec in specs), free_bytes()
    if needed * _ROOM > free:
        raise UnsupportedError(
            f"a sample of {', '.join(map(str, specs))} has {format_bytes(needed)}, and {format_bytes(free)} are free",
            remedy="measure a model with smaller inputs; --shape fixes what a server leaves free",
        )


def _sizes(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(int(size or 1) for size in spec.shape)


def _as_wanted(tensors: Tensors, specs: Sequence[TensorSpec], frames: Frames) -> Tensors:
    """Return the arrays of one sample in the order, type and shape of the inputs."""
    missing = [spec.name for spec in specs if spec.name not in tensors]
    if missing or len(tensors) != len(specs):
        raise EdgeoptError(
            f"{frames.source} holds {', '.join(tensors)}, the model takes {', '.join(spec.name for spec in specs)}",
            remedy="name the arrays as the model's inputs, samples first",
        )
    result = {}
    for spec in specs:
        array = np.asarray(tensors[spec.name])
        if array.size != np.prod(_sizes(spec)):
            raise EdgeoptError(
                f"{frames.source}: {spec.name} is {'x'.join(map(str, array.shape))} a sample, input {spec}",
                remedy=f"store samples of that shape, or give theirs: --shape {spec.name}=...",
            )
        result[spec.name] = np.ascontiguousarray(array, spec.dtype).reshape(_sizes(spec))
    return result


def _picture_maker(specs: Sequence[TensorSpec], recipe: str | None) -> tuple[PictureInput, tuple[Note, ...]]:
    """Return what makes the only input of a picture, and a note where nobody says how."""
    if len(specs) != 1 or not may_be_picture(specs[0]):
        raise EdgeoptError(
            f"no picture becomes {', '.join(map(str, specs))}", remedy="give its numbers: --source FILE.npz, or none"
        )
    sizes, layout = _sizes(specs[0]), picture_layout(specs[0])
    size = (sizes[layout.plane[0]], sizes[layout.plane[1]])
    if recipe is not None:
        chosen = find_recipe(recipe)
        wanted = replace(chosen.input, size=size, layout=layout, dtype=specs[0].dtype)
        return PictureInput(wanted, chosen.preprocess, reuse=False), ()
    preprocess = Preprocess(colour=Colour.GREY if sizes[layout.channels] == 1 else Colour.RGB)
    text = "no --recipe says how a picture becomes the input: it goes in stretched, RGB, 0 to 255"
    wanted = Input(size=size, layout=layout, dtype=specs[0].dtype)
    return PictureInput(wanted, preprocess, reuse=False), (Note(NoteKind.INFO, text),)
