"""The steps `simplify` and `fuse`: rewrites, each counted, each checked against what it came from.

A rewrite that changes the outputs is found, left out and named in a warning; what comes out computes the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from edgeopt import passes
from edgeopt.errors import EdgeoptError, InvalidFileError, Note, NoteKind, StepError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.drift import TOTAL, Drift, measure_drift, worst_drift
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.subgraphs import stored_tensors
from edgeopt.graph.tensors import Tensors, TensorSpec
from edgeopt.passes import Pass, Phase
from edgeopt.passes._canonical import fix_shapes, inline_functions, slim, upgrade_opset
from edgeopt.system import registry
from edgeopt.system.text import format_bytes

TOLERANCE = 1e-3
"""Error over signal, root mean square. Exact rewrites in float32 stay below 1e-5."""
_OPSET = 17
_OPSET_OF_PER_CHANNEL = 13
"""QuantizeLinear has an axis from here on."""
_MOST_ROUNDS = 20
"""Passes find nothing new after a handful; a pair that undoes each other must end too."""
_GROWTH_RATIO, _GROWTH_BYTES = 1.01, 16 * 1024
"""Stored constants may grow this much: folded shapes and bounds are small, anything more is folding gone wrong."""


def simplify(
    model: Model,
    shapes: Mapping[str, tuple[int, ...]],
    inputs: Sequence[Tensors] = (),
    *,
    opset: int = _OPSET,
    tolerance: float = TOLERANCE,
) -> Outcome:
    """Fix the shapes, raise the opset, and take out all that computes nothing.

    Args:
        model: Any model that ONNX Runtime can run.
        shapes: Whole input shapes by name, for the inputs that the model leaves free.
        inputs: Real inputs on which every result must equal the model's; none: random numbers of a fixed seed.
        opset: The least default operator set wanted; a higher one stays.
        tolerance: Largest error over signal, root mean square.

    Raises:
        UnsupportedError: If a dimension is fixed by neither the shapes nor the model.
        InvalidFileError: If ONNX Runtime refuses the model.
        StepError: If the outputs differ although nothing but the shapes was fixed.
    """
    static = fix_shapes(model, shapes)
    expected = Expectation.of(model, inputs or [_probe(static.inputs)], tolerance)
    first = _with_fixed_shapes(model, static)
    if reason := expected.why_not(first.model):
        raise StepError(
            f"{model.name} cannot be checked: {reason} as soon as its shapes are fixed",
            remedy="check on inputs of the fixed shapes; for a model that draws random numbers: --skip simplify",
        )
    upgraded = first.then(_upgrade(first.model, opset, expected))
    outcome = _clean(upgraded, expected, fold=True)
    before, after = _constant_bytes(model), _constant_bytes(outcome.model)
    if after <= before * _GROWTH_RATIO + _GROWTH_BYTES:
        return outcome
    grown = f"folding made the constants grow from {format_bytes(before)} to {format_bytes(after)}"
    outcome = _clean(upgraded, expected, fold=False)
    note = Note(NoteKind.INFO, f"{grown}, so what can be computed stays computed")
    return Outcome(outcome.model, outcome.changes, (*outcome.notes, note))


def _with_fixed_shapes(model: Model, static: Model) -> Outcome:
    """Return the model with fixed shapes, or with free ones where the engine opens only those: branches may differ."""
    fixed = inline_functions(static)
    try:
        EXECUTOR.open(fixed.data, SessionOptions()).close()
    except InvalidFileError as error:
        told = f"the shapes stay free, as with fixed ones {error.problem}"
        return Outcome(
            inline_functions(model), {}, (Note(NoteKind.WARNING, told, "the model stays right without them"),)
        )
    free = sum(not one.is_static for one in model.inputs)
    return Outcome(fixed, {"fix_shapes": free} if free else {})


def fuse(model: Model, inputs: Sequence[Tensors] = (), *, tolerance: float = TOLERANCE) -> Outcome:
    """Make one node of several wherever a pass of the phase `fuse` can.

    Args:
        model: A model with fixed shapes.
        inputs: Real inputs on which the result must equal the model's; none: random numbers of a fixed seed.
        tolerance: Largest error over signal, root mean square.

    Raises:
        InvalidFileError: If ONNX Runtime refuses the model.
    """
    expected = Expectation.of(model, inputs or [_probe(model.inputs)], tolerance)
    return apply_checked(model, pass_functions(Phase.FUSE), expected)


def check_same(before: Model, after: Model, inputs: Sequence[Tensors], tolerance: float = TOLERANCE) -> Drift:
    """Return how far `after` lies from `before`.

    Raises:
        StepError: If that is beyond `tolerance`, or if ONNX Runtime refuses `after`.
    """
    drift = Expectation.of(before, inputs, tolerance).drift_of(after)
    if not drift.is_within(tolerance):
        raise StepError(
            f"{after.name} does not compute what {before.name} does ({drift.sqnr_db:.0f} dB signal to noise)",
            remedy="leave the step between them out with --skip",
        )
    return drift


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a model returned for some inputs, and how closely others must follow."""

    inputs: Sequence[Tensors]
    outputs: Sequence[Tensors]
    tolerance: float

    @classmethod
    def of(cls, model: Model, inputs: Sequence[Tensors], tolerance: float) -> Expectation:
        """Run `model` and keep what it returns.

        Raises:
            InvalidFileError: If ONNX Runtime refuses the model.
        """
        return cls(inputs, _run(model, inputs), tolerance)

    def drift_of(self, model: Model) -> Drift:
        """Return how far `model` lies from it; total drift if ONNX Runtime refuses the model."""
        try:
            actual = _run(model, self.inputs)
        except Exception:  # of a rewritten model, any refusal counts, at opening or at running
            return TOTAL
        return worst_drift(map(measure_drift, self.outputs, actual))

    def why_refused(self, model: Model) -> str | None:
        """Return None if ONNX Runtime runs `model`, otherwise what it says."""
        try:
            _run(model, self.inputs)
        except Exception as error:  # see above
            said = error.problem if isinstance(error, EdgeoptError) else str(error)
            return " ".join(said.split())
        return None

    def why_not(self, model: Model) -> str | None:
        """Return None if `model` computes the same, otherwise the reason against it."""
        drift = self.drift_of(model)
        if drift is TOTAL and (refusal := self.why_refused(model)):
            return refusal
        if drift.is_within(self.tolerance):
            return None
        return f"it changes the outputs ({drift.sqnr_db:.0f} dB signal to noise)"


def pass_functions(phase: Phase) -> dict[str, Callable[[Graph], int]]:
    """Return the passes of one phase, by name and in the order of their names."""
    loaded: dict[str, Pass] = {name: registry.load(passes, name).PASS for name in registry.names(passes)}
    return {name: one.function for name, one in loaded.items() if one.phase is phase}


def apply_checked(model: Model, functions: Mapping[str, Callable[[Graph], int]], expected: Expectation) -> Outcome:
    """Apply passes, round by round until none finds anything, and keep only what computes the same.

    All run together and are checked once. If the result differs they run one by one, each checked, and the ones
    that make the difference are left out and named.
    """
    result, changes = _run_passes(model, functions)
    if not changes or expected.why_not(result) is None:
        return Outcome(result if changes else model, changes)
    return _apply_one_by_one(model, functions, expected)


def _run_passes(model: Model, functions: Mapping[str, Callable[[Graph], int]]) -> tuple[Model, dict[str, int]]:
    graph, changes = Graph.from_model(model), Counter[str]()
    for _ in range(_MOST_ROUNDS):
        graph.infer_shapes()
        found = {name: function(graph) for name, function in functions.items()}
        changes.update(found)
        if not any(found.values()):
            break
    graph.remove_unused()
    return graph.to_model(), {name: count for name, count in changes.items() if count}


def _apply_one_by_one(model: Model, functions: Mapping[str, Callable[[Graph], int]], expected: Expectation) -> Outcome:
    changes, notes, allowed = Counter[str](), list[Note](), dict(functions)
    for _ in range(_MOST_ROUNDS):
        before = changes.total()
        for name, function in list(allowed.items()):
            result, found = _run_passes(model, {name: function})
            reason = expected.why_not(result) if found else None
            if reason is not None:
                del allowed[name]
                notes.append(_left_out(f"pass {name}", reason))
            elif found:
                model = result
                changes.update(found)
        if changes.total() == before:
            break
    return Outcome(model, dict(changes), tuple(notes))


@dataclass(slots=True)
class _Attempts:
    """The whole-model rewrites tried so far: the last good model, and what was said."""

    model: Model
    expected: Expectation
    notes: list[Note] = field(default_factory=list)

    def attempt(self, name: str, change: Callable[[Model], Model]) -> bool:
        """Keep what `change` makes if it computes the same; otherwise note why not."""
        try:
            changed = change(self.model)
            reason = self.expected.why_not(changed)
        except ValueError as error:
            reason = str(error)
        if reason is None:
            self.model = changed
        else:
            self.notes.append(_left_out(name, reason))
        return reason is None


def _upgrade(model: Model, opset: int, expected: Expectation) -> Outcome:
    """Raise the opset as wanted, or at least as far as INT8 needs; keep the old one if neither works."""
    attempts = _Attempts(model, expected)
    for wanted in dict.fromkeys((opset, min(opset, _OPSET_OF_PER_CHANNEL))):
        if model.opset >= wanted or attempts.attempt(
            f"the upgrade from opset {model.opset} to {wanted}", partial(upgrade_opset, opset=wanted)
        ):
            break
    changes = {"upgrade_opset": attempts.model.opset - model.opset}
    return Outcome(attempts.model, {k: n for k, n in changes.items() if n}, tuple(attempts.notes))


def _clean(upgraded: Outcome, expected: Expectation, *, fold: bool) -> Outcome:
    attempts = _Attempts(upgraded.model, expected)
    attempts.attempt("OnnxSlim", lambda model: slim(model, fold=fold))
    removed = len(upgraded.model.proto.graph.node) - len(attempts.model.proto.graph.node)
    functions = pass_functions(Phase.SIMPLIFY)
    if not fold:
        del functions["fold_constants"]
    done = apply_checked(attempts.model, functions, expected)
    changes = {**upgraded.changes, **({"onnxslim": removed} if removed > 0 else {}), **done.changes}
    return Outcome(done.model, changes, (*upgraded.notes, *attempts.notes, *done.notes))


def _constant_bytes(model: Model) -> int:
    return sum(int(one.ByteSize()) for one in stored_tensors(model.proto.graph))


def _left_out(name: str, reason: str) -> Note:
    return Note(NoteKind.WARNING, f"{name} was left out: {reason}", "the model stays right without it")


def _run(model: Model, inputs: Sequence[Tensors]) -> list[Tensors]:
    session = EXECUTOR.open(model.data, SessionOptions())
    try:
        return [session.run(one) for one in inputs]
    finally:
        session.close()


def _probe(specs: Sequence[TensorSpec]) -> Tensors:
    """Return inputs of a fixed seed: numbers from 0 to 1, for whole numbers and truth values 0 or 1."""
    random = np.random.default_rng(0)
    made = {}
    for spec in specs:
        shape = [size for size in spec.shape if isinstance(size, int)]
        drawn = random.random(shape) if "float" in spec.dtype else random.integers(0, 2, shape)
        made[spec.name] = np.asarray(drawn, spec.dtype)
    return made
