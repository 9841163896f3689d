"""The plan of `optimize`: its steps in order, and those left out and why. It opens no model and runs nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

from edgeopt import steps
from edgeopt.errors import EdgeoptError, Missing, Note, NoteKind, NotFoundError, UnavailableError, UnsupportedError
from edgeopt.optimization.options import Options, Prefer, SelfTestInputs
from edgeopt.optimization.result import ModelReport
from edgeopt.recipes.inputs.frames import calibration_kind, calibration_wanted
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.texts.tokenizer import Fill
from edgeopt.report.document import Document, Section, Table, Value
from edgeopt.report.result import PlainResult
from edgeopt.runtime.devices.availability import is_compiled, load_executor
from edgeopt.steps import Step
from edgeopt.steps._pruning import Pruning, parse_pruning
from edgeopt.steps._training import TRAINING_S
from edgeopt.system.declared import registry
from edgeopt.system.declared.optional import how_to_install
from edgeopt.system.declared.target import Target, TargetByTimes, TargetElsewhere, find_target
from edgeopt.system.machine.affinity import held_processors, threads_in_words
from edgeopt.system.machine.threads import engine_threads
from edgeopt.system.text import shown_path, typed_duration

SYNTHETIC = "synthetic"
"""The word for `--calib` that admits calibration without real pictures."""
DEFAULT = "default"
"""The word for `--steps` that names all that run unless they are left out."""
_QUANTIZED = "w8a8"
"""The scheme that INT8 models are made in."""
PRUNE = "prune"
"""The step that `--prune` is about."""
ACTIVATIONS, FINETUNE = "activations", "finetune"
"""The step that `--finetune` is about."""


def all_steps() -> Mapping[str, Step]:
    """Return every step there is, by name, in the order in which they run."""
    result: dict[str, Step] = {
        name.replace("_", "-"): registry.load(steps, name).STEP for name in registry.names(steps)
    }
    return dict(sorted(result.items(), key=lambda item: item[1].order))


def calibrated_steps() -> Set[str]:
    """Return the names of the steps that calibrate."""
    return {name for name, step in all_steps().items() if step.needs_calibration}


@dataclass(frozen=True, slots=True)
class Plan:
    """A printable plan: the same inputs give the same plan."""

    steps: Mapping[str, Step]
    """Steps by name, in their order."""
    calib: Path | None
    """None: without calibration pictures, or synthetic ones."""
    synthetic: bool
    eval: Path | None
    budget_ms: float
    budget_asked: bool
    accuracy_asked: bool
    """Whether labels were given, or a drop that is allowed: what is not decided is then told by the exit code."""
    max_drop: float
    threads: int
    threads_wanted: int
    """Threads that a person or the profile wants; 0: nobody says."""
    time_limit_s: float | None
    notes: tuple[Note, ...] = field(default=())
    cores: str = ""
    """`fast`: engines are held to cores of the fastest kind, which was proven faster; empty: as the target says."""
    may_quantize: bool = True
    """Whether INT8 was asked for: without pictures its step falls away, but weights may still be integers."""
    prefer: Prefer = Prefer.SPEED
    selftest: SelfTestInputs = SelfTestInputs.PICTURES
    emit: tuple[str, ...] = ()
    """Engines whose own files are written beside the bundle."""
    pruning: Pruning = Pruning()  # noqa: RUF009, frozen
    seed: int = 0
    """Decides what calibration draws."""
    training_s: float = TRAINING_S
    tried: Mapping[str, Step] = field(default_factory=dict)
    """Steps that embed parts of the recipe or read frames otherwise, though nobody asked: they are taken where whole
    frames are proven faster with them."""

    def tried_on(self, executor: str) -> Mapping[str, Step]:
        """Return what is tried inside a model that an engine runs."""
        return {name: step for name, step in self.tried.items() if executor in step.tried_on}

    @property
    def beside(self) -> frozenset[str]:
        """Names of the steps whose models stand beside the dense one."""
        return frozenset(name for name, step in self.steps.items() if step.beside)

    @property
    def must_be_timed(self) -> frozenset[str]:
        """Names of the steps whose models are chosen only where their speed was measured: nobody asked for them."""
        asked = {PRUNE} if self.pruning.ratio else set[str]()
        return frozenset(name for name in self.beside if self.steps[name].is_default) - asked

    def heals_after(self, name: str) -> bool:
        """Return whether a later step wins back what models of this one lose."""
        later = [*self.steps].index(name) + 1
        return self.steps[name].is_healed and any(step.heals for step in [*self.steps.values()][later:])

    def share_until(self, name: str) -> float:
        """Return which share of what may be lost is spent behind a step whose models stand beside the dense one.

        Steps of that kind share it evenly: a later one needs room too.
        """
        spending = [word for word, step in self.steps.items() if step.beside and not step.heals]
        return (spending.index(name) + 1) / len(spending) if name in spending else 1.0

    @property
    def quantizes(self) -> bool:
        """Whether a step makes INT8 models."""
        return any(step.precision == _QUANTIZED for step in self.steps.values())


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
    if options.time_limit_s is not None:
        raise EdgeoptError("a replay cannot stop by a time limit", remedy="leave --time-limit out")


def make_plan(
    recipe: Recipe, target: Target, options: Options, threads: int, quantized: str = "", made: Sequence[str] = ()
) -> Plan:
    """Return what will be done.

    Args:
        recipe: Bound to the model.
        target: The device.
        options: The user's wishes.
        threads: What 0 threads means for this model on this machine.
        quantized: Why the model must not be quantized; empty: it may.
        made: Steps whose candidates another machine made: what they need need not be here.

    Raises:
        NotFoundError: If a step to do or to skip does not exist, or no engine whose files are to be written.
        EdgeoptError: If no step is left, or an engine's files cannot be written for this target.
    """
    emitted = tuple(dict.fromkeys(map(_emitter, options.emit)))
    require_emitters(emitted, _executors_of(target))
    known, pruning = all_steps(), parse_pruning(options.prune, options.keep_layers)
    default = [name for name, step in known.items() if step.is_default]
    wanted = (DEFAULT,) if options.steps is None else options.steps
    asked = [word for name in wanted for word in (default if name == DEFAULT else (name,))]
    if options.finetune_s is not None:
        if FINETUNE in options.skip:
            text = f"--finetune is for the step {FINETUNE}, which is left out"
            raise EdgeoptError(text, remedy="leave --finetune out, or --skip")
        asked, wanted = [*asked, FINETUNE], (*wanted, FINETUNE)
    for name in (*asked, *options.skip):
        if name not in known:
            raise NotFoundError("step", name, [DEFAULT, *known])
    skipped = {*options.skip} | ({PRUNE} if pruning is None else set())
    is_left_out = PRUNE not in {*asked} - skipped
    if is_left_out and (options.keep_layers or (pruning and not pruning.is_auto)):
        option = "--prune" if pruning and not pruning.is_auto else "--keep-layers"
        raise EdgeoptError(
            f"{option} is for the step {PRUNE}, which is left out", remedy=f"leave {option} out, or name the step too"
        )
    no_times = _why_no_times(target)
    if pruning and pruning.speedup and no_times:
        raise EdgeoptError(
            f"--prune {options.prune} needs times that cannot be measured here: {no_times}",
            remedy="write a share of the channels, such as --prune 0.3",
        )
    if options.prefer not in tuple(Prefer):
        raise NotFoundError("preference", options.prefer, Prefer)
    if options.selftest not in tuple(SelfTestInputs):
        raise NotFoundError("self-test", options.selftest, SelfTestInputs)
    calib = _path(options.calib, recipe, recipe.evaluation.calib)
    synthetic = options.calib == SYNTHETIC
    planned, notes = dict[str, Step](), list[Note]()
    for name, step in known.items():
        if name not in asked or name in skipped:
            continue
        if unread := step.why_not_of(recipe):
            raise UnsupportedError(f"{name}: {unread}", remedy=f"leave the step {name} out")
        if name == PRUNE and no_times and pruning == Pruning() and not {PRUNE, FINETUNE} & {*wanted}:
            # half of the run would go into models that only a measured time may choose
            notes.append(_left_out(name, step, no_times, "--prune 0.3 removes this share of the channels all the same"))
        elif step.why_not(target):
            if name in wanted:
                notes.append(_left_out(name, step, step.why_not(target)))
        elif name in made:
            planned[name] = step
        elif reason := _why_left_out(name, step, recipe, target, quantized, synthetic or calib is not None):
            notes.append(reason)
        else:
            planned[name] = step
    if len(taking := [name for name, step in planned.items() if step.embeds and step.embeds.takes_pictures]) > 1:
        raise EdgeoptError(f"{' and '.join(taking)} both change what the model is fed", remedy="name one of them")
    whole = [name for name, step in planned.items() if step.embeds and step.embeds.takes_frames]
    if whole and (read := [name for name, step in planned.items() if step.feeds]):
        text = f"with {whole[0]} the model is fed whole frames, and {read[0]} decodes smaller ones"
        raise EdgeoptError(text, remedy="name one of them")
    if synthetic and any(step.needs_calibration for step in planned.values()):
        text = f"uncalibrated: ranges come from synthetic {calibration_kind(recipe)}s"
        notes.append(Note(NoteKind.WARNING, text, "pass --calib with real ones"))
    if no_times and PRUNE in planned and not (pruning and pruning.ratio):
        text = f"pruned models are candidates only: {no_times}"
        notes.append(Note(NoteKind.INFO, text, "--prune 0.3 lets one be chosen"))
    if not planned and not notes:
        raise EdgeoptError("no step is left to do", remedy=f"choose --steps from {', '.join(known)}")
    threads_wanted = options.threads or target.threads
    asked_here = 0 if isinstance(target, TargetElsewhere) else options.threads  # it may have more cores than are here
    count = engine_threads(asked_here, threads_wanted or threads)
    is_held = target.why_not_here() is not None or held_processors(target.cores, count)
    return Plan(
        steps=planned,
        calib=None if synthetic else calib,
        synthetic=synthetic,
        eval=_path(options.eval, recipe, recipe.evaluation.labels),
        budget_ms=options.budget_ms or target.budget_ms,
        budget_asked=options.budget_ms is not None,
        accuracy_asked=bool(options.eval) or (options.max_drop is not None and recipe.reads_labels),
        max_drop=recipe.evaluation.max_drop if options.max_drop is None else options.max_drop,
        threads=count,
        threads_wanted=threads_wanted,
        time_limit_s=options.time_limit_s,
        notes=tuple(notes),
        cores=target.cores if is_held else "",
        may_quantize=not quantized and any(known[name].precision == _QUANTIZED for name in {*asked} - {*options.skip}),
        prefer=Prefer(options.prefer),
        selftest=SelfTestInputs(options.selftest),
        emit=emitted,
        pruning=pruning or Pruning(),
        seed=options.seed,
        training_s=TRAINING_S if options.finetune_s is None else options.finetune_s,
        tried=_tried(recipe, target, skipped, planned) if DEFAULT in wanted else {},
    )


def _embeds(step: Step) -> bool:
    return step.embeds is not None


def _tried(recipe: Recipe, target: Target, skipped: Set[str], planned: Mapping[str, Step]) -> Mapping[str, Step]:
    """Return the steps of this kind that are not left out or asked for and can do what they are for."""
    is_embedding = any(map(_embeds, planned.values()))
    steps = {name: step for name, step in all_steps().items() if name not in skipped and name not in planned}
    steps = {name: step for name, step in steps.items() if step.feeds or (step.tried_on and not is_embedding)}
    return {name: step for name, step in steps.items() if not step.why_not(target) and not step.why_not_of(recipe)}


def _why_no_times(target: Target) -> str:
    """Return why nothing that the target runs is timed; empty where it is, or where its times are predicted."""
    if isinstance(target, TargetByTimes):
        return ""
    return f"{target.name} has no times here" if is_compiled(target) else target.why_untimed() or ""


def _path(asked: str, recipe: Recipe, shipped: str) -> Path | None:
    return Path(asked) if asked else recipe.path_of(shipped)


def _why_left_out(
    name: str, step: Step, recipe: Recipe, target: Target, quantized: str, is_calibrated: bool
) -> Note | None:
    """Return why a step that was asked for is not done; None where it is."""
    if step.needs_float and quantized:
        return _left_out(name, step, quantized, "give the float model for other INT8 forms")
    if name == PRUNE and recipe.kind == "text" and recipe.tokenizer.fill in (Fill.ALONE, Fill.TOGETHER):
        return _left_out(name, step, "the model takes texts of any length", "--steps default,prune fills them to one")
    weights = step.precision.partition("a")[0]
    if not any(precision.startswith(weights) for precision in target.precisions):
        return _left_out(name, step, f"target {target.name!r} does not run it")
    if step.needs_calibration and not is_calibrated:
        hint = f"pass --calib {calibration_wanted(recipe)}"
        return _left_out(name, step, f"there are no calibration {calibration_kind(recipe)}s", hint)
    if step.package and find_spec(step.package) is None:
        return _left_out(name, step, f"{step.package} is not installed", how_to_install(step.extra))
    return None


def _left_out(name: str, step: Step, reason: str, hint: str = "") -> Note:
    return Note(NoteKind.SKIPPED, f"{step.without or f'no {name}'}: {reason}", hint)


def head(
    plan: Plan, model: str, recipe: Recipe, target: Target, reason: str, *, is_timed: bool = True
) -> tuple[Value, ...]:
    """Return what will be done, in short lines; without `is_timed` no budget decides."""
    kept = _kept(plan, recipe)
    return (
        Value(
            "model", f"{model} on {target.name}, {threads_in_words(plan.threads, plan.cores)}", more=target.description
        ),
        Value("recipe", f"{recipe.name}: {reason}"),
        Value("calib", SYNTHETIC if plan.synthetic else shown_path(plan.calib) if plan.calib else "none"),
        Value("labels", shown_path(plan.eval) if plan.eval else "none: agreement with the original judges"),
        Value("budget", f"{plan.budget_ms:.1f} ms a frame, {kept}") if is_timed else Value("allowed", kept),
        *((Value("time limit", typed_duration(1000 * plan.time_limit_s)),) if plan.time_limit_s else ()),
    )


def describe(plan: Plan, model: str, recipe: Recipe, target: Target, reason: str) -> Document:
    """Return what `--dry-run` prints."""
    rows = tuple((name, _does(plan, name)) for name in plan.steps)
    steps = Table(("step", "what it does"), rows, frozenset({"what it does"}))
    figures = {
        "model": model,
        "recipe": recipe.name,
        "recipe_reason": reason,
        "target": target.name,
        "threads": plan.threads,
        "calib": SYNTHETIC if plan.synthetic else str(plan.calib or ""),
        "eval": str(plan.eval or ""),
        "budget_ms": plan.budget_ms,
        "budget_asked": plan.budget_asked,
        "metric": "agreement" if plan.eval is None else recipe.evaluation.metric,
        "max_drop": None if plan.eval is None else plan.max_drop,
        "least_agreement": recipe.least_agreement if plan.eval is None else None,
        "time_limit_s": plan.time_limit_s,
        "steps": {name: _does(plan, name) for name in plan.steps},
        "notes": [asdict(note) for note in plan.notes],
    }
    what = Section(values=head(plan, model, recipe, target, reason))
    return Document(
        PlainResult(command="optimize", kind=ModelReport.kind, figures=figures),
        model,
        f"Plan for {model}",
        (what, Section(table=steps), Section(notes=plan.notes)),
    )


def _does(plan: Plan, name: str) -> str:
    """Return what a step does, and how much where that was asked for."""
    does, pruning = plan.steps[name].does, plan.pruning
    if name == FINETUNE:
        return f"{does}; {typed_duration(1000 * plan.training_s)} at most"
    if name != PRUNE or pruning == Pruning():
        return does
    kept = f", nothing of {', '.join(pruning.keep_layers)}" if pruning.keep_layers else ""
    return f"{does}; {pruning}{kept}"


def _kept(plan: Plan, recipe: Recipe) -> str:
    if plan.eval is None:
        return f"agreement at least {recipe.least_agreement:g}"
    return f"drop at most {plan.max_drop:g} {recipe.evaluation.metric}"


def require_emitters(names: Sequence[str], executors: Collection[str]) -> None:
    """Refuse, before any work, an engine whose files cannot be written in this run.

    Args:
        names: The engines.
        executors: Those that the run has, or may have.

    Raises:
        NotFoundError: If no engine of that name has files of its own.
        UnavailableError: If it has, and does not run in this command.
    """
    for name in names:
        known = [each for each in registry.names_in("executors") if load_executor(each).own_suffix]
        if name not in known:
            raise NotFoundError("engine with files of its own", name, known)
        executor = load_executor(name)
        if name in executors:
            continue
        if reason := executor.why_unavailable():
            remedy = reason.remedy if isinstance(reason, Missing) else ""
            problem = reason.reason if isinstance(reason, Missing) else reason
            raise UnavailableError(f"--emit {name}: {problem}", remedy=remedy or "leave --emit out until it runs here")
        if not executor.foreign_runtime:
            raise UnavailableError(
                f"--emit {name} writes what was measured on {name}, which this command does not run",
                remedy=f"choose --target cpu or a target of {name}: edgeopt targets",
            )


def _executors_of(target: Target) -> Collection[str]:
    """Return the engines that a run for a target may have: of another machine all, of this one those that are here."""
    others = {find_target(name).executor for name in target.alternatives}
    if not isinstance(target, TargetElsewhere):
        others = {name for name in others if not load_executor(name).why_unavailable()}
    return {target.executor, *others}


def _emitter(name: str) -> str:
    """Return the engine that is meant: by its own name, or by the suffix of its files, such as `tflite`."""
    if name in registry.names_in("executors"):
        return name
    own = {load_executor(each).own_suffix.lstrip("."): each for each in registry.names_in("executors")}
    return own.get(name.lower().lstrip("."), name) if name else name
