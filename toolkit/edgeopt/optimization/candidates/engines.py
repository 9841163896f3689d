"""The engines of one run: the target's own, those beside it on the same device, and the one that stands in for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from edgeopt.errors import EdgeoptError, Missing, Note, NoteKind
from edgeopt.executors.onnxruntime import UNFUSED
from edgeopt.measurement.opening.right_optimizations import Correction
from edgeopt.optimization.report.result import NOT_THE_TARGET
from edgeopt.runtime.devices.availability import (
    how_to_get,
    is_by_rule,
    is_compiled,
    load_executor,
    require_engine,
    why_absent,
    why_unavailable,
)
from edgeopt.steps._context import Engine
from edgeopt.steps.quantize.inspection.engine_fusion import fused_as_there
from edgeopt.system.declared.optional import NOT_INSTALLED
from edgeopt.system.declared.target import Target, TargetElsewhere, find_target
from edgeopt.system.machine.threads import engine_threads

_AS_IT_IS = Correction()
_HOST = "cpu"
"""Where the float model is run and integer forms are checked for a device that is compiled for."""


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines that candidates are opened with."""

    own: Engine
    """The engine of the target; of one that is compiled for, or known by its rules alone, this machine's processor."""
    others: tuple[Engine, ...]
    """Engines beside it on the same device; of a target that is compiled for: the device itself."""
    notes: tuple[Note, ...]
    """One for each that is not here."""
    untimed: str
    """Why nothing can be measured on this machine; empty where all can."""


def open_engines(
    target: Target,
    threads: int,
    cache_folder: str,
    correction: Correction = _AS_IT_IS,
    fault_of: Callable[[Target], str] = lambda _: "",
    *,
    cores: str = "",
) -> Engines:
    """Return the engines of a target.

    Args:
        target: The device.
        threads: Of a session.
        cache_folder: Where an engine that compiles keeps the result.
        correction: How ONNX Runtime must be held back for the model, wherever it runs it.
        fault_of: Tells how the engine of another target errs on the model; such a one is not tried. Of a heavy
            engine it is asked when its turn comes.
        cores: That the engines are held to, where they can be; empty: as the profiles say.

    Raises:
        UnavailableError: If the target's own engine is not here.
    """
    others, notes = list[Engine](), list[Note]()
    untimed = _why_untimed(target)
    if is_by_rule(target):
        own, untimed = stand_in(correction.applied_to(on_processor(target))), untimed or "no device"
        reason = why_unavailable(target)
        problem = f"not compiled: {reason}" if reason else f"run on this machine's processor: {why_absent(target)}"
        notes = [Note(NoteKind.WARNING, problem, how_to_get(target) if reason else "run edgeopt on the device itself")]
    elif is_compiled(target):
        host = replace(find_target(_HOST), name=_HOST, threads=0, alternatives=())
        own = stand_in(correction.applied_to(host))
        others = [open_engine(target, 1)]
        untimed = "" if others[0].executor.has_device(target.providers) else "no device"
    else:
        own = as_there(open_engine(target, threads, cores))
        others, notes = _alternatives(target, threads, cores, correction, fault_of)
    own = replace(own, cache_folder=cache_folder)
    return Engines(own, tuple(others), tuple(notes), untimed)


def stand_in(host: Target) -> Engine:
    """Return this machine's processor as it judges for another device: without its own saturation."""
    return replace(open_engine(host, engine_threads(0)), entries=UNFUSED)


def as_there(engine: Engine) -> Engine:
    """Return an engine as it judges here for another processor: ONNX Runtime fuses pairs of integers as it does there.

    Integer sums are exact, so fused kernels give the same numbers on both, and float kernels between pairs others, as
    values near a half round the other way. Pairs stay around float kernels where this processor's sums cannot hold the
    products, and where the device judges in the end: its integers may take this one three times as long.
    """
    target = engine.target
    if target.why_not_here() is None:
        return engine
    fused = fused_as_there(target)
    is_judged_there = bool(fused) and target.why_untimed() is None
    return replace(engine, entries=UNFUSED if target.saturates_here or is_judged_there else fused)


def on_processor(target: Target) -> Target:
    """Return the profile with this machine's processor in place of the device: numbers are checked there."""
    integer = tuple(precision for precision in target.precisions if precision.startswith("w8"))
    return replace(
        target,
        precisions=("fp32", *integer),
        executor="onnxruntime",
        providers=("CPUExecutionProvider",),
        options={},
        threads=0,
    )


def open_engine(target: Target, threads: int, cores: str = "") -> Engine:
    """Return a target's own engine, held to some cores where it can be.

    Raises:
        UnavailableError: If it is not here.
    """
    executor = require_engine(target, threads)
    is_held = bool(cores) and target.device == "cpu" and executor.holds_cores
    return Engine(replace(target, cores=cores) if is_held else target, executor, threads)


def _alternatives(
    target: Target, threads: int, cores: str, correction: Correction, fault_of: Callable[[Target], str]
) -> tuple[list[Engine], list[Note]]:
    """Return the engines beside the target's own that are here, and what is told of those that are not."""
    engines, notes, absent = list[Engine](), list[Note](), list[Target]()
    for name in target.alternatives:
        other = target.beside(find_target(name))
        # unmeasured, one engine is no better than another, unless its times there are known
        is_predicted = isinstance(other, TargetElsewhere) and other.is_predicted
        untimed = None if is_predicted else target.why_untimed()
        reason = untimed or other.why_unfit() or why_unavailable(other)
        if isinstance(reason, Missing) and reason.reason.endswith(NOT_INSTALLED):
            absent.append(other)
            continue
        if reason is None and not load_executor(other.executor).heavy:
            reason = fault_of(other) or None
        try:
            if reason is None:
                engines.append(open_engine(correction.applied_to(other), threads, cores))
        except EdgeoptError as error:
            reason = error.problem
        if reason:
            notes.append(Note(NoteKind.SKIPPED, f"{name} not tried: {reason}"))
    return engines, [*notes, *_not_installed(absent)]


def _not_installed(absent: Sequence[Target]) -> list[Note]:
    """Return one note for all engines whose packages are not here; an extra is called as its executor.

    Heavy ones are told, and not advised to where another is missing too.
    """
    if not absent:
        return []
    names = ", ".join(target.name for target in absent)
    light = [target for target in absent if not load_executor(target.executor).heavy] or absent
    extras = ",".join(target.executor for target in light)
    brought = "them" if len(light) == len(absent) else ", ".join(target.name for target in light)
    return [Note(NoteKind.SKIPPED, f"not tried: {names}", f"pip install 'edgeopt[{extras}]' brings {brought} in")]


def _why_untimed(target: Target) -> str:
    """Return why figures of this machine are none of the target; empty where they are."""
    reason = target.why_not_here()
    return f"{NOT_THE_TARGET}: {reason}" if reason and target.why_untimed() else reason or ""
