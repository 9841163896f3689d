"""The straight line: a model in, candidates step by step, a bundle and a report out.

Every candidate is on disk before the next is begun; all are measured together at the end, on the same frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from edgeopt import executors
from edgeopt.errors import EdgeoptError, Note, NoteKind, UnavailableError
from edgeopt.executors import SessionOptions
from edgeopt.executors._availability import find_device, require_providers, why_unavailable
from edgeopt.executors.onnxruntime import UNFUSED
from edgeopt.executors.onnxruntime.tensorrt import ENGINES
from edgeopt.graph.integers import why_not_again
from edgeopt.graph.model import Model, find_model, load_model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import fix_sizes
from edgeopt.measurement.accuracy.evaluate import (
    LabelledFrames,
    fed,
    open_labelled,
    require_metric,
    synthetic,
    with_states,
)
from edgeopt.measurement.accuracy.misreading import notes_of_reading
from edgeopt.measurement.thread_choice import choose_threads
from edgeopt.pipeline.candidate import BASELINE, Candidate
from edgeopt.pipeline.device_forms import offer_forms
from edgeopt.pipeline.finish import conclude
from edgeopt.pipeline.other_engines import offer_engines
from edgeopt.pipeline.plan import SYNTHETIC, Options, Plan, describe, is_compiled, make_plan, require_no_clock
from edgeopt.pipeline.replay import Replay, read_replay
from edgeopt.pipeline.result import Report
from edgeopt.pipeline.run import Listener, Run, Silence, add_candidate, finished_candidates, model_file, outcome_on_disk
from edgeopt.pipeline.selection import is_within
from edgeopt.pipeline.workspace import Workspace, fingerprint_file, fingerprint_frames
from edgeopt.recipes.frames import Frames, open_frames
from edgeopt.recipes.recognise import Choice, choose_recipe, fixed_shapes
from edgeopt.steps.compile._without_toolchain import is_by_rule, on_processor, quantize_by_rule
from edgeopt.steps.context import (
    CALIBRATION_PICTURES,
    CHECKED_PICTURES,
    Context,
    Engine,
    Setting,
    numbered,
    out_of_time,
)
from edgeopt.steps.fuse import fuse
from edgeopt.steps.quantize._step import make_int8
from edgeopt.steps.simplify import simplify
from edgeopt.system import registry
from edgeopt.system.environment import package_versions, physical_cores
from edgeopt.system.target import Target, find_target

_PRECISIONS = {"quantize": "w8a8"}
"""What a step makes of its parent's precision."""
_HOST = "cpu"
"""Where the float model is run and integer forms are checked for a device that is compiled for."""
_MOST_SIMULATED = 128
"""Labelled pictures for a simulated device, which takes about a second for each."""
_FOR_DEVICE = ("quantize", "compile")


def plan_lines(model: str, *, target: str, recipe: str | None, options: Options) -> Sequence[str]:
    """Return what `optimize` would do, line by line; nothing is written.

    Raises:
        EdgeoptError: As `optimize`, for everything that can be known before work begins.
    """
    loaded, choice, device, _ = _read(model, target, recipe, options)
    plan = make_plan(choice.recipe, device, options, physical_cores(), why_not_again(loaded))
    lines = describe(plan, loaded.name, choice.recipe, device, choice.reason)
    missing = why_unavailable(device)
    return [*lines, f"note    cannot run here: {missing}"] if missing and not is_by_rule(device) else lines


def optimize(
    model: str | Path,
    *,
    target: str = "cpu",
    out: str | Path | None = None,
    recipe: str | None = None,
    options: Options | None = None,
    listener: Listener | None = None,
    **wishes: Any,
) -> Report:
    """Make a model fast on a target, measure it, and write candidates, bundle and report.

    Args:
        model: Path of an ONNX file, or the name of a shipped model.
        target: Shipped name, or path of a TOML file.
        out: Output folder; None: `out/MODEL-TARGET`.
        recipe: Shipped name or path; None: read from the model.
        options: What to do; or give its fields by name: `calib="pictures/", budget_ms=33`.
        listener: Hears progress.
        **wishes: Fields of `Options`.

    Raises:
        EdgeoptError: On what the user can mend before work begins, or where nothing can be written. A step that
            fails later is a warning of the report.
    """
    asked = options or Options(**wishes)
    replay = read_replay(Path(asked.replay)) if asked.replay else None
    if replay:
        require_no_clock(asked)
        asked = replace(asked, threads=asked.threads or replay.threads)
    loaded, choice, device, given = _read(str(model), target, recipe, asked)
    if replay:
        replay.require_same(loaded, device)
    threads = _threads(loaded, choice, device, asked)
    plan = make_plan(choice.recipe, device, asked, threads, why_not_again(loaded))
    folder = Path(out) if out else Path("out") / f"{loaded.name}-{device_name(target)}"
    run = _prepare(loaded, choice, device, plan, folder, asked.resume, given, replay, listener or Silence())
    with run.workspace:
        run.context.frames = with_states(run.context.frames, lambda: run.context.open(run.context.original))
        for line in describe(plan, loaded.name, choice.recipe, device, choice.reason):
            run.listener.say(line)
        if run.labelled or plan.calib:
            session, began_s = run.context.open(loaded), monotonic()
            run.context.notes += notes_of_reading(choice, loaded, session, run.context.frames, run.labelled, folder)
            run.context.deadline += monotonic() - began_s  # the time budget is for candidates
        _make_candidates(run)
        run.context.notes += run.workspace.notes
        return conclude(run, choice)


def device_name(target: str) -> str:
    """Return the target's name for a folder: of a TOML file its stem."""
    return Path(target).stem if target.endswith(".toml") else target


def _read(model: str, target: str, recipe: str | None, options: Options) -> tuple[Model, Choice, Target, Frames | None]:
    """Return model, recipe, target, and the calibration pictures or tensors that were asked for."""
    device = find_device(target)
    path = find_model(model)
    loaded = load_model(path)
    inputs = fix_sizes(loaded.inputs, options.shapes)
    given = open_frames(Path(options.calib)) if options.calib and options.calib != SYNTHETIC else None
    shapes = given.shapes if given else None
    choice = choose_recipe(recipe, path, inputs, loaded.outputs, loaded.metadata, shapes)
    if options.shapes:
        choice = replace(choice, recipe=choice.recipe.with_inputs(inputs))
    require_metric(choice.recipe, options.eval)
    return loaded, choice, device, fed(given, choice.recipe, loaded.inputs) if given else None


def _prepare(
    model: Model,
    choice: Choice,
    target: Target,
    plan: Plan,
    out: Path,
    resume: bool,
    given: Frames | None,
    replay: Replay | None,
    listener: Listener,
) -> Run:
    by_rule = is_by_rule(target)
    engine, alternatives, notes = _engines(target, plan.threads, by_rule)
    engine = replace(engine, cache_folder=str(out / ENGINES))
    untimed = _why_untimed(target, alternatives, by_rule)
    shapes = fixed_shapes(choice.recipe, model.inputs)
    labelled = open_labelled(plan.eval) if plan.eval else None
    if labelled and is_compiled(target) and untimed:
        labelled = _fewer(labelled)
    if plan.calib:
        frames = given or fed(open_frames(plan.calib), choice.recipe, model.inputs)
    else:
        frames = labelled.frames if labelled and not plan.synthetic else synthetic(choice.recipe, model.inputs)
    description = {
        "model": model.fingerprint,
        "recipe": repr(replace(choice.recipe, folder=Path())),
        "target": repr(target),
        "shapes": {name: list(shape) for name, shape in shapes.items()},
        "plan": plan.as_json(),
        "calibration": fingerprint_frames(frames if not plan.synthetic and (plan.calib or labelled) else None),
        "labels": [fingerprint_file(plan.eval), fingerprint_frames(labelled.frames if labelled else None)],
        "packages": package_versions(),
        "alternatives": [repr(one.target) for one in alternatives],
        **({"replay": replay.fingerprint} if replay else {}),
    }
    if replay:
        replay.require_calibration(frames.spread(CALIBRATION_PICTURES))
    workspace = Workspace.open(out, description, resume=resume)
    context = Context(
        recipe=choice.recipe,
        target=target,
        engine=engine,
        original=model,
        frames=frames,
        files=workspace,
        listener=listener,
        steps=tuple(step.name for step in plan.steps),
        may_quantize=plan.may_quantize,
        threads=plan.threads,
        deadline=monotonic() + plan.time_budget_s if plan.time_budget_s else float("inf"),
        time_budget_s=plan.time_budget_s,
        alternatives=alternatives,
        replay=replay,
        notes=notes,
    )
    return Run(
        context=context,
        plan=plan,
        workspace=workspace,
        labelled=labelled,
        resume=resume,
        listener=listener,
        replay=replay,
        untimed=untimed,
        by_rule=by_rule,
    )


def _threads(model: Model, choice: Choice, target: Target, asked: Options) -> int:
    """Return what 0 threads means for this model here: all cores, or one where they are not faster."""
    if asked.threads or target.threads or target.why_not_here():
        return physical_cores()
    shapes = fixed_shapes(choice.recipe, model.inputs)
    return choose_threads(model, _engine(target, 1).target, shapes, physical_cores())


def _engines(target: Target, threads: int, by_rule: bool) -> tuple[Engine, tuple[Engine, ...], list[Note]]:
    """Return the engine of candidates, those beside it, and a note for each that is not here.

    The candidates of a device that is compiled for are judged on this machine's processor, and then on the device.
    """
    if by_rule:
        note = Note(NoteKind.WARNING, f"not compiled: {why_unavailable(target)}", _how_to_get(target))
        return stand_in(on_processor(target)), (), [note]
    if not is_compiled(target):
        return _engine(target, threads), *_alternatives(target, threads)
    host = replace(find_target(_HOST), name=_HOST, threads=0, alternatives=())
    return stand_in(host), (_engine(target, 1),), []


def stand_in(host: Target) -> Engine:
    """Return this machine's processor as it judges for another device: without its own saturation."""
    return replace(_engine(host, physical_cores()), entries=UNFUSED)


def _why_untimed(target: Target, alternatives: Sequence[Engine], by_rule: bool) -> str:
    """Return why nothing can be measured on this machine; empty if all can."""
    if is_compiled(target):
        return "" if alternatives[0].executor.has_device() else "no device"
    reason = target.why_not_here()
    if reason is None and by_rule:
        return "no device"
    return f"this machine is not the target: {reason}" if reason else ""


def _fewer(labelled: LabelledFrames) -> LabelledFrames:
    """Return labelled pictures for a simulator, spread over all."""
    count = len(labelled.frames)
    if count <= _MOST_SIMULATED:
        return labelled
    kept = [round(i * (count - 1) / (_MOST_SIMULATED - 1)) for i in range(_MOST_SIMULATED)]
    note = Note(NoteKind.INFO, f"{_MOST_SIMULATED} of {count} labelled pictures: the device is simulated")
    return LabelledFrames(labelled.frames.select(kept), labelled.labels.select(kept), (*labelled.notes, note))


def _engine(target: Target, threads: int) -> Engine:
    executor = registry.load(executors, target.executor).EXECUTOR
    require_providers(target)
    if reason := why_unavailable(target):
        raise UnavailableError(f"target {target.name!r} cannot run here: {reason}", remedy=_how_to_get(target))
    executor.check(SessionOptions(target.providers, threads, target.options))
    return Engine(target, executor, threads)


def _how_to_get(target: Target) -> str:
    return f"install {target.package}, or run edgeopt doctor" if target.package else "run edgeopt doctor"


def _alternatives(target: Target, threads: int) -> tuple[tuple[Engine, ...], list[Note]]:
    """Return the engines beside the target's own that are here, and a note for each that is not."""
    found, notes = [], []
    for name in target.alternatives:
        other = find_target(name)
        reason = target.why_not_here() or other.why_not_here()  # unmeasured, one engine is no better than another
        try:
            if reason is None:
                found.append(_engine(other, threads))
        except EdgeoptError as error:
            reason = error.problem
        if reason:
            notes.append(Note(NoteKind.SKIPPED, f"no candidates of {name}: {reason}"))
    return tuple(found), notes


def _make_candidates(run: Run) -> None:
    """Make, score and store the candidates of each step; a step works on the last one that kept its accuracy."""
    known = run.workspace.find(model_file(BASELINE)) if run.resume else None
    add_candidate(run, BASELINE, "", (), Outcome(run.context.original, {}), _float_setting(run), resumed=known)
    model, parent = run.context.original, run.candidates[0]
    real, real_parent = model, parent
    for_device = [step for step in run.plan.steps if is_compiled(run.context.target) and step.name in _FOR_DEVICE]
    for step in run.plan.steps:
        if step in for_device:
            continue
        if monotonic() > run.context.deadline:
            _warn(run, out_of_time(step.name))
            return
        made = _make(run, step.name, model, parent)
        kept = [(one, made_of) for one, made_of in made if _keeps_accuracy(one, run.plan.max_drop)]
        if kept:
            parent, model = kept[0]
        if parent.precision == run.context.engine.target.float_precision:
            real, real_parent = model, parent
    if for_device:
        with _told_where_it_fails(run, f"step {for_device[-1].name!r}"):
            offer_forms(run, real, real_parent)
    elif not (is_compiled(run.context.target) or run.by_rule):
        with _told_where_it_fails(run, "what other engines and precisions offer"):
            offer_engines(run, real, real_parent)


def _make(run: Run, step: str, model: Model, parent: Candidate) -> list[tuple[Candidate, Model]]:
    """Return the candidates of one step with their models; where it fails, those that it made before."""
    made: list[tuple[Candidate, Model]] = []
    setting, steps = Setting(run.context.engine, _PRECISIONS.get(step, parent.precision)), (*parent.steps, step)
    with _told_where_it_fails(run, f"step {step!r}"):
        finished = finished_candidates(run, step) if run.resume else []
        outcomes = [outcome_on_disk(run, one) for one in finished] or _STEPS[step](run, model)
        for i, outcome in enumerate(outcomes):
            known = finished[i] if finished else None
            one = add_candidate(run, numbered(step, i), parent.name, steps, outcome, setting, resumed=known)
            made.append((one, outcome.model))
        run.workspace.finish(step, [one.file for one, _ in made])
    return made


def _float_setting(run: Run) -> Setting:
    return Setting(run.context.engine, run.context.engine.target.float_precision)


def _warn(run: Run, note: Note) -> None:
    last = run.candidates[-1]
    run.candidates[-1] = replace(last, notes=(*last.notes, note))


def _keeps_accuracy(candidate: Candidate, max_drop: float) -> bool:
    return candidate.drop is None or is_within(candidate.drop, max_drop)


@contextmanager
def _told_where_it_fails(run: Run, what: str) -> Iterator[None]:
    """Do a part of the work; where it fails, say why and go on: what was made is measured, bundled and reported."""
    try:
        yield
    except Exception as error:
        if run.replay:
            raise
        said = error.problem if isinstance(error, EdgeoptError) else f"{type(error).__name__}: {error}"
        remedy = error.remedy if isinstance(error, EdgeoptError) else "the other candidates are not concerned"
        note = Note(NoteKind.WARNING, f"{what} failed after {run.candidates[-1].name}: {said}", remedy)
        run.context.notes.append(note)
        run.listener.say(f"warning: {note}")


def _simplify(run: Run, model: Model) -> list[Outcome]:
    shapes, target = fixed_shapes(run.context.recipe, model.inputs), run.context.target
    inputs, float64 = run.context.inputs(CHECKED_PICTURES), "float64" not in target.refused_dtypes
    return _if_changed(run, "simplify", simplify(model, shapes, inputs, opset=target.opset, float64=float64))


def _fuse(run: Run, model: Model) -> list[Outcome]:
    inputs = run.context.inputs(CHECKED_PICTURES, model)
    return _if_changed(run, "fuse", fuse(model, inputs, rewrites=run.context.target.rewrites))


def _if_changed(run: Run, step: str, outcome: Outcome) -> list[Outcome]:
    """Return the outcome; nothing where no rewrite found anything to do, which is told."""
    if not outcome.is_unchanged:
        return [outcome]
    run.context.notes += [*outcome.notes, note := Note(NoteKind.INFO, f"{step}: nothing to do")]
    run.listener.say(str(note))
    return []


def _quantize(run: Run, model: Model) -> list[Outcome]:
    return quantize_by_rule(run.context, model) if run.by_rule else make_int8(run.context, model)


_STEPS: dict[str, Callable[[Run, Model], list[Outcome]]] = {
    "simplify": _simplify,
    "fuse": _fuse,
    "quantize": _quantize,
}
