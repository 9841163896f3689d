"""The life of one call of `optimize`: a model in, candidates step by step, a bundle and a report out.

Every candidate is on disk before the next is begun; all are measured together at the end, on the same frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Unpack

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.executors._guard import guarded
from edgeopt.export.export import export_for
from edgeopt.export.network import NetworkInput
from edgeopt.export.source import is_source
from edgeopt.graph.facts.integers import why_not_again
from edgeopt.measurement.accuracy.pool import HERE, AnswerPool
from edgeopt.measurement.opening.given import OpenedModel
from edgeopt.measurement.opening.threads import default_threads
from edgeopt.optimization.candidates.make import make_candidates
from edgeopt.optimization.candidates.measure import Decision
from edgeopt.optimization.choice.decide import INTERRUPTED, decide, untimed_decision
from edgeopt.optimization.finish import BundleOf, conclude
from edgeopt.optimization.folder.handover import read_handover
from edgeopt.optimization.folder.replay import Replay, read_replay
from edgeopt.optimization.options import FrameOptimizeWishes, Options
from edgeopt.optimization.plan import Plan, describe, make_plan, require_no_clock
from edgeopt.optimization.result import ModelReport
from edgeopt.optimization.run import Run, Silence
from edgeopt.optimization.start import begun, open_material, read_given, start_run
from edgeopt.report.document import Document, Value
from edgeopt.runtime.devices.availability import find_device, is_by_rule, load_executor, why_unavailable
from edgeopt.steps._context import Listener
from edgeopt.steps._keep_layers import require_layers
from edgeopt.steps.quantize.calibration.pictures import CALIBRATION_PICTURES
from edgeopt.system.declared.device_times import TIMES_SUFFIX
from edgeopt.system.declared.signatures import with_options_of
from edgeopt.system.machine.threads import engine_threads
from edgeopt.system.processes.time_limit import LONGER, OutOfTime, limited
from edgeopt.system.text import typed_duration


def show_plan(model: str, *, target: str, recipe: str | None, options: Options) -> Document:
    """Return what `optimize` would do; nothing is written.

    Raises:
        EdgeoptError: As `optimize`, for everything that can be known before work begins.
    """
    if replay := _replay_of(options):
        options = replace(options, threads=options.threads or replay.threads)
    if is_source(model):
        raise EdgeoptError(f"{model} is no ONNX file yet, and a plan writes none", remedy=f"edgeopt export {model}")
    given, pictures = read_given(model, target, recipe, options)
    plan = make_plan(given.recipe, given.target, options, engine_threads(0), why_not_again(given.model))
    require_layers(given.model, plan.pruning.keep_layers)
    if replay:
        replay.require_same(given.model, given.target)
        replay.require_calibration(open_material(given, plan, pictures).frames.spread(CALIBRATION_PICTURES))
        plan = replace(plan, notes=(*plan.notes, Note(NoteKind.INFO, f"what {replay.source} decided is made again")))
    if (missing := why_unavailable(given.target)) and not is_by_rule(given.target):
        plan = replace(plan, notes=(*plan.notes, Note(NoteKind.WARNING, f"cannot run here: {missing}")))
    return describe(plan, given.model.name, given.recipe, given.target, given.choice.reason)


@with_options_of(Options)
@guarded()
def optimize(
    model: str | Path,
    *,
    target: str = "cpu",
    out: str | Path | None = None,
    recipe: str | None = None,
    options: Options | None = None,
    listener: Listener | None = None,
    bundle_of: BundleOf | None = None,
    inputs: Sequence[NetworkInput] = (),
    task: str = "",
    began_s: float | None = None,
    pool: AnswerPool = HERE,
    **wishes: Unpack[FrameOptimizeWishes],
) -> ModelReport:
    """Make a model fast on a target, measure it, and write candidates, bundle and report.

    Args:
        model: Path of an ONNX file, the name of a shipped model, or a source that `edgeopt export` takes.
        target: Shipped name, or path of a TOML file.
        out: Output folder; None: `out/MODEL-TARGET`.
        recipe: Shipped name or path; None: read from the model.
        options: What to do; None: all defaults.
        listener: Hears progress.
        bundle_of: Says which candidates get a bundle beside the chosen one's, and where; None: none.
        inputs: Of a source that `edgeopt export` takes: as `export`.
        task: Of such a source: as `export`.
        began_s: When a time limit began, on the monotonic clock; None: now.
        pool: Answers the frames on which accuracy is judged: this process, or a cluster that answers alike.
        **wishes: Fields of `Options` that differ, such as `calib="pictures/", budget_ms=33`.

    Raises:
        EdgeoptError: On what the user can mend before work begins, or where nothing can be written. A step that
            fails later is a warning of the report.
    """
    began_s = monotonic() if began_s is None else began_s
    asked = replace(options or Options(), **wishes)
    cores = ""
    if replay := _replay_of(asked):
        cores = "" if asked.threads else replay.cores
        asked = replace(asked, threads=asked.threads or replay.threads)
    model = exported_first(model, target, out, asked, listener or Silence(), inputs=inputs, task=task)
    with _before_its_time_is_over(target, asked.time_limit_s, began_s):
        given, pictures = read_given(str(model), target, recipe, asked)
    if replay:
        replay.require_same(given.model, given.target)
    folder = folder_of_run(Path(out) if out else None, given.model.name, target)
    plan = planned(given, asked, folder, cores)
    run = start_run(given, pictures, plan, folder, asked.resume, replay, listener or Silence(), began_s)
    with begun(run, given):
        run.context.pool = pool
        decision = _as_far_as_it_goes(run)
        run.context.notes += run.workspace.notes
        return conclude(run, given.choice, decision, bundle_of)


@contextmanager
def _before_its_time_is_over(target: str, limit_s: float | None, began_s: float) -> Iterator[None]:
    """Hold the first look at a model to the time limit, where it takes a long conversion for the target's own engine.

    Raises:
        EdgeoptError: If it is over: there is nothing to write.
    """
    if limit_s is None or not load_executor(find_device(target).executor).heavy:
        yield
        return
    try:
        with limited(began_s + limit_s):
            yield
    except OutOfTime:
        limit = typed_duration(1000 * limit_s)
        problem = f"the time limit of {limit} was over before the target's engine had run the model"
        raise EdgeoptError(problem, remedy=LONGER) from None


def planned(given: OpenedModel, options: Options, folder: Path, cores: str = "") -> Plan:
    """Return what will be done with a model.

    Args:
        given: Model, target and recipe.
        options: The user's wishes.
        folder: In which another machine may have made candidates.
        cores: Of the engines in the run that is replayed; see `Plan`.

    Raises:
        EdgeoptError: As `make_plan` and `require_layers`.
    """
    use = default_threads(given.model, given.recipe, given.target, options.threads)
    handover = read_handover(folder) if options.resume else None
    made = handover.steps if handover else ()
    plan = make_plan(given.recipe, given.target, options, use.threads, why_not_again(given.model), made)
    notes = (*plan.notes, *((use.note,) if use.note else ()))
    plan = replace(plan, cores=plan.cores or cores or use.cores, notes=notes)
    require_layers(given.model, plan.pruning.keep_layers)
    return plan


def _as_far_as_it_goes(run: Run) -> Decision | None:
    """Make candidates and choose; an interrupt leaves what is proven by then, once the original is scored.

    Raises:
        KeyboardInterrupt: If there is nothing yet.
    """
    try:
        make_candidates(run)
        run.context.calibrations.clear()  # what they saw may be as large as the model, and no search follows
        return decide(run)
    except KeyboardInterrupt:
        if not run.candidates:
            raise
        run.was_cut = True
        run.listener.say("interrupted: writing what is there; --resume goes on from it, Ctrl-C again ends at once")
        return untimed_decision(run, INTERRUPTED)


def exported_first(
    model: str | Path,
    target: str,
    out: str | Path | None,
    options: Options,
    listener: Listener,
    *,
    inputs: Sequence[NetworkInput] = (),
    task: str = "",
) -> str | Path:
    """Return a model as it came; of a source that `edgeopt export` takes the ONNX file that is made of it.

    Args:
        model: Path of an ONNX file, the name of a shipped model, or such a source.
        target: Shipped name, or path of a TOML file.
        out: Output folder of the run; None: its default.
        options: What to do.
        listener: Hears progress.
        inputs: Of the source.
        task: Of the source.

    Raises:
        EdgeoptError: If it cannot be exported, or is told what is for another kind of model.
    """
    source = str(model)
    if not is_source(source):
        _require_no_source(model, inputs, task)
        return model
    if options.shapes:
        problem = f"--shape is for an ONNX file, and {source} is exported first"
        raise EdgeoptError(problem, remedy="write --input images=1x3x224x224, for each input in their order")
    listener.say(f"export     {source}")
    result = export_for(source, target, Path(out) if out else None, inputs=inputs, task=task)
    worst = min(output.drift.sqnr_db for output in result.outputs)
    listener.say(f"           {result.file}: {worst:.0f} dB signal to noise against {result.framework}")
    for note in result.notes:
        listener.say(str(Value.of_note(note)))
    return result.file


def _require_no_source(model: str | Path, inputs: Sequence[NetworkInput], task: str) -> None:
    """Raise where a model is told what only an export takes."""
    text = "--input" if inputs else "--task" if task else ""
    if text:
        problem = f"{text} tells how a network is exported, and {model} is exported already"
        raise EdgeoptError(problem, remedy=f"leave {text} out" + ("; --shape fixes free axes" if inputs else ""))


def _replay_of(options: Options) -> Replay | None:
    if not options.replay:
        return None
    require_no_clock(options)
    return read_replay(Path(options.replay))


def folder_of_run(out: Path | None, model: str, target: str) -> Path:
    """Return the output folder of a run: the one that was named, else `out/MODEL-TARGET`."""
    return out or Path("out") / f"{model}-{device_name(target)}"


def device_name(target: str) -> str:
    """Return the target's name for a folder: of a file its stem."""
    if target.endswith(TIMES_SUFFIX):
        return Path(target).name.removesuffix(TIMES_SUFFIX)
    return Path(target).stem if target.endswith(".toml") else target
