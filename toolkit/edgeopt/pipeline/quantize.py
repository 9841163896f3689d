"""The step `quantize` alone: a model in, the fastest INT8 form that keeps its answers out.

The best form so far is on disk as soon as it is known, so that the search may be interrupted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

from edgeopt.errors import EXIT_MISSED, EXIT_PASS, EdgeoptError, Note, NoteKind, UnsupportedError
from edgeopt.executors import Session
from edgeopt.graph.integers import why_not_again
from edgeopt.graph.model import Model, find_model, load_model, save_model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors, fix_sizes
from edgeopt.measurement.accuracy.bootstrap import Drop, Scored, drop_between, require_telling, score, why_unsure
from edgeopt.measurement.accuracy.evaluate import (
    LabelledFrames,
    Progress,
    answers,
    fed,
    model_inputs,
    open_labelled,
    require_metric,
    synthetic,
    with_states,
)
from edgeopt.measurement.accuracy.misreading import choose_by_labels, notes_of_reading
from edgeopt.measurement.session_tuning import Buffers
from edgeopt.pipeline.plan import SYNTHETIC, require_uncompiled
from edgeopt.pipeline.selection import is_within
from edgeopt.recipes.frames import Frames, open_frames
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.recognise import choose_recipe, fixed_shapes
from edgeopt.runtime.availability import find_device, require_providers
from edgeopt.runtime.opening import opening_for
from edgeopt.steps.fuse import fuse
from edgeopt.steps.quantize.api import Form, is_quantizable
from edgeopt.steps.quantize.inspection.engine_fusion import fusion_notes
from edgeopt.steps.quantize.inspection.table import tensor_rows
from edgeopt.steps.quantize.integer_types import confirmed_rules
from edgeopt.steps.quantize.judges import AGREEMENT_PICTURES, TIMED_PICTURES, Judge, own_clock
from edgeopt.steps.quantize.search.attempt import Attempt, SearchResult, for_labels, ranked
from edgeopt.steps.quantize.search.search import search_int8
from edgeopt.steps.simplify import simplify
from edgeopt.system.environment import engine_threads
from edgeopt.system.files import require_writable
from edgeopt.system.target import Target
from edgeopt.system.toml import DURATION_S, THREADS, Within
from edgeopt.tasks import Task, make_task

TIME_BUDGET_S = 180.0
_CALIBRATION_PICTURES, _CHECKED_PICTURES = 128, 4
_MOST_SCORED = 3
"""Attempts that the labels judge: the fastest by agreement may still lose too much of the metric."""
_OPSET = 13
"""First opset whose DequantizeLinear knows an axis."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One INT8 form that was built and measured."""

    name: str
    speed_ratio: float
    """Time of the float model over its own, in turns."""
    agreement: float
    """With the float model, without labels."""
    score: float | None = None
    """Metric on the labels; None where they were not asked."""
    drop: Drop | None = None
    """Against the model as given, with its 95 % interval over pictures."""


@dataclass(frozen=True, slots=True)
class QuantizeResult:
    """What the search found."""

    model: str
    target: str
    recipe: str
    prepared: str
    """Why simplify and fuse were needed first; empty: they were not, or changed nothing."""
    tried: tuple[Tried, ...]
    """Best first, before labels."""
    chosen: Tried | None
    """None: the float model stays."""
    reason: str
    file: Path | None
    metric: str = ""
    baseline: float | None = None
    """The metric of the model as given."""
    pictures: int = 0
    """On which the metric was computed."""
    max_drop: float = 0.0
    notes: tuple[Note, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    """Session options with which the file was measured, beyond those of the target."""
    tensors: tuple[Mapping[str, Any], ...] = ()
    """What is known of each tensor, the worst first; see `tensor_rows`."""

    @property
    def exit_code(self) -> int:
        """0 if there is an INT8 model, 2 if none is fast and accurate enough."""
        return EXIT_PASS if self.chosen else EXIT_MISSED

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "file": str(self.file) if self.file else None, "exit_code": self.exit_code}


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
    time_budget_s: float = TIME_BUDGET_S,
    max_drop: float | None = None,
    say: Callable[[str], None] | None = None,
    tell: Progress | None = None,
) -> QuantizeResult:
    """Write the fastest INT8 form of a model that agrees with it.

    Args:
        model: Path of an ONNX file, or the name of a shipped model.
        target: Shipped name, or path of a TOML file.
        calib: Unlabelled pictures, or the word `synthetic`; empty: the recipe's own.
        out: The file to write; None: `MODEL.int8.onnx` here.
        eval: Labels that judge the best attempts; empty: none, agreement decides.
        recipe: Shipped name or path; None: read from the model.
        shapes: Whole shapes of inputs by name, for what the model leaves free.
        threads: 0: the target's, or one per physical core.
        time_budget_s: For calibration and attempts; labels are judged afterwards.
        max_drop: Metric that may be lost; None: the recipe's.
        say: Hears one line for each attempt.
        tell: Hears how far calibration and evaluation are.

    Raises:
        EdgeoptError: On what the user can mend; the best form so far stays on disk.
    """
    THREADS.require("threads", threads)
    DURATION_S.require("time_budget_s", time_budget_s)
    if max_drop is not None:
        Within(0, 1).require("max_drop", max_drop)
    ends_at_s = monotonic() + time_budget_s
    device, path = find_device(target), find_model(str(model))
    require_providers(device)
    require_uncompiled(device)
    loaded = load_model(path)
    if reason := why_not_again(loaded):
        raise UnsupportedError(
            reason,
            remedy=f"give the float model it was made of, or make it faster as it is: edgeopt optimize -t {target}",
        )
    inputs = fix_sizes(loaded.inputs, shapes or {})
    given = open_frames(Path(calib)) if calib and calib != SYNTHETIC else None
    fed_shapes = given.shapes if given else None
    choice = choose_recipe(recipe, path, inputs, loaded.outputs, loaded.metadata, fed_shapes, may_rival=bool(eval))
    choice = choose_by_labels(choice, loaded, Path(eval or ""))
    if shapes:
        choice = replace(choice, recipe=choice.recipe.with_inputs(inputs))
    require_metric(choice.recipe, eval)
    frames = _open_pictures(given, choice.recipe, loaded, is_synthetic=calib == SYNTHETIC)
    labelled = open_labelled(Path(eval)) if eval else None
    used = engine_threads(threads, device.threads)
    run = _Run(device, choice.recipe, loaded, frames, labelled, used, say or _hear_nothing, tell)
    run.file = Path(out) if out else Path(f"{loaded.name}.int8.onnx")
    require_writable(run.file)
    if labelled or calib != SYNTHETIC:
        began_s = monotonic()
        run.notes += notes_of_reading(choice, loaded, run.open(loaded), frames, labelled, run.file.parent, tell)
        ends_at_s += monotonic() - began_s  # the time budget is for calibration and attempts
    run.score_original()
    run.frames = with_states(frames, lambda: run.open(loaded))
    prepared = run.prepare()
    found = run.search(max(ends_at_s - monotonic(), 0.0))
    result = run.choose(found, choice.recipe.evaluation.max_drop if max_drop is None else max_drop)
    (chosen, tried, reason), baseline = result, run.baseline
    shutil.rmtree(run.cache, ignore_errors=True)
    return QuantizeResult(
        model=loaded.name,
        target=device.name,
        recipe=choice.recipe.name,
        prepared=prepared,
        tried=tried,
        chosen=chosen,
        reason=reason,
        file=run.file if chosen else None,
        metric=baseline.accuracy.metric if baseline else "",
        baseline=baseline.accuracy.value if baseline else None,
        pictures=baseline.accuracy.n if baseline else 0,
        max_drop=choice.recipe.evaluation.max_drop if max_drop is None else max_drop,
        notes=tuple(dict.fromkeys((*choice.notes, *run.frames.notes, *run.notes, *found.notes))),
        options=run.options if chosen else {},
        tensors=tuple(tensor_rows(found)),
    )


def _hear_nothing(_: str) -> None:
    """Nobody listens."""


def _open_pictures(given: Frames | None, recipe: Recipe, model: Model, *, is_synthetic: bool) -> Frames:
    if is_synthetic:
        made = Note(
            NoteKind.WARNING, "uncalibrated: ranges come from synthetic pictures", "pass --calib with real ones"
        )
        return replace(synthetic(recipe, model.inputs), notes=(made,))
    path = recipe.path_of(recipe.evaluation.calib)
    if given is None and path is None:
        raise EdgeoptError(
            "there are no calibration pictures",
            remedy="pass --calib FOLDER with about 100 unlabelled pictures from where the model will work",
        )
    return fed(given or open_frames(path or Path()), recipe, model.inputs)


def why_prepare(model: Model) -> str:
    """Return why a model cannot be quantized well as it is, as far as its parts tell; empty when it can."""
    reasons = [f"opset {model.opset} knows no scale per channel"] if model.opset < _OPSET else []
    if free := [spec.name for spec in model.inputs if not spec.is_static]:
        reasons.append(f"the shape of {', '.join(free)} is free")
    if count := model.op_counts.get("BatchNormalization"):
        reasons.append(f"{count} BatchNormalization can go into convolutions")
    return "; ".join(reasons)


@dataclass(slots=True)
class _Run:
    """What all parts of one search share."""

    target: Target
    recipe: Recipe
    original: Model
    frames: Frames
    labelled: LabelledFrames | None
    threads: int
    say: Callable[[str], None]
    tell: Progress | None
    model: Model = field(init=False)
    """The float model that is quantized."""
    file: Path = field(init=False)
    """What was asked for: written once, when the choice is made."""
    attempts: list[Attempt] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    baseline: Scored | None = None
    """The original's accuracy; None without labels."""
    _buffers: Buffers | None = None

    def score_original(self) -> None:
        """Score the model as given, before minutes are spent on forms that would be judged by the same labels.

        Raises:
            InvalidFileError: If it is no better than chance.
        """
        if self.labelled is not None:
            self.baseline = self._score(self.original, "the original")
            require_telling(self.baseline, "without --eval, agreement judges")

    def prepare(self) -> str:
        """Simplify and fuse, and return why that was needed, or else what it changed."""
        self.model, reason, changes = self.original, why_prepare(self.original), list[str]()
        self.say(f"simplify and fuse first{f': {reason}' if reason else ''}")
        inputs, shapes = self.inputs(_CHECKED_PICTURES), fixed_shapes(self.recipe, self.original.inputs)
        for outcome in self._prepared(shapes, inputs):
            self.model = outcome.model
            self.notes += outcome.notes
            changes += [name for name, count in outcome.changes.items() if count]
        if not is_quantizable(self.model, self.target.int8):
            raise UnsupportedError(
                f"{self.original.name} has no layer that {self.target.name} runs on integers",
                remedy="leave INT8 out for this model: edgeopt optimize --skip quantize",
            )
        return reason or ", ".join(changes)

    def _prepared(self, shapes: dict[str, tuple[int, ...]], inputs: Sequence[Tensors]) -> Iterator[Outcome]:
        yield simplify(self.model, shapes, inputs, opset=self.target.opset)
        yield fuse(self.model, inputs)

    def search(self, time_budget_s: float) -> SearchResult:
        """Return all attempts; each is told, and the best so far written, as soon as it is measured."""
        rules, measured = confirmed_rules(self.target)
        self.notes += measured
        judge = self._judge()
        if unproven := judge.why_no_proof(self.least_agreement):
            self.notes.append(Note(NoteKind.WARNING, f"agreement is no proof: {unproven}", "pass other pictures"))
        self._buffers = Buffers(self.target, self.threads, self.inputs(1)[0])
        count = len(self.frames.spread(_CALIBRATION_PICTURES))
        found = search_int8(
            self.model,
            model_inputs(self.task(self.model), self.frames.spread(_CALIBRATION_PICTURES)),
            rules,
            agreement=judge.agreement,
            speed=lambda one: self._speed(judge, one),
            forms=tuple(Form(one) for one in rules.forms),
            threads=self.threads,
            least_agreement=self.least_agreement,
            time_budget_s=time_budget_s,
            progress=lambda done: self.tell("calibrate", done, count) if self.tell else None,
            on_attempt=self._attempted,
            cache=self.cache,
        )
        judge.close()
        return found

    def _speed(self, judge: Judge, candidate: Model) -> float:
        """Return the float model's time over a candidate's; the first one decides on the buffers of all."""
        assert self._buffers is not None
        self._buffers.choose(candidate)
        return judge.speed(candidate)

    @property
    def least_agreement(self) -> float:
        """What a form must reach to be chosen without labels."""
        return self.recipe.least_agreement

    @property
    def options(self) -> Mapping[str, str]:
        """Session entries for integer forms, beyond the target's."""
        return self._buffers.entries if self._buffers else {}

    def _judge(self) -> Judge:
        """Return what compares INT8 models with the float one, on what calibrates."""
        clock, inputs = own_clock(self.target, self.threads), self.inputs(TIMED_PICTURES)
        return Judge(self.model, self.open, self.task, self.frames.judged(AGREEMENT_PICTURES), inputs, clock=clock)

    def _attempted(self, one: Attempt) -> None:
        self.attempts.append(one)
        best = ranked(self.attempts, self.least_agreement)[0]
        is_best = best is one and one.is_valid(self.least_agreement)
        if is_best:
            save_model(one.outcome.model, self.draft)
        told = f"{one.name}: estimated {one.speed_ratio:.2f}x the float model, agreement {one.agreement:.3f}"
        self.say(f"  {told}{f'; the best so far, in {self.draft}' if is_best else ''}")

    def choose(self, found: SearchResult, max_drop: float) -> tuple[Tried | None, tuple[Tried, ...], str]:
        """Return the choice, all attempts, and why; the file is the choice or absent."""
        attempts = found.attempts
        rows = [Tried(one.name, one.speed_ratio, one.agreement) for one in attempts]
        valid = [one for one in attempts if one.is_valid(self.least_agreement)]
        if not valid or self.baseline is None:
            why = "" if valid or not attempts else "The float model stays: no INT8 form is faster and agrees with it."
            self._settle(valid[0] if valid else None)
            return (rows[0] if valid else None), tuple(rows), f"{why} {found.reason}".strip()
        baseline, refused = self.baseline, list[str]()
        for one in for_labels(valid, _MOST_SCORED):
            i = next(place for place, other in enumerate(attempts) if other is one)
            rows[i] = self._judged(one, baseline)
            drop = rows[i].drop
            if drop is not None and is_within(drop.value, max_drop):
                self._settle(one)
                if unsure := why_unsure(drop, max_drop, baseline.accuracy.n):
                    self.notes.append(Note(NoteKind.WARNING, unsure, "label more pictures"))
                return rows[i], tuple(rows), " ".join((*refused, one.reason)).strip()
            refused.append(f"{rows[i].name} loses {drop}, {max_drop:g} is allowed.")
        self._settle(None)
        return None, tuple(rows), f"The float model stays: {' '.join(refused)} {found.reason}".strip()

    @property
    def cache(self) -> Path:
        """What calibration has seen: an interrupt leaves it to the next search of this file."""
        return self.file.with_name(f".{self.file.stem}.calibration")

    @property
    def draft(self) -> Path:
        """The best form so far: what an interrupt leaves; a file that was there before stays untouched."""
        return self.file.with_name(f"{self.file.stem}.best-so-far{self.file.suffix}")

    def _settle(self, chosen: Attempt | None) -> None:
        """Write the choice, if there is one, and take the draft away."""
        if chosen:
            save_model(chosen.outcome.model, self.file)
            self.notes += fusion_notes(chosen.outcome.model, self.target, self.threads, self.options)
            if self.options:
                told = ", ".join(f"{name} = {value}" for name, value in self.options.items())
                self.notes.append(Note(NoteKind.CHOICE, f"measured with the session options {told}", "open it so"))
        self.draft.unlink(missing_ok=True)

    def _judged(self, attempt: Attempt, baseline: Scored) -> Tried:
        scored = self._score(attempt.outcome.model, attempt.name)
        drop = drop_between(baseline, scored)
        if drop is None:  # a single picture has no interval
            lost = baseline.accuracy.value - scored.accuracy.value
            drop = Drop(lost, float("-inf"), float("inf"))
        return Tried(attempt.name, attempt.speed_ratio, attempt.agreement, scored.accuracy.value, drop)

    def _score(self, model: Model, what: str) -> Scored:
        assert self.labelled is not None
        session, task = self.open(model), self.task(model)
        found = answers(session, task, self.labelled.frames, self.tell, f"evaluate {what}")
        session.close()
        return score(task, found, self.labelled.labels)

    def task(self, model: Model) -> Task:
        """Return the recipe's task with the metric's thresholds."""
        return make_task(self.recipe, model.inputs, model.outputs, evaluating=True)

    def open(self, model: Model) -> Session:
        """Open a model as the target would."""
        opening = opening_for(self.target, self.target.float_precision, self.threads)
        return opening.with_entries(self.options).open(model.data)

    def inputs(self, count: int) -> list[Tensors]:
        """Return the model's inputs for a few of the pictures."""
        return list(model_inputs(self.task(self.original), self.frames.spread(count)))
