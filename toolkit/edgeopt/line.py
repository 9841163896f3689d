"""The straight line: a model in, candidates step by step, a bundle and a report out.

Every candidate is on disk before the next is begun; all are measured together at the end, on the same frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from edgeopt import executors, plugins, tasks
from edgeopt.bundle import write_bundle
from edgeopt.candidate import BASELINE, Candidate, Score
from edgeopt.drift import measure_drift, worst_drift
from edgeopt.environment import package_versions, physical_cores, read_environment
from edgeopt.errors import EdgeoptError, Note, NoteKind, StepError
from edgeopt.evaluate import LabelledFrames, answers, evaluate, model_inputs, open_labelled
from edgeopt.executors import Executor, Session, SessionOptions
from edgeopt.frames import Frames, open_frames, synthetic_frames
from edgeopt.measure import MOST_SECONDS, Measurement, latency_of, measure, speed_of
from edgeopt.model import Model, find_model, load_model
from edgeopt.outcome import Outcome
from edgeopt.plan import Options, Plan, describe, make_plan
from edgeopt.quantization.quantize import quantize
from edgeopt.recipe import Recipe
from edgeopt.recognise import Choice, choose_recipe, fixed_shapes
from edgeopt.report import Report, write_report
from edgeopt.rewrite import fuse, simplify
from edgeopt.search import choose
from edgeopt.sheet import write_sheet
from edgeopt.target import Target, find_target
from edgeopt.tasks import Task
from edgeopt.tensors import Tensors
from edgeopt.text import plural
from edgeopt.workspace import Workspace

_CALIBRATION_PICTURES = 128
_AGREEMENT_PICTURES = 16
_CHECKED_PICTURES = 4
_RESUMED = Note(NoteKind.INFO, "taken up from disk")


class Listener(Protocol):
    """Hears how far the work is."""

    def progress(self, what: str, done: int, of: int) -> None:
        """Hear that `done` of `of` parts of a piece of work are done."""
        ...

    def say(self, text: str) -> None:
        """Hear one line."""
        ...

    def candidate(self, one: Candidate) -> None:
        """Hear of a finished candidate."""
        ...


class Silence:
    """A listener that keeps quiet."""

    def progress(self, what: str, done: int, of: int) -> None:
        """Ignore it."""

    def say(self, text: str) -> None:
        """Ignore it."""

    def candidate(self, one: Candidate) -> None:
        """Ignore it."""


@dataclass
class _Run:
    """What all steps of one run share."""

    recipe: Recipe
    target: Target
    plan: Plan
    executor: Executor
    workspace: Workspace
    listener: Listener
    original: Model
    frames: Frames
    """Calibration pictures; those of the evaluation, or synthetic ones, where there are none."""
    labelled: LabelledFrames | None
    resume: bool
    deadline: float
    candidates: list[Candidate] = field(default_factory=list)
    reference: list[Any] = field(default_factory=list)
    """The original's answers to the agreement pictures."""

    def task(self, model: Model, *, evaluating: bool) -> Task:
        """Return the recipe's task for a model's tensors."""
        task: Task = plugins.load(tasks, self.recipe.task).TASK(self.recipe, model.inputs, model.outputs, evaluating)
        return task

    def open(self, model: Model) -> Session:
        """Open a model as the target would."""
        options = SessionOptions(self.target.providers, self.plan.threads, self.target.options)
        return self.executor.open(model.data, options)

    def inputs(self, count: int) -> list[Tensors]:
        """Return the model's inputs for a few of the frames."""
        return list(model_inputs(self.task(self.original, evaluating=True), self.frames.spread(count)))


def plan_lines(model: str, *, target: str, recipe: str | None, options: Options) -> Sequence[str]:
    """Return what `optimize` would do, line by line; nothing is written.

    Raises:
        EdgeoptError: As `optimize`, for everything that can be known before work begins.
    """
    loaded, choice, device = _read(model, target, recipe)
    plan = make_plan(choice.recipe, device, options, physical_cores())
    return describe(plan, loaded.name, choice.recipe, device, choice.reason)


def optimize(
    model: str | Path,
    *,
    target: str = "cpu",
    out: Path | None = None,
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
        EdgeoptError: On what the user can mend; finished candidates stay on disk.
    """
    loaded, choice, device = _read(str(model), target, recipe)
    asked = options or Options(**wishes)
    plan = make_plan(choice.recipe, device, asked, physical_cores())
    folder = out or Path("out") / f"{loaded.name}-{device_name(target)}"
    run = _prepare(loaded, choice, device, plan, folder, asked.resume)
    run.listener = listener or Silence()
    for line in describe(plan, loaded.name, choice.recipe, device, choice.reason):
        run.listener.say(line)
    _make_candidates(run)
    return _conclude(run, choice)


def device_name(target: str) -> str:
    """Return the target's name for a folder: of a TOML file its stem."""
    return Path(target).stem if target.endswith(".toml") else target


def _read(model: str, target: str, recipe: str | None) -> tuple[Model, Choice, Target]:
    device = find_target(target)
    path = find_model(model)
    loaded = load_model(path)
    return loaded, choose_recipe(recipe, path, loaded.inputs, loaded.outputs, loaded.metadata), device


def _prepare(model: Model, choice: Choice, target: Target, plan: Plan, out: Path, resume: bool) -> _Run:
    executor = plugins.load(executors, target.executor).EXECUTOR
    if reason := executor.why_unavailable():
        raise EdgeoptError(f"executor {target.executor!r} is not here: {reason}", remedy="run edgeopt doctor")
    shapes = fixed_shapes(choice.recipe, model.inputs)
    labelled = open_labelled(plan.eval) if plan.eval else None
    if plan.calib:
        frames = open_frames(plan.calib)
    else:
        frames = labelled.frames if labelled and not plan.synthetic else synthetic_frames(choice.recipe.input.size)
    description = {
        "model": model.fingerprint,
        "recipe": repr(replace(choice.recipe, folder=Path())),
        "target": repr(target),
        "shapes": {name: list(shape) for name, shape in shapes.items()},
        "plan": plan.as_json(),
        "packages": package_versions(),
    }
    return _Run(
        recipe=choice.recipe,
        target=target,
        plan=plan,
        executor=executor,
        workspace=Workspace.open(out, description),
        listener=Silence(),
        original=model,
        frames=frames,
        labelled=labelled,
        resume=resume,
        deadline=monotonic() + plan.time_budget_s if plan.time_budget_s else float("inf"),
    )


def _make_candidates(run: _Run) -> None:
    """Make, score and store one candidate a step; a step works on the last one that kept its accuracy."""
    _add(run, BASELINE, "", (), Outcome(run.original, {}), resumed=None)
    model, parent = run.original, run.candidates[0]
    for step in run.plan.steps:
        if monotonic() > run.deadline:
            run.candidates[-1] = replace(
                run.candidates[-1],
                notes=(*run.candidates[-1].notes, Note(NoteKind.WARNING, f"time budget spent before {step.name}")),
            )
            return
        found = run.workspace.find(_file(step.name)) if run.resume else None
        if found:
            outcome = Outcome(load_model(run.workspace.path(found.file), step.name), found.changes, found.notes)
        else:
            outcome = _apply(run, step.name, model, parent)
        made = _add(run, step.name, parent.name, (*parent.steps, step.name), outcome, resumed=found)
        if _keeps_accuracy(made, run.plan.max_drop):
            model, parent = outcome.model, made


def _keeps_accuracy(candidate: Candidate, max_drop: float) -> bool:
    return candidate.drop is None or candidate.drop <= max_drop


def _apply(run: _Run, step: str, model: Model, parent: Candidate) -> Outcome:
    done = ", ".join(one.name for one in run.candidates)
    try:
        return _STEPS[step](run, model)
    except EdgeoptError:
        raise
    except Exception as error:
        raise StepError(
            f"step {step!r} failed after {done}: {type(error).__name__}: {error}",
            remedy=f"leave it out with --skip {step}; earlier candidates are in {run.workspace.folder}",
        ) from error


def _simplify(run: _Run, model: Model) -> Outcome:
    shapes = fixed_shapes(run.recipe, model.inputs)
    return simplify(model, shapes, run.inputs(_CHECKED_PICTURES), opset=run.target.opset)


def _fuse(run: _Run, model: Model) -> Outcome:
    return fuse(model, run.inputs(_CHECKED_PICTURES))


def _quantize(run: _Run, model: Model) -> Outcome:
    pictures = run.frames.spread(_CALIBRATION_PICTURES)
    task = run.task(model, evaluating=True)

    def tell(done: int) -> None:
        run.listener.progress("calibrate", done, len(pictures))

    return quantize(model, model_inputs(task, pictures), run.target.int8, progress=tell)


_STEPS: dict[str, Callable[[_Run, Model], Outcome]] = {"simplify": _simplify, "fuse": _fuse, "quantize": _quantize}


def _file(name: str) -> str:
    return f"candidates/{name}/model.onnx"


def _add(
    run: _Run, name: str, parent: str, steps: tuple[str, ...], outcome: Outcome, *, resumed: Candidate | None
) -> Candidate:
    """Score a candidate, store it and tell of it."""
    if resumed:
        candidate = replace(resumed, notes=(*(note for note in resumed.notes if note != _RESUMED), _RESUMED))
        if name == BASELINE:
            run.reference = _reference_answers(run, run.open(outcome.model), outcome.model)
    else:
        candidate = _score(run, name, parent, steps, outcome)
        run.workspace.store(candidate, outcome.model.data)
    run.candidates.append(candidate)
    run.listener.candidate(candidate)
    return candidate


def _score(run: _Run, name: str, parent: str, steps: tuple[str, ...], outcome: Outcome) -> Candidate:
    session, task = run.open(outcome.model), run.task(outcome.model, evaluating=True)
    accuracy = None
    if run.labelled:
        tell = run.listener.progress
        accuracy = evaluate(session, task, run.labelled, lambda _, i, n: tell(f"evaluate {name}", i, n))
    score = Score(accuracy.metric, accuracy.value, accuracy.n, dict(accuracy.others)) if accuracy else None
    candidate = Candidate(
        name=name,
        parent=parent,
        steps=steps,
        precision="w8a8" if "quantize" in steps else "fp32",
        file=_file(name),
        size_bytes=outcome.model.size_bytes,
        changes=dict(outcome.changes),
        notes=outcome.notes,
        score=score,
    )
    found = _reference_answers(run, session, outcome.model)
    if name == BASELINE:
        run.reference = found
        session.close()
        return candidate
    baseline = run.candidates[0].score
    inputs = run.inputs(_CHECKED_PICTURES)
    original = run.open(run.original)
    drift = worst_drift(measure_drift(original.run(one), session.run(one)) for one in inputs)
    original.close()
    session.close()
    return replace(
        candidate,
        drift=drift,
        agreement=task.agreement(found, run.reference),
        drop=baseline.value - score.value if baseline and score else None,
    )


def _reference_answers(run: _Run, session: Session, model: Model) -> list[Any]:
    pictures = run.frames.spread(_AGREEMENT_PICTURES)
    return answers(session, run.task(model, evaluating=True), pictures)


def _measure(run: _Run) -> Measurement | None:
    """Measure all candidates together; None where this machine is not the target."""
    if run.target.why_not_here():
        return None
    variants = {}
    for one in run.candidates:
        model = run.original if one.name == BASELINE else load_model(run.workspace.path(one.file), one.name)
        variants[one.name] = (run.task(model, evaluating=False), run.open(model))
    if len(variants) == 1:
        variants["original again"] = (run.task(run.original, evaluating=False), run.open(run.original))
    frames = run.labelled.frames if run.labelled else run.frames
    seconds = min(MOST_SECONDS, max(run.deadline - monotonic(), 3.0))
    run.listener.say(f"measuring {plural(len(variants), 'candidate')} in turns, {run.plan.threads} thread(s)")
    parents = [one.parent for one in run.candidates if one.parent]
    measured = measure(variants, frames, against=[BASELINE, *parents], seconds=seconds)
    for _, session in variants.values():
        session.close()
    return measured


def _with_measurement(run: _Run, one: Candidate, measured: Measurement) -> Candidate:
    samples = measured.samples[one.name]
    samples.save(run.workspace.path(one.file).with_name("samples.npz"))
    timed = replace(one, latency=latency_of(samples, run.plan.budget_ms))
    if one.name == BASELINE:
        return timed
    return replace(
        timed,
        speed=speed_of(measured.ratios[BASELINE][one.name], BASELINE),
        speed_to_parent=speed_of(measured.ratios[one.parent][one.name], one.parent),
    )


def _conclude(run: _Run, choice: Choice) -> Report:
    """Measure, choose, and write bundle and report."""
    measured = _measure(run)
    if measured:
        run.candidates = [_with_measurement(run, one, measured) for one in run.candidates]
    candidates, chosen = choose(run.candidates, run.plan.max_drop)
    for one in candidates:
        run.workspace.store(one, None)
    best = next(one for one in candidates if one.name == chosen.name)
    notes = [*choice.notes, *run.frames.notes, *run.plan.notes, *(run.labelled.notes if run.labelled else ())]
    if reason := run.target.why_not_here():
        notes.append(Note(NoteKind.WARNING, f"latency not measured: {reason}", "edgeopt bench BUNDLE on the device"))
    report = Report(
        model=run.original.name,
        model_sha256=run.original.fingerprint,
        recipe=run.recipe.name,
        recipe_reason=choice.reason,
        target=run.target.name,
        environment=read_environment(),
        threads=run.plan.threads,
        budget_ms=run.plan.budget_ms,
        budget_asked=run.plan.budget_asked,
        max_drop=run.plan.max_drop,
        metric=run.recipe.evaluation.metric,
        candidates=candidates,
        chosen=chosen.name,
        reason=chosen.reason,
        folder=run.workspace.folder,
        bundle=_write_bundle(run, candidates, best),
        calibrated_on=_calibrated_on(run),
        notes=tuple(dict.fromkeys(notes)),
    )
    _write_pictures(run, best)
    write_report(report)
    return report


def _calibrated_on(run: _Run) -> str:
    if not any("quantize" in one.steps for one in run.candidates):
        return "nothing: no INT8 candidate"
    count = plural(len(run.frames.spread(_CALIBRATION_PICTURES)), "picture")
    if run.plan.synthetic:
        return f"{count}, SYNTHETIC: INT8 figures are uncalibrated"
    return f"{count} of {run.frames.source}"


def _write_bundle(run: _Run, candidates: Sequence[Candidate], best: Candidate) -> Path:
    """Write the chosen model, and the best float model behind it as the fallback."""
    models = {"model.onnx": (best.precision, run.workspace.path(best.file).read_bytes())}
    floats = [one for one in candidates if one.precision == "fp32" and not one.refused]
    if best.precision != "fp32":
        fallback = floats[-1]
        models["fallback.onnx"] = (fallback.precision, run.workspace.path(fallback.file).read_bytes())
    expected = {
        "metric": run.recipe.evaluation.metric,
        "accuracy": best.score.value if best.score else None,
        "images": best.score.n if best.score else 0,
        "agreement": best.agreement,
        "frame_p50_ms": best.latency.frame.p50_ms if best.latency else None,
        "frame_p99_ms": best.latency.frame.p99_ms if best.latency else None,
        "machine": read_environment().fingerprint if best.latency else None,
        "threads": run.plan.threads,
    }
    folder = run.workspace.path("bundle")
    write_bundle(folder, models, run.target, run.recipe, expected, package_versions())
    return folder


def _write_pictures(run: _Run, best: Candidate) -> None:
    """Draw three frames with the original's answers and the chosen candidate's."""
    if run.frames.tensors is not None:
        return
    model = load_model(run.workspace.path(best.file), best.name)
    frames = (run.labelled.frames if run.labelled else run.frames).spread(3)
    columns = {"original": run.original, f"chosen: {best.name}": model}
    found = []
    for one in columns.values():
        session = run.open(one)
        found.append(answers(session, run.task(one, evaluating=False), frames))
        session.close()
    write_sheet(run.workspace.path("boxes.png"), frames, dict(zip(columns, found, strict=True)), run.recipe.class_names)
