"""Forms of a model for Qualcomm's NPUs: U8 and U16 by need, then fp16."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from edgeopt.errors import Note, UnsupportedError
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.accuracy.evaluate import model_inputs
from edgeopt.steps._context import Context, agreement_on_processor
from edgeopt.steps.compile._form import DeviceForm, Toolchain, note_numbers
from edgeopt.steps.compile._numbers import check_numbers, compile_model
from edgeopt.steps.compile._placement import Partition, explain_placement
from edgeopt.steps.quantize.calibration.pictures import CALIBRATION_PICTURES
from edgeopt.steps.quantize.search.attempt import Attempt
from edgeopt.steps.quantize.search.htp import search_htp
from edgeopt.system.declared.target import Target


def qualcomm_forms(context: Context, model: Model) -> Sequence[DeviceForm]:
    """Return the forms worth compiling, the cheapest that agrees first; none where neither fp16 nor INT8 is possible.

    Args:
        context: Its pictures calibrate, its original judges agreement.
        model: The float model, as the compiler takes it.
    """
    engine, target = context.alternatives[0], context.target
    return [
        DeviceForm(
            name=attempt.name,
            precision=attempt.precision,
            is_quantized=attempt.precision != "fp16",
            model=attempt.outcome.model,
            changes=attempt.outcome.changes,
            notes=attempt.outcome.notes,
            options=attempt.outcome.options,
            suffix=".onnx",
            place=partial(explain_placement, attempt.outcome.model, target),
            prove=partial(_prove, attempt.outcome.model, model, target),
            open=partial(engine.open, attempt.outcome.model, attempt.precision),
        )
        for attempt in _attempts(context, model)
    ]


def _attempts(context: Context, model: Model) -> Sequence[Attempt]:
    if not context.quantizes:
        float16 = Attempt("fp16", Outcome(model, {}), 1.0, precision="fp16")
        return [float16] if "fp16" in context.target.precisions else []
    pictures = context.frames.spread(CALIBRATION_PICTURES)

    return search_htp(
        model,
        model_inputs(context.task(model, evaluating=True), pictures),
        context.target,
        agreement=partial(agreement_on_processor, context),
        progress=lambda done: context.listener.progress("calibrate", done, len(pictures)),
        on_attempt=lambda attempt: context.listener.say(
            f"  {attempt.name}: agreement {attempt.agreement:.3f} on the CPU"
        ),
    )


def _prove(
    made: Model, original: Model, target: Target, partition: Partition, out: Path | None, inputs: Sequence[Tensors]
) -> tuple[Note, ...]:
    if partition.refused or partition.problem:
        raise UnsupportedError(f"{partition.verdict}{_reasons(partition)}", remedy="choose another target")
    if out is None:
        return (note_numbers(check_numbers(made, target, inputs, original)),)
    compiled = compile_model(made, target, out, inputs, original=original)
    return (note_numbers(compiled.numbers), *compiled.notes)


def _reasons(partition: Partition, most: int = 3) -> str:
    text = "; ".join(f"{placement.op} {placement.node!r}: {placement.reason}" for placement in partition.refused[:most])
    return f" ({text})" if text else ""


TOOLCHAIN = Toolchain("qnn", qualcomm_forms)
