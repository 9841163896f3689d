"""The steps of `optimize` up to `quantize`: a model in, the fastest INT8 form that keeps its answers out, one file.

The best form so far is on disk as soon as it is known, so that the search may be interrupted.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic

from edgeopt.errors import EXIT_PASS, Note, NoteKind, UnsupportedError
from edgeopt.executors._guard import guarded
from edgeopt.graph.facts.integers import why_not_again
from edgeopt.graph.files.large_constants import FOLDER, kept_in
from edgeopt.graph.model import Model, save_model
from edgeopt.measurement.accuracy.evaluate import Progress
from edgeopt.optimization.candidates.engines import as_there, open_engine
from edgeopt.optimization.candidates.scoring import score_original
from edgeopt.optimization.choice.form_choice import FormChoice
from edgeopt.optimization.folder.replay import Replay, read_replay
from edgeopt.optimization.folder.workspace import FilesBeside
from edgeopt.optimization.one_step.limits import SEARCH_S
from edgeopt.optimization.one_step.quantize_result import QuantizeResult, Tried
from edgeopt.optimization.options import Options
from edgeopt.optimization.plan import Plan, head, make_plan, require_uncompiled
from edgeopt.optimization.run import Ears
from edgeopt.optimization.start import open_context, open_material, read_as_the_recipe_says, read_given
from edgeopt.report.document import CommandOutcome, Document, Section, Value, VerdictLines, make_table
from edgeopt.runtime.devices.availability import find_device, require_providers
from edgeopt.steps._context import CALIBRATION, Context, Engine, Setting
from edgeopt.steps.quantize.api import is_quantizable
from edgeopt.steps.quantize.calibration.pictures import CALIBRATION_PICTURES
from edgeopt.steps.quantize.inspection.engine_fusion import fusion_notes
from edgeopt.steps.quantize.inspection.table import tensor_rows
from edgeopt.steps.quantize.search.attempt import Attempt, SearchResult
from edgeopt.steps.quantize.search.decisions_file import DECISIONS
from edgeopt.steps.quantize.step import Searched, make_again, open_search
from edgeopt.system.declared.target import find_target, target_names
from edgeopt.system.disk.files import require_writable
from edgeopt.system.machine.environment import read_environment
from edgeopt.system.text import format_drop, format_score

_STEPS = ("simplify", "fuse", "quantize")
_OPSET = 13
"""First opset whose DequantizeLinear knows an axis."""


@guarded()
def quantize(
    model: str | Path,
    *,
    target: str = "cpu",
    calib: str | Path = "",
    out: str | Path | None = None,
    eval: str | Path = "",  # noqa: A002, as on the command line
    recipe: str | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    threads: int = 0,
    time_limit_s: float = SEARCH_S,
    max_drop: float | None = None,
    seed: int = 0,
    replay: str | Path = "",
    say: Callable[[str], None] | None = None,
    tell: Progress | None = None,
) -> QuantizeResult:
    """Write the fastest INT8 form of a model that agrees with it.

    Args:
        model: Path of an ONNX file, or the name of a shipped model.
        target: Shipped name, or path of a TOML file.
        calib: Unlabelled pictures, or the word `synthetic`; empty: the recipe's own.
        out: The file to write; None: `MODEL.int8.onnx` here. The decisions that led to its form are written beside it.
        eval: Labels that judge the best attempts; empty: agreement with the float model decides.
        recipe: Shipped name or path; None: read from the model.
        shapes: Whole shapes of inputs by name, for inputs whose shape the model leaves free.
        threads: 0: the target's, or one per fast physical core.
        time_limit_s: For calibration and attempts; labels are judged afterwards.
        max_drop: Metric that may be lost; None: the recipe's.
        seed: Seed of the values that calibration keeps of each tensor.
        replay: Output folder or report of an earlier `optimize`, or the decisions beside a file: that form is made
        again, without a search. Empty: a search.
        say: Called with a line for each attempt.
        tell: Called with the progress of calibration and evaluation.

    Raises:
        EdgeoptError: If something is wrong that the user can mend; the best form so far stays on disk.
    """
    earlier = read_replay(Path(replay)) if replay else None
    asked = Options(
        calib=str(calib),
        eval=str(eval),
        max_drop=max_drop,
        steps=_STEPS,
        threads=threads,
        time_limit_s=time_limit_s,
        shapes=shapes or {},
        seed=seed,
    )
    device = find_device(target)  # what cannot run is refused before the model is read
    require_providers(device)
    require_uncompiled(device)
    given, pictures = read_given(str(model), target, recipe, asked)
    if reason := why_not_again(given.model):
        remedy = f"give the float model it was made of, or make it faster as it is: edgeopt optimize -t {target}"
        raise UnsupportedError(reason, remedy=remedy)
    plan = make_plan(given.recipe, given.target, asked, 0)
    if not plan.quantizes:
        raise UnsupportedError(plan.notes[0].detail, remedy=plan.notes[0].hint or "choose another target")
    given.require_right_engine()
    engine = as_there(open_engine(given.target, plan.threads))
    material = open_material(given, replace(plan, eval=Path(eval) if eval else None), pictures)
    frames, labelled = material.frames, material.labelled
    if earlier:
        earlier.require_same(given.model, given.target)
        earlier.require_calibration(frames.spread(CALIBRATION_PICTURES))
    files = FilesBeside(Path(out) if out else Path(f"{given.model.name}.int8.onnx"))
    require_writable(files.file)
    with kept_in(files.path(FOLDER) if given.model.is_outside else None):
        context = open_context(given, plan, engine, frames, files, Ears(say, tell))
        context.time_limit_s = None  # nothing comes after the search that it would have to leave time for
        judged = replace(plan, eval=Path(eval) if eval else None)
        for value in head(judged, given.model.name, given.recipe, given.target, given.choice.reason, is_timed=False):
            context.listener.say(str(value))
        context.listener.say("")
        read_as_the_recipe_says(context, plan, given.choice, labelled, files.file.parent)
        baseline = score_original(context, labelled)
        prepared, float_model = _prepare(context, plan)
        step = Setting(engine, plan.steps["quantize"].precision, "quantize")
        if earlier:
            searched = _as_decided(float_model, context, earlier)
        else:
            opened = open_search(float_model, context, step, max(context.ends_at - monotonic(), 0.0))
            searched = opened.end(opened.find())
        choice = FormChoice(
            context, step, searched, labelled, baseline, plan.max_drop, earlier is not None, material.no_proof
        )
        chosen = choice.make()
        options = {**given.correction.entries, **searched.options}
        if chosen:
            save_model(chosen.outcome.model.gathered(), files.file)
            decided = earlier.form if earlier else searched.decided(context, chosen)
            if decided:
                files.write(DECISIONS, decided.to_json())
            context.notes += _how_to_open(chosen.outcome.model, engine, options)
        shutil.rmtree(files.path(CALIBRATION), ignore_errors=True)
        notes = (
            *given.choice.notes,
            *context.frames.notes,
            *material.notes,
            *plan.notes,
            *context.notes,
            *searched.found.notes,
        )
        return QuantizeResult(
            model=given.model.name,
            target=given.target.name,
            recipe=given.recipe.name,
            prepared=prepared,
            tried=tuple(choice.tried.values()),
            chosen=choice.tried[chosen.name] if chosen else None,
            reason=choice.reason,
            file=files.file if chosen else None,
            metric=baseline.accuracy.metric if baseline else "",
            baseline=baseline.accuracy.value if baseline else None,
            pictures=baseline.accuracy.n if baseline else 0,
            max_drop=plan.max_drop,
            notes=tuple(dict.fromkeys(notes)),
            options=options if chosen else {},
            tensors=tuple(tensor_rows(searched.found)),
            untimed=choice.untimed,
            given=str(model),
            environment=read_environment({"model.sha256": given.model.fingerprint}),
        )


def why_prepare(model: Model) -> str:
    """Return why a model cannot be quantized well as it is, as far as its parts tell; empty when it can."""
    reasons = [f"opset {model.opset} knows no scale per channel"] if model.opset < _OPSET else []
    if free := [spec.name for spec in model.inputs if not spec.is_static]:
        reasons.append(f"the shape of {', '.join(free)} is free")
    if count := model.op_counts.get("BatchNormalization"):
        reasons.append(f"{count} BatchNormalization can go into convolutions")
    return "; ".join(reasons)


def _prepare(context: Context, plan: Plan) -> tuple[str, Model]:
    """Do the steps before the search; return why they were needed, or else what they changed, and the model."""
    model, reason, changes = context.original, why_prepare(context.original), list[str]()
    context.listener.say(f"simplify and fuse first{f': {reason}' if reason else ''}")
    for name, step in plan.steps.items():
        setting = Setting(context.engine, context.engine.target.float_precision, name)
        for outcome in () if step.precision else step.make(model, context, setting):
            model = model if outcome.is_unchanged else outcome.model
            context.notes += outcome.notes
            changes += [change for change, count in outcome.changes.items() if count]
    if not is_quantizable(model, context.target.int8):
        raise UnsupportedError(
            f"{model.name} has no layer that {context.target.name} runs on integers",
            remedy="leave INT8 out for this model: edgeopt optimize --skip quantize",
        )
    return reason or ", ".join(changes), model


def _as_decided(model: Model, context: Context, earlier: Replay) -> Searched:
    """Return the form that an earlier run decided on, as of a search that found it alone."""
    decided, source = earlier.form, str(earlier.source)
    if decided is None:
        return Searched(SearchResult((), f"The float model stays: {source} has no INT8 form."), model, False, {})
    outcome, name = make_again(model, context, decided, source), str(decided.decisions.variant)
    speed_ratio, agreement = decided.figures
    attempt = Attempt(name, outcome, agreement, speed_ratio, decided.reason)
    return Searched(SearchResult((attempt,), decided.reason, outcome.notes), model, decided.is_joined, decided.options)


def _how_to_open(model: Model, engine: Engine, options: Mapping[str, str]) -> list[Note]:
    """Return what the engine makes of the file, and the session entries with which it was measured."""
    notes = [*fusion_notes(model, engine.target, engine.threads, options)]
    if options:
        text = ", ".join(f"{name} = {value}" for name, value in options.items())
        notes.append(Note(NoteKind.CHOICE, f"measured with the session options {text}", "open it so"))
    return notes


# The result of `quantize` as a document.


def summarize(result: QuantizeResult) -> Document:
    """Return what a reader sees: every form that was tried, notes, and the choice with its reason."""
    columns: dict[str, Callable[[Tried], str]] = {
        "form": lambda tried: tried.name,
        "estimated speed": lambda tried: "" if tried.speed_ratio is None else f"{tried.speed_ratio:.2f}x",
        "agreement": lambda tried: f"{tried.agreement:.3f}",
        result.metric or "metric": lambda tried: format_score(tried.score),
        "drop": lambda tried: format_drop(tried.judgement.drop) if tried.judgement else "",
        "at most": lambda tried: format_drop(tried.judgement.risk) if tried.judgement else "",
        "accuracy": lambda tried: str(tried.judgement.word) if tried.judgement else "",
    }
    chosen = result.tried.index(result.chosen) if result.chosen else None
    return Document(
        result,
        subject=result.model,
        title=f"{result.model} in INT8 for {result.target}",
        sections=(
            Section("Forms that were tried", make_table(result.tried, columns, chosen=chosen), is_detail=True),
            Section(notes=_notes(result, NoteKind.WARNING, NoteKind.SKIPPED)),
            Section("Why", values=(Value("why", result.reason),), is_detail=True),
            Section("What was decided", notes=_notes(result, NoteKind.CHOICE, NoteKind.INFO), is_detail=True),
        ),
        verdict=_verdict(result),
    )


def _verdict(result: QuantizeResult) -> VerdictLines:
    chosen = result.chosen
    if chosen is None:
        why = (Value("why", result.reason),)
        enough = "accurate enough" if result.untimed else "fast and accurate enough"
        return VerdictLines(CommandOutcome.FAIL, f"the float model stays: no INT8 form is {enough}", why)
    outcome = CommandOutcome.DONE if result.exit_code == EXIT_PASS else CommandOutcome.by_exit(result.exit_code)
    facts = [Value("form", chosen.name)]
    agrees = f"agrees with the float model in {chosen.agreement:.3f}"
    if chosen.score is None:
        facts.append(Value("accuracy", f"{agrees}; no labels judge it"))
    else:
        figures = f"{result.metric} {format_score(chosen.score)} (was {format_score(result.baseline)})"
        word = f"{chosen.judgement.word}: " if chosen.judgement else ""
        facts.append(Value("accuracy", f"{word}{figures}, {chosen.judgement}", more=agrees))
        if chosen.judgement and chosen.judgement.remedy:
            facts.append(Value("to decide", chosen.judgement.remedy))
    unknown = result.untimed or "no form was timed"
    sentence = f"{result.file} is in INT8; whether it is faster is not known: {unknown}"
    if chosen.speed_ratio is not None:
        sentence = f"{result.file} is estimated {chosen.speed_ratio:.2f}x as fast as the float model"
    return VerdictLines(outcome, sentence, tuple(facts), next_command=_compared(result))


def _compared(result: QuantizeResult) -> str:
    """Return the command that proves the estimate, on the engine that it was made for."""
    target = find_target(result.target) if result.target in target_names() else None
    is_other = target is not None and target.device == "cpu" and target.executor != "onnxruntime"
    on = f" --target {result.target}" if is_other else ""
    on += " --on ssh://USER@HOST" if result.untimed else ""
    return f"edgeopt compare {shlex.quote(result.given or result.model)} {shlex.quote(str(result.file))}{on}"


def _notes(result: QuantizeResult, *kinds: NoteKind) -> tuple[Note, ...]:
    return tuple(note for note in result.notes if note.kind in kinds)
