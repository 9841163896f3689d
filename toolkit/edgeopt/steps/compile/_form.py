"""A model as a device that is compiled for can take it, and the toolchain that makes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeopt.errors import Note, NoteKind
from edgeopt.executors import Session
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.steps._context import Context
from edgeopt.steps.compile._numbers import Numbers
from edgeopt.steps.compile._placement import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceForm(Outcome):
    """A model with the calls that place, prove and open it on the device; each starts the vendor's library anew."""

    name: str
    precision: str
    is_quantized: bool
    suffix: str
    """Suffix of the compiled file."""
    place: Callable[[], Partition]
    """Say where its nodes run."""
    prove: Callable[[Partition, Path | None, Sequence[Tensors]], tuple[Note, ...]]
    """Given where its nodes run, compare its numbers with the CPU's on real inputs and compile it into a file, unless
    that is None.

    Raises UnsupportedError if the device refuses it or computes something else."""
    open: Callable[[], Session]
    """Open it on the device or its simulator."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The compiler for one vendor's devices."""

    executor: str
    """Executor of the targets that it compiles for."""
    forms: Callable[[Context, Model], Sequence[DeviceForm]]
    """Return the forms of a float model worth compiling, the cheapest first; none where the device runs no form."""


def note_numbers(numbers: Numbers) -> Note:
    """Return how far the device's numbers are the CPU's."""
    where = "simulated device" if numbers.simulated else "device"
    result = f"SQNR {numbers.device.sqnr_db:.1f} dB, cosine {numbers.device.cosine:.5f}"
    return Note(NoteKind.INFO, f"{where} against the CPU on a few pictures: {result}")
