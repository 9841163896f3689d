"""Requests to edgeopt-runner: a file of lines, a word and its value, as `examples/cpp/runner` reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgeopt.errors import UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import MEMORY_PATTERN, MEMORY_REUSE
from edgeopt.executors.onnxruntime.optimizers import LEVEL
from edgeopt.graph.tensors import Tensors
from edgeopt.system.text import short

_LEVELS = {"all": 99, "extended": 2, "basic": 1, "disable": 0}
"""Numbers of ONNX Runtime's GraphOptimizationLevel."""
CARRIED = frozenset(
    {"float16", "float32", "float64", "bool"} | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
"""Types of tensors that the runner takes and gives, in NumPy's words."""


@dataclass(frozen=True, slots=True)
class ModelThere:
    """A model on the phone, and how it is opened."""

    model: str
    options: SessionOptions

    @property
    def lines(self) -> list[str]:
        """The part of a request."""
        options, entries = self.options, dict(self.options.entries)
        lines = [f"model {self.model}", f"threads {options.threads}", f"level {_LEVELS[entries.pop(LEVEL, 'all')]}"]
        entries.pop(MEMORY_REUSE, None)  # ONNX Runtime's interface for C has no such setting
        if entries.pop(MEMORY_PATTERN, "1") == "0":
            lines.append("pattern 0")
        return [*lines, *(f"entry {key} {value}" for key, value in entries.items())]


@dataclass(frozen=True, slots=True)
class WorkThere:
    """A model on the phone, and the inputs that lie beside it."""

    opened: ModelThere
    inputs: str
    samples: int
    fed: Tensors
    """One sample: names, types and shapes of the inputs."""

    @property
    def lines(self) -> list[str]:
        """The part of a request."""
        return [*self.opened.lines, *lines_of(self.fed), f"samples {self.samples}", f"inputs {self.inputs}"]


def lines_of(inputs: Tensors) -> list[str]:
    """Return a line for each input: its type, its shape and its name."""
    return [f"input {array.dtype} {'x'.join(map(str, array.shape)) or '-'} {name}" for name, array in inputs.items()]


def require_carried(inputs: Tensors) -> None:
    """Raise where inputs cannot be handed to the runner.

    Raises:
        UnsupportedError: If a type is not carried, or a name would be read as something else.
    """
    for name, array in inputs.items():
        if str(array.dtype) not in CARRIED:
            raise UnsupportedError(
                f"the input {name} holds {array.dtype}, which edgeopt-runner does not take",
                remedy="leave that part to the app, and measure the model behind it",
            )
        if not name or name != name.strip() or not name.isprintable():
            raise UnsupportedError(f"an input is called {short(name)}", remedy="give it a name without line ends")


def request_for_greeting() -> bytes:
    """Return the request to tell the versions of runner and engine."""
    return _text(["mode greet"], [])


def request_for_serving(model: ModelThere) -> bytes:
    """Return the request to answer samples as they come."""
    return _text(["mode serve"], [model])


def sample_to_serve(inputs: Tensors) -> bytes:
    """Return what a runner that serves is sent for one sample."""
    head = "".join(f"{line}\n" for line in (*lines_of(inputs), "run")).encode()
    return head + b"".join(np.ascontiguousarray(array).tobytes() for array in inputs.values())


def request_for_load(work: WorkThere, *, seconds: float, warmup_s: float, frames: int) -> bytes:
    """Return the request to run one frame after the other.

    Args:
        work: The model.
        seconds: Least time to measure after warm-up.
        warmup_s: Least length of warm-up.
        frames: Least frames after it.
    """
    return _text(["mode load", f"seconds {seconds:g}", f"warmup {warmup_s:g}", f"frames {frames}"], [work])


def request_for_turns(
    works: Sequence[WorkThere],
    orders: Sequence[Sequence[int]],
    *,
    seconds: float,
    block: int,
    rounds: int,
    most: int = 0,
) -> bytes:
    """Return the request to run blocks of several models in turns.

    Args:
        works: The models.
        orders: Of each round, the numbers of the models; they begin anew where there are more rounds.
        seconds: How long.
        block: Frames of a model in a row.
        rounds: At least so many, whatever the seconds say.
        most: At most so many; 0: as the seconds say.
    """
    head = ["mode turns", f"seconds {seconds:g}", f"block {block}", f"rounds {rounds}", f"most {most}"]
    return _text([*head, *(f"order {' '.join(map(str, order))}" for order in orders)], works)


def _text(head: Sequence[str], works: Sequence[WorkThere | ModelThere]) -> bytes:
    return "".join(f"{line}\n" for line in (*head, *(line for work in works for line in work.lines))).encode()


def left_out(entries: Mapping[str, str]) -> str:
    """Return which setting of a session the runner has no word for; empty: it has one for each."""
    return MEMORY_REUSE if entries.get(MEMORY_REUSE) == "0" else ""
