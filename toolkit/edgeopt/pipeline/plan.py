"""What `optimize` will do, in order, and what it leaves out and why. Pure: it reads no file and runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from edgeopt.errors import EdgeoptError, Note, NoteKind, NotFoundError, UnsupportedError
from edgeopt.executors._availability import load_executor
from edgeopt.pipeline.selection import Prefer
from edgeopt.recipes.recipe import Recipe
from edgeopt.system.environment import engine_threads
from edgeopt.system.target import Target
from edgeopt.system.toml import DURATION_MS, DURATION_S, THREADS, Within, require_ranges

STEPS = ("simplify", "fuse", "quantize", "compile")
"""Every step there is, in the order in which they run."""
SYNTHETIC = "synthetic"
"""The word for `--calib` that admits calibration without real pictures."""

_DOES = {
    "simplify": "opset upgrade, static shapes, OnnxSlim, constants folded within a size limit, unused parts removed",
    "fuse": "batch normalisation, affine ops and focus slices into convolutions; activations in the form engines fuse",
    "quantize": "INT8 by the target's rules, calibrated on real pictures, float where INT8 costs accuracy or time",
    "compile": "all nodes placed on the device, its numbers compared with the CPU's, its binary made and scored",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for, apart from model, recipe and target."""

    calib: str = ""
    """Path of unlabelled pictures, `synthetic`, or empty for the recipe's own."""
    eval: str = ""
    """Path of a label file, or empty for the recipe's own."""
    budget_ms: Annotated[float, DURATION_MS] | None = None
    max_drop: Annotated[float, Within(0, 1)] | None = None
    steps: tuple[str, ...] = STEPS
    skip: tuple[str, ...] = ()
    threads: Annotated[int, THREADS] = 0
    time_budget_s: Annotated[float, DURATION_S] | None = None
    resume: bool = False
    replay: str = ""
    """Output folder, or report, of an earlier run whose decisions hold; empty: what is measured here decides."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Whole shapes of inputs by name, for what the model leaves free."""
    prefer: Prefer = Prefer.SPEED
    """What is wanted of the chosen candidate."""

    def __post_init__(self) -> None:
        require_ranges(self)


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step, and what it will do."""

    name: str
    does: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A printable plan: the same inputs give the same plan."""

    steps: tuple[PlannedStep, ...]
    calib: Path | None
    """None: without calibration pictures, or synthetic ones."""
    synthetic: bool
    eval: Path | None
    budget_ms: float
    budget_asked: bool
    max_drop: float
    threads: int
    threads_asked: bool
    time_budget_s: float | None
    notes: tuple[Note, ...] = field(default=())
    may_quantize: bool = True
    """Whether `quantize` was asked for: without pictures the step falls away, but weights may still be integers."""
    prefer: Prefer = Prefer.SPEED

    def as_json(self) -> Mapping[str, object]:
        """Return the plan as plain values; its hash keys the candidates of a run."""
        return {
            "steps": [step.name for step in self.steps],
            "calib": SYNTHETIC if self.synthetic else str(self.calib.resolve()) if self.calib else None,
            "eval": str(self.eval.resolve()) if self.eval else None,
            "max_drop": self.max_drop,
            "threads": self.threads if self.threads_asked else 0,  # measured ones may differ when a run is resumed
        }


def is_compiled(target: Target) -> bool:
    """Whether models are compiled for the target ahead of time, and judged by its device or its simulator."""
    return load_executor(target.executor).compiled


def require_uncompiled(target: Target) -> None:
    """Raise for a target whose integer forms only its compiler can judge.

    Raises:
        UnsupportedError: If it is one.
    """
    if is_compiled(target):
        raise UnsupportedError(
            f"what {target.name!r} runs is judged by its compiler, so the step quantize does not run alone",
            remedy=f"edgeopt optimize MODEL --target {target.name} quantizes, compiles and scores",
        )


def require_no_clock(options: Options) -> None:
    """Raise where a run that must make what an earlier one made is also asked to stop by the clock.

    Raises:
        EdgeoptError: If so.
    """
    if options.time_budget_s is not None:
        raise EdgeoptError("a replay cannot stop by a time budget", remedy="leave --time-budget out")


def make_plan(recipe: Recipe, target: Target, options: Options, threads: int, quantized: str = "") -> Plan:
    """Return what will be done.

    Args:
        recipe: Bound to the model.
        target: The device.
        options: The user's wishes.
        threads: What 0 threads means for this model on this machine.
        quantized: Why the model must not be quantized; empty: it may.

    Raises:
        NotFoundError: If a step to do or to skip does not exist.
        EdgeoptError: If no step is left.
    """
    for name in (*options.steps, *options.skip):
        if name not in STEPS:
            raise NotFoundError("step", name, STEPS)
    if options.prefer not in tuple(Prefer):
        raise NotFoundError("preference", options.prefer, Prefer)
    calib = _path(options.calib, recipe, recipe.evaluation.calib)
    synthetic = options.calib == SYNTHETIC
    notes: list[Note] = []
    names = [name for name in STEPS if name in options.steps and name not in options.skip]
    if "compile" in names and not is_compiled(target):
        names.remove("compile")
        if options.steps != STEPS:
            notes.append(Note(NoteKind.SKIPPED, f"nothing to compile: {target.name!r} runs the model as it is"))
    may_quantize = "quantize" in names
    if "quantize" in names and (reason := _why_no_int8(target, calib, synthetic, quantized)):
        names.remove("quantize")
        may_quantize = not quantized
        notes.append(reason)
    if synthetic and "quantize" in names:
        notes.append(
            Note(NoteKind.WARNING, "uncalibrated: ranges come from synthetic pictures", "pass --calib with real ones")
        )
    if not names and not notes:
        raise EdgeoptError("no step is left to do", remedy=f"choose --steps from {', '.join(STEPS)}")
    return Plan(
        steps=tuple(PlannedStep(name, _DOES[name]) for name in names),
        calib=None if synthetic else calib,
        synthetic=synthetic,
        eval=_path(options.eval, recipe, recipe.evaluation.labels),
        budget_ms=options.budget_ms or target.budget_ms,
        budget_asked=options.budget_ms is not None,
        max_drop=recipe.evaluation.max_drop if options.max_drop is None else options.max_drop,
        threads=engine_threads(options.threads, target.threads or threads),
        threads_asked=bool(options.threads or target.threads),
        time_budget_s=options.time_budget_s,
        notes=tuple(notes),
        may_quantize=may_quantize,
        prefer=Prefer(options.prefer),
    )


def _path(asked: str, recipe: Recipe, shipped: str) -> Path | None:
    return Path(asked) if asked else recipe.path_of(shipped)


def _why_no_int8(target: Target, calib: Path | None, synthetic: bool, quantized: str) -> Note | None:
    if quantized:
        return Note(NoteKind.SKIPPED, f"no INT8: {quantized}", "give the float model for other INT8 forms")
    if not any(precision.startswith("w8") for precision in target.precisions):
        return Note(NoteKind.SKIPPED, f"no INT8: target {target.name!r} does not run it")
    if calib is None and not synthetic:
        return Note(
            NoteKind.SKIPPED,
            "no INT8: there are no calibration pictures",
            "pass --calib FOLDER with about 100 unlabelled pictures from where the model will work",
        )
    return None


def describe(plan: Plan, model: str, recipe: Recipe, target: Target, reason: str) -> Sequence[str]:
    """Return the lines that `--dry-run` prints."""
    kept = f"drop at most {plan.max_drop:g} {recipe.evaluation.metric}"
    if plan.eval is None:
        kept = f"agreement at least {recipe.least_agreement:g}"
    lines = [
        f"model   {model}",
        f"recipe  {recipe.name}: {reason}",
        f"target  {target.name}: {target.description}; {plan.threads} thread(s)",
        f"calib   {'synthetic' if plan.synthetic else plan.calib or 'none'}",
        f"eval    {plan.eval or 'none: accuracy is judged by agreement with the float model'}",
        f"budget  {plan.budget_ms:.1f} ms a frame, {kept}",
    ]
    lines += [f"step    {step.name}: {step.does}" for step in plan.steps]
    return [*lines, *(f"note    {note}" for note in plan.notes)]
