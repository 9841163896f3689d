"""The step `compile` for Rockchip's NPUs: one build is simulated, compared with the CPU, and written.

Every build gives another binary, so the one that was compared is the one that leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeopt.errors import Note, NoteKind
from edgeopt.executors.rknn import PROVIDER, Built, Rknn
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.compile._numbers import Numbers, compare_numbers, options_for, require_precision
from edgeopt.system.declared.target import Target
from edgeopt.system.text import plural

_REMEDY = (
    "leave the quantization to edgeopt (pairs of Q and DQ, prediction layers in float), or compile in fp16: "
    "Rockchip's compiler puts boxes and scores on one scale"
)


@dataclass(frozen=True, slots=True)
class RockchipCompiled:
    """A `.rknn` file whose numbers were compared in the simulator."""

    built: Built
    numbers: Numbers
    """`nodes` counts the compiler's layers, those on the chip's processor too."""

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes of a report beside the numbers; the cycles are named as an estimate."""
        left = [placement for placement in self.built.placement if placement.provider != PROVIDER]
        notes = [Note(NoteKind.INFO, self.built.summary)]
        if left:
            named = ", ".join(f"{placement.op} {placement.node!r}" for placement in left)
            notes.append(Note(NoteKind.WARNING, f"{plural(len(left), 'layer')} on the chip's processor: {named}"))
        return tuple(notes)


def compile_for_rockchip(
    model: Model,
    target: Target,
    out: Path,
    inputs: Sequence[Tensors],
    *,
    calibration: Sequence[Tensors] = (),
    original: Model | None = None,
) -> RockchipCompiled:
    """Compile, simulate, compare with the CPU, and write the binary if its numbers are right.

    Args:
        model: With fixed shapes, opset 19 at most; in real numbers, or with pairs of Q and DQ.
        target: The chip.
        out: The `.rknn` file to write.
        inputs: Real inputs, one or more, on which the numbers are compared.
        calibration: Real inputs with which Rockchip's compiler quantizes a float model to W8A8; none: fp16, or
            the model's own pairs.
        original: The float model that `model` was quantized from.

    Raises:
        UnsupportedError: If the compiler refuses the model, or the simulator computes something else than the CPU.
        StepError: If the vendor's library fails, dies or hangs.
    """
    if not calibration:
        require_precision(model, target)
    session = Rknn(calibration).open(model.source, options_for(target))
    try:
        remedy = _REMEDY if calibration else "compile in another precision"
        numbers = compare_numbers(session, model, target, inputs, original, remedy=remedy)
        return RockchipCompiled(session.export(out), numbers)
    finally:
        session.close()
