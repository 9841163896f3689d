"""The step `convert`: what a float model becomes without a search."""

from __future__ import annotations

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.runtime.devices.availability import is_by_rule
from edgeopt.steps import Step
from edgeopt.steps._context import Context, Setting
from edgeopt.steps.convert.precisions import CONVERSIONS, is_converted, why_not_converted
from edgeopt.system.declared.target import Target, find_target


def convert(model: Model, context: Context, setting: Setting) -> list[Outcome]:
    """Return the float model in a precision scheme; none where it gains nothing."""
    target, precision = setting.engine.target, setting.precision
    if reason := why_not_converted(precision, target, context.may_quantize):
        context.notes.append(Note(NoteKind.SKIPPED, f"no {precision} on {target.name}: {reason}"))
        return []
    return CONVERSIONS[precision](model, target, context.checked_inputs(model))


def _why_not(target: Target) -> str:
    profiles = (target, *map(find_target, target.alternatives))
    if is_by_rule(target) or not any(
        is_converted(precision, profile) for profile in profiles for precision in profile.precisions
    ):
        return f"{target.name!r} runs no model that it makes"
    return ""


STEP = Step(
    convert,
    does="float16, and matrices in INT8 or INT4 blocks, where the target's engine has kernels for them",
    order=60,
    makes=is_converted,
    why_not=_why_not,
    without="nothing to convert",
    in_line=False,
)
