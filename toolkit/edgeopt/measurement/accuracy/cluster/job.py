"""One model and its frames as workers are sent them: files by content, and how they are opened and read."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgeopt.errors import InvalidFileError
from edgeopt.executors import Session
from edgeopt.graph.tensors import Frame, ReducedPicture, Tensors, TensorSpec
from edgeopt.measurement.accuracy.evaluate import answers
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.inputs.jpeg import ReducedDecoding
from edgeopt.recipes.inputs.pictures import decode_sample
from edgeopt.recipes.recipe import Recipe
from edgeopt.runtime.opening import Opening
from edgeopt.tasks import Task


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file by its SHA-256, and where it lies on the machine that asks."""

    digest: str
    origin: str


@dataclass(frozen=True, slots=True)
class SentPictures:
    """Reads pictures whose files were sent."""

    names: tuple[str, ...]
    data: tuple[bytes, ...]
    top: int = 0
    """As `read_picture` takes it."""
    decoding: ReducedDecoding | None = None

    def __call__(self, index: int) -> Frame | ReducedPicture:
        """Return the i-th picture; raises InvalidFileError where it does not decode."""
        sample = decode_sample(self.data[index], self.decoding, self.top)
        if sample is None:
            name = self.names[index]
            raise InvalidFileError(f"{name} does not decode as a picture", remedy="remove the file or copy it again")
        return sample

    def select(self, kept: Sequence[int]) -> SentPictures:
        """Return what reads the pictures at these places only."""
        names, data = tuple(self.names[i] for i in kept), tuple(self.data[i] for i in kept)
        return replace(self, names=names, data=data)

    def decoded_by(self, decoding: ReducedDecoding) -> SentPictures:
        """Return what decodes them so."""
        return replace(self, decoding=decoding)


@dataclass(frozen=True, slots=True)
class FrameFiles:
    """A stretch of the frames as files: one for each picture, or one that holds all samples of another kind."""

    names: tuple[str, ...]
    files: tuple[SentFile, ...]
    kind: str
    is_packed: bool
    """Whether the one file is a pickle of all samples."""
    top: int = 0
    """As `read_picture` takes it."""

    def frames(self, data: Sequence[bytes]) -> Frames:
        """Return the frames, given the files' content."""
        if not self.is_packed:
            return Frames(self.names, SentPictures(self.names, tuple(data), self.top), Path("sent"), kind=self.kind)
        samples = pickle.loads(data[0])  # it was written by the program that sends tasks to this worker
        return Frames(self.names, lambda i: samples[i], Path("sent"), kind=self.kind)


@dataclass(frozen=True, slots=True)
class AnswerJob:
    """A model whose answers are wanted."""

    run: str
    """Name of the stretch of work to which it belongs, all of which may be stopped at once."""
    number: int
    """Its number there."""
    model: SentFile
    opening: Opening
    recipe: Recipe
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    is_evaluating: bool
    first: FrameFiles
    """The first frame, by which a worker shows that it computes as this machine does."""
    is_own: bool
    """Whether the worker belongs to the process that asks, which holds the machine for it."""


@dataclass(frozen=True, slots=True)
class AnsweredFrames:
    """The answers to a stretch of frames."""

    worker: str
    proof: str
    """Digest of what the worker makes of the first frame, as `prove` gives it."""
    answers: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class MachineTaken:
    """Nothing was answered: somebody measures on the worker's machine."""

    worker: str


@dataclass(frozen=True, slots=True)
class CannotAnswer:
    """Nothing was answered: the model does not open there, or a frame is not read.

    A value, as not every exception survives the way back; Dask would never tell that one was raised.
    """

    worker: str
    why: str


def prove(session: Session, task: Task, frames: Frames) -> tuple[str, Any]:
    """Return a digest of a model's outputs and answer for the first frame, and that answer.

    Two machines of one digest compute alike to the last bit, at least here.
    """
    outputs = list[Tensors]()
    (answer,) = answers(session, task, frames.select([0]), hear=lambda made: outputs.append(dict(made)))
    return digest_of((outputs, answer)), answer


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a value: all bits of its numbers, and the names and types around them."""
    digest = hashlib.sha256()
    _add(digest, value)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif is_dataclass(value):
        for field in fields(value):
            digest.update(field.name.encode())
            _add(digest, getattr(value, field.name))
    elif isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            digest.update(repr(key).encode())
            _add(digest, value[key])
    elif isinstance(value, list | tuple | np.ndarray):
        digest.update(f"{len(value)}:".encode())
        for each in value:
            _add(digest, each)
    else:
        digest.update(repr(value).encode())
