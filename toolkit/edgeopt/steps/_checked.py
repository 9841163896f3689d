"""Apply passes, each counted, and keep only what computes the same as the model it came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.executors import Session, SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.optimizers import UNOPTIMIZED
from edgeopt.graph.drift import TOTAL, Drift, measure_drift, worst_drift
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors, TensorSpec
from edgeopt.system.processes.time_limit import require_time

TOLERANCE = 1e-3
"""Error over signal, root mean square. Exact rewrites in float32 stay below 1e-5."""
_MOST_ROUNDS = 20
"""Passes find nothing new after a handful; a pair that undoes each other must end too."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """A model's answers to some inputs, and how closely others must follow."""

    inputs: Sequence[Tensors]
    outputs: Sequence[Tensors]
    tolerance: float
    is_optimizable: bool = True
    """Whether the engine's own optimizer leaves the model's answers as they are; others must then stand it too."""

    @classmethod
    def of(cls, model: Model, inputs: Sequence[Tensors] = (), tolerance: float = TOLERANCE) -> Expectation:
        """Run `model` as it is written, without the engine's optimizations, and keep what it returns.

        Args:
            model: What others are compared with.
            inputs: Real inputs, in float32 where the model no longer reads float64; none: `probe`.
            tolerance: Largest error over signal, root mean square.

        Raises:
            InvalidFileError: If ONNX Runtime refuses the model.
        """
        read = _as_read(model, inputs) or [probe(model.inputs)]
        written = cls(read, _run(model, read, UNOPTIMIZED), tolerance, is_optimizable=False)
        return replace(written, is_optimizable=written._is_same_optimized(model))

    def _is_same_optimized(self, model: Model) -> bool:
        try:
            return self._drift(_run(model, self.inputs, {})).is_within(self.tolerance)
        except EdgeoptError:  # its optimizer refuses what it wrote itself
            return False

    def _drift(self, actual: Sequence[Tensors]) -> Drift:
        return worst_drift(map(measure_drift, self.outputs, actual))

    def _answers(self, model: Model) -> Iterator[Sequence[Tensors]]:
        """Yield what a model returns as it is written, then what it returns optimized, where that is asked for."""
        yield _run(model, self.inputs, UNOPTIMIZED)
        if self.is_optimizable:
            yield _run(model, self.inputs, {})

    def drift_of(self, model: Model) -> Drift:
        """Return how far `model` lies from it; total drift if ONNX Runtime refuses the model."""
        try:
            return worst_drift(self._drift(actual) for actual in self._answers(model))
        except Exception:  # of a rewritten model, any refusal counts, at opening or at running
            return TOTAL

    def why_refused(self, model: Model) -> str | None:
        """Return None if ONNX Runtime runs `model`, otherwise what it says."""
        try:
            list(self._answers(model))
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
        if drift == TOTAL:
            return "an output is missing, has another shape, or is NaN or infinite where it was not"
        return f"it changes the outputs ({drift.worst_db:.0f} dB signal to noise)"


class RewriteJudge(Protocol):
    """A judge of whether a rewritten model is still right."""

    def why_not(self, model: Model) -> str | None:
        """Return None if `model` computes the same, otherwise the reason against it."""
        ...


def apply_checked(model: Model, functions: Mapping[str, Callable[[Graph], int]], expected: RewriteJudge) -> Outcome:
    """Apply passes, round by round until none finds anything, and keep only what computes the same.

    All run together and are checked once. If the result differs they run one by one, each checked, and the ones
    that make the difference are left out and named.

    Args:
        model: What is rewritten; it is not changed.
        functions: Passes by name; each edits a graph in place and returns how often it did.
        expected: What the result must return.
    """
    graph, changes = Graph.from_model(model), Counter[str]()
    for _ in range(_MOST_ROUNDS):
        graph.infer_shapes()
        found = {name: function(graph) for name, function in functions.items()}
        changes.update(found)
        if not any(found.values()):
            break
    if not changes.total():
        return Outcome(model, {})
    graph.remove_unused()
    result = graph.to_model()
    reason = expected.why_not(result)
    if reason is None:
        return Outcome(result, {name: count for name, count in changes.items() if count})
    if len(functions) == 1:
        return Outcome(model, {}, tuple(left_out(f"pass {name}", reason) for name in functions))
    return _apply_one_by_one(model, functions, expected)


def _apply_one_by_one(model: Model, functions: Mapping[str, Callable[[Graph], int]], expected: RewriteJudge) -> Outcome:
    changes, notes, allowed = Counter[str](), list[Note](), dict(functions)
    for _ in range(_MOST_ROUNDS):
        before = changes.total()
        for name, function in list(allowed.items()):
            done = apply_checked(model, {name: function}, expected)
            model = done.model
            changes.update(done.changes)
            if done.notes:
                del allowed[name]
                notes += done.notes
        if changes.total() == before:
            break
    return Outcome(model, dict(changes), tuple(notes))


def left_out(name: str, reason: str) -> Note:
    """Return that a rewrite was not kept."""
    return Note(NoteKind.WARNING, f"{name} was left out: {reason}", "the model stays right without it")


def probe(specs: Sequence[TensorSpec]) -> Tensors:
    """Return inputs of a fixed seed: numbers from 0 to 1, for whole numbers and truth values 0 or 1.

    Args:
        specs: Of the inputs; a free dimension gets the size 1.
    """
    random = np.random.default_rng(0)
    made = {}
    for spec in specs:
        shape = [size if isinstance(size, int) else 1 for size in spec.shape]
        drawn = random.random(shape) if "float" in spec.dtype else random.integers(0, 2, shape)
        made[spec.name] = np.asarray(drawn, spec.dtype)
    return made


def in_float32(inputs: Tensors) -> Tensors:
    """Return inputs with float64 as float32."""
    return {
        name: input_.astype(np.float32) if input_.dtype == np.float64 else input_ for name, input_ in inputs.items()
    }


def _as_read(model: Model, inputs: Sequence[Tensors]) -> list[Tensors]:
    wide = {spec.name for spec in model.inputs if spec.dtype == "float64"}
    return [input_ if wide & input_.keys() else in_float32(input_) for input_ in inputs]


def _run(model: Model, inputs: Sequence[Tensors], entries: Mapping[str, str]) -> list[Tensors]:
    session = EXECUTOR.open(model.source, SessionOptions(entries=entries))
    try:
        return [_in_time(session, input_) for input_ in inputs]
    finally:
        session.close()


def _in_time(session: Session, inputs: Tensors) -> Tensors:
    require_time()
    return session.run(inputs)
