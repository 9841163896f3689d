"""Forms of a model for Rockchip's NPUs: INT8 by its compiler or by pairs of Q and DQ, fp16."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from edgeopt.errors import Note, NoteKind
from edgeopt.executors import Session
from edgeopt.executors.rknn import Rknn
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.accuracy.evaluate import model_inputs
from edgeopt.steps._context import Context
from edgeopt.steps.compile._form import DeviceForm, Toolchain, note_numbers
from edgeopt.steps.compile._numbers import compare_numbers, options_for
from edgeopt.steps.compile._placement import Partition, partition_of
from edgeopt.steps.compile._rockchip import compile_for_rockchip
from edgeopt.steps.quantize.by_rule import quantize_by_rule
from edgeopt.system.declared.target import Target

_PICTURES = 64
"""The vendor advises 20 to 100; all of them are held in memory."""
_BY_COMPILER = Note(NoteKind.INFO, "quantized by the vendor's compiler: the figures of the CPU are the float model's")


def rockchip_forms(context: Context, model: Model) -> Sequence[DeviceForm]:
    """Return the forms worth compiling: what the compiler quantizes, what edgeopt does, real numbers.

    Args:
        context: Its pictures calibrate.
        model: The float model, as the compiler takes it.
    """
    forms: list[DeviceForm] = []
    if context.quantizes:
        pictures = context.frames.spread(_PICTURES)
        calibration = list(model_inputs(context.task(model, evaluating=True), pictures))
        whole = Outcome(model, {}, (_BY_COMPILER,))
        forms.append(_form("w8a8 by the compiler", "w8a8", True, whole, context.target, model, calibration))
        for i, made in enumerate(quantize_by_rule(context, model) if "fp16" in context.target.precisions else []):
            name = "w8a8 by pairs" if i == 0 else "w8a8 by pairs, more in float"
            forms.append(_form(name, "w8a8", True, made, context.target, model))
    if "fp16" in context.target.precisions:
        forms.append(_form("fp16", "fp16", False, Outcome(model, {}), context.target, model))
    return forms


def _form(
    name: str,
    precision: str,
    is_quantized: bool,
    outcome: Outcome,
    target: Target,
    original: Model,
    calibration: Sequence[Tensors] = (),
) -> DeviceForm:
    made = outcome.model
    return DeviceForm(
        name=name,
        precision=precision,
        is_quantized=is_quantized,
        model=made,
        changes=outcome.changes,
        notes=(Note(NoteKind.INFO, f"form: {name}"), *outcome.notes),
        suffix=".rknn",
        place=partial(_place, made, target, calibration),
        prove=partial(_prove, made, original if is_quantized else None, target, calibration),
        open=partial(_open, made, target, calibration),
    )


def _open(made: Model, target: Target, calibration: Sequence[Tensors]) -> Session:
    return Rknn(calibration).open(made.source, options_for(target))


def _place(made: Model, target: Target, calibration: Sequence[Tensors]) -> Partition:
    return partition_of(made, target, Rknn(calibration).explain(made.source, options_for(target)))


def _prove(
    made: Model,
    original: Model | None,
    target: Target,
    calibration: Sequence[Tensors],
    _: Partition,
    out: Path | None,
    inputs: Sequence[Tensors],
) -> tuple[Note, ...]:
    if out is not None:
        rockchip_compiled = compile_for_rockchip(made, target, out, inputs, calibration=calibration, original=original)
        return (note_numbers(rockchip_compiled.numbers), *rockchip_compiled.notes)
    session = Rknn(calibration).open(made.source, options_for(target))
    try:
        return (note_numbers(compare_numbers(session, made, target, inputs, original)),)
    finally:
        session.close()


TOOLCHAIN = Toolchain("rknn", rockchip_forms)
