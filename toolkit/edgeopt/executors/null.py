"""An executor without an engine: it answers from a script and lets scripted time pass.

For tests of everything above an engine. The source is a `Script` in JSON, not an ONNX model.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError
from edgeopt.executors import Executor, Placement, SessionOptions, Source, Staged, in_one_piece
from edgeopt.graph.tensors import Tensors, TensorSpec, require_names


@dataclass(frozen=True, slots=True)
class Script:
    """The answers of a scripted session, and how long each part of a run takes; lists are used in turn."""

    inputs: tuple[TensorSpec, ...]
    answers: tuple[Mapping[str, NDArray[Any]], ...]
    """One or more, each with the same names."""
    execute_ns: tuple[int, ...] = (0,)
    upload_ns: int = 0
    download_ns: int = 0

    def __post_init__(self) -> None:
        if not self.answers or not self.execute_ns:
            raise ValueError("a script needs one answer and one time, or more")

    def to_bytes(self) -> bytes:
        """Return the script as JSON, which is what `Null.open` reads."""
        answers = [
            {name: {"dtype": str(value.dtype), "value": value.tolist()} for name, value in answer.items()}
            for answer in self.answers
        ]
        inputs = [[spec.name, spec.dtype, list(spec.shape)] for spec in self.inputs]
        times = {"execute_ns": self.execute_ns, "upload_ns": self.upload_ns, "download_ns": self.download_ns}
        return json.dumps({"inputs": inputs, "answers": answers, **times}).encode()


def parse_script(text: bytes) -> Script:
    """Return the script that `Script.to_bytes` wrote.

    Raises:
        InvalidFileError: If it is none; an ONNX model is none.
    """
    try:
        values: dict[str, Any] = json.loads(text)
        values["inputs"] = tuple(TensorSpec(name, kind, tuple(shape)) for name, kind, shape in values["inputs"])
        values["answers"] = tuple(
            {name: np.array(value["value"], value["dtype"]) for name, value in answer.items()}
            for answer in values["answers"]
        )
        values["execute_ns"] = tuple(values["execute_ns"])
        return Script(**values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidFileError(
            f"the executor null runs a script, and this is none: {error}",
            remedy="choose a target with another executor, e.g. --target cpu",
        ) from error


def _sleep_ns(duration_ns: int) -> None:
    if duration_ns:
        time.sleep(duration_ns / 1e9)


@dataclass(slots=True)
class NullSession(Staged):
    """A script being played."""

    simulated: ClassVar[bool] = False

    script: Script
    wait_ns: Callable[[int], None] = _sleep_ns
    turns: Iterator[int] = field(default_factory=count)
    is_closed: bool = field(default=False)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of the script."""
        return self.script.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Names and shapes of the first answer."""
        first = self.script.answers[0]
        return tuple(TensorSpec(name, str(array.dtype), array.shape) for name, array in first.items())

    def upload(self, inputs: Tensors) -> Tensors:
        """Let the scripted time pass.

        Raises:
            ValueError: If an input is missing or unknown, or the session is closed.
        """
        if self.is_closed:
            raise ValueError("the session is closed")
        require_names(inputs, (spec.name for spec in self.inputs))
        self.wait_ns(self.script.upload_ns)
        return inputs

    def execute(self, uploaded: Tensors) -> Tensors:
        """Let the next scripted time pass and return the next answer."""
        turn = next(self.turns)
        self.wait_ns(self.script.execute_ns[turn % len(self.script.execute_ns)])
        return self.script.answers[turn % len(self.script.answers)]

    def download(self, results: Tensors) -> Tensors:
        """Let the scripted time pass."""
        self.wait_ns(self.script.download_ns)
        return results

    def placement(self) -> tuple[Placement, ...]:
        """Return nothing: no node runs."""
        return ()

    def beside(self, *, reuse: bool = False) -> NullSession:
        """Return itself: threads share the script."""
        return self

    def close(self) -> None:
        """Refuse further runs."""
        self.is_closed = True


@dataclass(frozen=True, slots=True)
class Null(Executor):
    """The executor `null`."""

    wait_ns: Callable[[int], None] = _sleep_ns
    """How time passes; a scripted clock's `advance` in tests."""

    def why_unavailable(self) -> str | None:
        """Return None: it needs nothing."""
        return None

    def open(self, source: Source, options: SessionOptions) -> NullSession:
        """Play a script; `options` change nothing, since nothing runs.

        Raises:
            InvalidFileError: If `source` cannot be read or is no script.
        """
        source = in_one_piece(source, "the executor null")
        if isinstance(source, bytes):
            return NullSession(parse_script(source), self.wait_ns)
        try:
            return NullSession(parse_script(source.read_bytes()), self.wait_ns)
        except OSError as error:
            raise InvalidFileError(f"{source} cannot be read: {error}", remedy="check the path") from error


EXECUTOR = Null()
