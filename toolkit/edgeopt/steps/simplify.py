"""The step `simplify`: shapes fixed, opset raised, all that computes nothing taken out, ready for the other steps.

Each rewrite is checked. One that changes the outputs is left out and named in a warning; the result computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from edgeopt.errors import InvalidFileError, Note, NoteKind, StepError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.optimizers import UNOPTIMIZED
from edgeopt.graph.files.outside_weights import piece_of
from edgeopt.graph.files.written_shapes import told_of
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.subgraphs import stored_tensors
from edgeopt.graph.tensors import Tensors
from edgeopt.passes import Phase, passes_of
from edgeopt.recipes.inputs.input_shapes import fixed_shapes
from edgeopt.recipes.texts.tokenizer import Fill
from edgeopt.runtime.devices.availability import is_compiled
from edgeopt.steps import Step
from edgeopt.steps._canonical import fix_shapes, inline_functions, slim, upgrade_opset
from edgeopt.steps._checked import TOLERANCE, Expectation, apply_checked, left_out, probe
from edgeopt.steps._context import Context, Setting
from edgeopt.steps._float32 import make_float32
from edgeopt.steps._size import OPSET_OF_PER_CHANNEL, kept_small
from edgeopt.steps._widen_float16 import widen_float16
from edgeopt.system.text import format_bytes

_OPSET = 17
_GROWTH_RATIO, _GROWTH_BYTES = 1.01, 16 * 1024
"""Stored constants may grow this much: folded shapes and bounds are small, anything more is folding gone wrong."""


def simplify(
    model: Model,
    shapes: Mapping[str, tuple[int, ...]],
    inputs: Sequence[Tensors] = (),
    *,
    opset: int = _OPSET,
    float64: bool = True,
    float16: bool = True,
    may_grow: bool = False,
    stays_free: bool = False,
    tolerance: float = TOLERANCE,
) -> Outcome:
    """Fix the shapes, raise the opset, and take out all that computes nothing.

    Args:
        model: Any model that ONNX Runtime can run.
        shapes: Whole input shapes by name, for the inputs that the model leaves free.
        inputs: Real inputs on which every result must equal the model's; none: random numbers of a fixed seed.
        opset: The least default operator set wanted; a higher one stays.
        float64: Whether the target has it; otherwise all float64 becomes float32, inputs and outputs too.
        float16: Whether the target computes in it; otherwise what is float16 inside becomes float32.
        may_grow: Whether the file may grow by more than 1 %: a compiler wants its opset, however small the model is.
        stays_free: Whether sizes that the model leaves free stay so: texts of any length come.
        tolerance: Largest error over signal, root mean square.

    Raises:
        UnsupportedError: If a dimension is fixed by neither the shapes nor the model.
        InvalidFileError: If ONNX Runtime refuses the model.
        StepError: If the outputs differ although nothing but the shapes was fixed, or if float32 changes them.
    """
    narrowed = Outcome(model, {}) if float64 else make_float32(model, inputs)
    if not float16:
        narrowed = narrowed.then(widen_float16(narrowed.model, inputs))
    given = narrowed.model
    static = given if stays_free else fix_shapes(given, shapes)
    expected = Expectation.of(given, inputs or [probe(static.inputs)], tolerance)
    fixed = Outcome(inline_functions(given), {}) if stays_free else _with_fixed_shapes(given, static)
    if reason := expected.why_not(fixed.model):
        raise StepError(
            f"{given.name} cannot be checked: {reason} as soon as its shapes are fixed",
            remedy="check on inputs of the fixed shapes; for a model that draws random numbers: --skip simplify",
        )
    upgraded = narrowed.then(fixed).then(_upgrade(fixed.model, opset, expected))
    slimmed = _slim(upgraded, expected)
    outcome = slimmed.then(apply_checked(slimmed.model, passes_of(Phase.SIMPLIFY), expected))
    before, after = _constant_bytes(given), _constant_bytes(outcome.model)
    if after <= before * _GROWTH_RATIO + _GROWTH_BYTES:
        return outcome if may_grow else kept_small(given, outcome, [upgraded, narrowed.then(fixed)])
    slimmed = _slim(upgraded, expected, fold=False)
    unfolded = {name: pass_ for name, pass_ in passes_of(Phase.SIMPLIFY).items() if name != "fold_constants"}
    outcome = slimmed.then(apply_checked(slimmed.model, unfolded, expected))
    grown = f"folding made the constants grow from {format_bytes(before)} to {format_bytes(after)}"
    result = outcome.noted(Note(NoteKind.INFO, f"{grown}, so what can be computed stays computed"))
    return result if may_grow else kept_small(given, result, [upgraded, narrowed.then(fixed)])


def _with_fixed_shapes(model: Model, static: Model) -> Outcome:
    """Return the model with fixed shapes, or with free ones where the engine opens only those: branches may differ."""
    fixed = inline_functions(static)
    try:
        for entries in (UNOPTIMIZED, {}):  # one branch that is never taken may fail in either way alone
            EXECUTOR.open(fixed.source, SessionOptions(entries=entries)).close()
    except InvalidFileError as error:
        text = f"the shapes stay free, as with fixed ones {error.problem}"
        return Outcome(
            inline_functions(model), {}, (Note(NoteKind.WARNING, text, "the model stays right without them"),)
        )
    free, text = sum(not spec.is_static for spec in model.inputs), told_of(static.stale)
    notes = (Note(NoteKind.INFO, f"{text}; they are derived anew"),) if text else ()
    return Outcome(fixed, {"fix_shapes": free} if free else {}, notes)


@dataclass(slots=True)
class _Rewrites:
    """The whole-model rewrites tried so far: the last good model, and why the others were left out."""

    model: Model
    expected: Expectation
    notes: list[Note] = field(default_factory=list)

    def keeps(self, name: str, change: Callable[[Model], Model]) -> bool:
        """Keep what `change` makes if it computes the same, and return whether it does; otherwise note why not."""
        try:
            changed = change(self.model)
            reason = self.expected.why_not(changed)
        except ValueError as error:
            reason = str(error)
        if reason is None:
            self.model = changed
        else:
            self.notes.append(left_out(name, reason))
        return reason is None


def _upgrade(model: Model, opset: int, expected: Expectation) -> Outcome:
    """Raise the opset as wanted, or at least as far as INT8 needs; keep the old one if neither works."""
    rewrites = _Rewrites(model, expected)
    for wanted in dict.fromkeys((opset, min(opset, OPSET_OF_PER_CHANNEL))):
        if model.opset >= wanted or rewrites.keeps(
            f"the upgrade from opset {model.opset} to {wanted}", partial(upgrade_opset, opset=wanted)
        ):
            break
    raised = rewrites.model.opset - model.opset
    return Outcome(rewrites.model, {"upgrade_opset": raised} if raised else {}, tuple(rewrites.notes))


def _slim(upgraded: Outcome, expected: Expectation, *, fold: bool = True) -> Outcome:
    rewrites = _Rewrites(upgraded.model, expected)
    rewrites.keeps("OnnxSlim", partial(slim, fold=fold))
    removed = len(upgraded.model.proto.graph.node) - len(rewrites.model.proto.graph.node)
    return upgraded.then(Outcome(rewrites.model, {"onnxslim": removed} if removed > 0 else {}, tuple(rewrites.notes)))


def _constant_bytes(model: Model) -> int:
    return sum(
        piece_of(stored_tensor).length
        if stored_tensor.data_location == stored_tensor.EXTERNAL
        else int(stored_tensor.ByteSize())
        for stored_tensor in stored_tensors(model.proto.graph)
    )


def _make(model: Model, context: Context, _: Setting) -> list[Outcome]:
    shapes, target = fixed_shapes(context.recipe, model.inputs), context.target
    inputs, float64 = context.checked_inputs(), "float64" not in target.refused_dtypes
    float16 = target.device != "cpu" or "fp16" in target.precisions
    stays_free = context.recipe.kind == "text" and context.recipe.tokenizer.fill is not Fill.LENGTH
    return [
        simplify(
            model,
            shapes,
            inputs,
            opset=target.opset,
            float64=float64,
            float16=float16,
            may_grow=is_compiled(target),
            stays_free=stays_free,
        )
    ]


STEP = Step(
    _make,
    does="opset upgrade, static shapes, OnnxSlim, constants folded within a size limit, unused parts removed",
    order=10,
)
