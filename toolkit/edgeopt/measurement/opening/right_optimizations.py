"""Whether ONNX Runtime's own optimizer keeps what a model answers, and the session entries with which it does.

The model is run twice in a child, once with all graph optimizations off. Where the answers differ, or the optimized
one is refused or aborts, the optimizers that do it are looked for, and switched off in measurements and bundle alike.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.executors import SessionOptions
from edgeopt.executors._child import CHILD, ChildLostError, EngineAbortError, title_of
from edgeopt.executors._guard import LARGE_BYTES
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.optimizers import FAMILIES, LEVEL, LEVELS, UNOPTIMIZED, disabled, merged, told
from edgeopt.executors.onnxruntime.providers import CPU, memory_of
from edgeopt.graph.drift import Drift, measure_drift, worst_drift
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.opening.first_difference import first_difference, first_difference_of_engine
from edgeopt.runtime.devices.availability import why_unavailable
from edgeopt.system.declared.target import Target
from edgeopt.system.machine.environment import package_versions
from edgeopt.system.machine.memory import SMALLER_SAMPLES, free_bytes
from edgeopt.system.machine.threads import engine_threads
from edgeopt.system.processes.time_limit import OutOfTime
from edgeopt.system.text import format_bytes

_TOLERANCE = 1e-3
"""Error over signal, root mean square: fusions of float32 stay below 1e-5."""
_INTEGER_TOLERANCE = 0.1
"""Tolerance for a model with integers inside: its kernels round halves otherwise than float ones, a step of the grid
each time."""
Shape: TypeAlias = tuple[int | str | None, ...]
"""Shape of a tensor; what is no number is free."""
_NUDGE = 1e-3
"""Relative change of the inputs that shows how strongly a model magnifies rounding errors."""
_COPIES = 2
"""Times a model's size that its session takes: the weights, and what kernels make of them."""
_SLOW_S = 2.0
"""A model whose first sample takes longer is looked at on that one alone."""
_MORE_THAN_ROUNDING = 4.0
"""Times the error that such a nudge makes: integers and half floats round, a wrong fusion does more."""

_ENGINE = "ONNX Runtime "
_REFUSALS = (f"{_ENGINE}does not run the model on these inputs: ", f"{_ENGINE}refuses the model: ")
_FUSED = re.compile(r"'([^']+?)/\w+Fusion\w*/'")
"""How ONNX Runtime names what it made of several nodes: by the last of them."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Session entries with which ONNX Runtime computes what a model says, and what is to be told of them."""

    entries: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()

    def applied_to(self, target: Target) -> Target:
        """Return a target whose sessions are opened so; another engine's own is as it was."""
        if not self.entries or target.executor != "onnxruntime":
            return target
        return replace(target, options={**self.entries, **target.options})


def joined(corrections: Sequence[Correction]) -> Correction:
    """Return what holds ONNX Runtime back for several graphs of one model, which are opened alike."""
    notes = [note for correction in corrections for note in correction.notes]
    return Correction(merged([correction.entries for correction in corrections]), tuple(notes))


@dataclass(frozen=True, slots=True)
class _Answers:
    """A session's answers to the samples, or why there are none."""

    outputs: tuple[Tensors, ...] = ()
    against: str = ""
    abort: EngineAbortError | None = None


_known: dict[tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]], Correction | EngineAbortError] = {}
"""Results by the model's fingerprint, the providers and the target's own entries: a process finds out once."""


def find_correction(model: Model, samples: Callable[[], Sequence[Tensors]], target: Target) -> Correction:
    """Return how ONNX Runtime must be held back for a model; nothing for almost every one.

    A large one that memory does not hold is not looked at: a note says so. Sessions are opened one after the other.

    Args:
        model: As the user gave it.
        samples: Makes one or more inputs.
        target: Its provider is taken where it works in the host's memory, else the processor's.

    Raises:
        EngineAbortError: If ONNX Runtime is the target's engine and aborts on the model even without optimizations.
    """
    if EXECUTOR.why_unavailable() is not None:
        return Correction()
    if model.size_bytes > LARGE_BYTES and free_bytes() < _COPIES * model.size_bytes:
        return Correction(notes=(_not_compared(model),))
    is_own = target.executor == "onnxruntime"
    on_host = is_own and not memory_of(target.providers) and EXECUTOR.why_no_provider(target.providers) is None
    providers = target.providers if on_host else (CPU,)
    own = dict(target.options) if on_host else {}
    key = model.fingerprint, providers, tuple(sorted(own.items()))
    if key not in _known:
        try:
            options = SessionOptions(providers, engine_threads(0, target.threads if on_host else 0), own)
            _known[key] = _Search(model, samples(), options).correction()
        except ChildLostError:  # no child can be had, or the inputs are of a type that no message carries
            return Correction()
        except EngineAbortError as abort:
            _known[key] = EngineAbortError(f"{model.name}: {abort.problem}", remedy=abort.remedy)
        finally:
            if model.size_bytes > LARGE_BYTES:
                CHILD.close()  # with what its memory keeps of the weights
    correction = _known[key]
    if isinstance(correction, Correction):
        return correction
    if is_own:
        raise correction
    return Correction()


def _not_compared(model: Model) -> Note:
    sizes = f"takes {format_bytes(_COPIES * model.size_bytes)}, {format_bytes(free_bytes())} are free"
    detail = f"whether ONNX Runtime optimizes {model.name} rightly is not looked at: a session of it {sizes}"
    return Note(NoteKind.SKIPPED, detail, "close other programs")


def find_engine_fault(model: Model, samples: Callable[[], Sequence[Tensors]], target: Target) -> str:
    """Return how another engine than ONNX Runtime errs on a model in float32; empty: it does not, or it is not known.

    What judges is ONNX Runtime with all graph optimizations off.

    Args:
        model: As the user gave it.
        samples: Makes one or more inputs.
        target: Whose engine it is; looked at where this machine has it, and it computes in float32.
    """
    is_other = target.executor not in ("onnxruntime", "null", "reference") and target.float_precision == "fp32"
    if not is_other or EXECUTOR.why_unavailable() is not None or why_unavailable(target) is not None:
        return ""
    if model.size_bytes > LARGE_BYTES and free_bytes() < _COPIES * model.size_bytes:
        return ""
    try:
        return _Search(model, samples(), SessionOptions((CPU,), engine_threads(0))).fault_of(target)
    except ChildLostError:
        return ""


class _Search:
    """Looks for the entries of one model."""

    def __init__(self, model: Model, samples: Sequence[Tensors], options: SessionOptions) -> None:
        self._model, self._samples, self._options = model, samples, options
        self._tolerance = _INTEGER_TOLERANCE if any(map(_is_integer, model.op_counts)) else _TOLERANCE
        began_s = monotonic()
        self._right = self._answers(UNOPTIMIZED, samples[:1])
        if monotonic() - began_s > _SLOW_S:
            self._samples = samples[:1]
        else:
            self._right = self._answers(UNOPTIMIZED)

    def correction(self) -> Correction:
        """Return the entries and the warning.

        Raises:
            EngineAbortError: If ONNX Runtime aborts, and does not run the model without optimizations either.
        """
        as_is = self._answers({})
        if self._right.against and as_is.abort:
            raise as_is.abort
        if self._right.against or self._is_alike(as_is):
            return Correction()
        entries = self._entries()
        return Correction(entries, (self._note(as_is, entries),))

    def fault_of(self, target: Target) -> str:
        """Return how the engine of a target errs; empty where it refuses the model, which others tell."""
        options = SessionOptions(target.providers, engine_threads(0, target.threads), target.options, precision="fp32")
        answers = self._run(target.executor, options, self._samples)
        if self._right.against or answers.against or self._is_alike(answers):
            return ""
        share = _error(_drift(self._right, answers))
        engine = f"{title_of(target.executor)} {package_versions().get(target.executor, '')}".strip()
        sample = self._samples[0]
        try:
            node = first_difference_of_engine(self._model, sample, target.executor, options, self._tolerance)
        except OutOfTime:  # that it errs is known, which is what decides
            node = ""
        where = f", first at {node}" if node else ""
        return f"{engine} changes what {self._model.name} answers, by {share:.0%}{where}"

    def _answers(self, entries: Mapping[str, str], samples: Sequence[Tensors] | None = None) -> _Answers:
        options = replace(self._options, entries={**self._options.entries, **entries})
        return self._run("onnxruntime", options, self._samples if samples is None else samples)

    def _run(self, executor: str, options: SessionOptions, samples: Sequence[Tensors]) -> _Answers:
        key, outputs = f"{self._model.fingerprint} optimized", list[Tensors]()
        try:
            if refusal := CHILD.open(key, executor, self._model.source, options, is_alone=True).refusal:
                return _Answers(against=refusal)
            for left, sample in zip(range(len(samples))[::-1], samples, strict=True):
                ran = CHILD.run(key, executor, sample, wants_outputs=True, keeps=left > 0)
                if ran.refusal:
                    return _Answers(against=ran.refusal)
                outputs.append(ran.outputs)
        except EngineAbortError as abort:
            return _Answers(against=abort.problem, abort=abort)
        return _Answers(tuple(outputs))

    def _is_alike(self, answers: _Answers) -> bool:
        """Whether answers are the unoptimized ones, but for what rounding explains."""
        if answers.against:
            return False
        drift = _drift(self._right, answers)
        return drift.is_within(self._tolerance) or _error(drift) <= _MORE_THAN_ROUNDING * self._rounding()

    def _rounding(self) -> float:
        """Return the error over the signal that a nudge of the inputs makes, or a second run of the same ones."""
        chance = np.random.default_rng(0)
        nudged = [
            {
                name: (array * (1 + _NUDGE * chance.standard_normal(array.shape))).astype(array.dtype)
                if array.dtype.kind == "f"
                else array
                for name, array in sample.items()
            }
            for sample in self._samples
        ]
        again = [self._answers(UNOPTIMIZED, samples) for samples in (nudged, self._samples)]
        return max((_error(_drift(self._right, answers)) for answers in again if not answers.against), default=0.0)

    def _entries(self) -> dict[str, str]:
        """Return the fewest optimizers to switch off, or else the highest level that is right."""
        families = tuple(FAMILIES)
        if self._is_alike(self._answers(disabled(families))):
            return disabled(self._fewest(families))
        levels = ({LEVEL: level} for level in LEVELS[1:-1])
        return next((other for other in levels if self._is_alike(self._answers(other))), dict(UNOPTIMIZED))

    def _fewest(self, families: tuple[str, ...]) -> tuple[str, ...]:
        """Return some of `families` of which none can be left out: each round tries halves, then smaller parts."""
        parts = 2
        while len(families) > 1:
            size = -(-len(families) // parts)
            chunks = [families[i : i + size] for i in range(0, len(families), size)]
            others = [tuple(family for family in families if family not in chunk) for chunk in chunks]
            smaller = next(
                (other for other in (*chunks, *others) if other and self._is_alike(self._answers(disabled(other)))),
                None,
            )
            if smaller is not None and len(smaller) < len(families):
                families, parts = smaller, 2
            elif parts >= len(families):
                break
            else:
                parts = min(2 * parts, len(families))
        return families

    def _note(self, as_is: _Answers, entries: Mapping[str, str]) -> Note:
        engine = f"ONNX Runtime {package_versions().get('onnxruntime', '')}".strip()
        culprits = told(entries)
        switched_off = f"{culprits} {'are' if ' and ' in culprits or LEVEL in entries else 'is'} switched off"
        if as_is.abort:
            what = f"{engine} aborts where it optimizes {self._model.name} ({as_is.against.removeprefix(_ENGINE)})"
        elif as_is.against:
            what = f"{engine} makes of {self._model.name} what it refuses itself ({_plain(as_is.against)})"
        else:
            share = _error(_drift(self._right, as_is))
            where = first_difference(self._model, self._samples[0], self._options, self._tolerance)
            what = f"{engine} changes what {self._model.name} answers where it optimizes it, by {share:.0%}"
            what += f", first at {where}" if where else ""
        return Note(
            NoteKind.WARNING,
            f"{what}: {switched_off}, in a bundle too",
            f"the fault is the engine's; an app without a bundle sets {' and '.join(entries)}",
        )


def _plain(refusal: str) -> str:
    """Return what the engine said, with the model's own name of the node that it fused."""
    for start in _REFUSALS:
        refusal = refusal.removeprefix(start)
    return _FUSED.sub(r"'\1'", refusal)


def _is_integer(op: str) -> bool:
    """Whether an operator rounds to integers, or computes in them."""
    return "Quant" in op or op.startswith("QLinear") or op.endswith(("Integer", "NBits"))


def _drift(right: _Answers, answers: _Answers) -> Drift:
    return worst_drift(map(measure_drift, right.outputs, answers.outputs))


def _error(drift: Drift) -> float:
    """Return the error over the signal, root mean square."""
    return float(10.0 ** (-drift.sqnr_db / 20))


_MOST_DRAWN = 1 << 22
"""Numbers of an input that are drawn; a larger one repeats them: half a billion would take 20 s."""
_WIDTH_BYTES, _MOST_BYTES = 8, 1 << 30
"""Bytes of the widest number, and of an input that is made up at most: it is copied for the child that runs it."""


def made_up_samples(model: Model, shapes: Mapping[str, Shape] | None = None) -> list[Tensors]:
    """Return two inputs of a fixed seed: numbers from 0 to 1, and of both signs; whole numbers are 0 or 1.

    Args:
        model: Whose inputs they are.
        shapes: Of inputs that leave sizes free; None, and a size that nothing tells: 1.

    Raises:
        EdgeoptError: If an input is of a type that NumPy does not know, or takes more than 1 GiB.
    """
    chance = np.random.default_rng(0)
    made: list[dict[str, NDArray[Any]]] = [{}, {}]
    for spec in model.inputs:
        declared = (shapes or {}).get(spec.name, spec.shape)
        shape = [size if isinstance(size, int) and size > 0 else 1 for size in declared]
        if (size_bytes := _WIDTH_BYTES * math.prod(shape)) > _MOST_BYTES:
            raise EdgeoptError(
                f"a made-up sample of input {spec} would take {format_bytes(size_bytes)}: whether the engine computes "
                "the model right was not tried",
                remedy=SMALLER_SAMPLES,
            )
        for i, sample in enumerate(made):
            if spec.dtype in ("object", "string"):
                sample[spec.name] = np.full(shape, "a", object)
                continue
            try:
                dtype = np.dtype(spec.dtype)
            except TypeError as error:
                raise EdgeoptError(f"input {spec} has a type of its own", remedy="pass samples") from error
            drawn = min(math.prod(shape), _MOST_DRAWN)
            if dtype.kind == "f":
                numbers = (chance.standard_normal(drawn) if i else chance.random(drawn)).astype(dtype)
            else:
                numbers = chance.integers(0, 2, drawn).astype(dtype)
            sample[spec.name] = np.resize(numbers, shape)
    return list(made)
