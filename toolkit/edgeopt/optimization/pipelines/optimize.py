"""The life of one call of `optimize` for a pipeline: candidates of each model, one choice for all, one bundle.

Each model goes through `optimize` on what it is fed in the pipeline. Then its candidates are put into the whole one by
one: what the last answers lose, and what a frame takes, decide together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic

import numpy as np

from edgeopt.errors import Note, NoteKind, UnavailableError
from edgeopt.executors._guard import guarded
from edgeopt.measurement.pipelines.diagnosis import find_stage_to_mend
from edgeopt.measurement.pipelines.figures import StageCost, stage_costs
from edgeopt.measurement.pipelines.given import OpenedPipeline
from edgeopt.optimization.candidate import BASELINE
from edgeopt.optimization.candidates.measure import CONFIRM_SECONDS, MOST_SECONDS, Decision
from edgeopt.optimization.choice.selection import Wish
from edgeopt.optimization.expected_progress import MEASURE, PartListener
from edgeopt.optimization.folder.handover import forget_handover, handed_over
from edgeopt.optimization.optimize import optimize
from edgeopt.optimization.options import Options
from edgeopt.optimization.pipelines.choice import Combination, StageForm, choose_jointly, front_of
from edgeopt.optimization.pipelines.forms import FormBundles, ModelForms, weigh
from edgeopt.optimization.pipelines.judge import Judged, PipelineJudge, labels_of
from edgeopt.optimization.pipelines.observe import Original, observe_original
from edgeopt.optimization.pipelines.prove import JOINT, Proving, as_candidate, prove
from edgeopt.optimization.pipelines.result import JointReport
from edgeopt.optimization.pipelines.start import (
    TURNS,
    PipelineStart,
    later_s,
    limit_with,
    open_original,
    started_pipeline,
)
from edgeopt.optimization.pipelines.summary import summarize
from edgeopt.optimization.report.columns import write_document
from edgeopt.optimization.run import Silence
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.runtime.pipelines.bundle import write_pipeline
from edgeopt.runtime.pipelines.pipeline import Pipeline
from edgeopt.runtime.runtime import Runtime
from edgeopt.steps._context import Listener
from edgeopt.system.machine.environment import package_versions, read_environment
from edgeopt.system.text import format_score

_ROUNDS = 3
"""Combinations that are measured as a whole, where the first misses the budget or loses more than expected."""
_LEAST_PROVING_S = 5.0
"""Least seconds for the turns that end a run, however late it is."""


@guarded()
def optimize_pipeline(
    asked: str | Path,
    *,
    target: str = "cpu",
    code: Path | None = None,
    out: str | Path | None = None,
    options: Options | None = None,
    listener: Listener | None = None,
    began_s: float | None = None,
) -> JointReport:
    """Make a pipeline meet its budget at the least accuracy lost, measure it, and write bundle and report.

    Args:
        asked: Path of a `pipeline.toml`.
        target: Shipped name, or path of a TOML file.
        code: The folder of the app's functions.
        out: Output folder; None: `out/PIPELINE-TARGET`.
        options: What to do; `calib`, `eval`, `budget_ms` and `max_drop` are of the whole.
        listener: Hears progress.
        began_s: When a time limit began, on the monotonic clock; None: now.

    Raises:
        EdgeoptError: On what the user can mend before work begins, where a stage fails, or nothing can be written.
    """
    began_s = monotonic() if began_s is None else began_s
    options, hears = options or Options(), listener or Silence()
    with started_pipeline(Path(asked), named=target, code=code, out=out, options=options) as start:
        pipeline = open_original(start, target, options.threads)
        handover = handed_over(start.folder, start.described(pipeline.target.name), resume=options.resume)
        if handover is None:
            forget_handover(start.folder)
        models = _make_candidates(pipeline, start, target, hears, keeps_inputs=handover is None)
        run = _Joint(pipeline, start.pictures, models, start.folder, options, hears, began_s)
        run.notes += handover.told if handover else ()
        return run.conclude()


def _make_candidates(
    given_pipeline: OpenedPipeline, start: PipelineStart, target: str, hears: Listener, *, keeps_inputs: bool
) -> tuple[Original, tuple[ModelForms, ...]]:
    """Send each model through `optimize` on what it is fed, and write a bundle of each candidate."""
    description, models = start.description, list[ModelForms]()
    with closing(given_pipeline.open()) as pipeline:
        hears.say(f"{description.name}: {', '.join(other.name for other in description.stages)}")
        inputs = start.inputs if keeps_inputs else None
        original = observe_original(pipeline, start.pictures, inputs, hears.progress)
    for position, stage in enumerate(description.models, 1):
        hears.say("")
        hears.say(f"stage {stage.name}: {stage.model}, {np.mean(original.runs[stage.name]):.3g} runs a frame")
        forms = FormBundles(start.folder / "forms" / stage.name)
        left = partial(later_s, monotonic(), len(description.models) - position)
        report = optimize(**start.wishes_of(stage), target=target, listener=PartListener(hears, left), bundle_of=forms)
        if report.was_cut:
            raise KeyboardInterrupt
        if report.untimed:
            raise UnavailableError(
                f"a pipeline is chosen by what is measured, and stage {stage.name} is not: {report.untimed}",
                remedy="run edgeopt optimize on the device itself, with more --time-limit where that was reached",
            )
        models.append(forms.of(stage.name, report.threads))
    return original, tuple(models)


@dataclass
class _Tried:
    """A combination that was judged and measured as a whole."""

    combination: Combination | None
    judged: Judged
    decision: Decision


class _Joint:
    """The joint choice of one run."""

    def __init__(
        self,
        given: OpenedPipeline,
        pictures: Frames,
        models: tuple[Original, tuple[ModelForms, ...]],
        folder: Path,
        options: Options,
        hears: Listener,
        began_s: float,
    ) -> None:
        description = given.description
        self._given, self._pictures, self._folder, self._hears = given, pictures, folder, hears
        self._original, self._models = models
        self.notes: list[Note] = [*given.notes, *pictures.notes]
        self._budget_asked = options.budget_ms is not None or description.budget_ms is not None
        self._budget_ms = options.budget_ms or description.budget_ms or given.target.budget_ms
        self._limit_s = options.time_limit_s
        self._ends_s = began_s + options.time_limit_s if options.time_limit_s else None
        self._labels = labels_of(description, options.eval)
        drop = options.max_drop if options.max_drop is not None else description.max_drop
        self._wish = Wish(drop, description.least_agreement)
        is_drop_asked = options.max_drop is not None and self._labels is not None
        self._accuracy_asked = bool(options.eval) or is_drop_asked

    def conclude(self) -> JointReport:
        """Weigh the forms, choose, prove, and write bundle and report."""
        originals = {model.stage: model.bundles[BASELINE] for model in self._models}
        self._write(BASELINE, originals)  # opened as the candidates are: with the threads that were measured
        with closing(self._load(BASELINE)) as pipeline:
            judge = PipelineJudge(
                pipeline,
                self._pictures,
                self._labels,
                self._hears.progress,
                max_drop=self._wish.max_drop,
                least_agreement=self._wish.least_agreement,
            )
            forms = weigh(self._models, self._original, pipeline, judge)
            front = front_of(self._original.fixed_ms, forms)
            tried = self._try(front, pipeline, judge)
        decision, chosen = tried.decision, tried.decision.chosen
        best = next(candidate for candidate in decision.candidates if candidate.name == chosen.name)
        names = (
            tried.combination.names
            if tried.combination and chosen.name == JOINT
            else dict.fromkeys(originals, BASELINE)
        )
        bundle = self._bundle(
            names,
            best.latency.frame.p50_ms if best.latency else None,
            tried.judged if chosen.name == JOINT else judge.baseline,
        )
        for name, samples in decision.samples.items():
            samples.save(self._folder / "combinations" / f"{name}.npz")
        report = JointReport(
            model=self._given.description.name,
            code=str(self._given.code) if self._given.code and self._given.calls else "",
            target=self._given.target.name,
            budget_ms=self._budget_ms,
            budget_asked=self._budget_asked,
            metric=judge.metric,
            max_drop=self._may_lose(judge),
            accuracy_asked=self._accuracy_asked,
            threads=max(model.threads for model in self._models),
            pictures=len(judge.frames),
            forms=forms,
            fixed_ms=self._original.fixed_ms,
            tail_ratio=self._original.tail_ratio,
            front=front,
            candidates=decision.candidates,
            measured=tried.combination,
            chosen=chosen.name,
            reason=self._reason(tried, forms, self._may_lose(judge)),
            before=self._costs(decision, BASELINE),
            after=self._costs(decision, chosen.name),
            mend=self._mend(decision, chosen.name),
            reports={model.stage: f"models/{model.stage}/report.md" for model in self._models},
            trust=str(decision.trust),
            environment=read_environment({"pipeline": self._given.description.name}),
            folder=self._folder,
            bundle=bundle,
            notes=tuple(dict.fromkeys((*self.notes, *decision.notes))),
        )
        write_document(report, summarize(report))
        return report

    def _may_lose(self, judge: PipelineJudge) -> float:
        return self._wish.max_drop if judge.baseline.drop is not None else 1 - self._wish.least_agreement

    def _try(self, front: Sequence[Combination], pipeline: Pipeline, judge: PipelineJudge) -> _Tried:
        """Return the combination that was chosen, proven as a whole; the original where none is proven."""
        limit_ms, most_loss = self._budget_ms / self._original.tail_ratio, self._may_lose(judge)
        kept: _Tried | None = None
        seen: list[Combination] = []
        for _ in range(_ROUNDS):
            combination = choose_jointly(front, limit_ms, most_loss)
            if combination is None or combination in seen or all(form.name == BASELINE for form in combination.forms):
                break
            seen.append(combination)
            judged = self._judge(combination, pipeline, judge)
            judgement = judged.judgement
            if judgement is not None and not (judgement.is_proven or judgement.is_open):
                lost, expected = map(format_score, (judged.loss, combination.loss))
                text = f"{combination} loses {lost} together, {expected} was expected"
                self.notes.append(Note(NoteKind.CHOICE, f"{text}: more than {self._may_lose(judge):.4g}"))
                most_loss = combination.loss - 1e-6
                continue
            tried = self._prove(combination, judged, judge)
            kept = tried if kept is None or tried.decision.chosen.name == JOINT else kept
            joint = next(candidate for candidate in tried.decision.candidates if candidate.name == JOINT)
            is_missed = joint.latency is not None and joint.latency.verdict == "FAIL"
            faster = choose_jointly(front, 0.0, most_loss)
            if not is_missed or faster is None or faster.frame_ms >= combination.frame_ms:
                break
            self.notes.append(
                Note(NoteKind.CHOICE, f"{combination} misses the budget as a whole: a faster one is tried")
            )
            limit_ms = combination.frame_ms - 1e-6
        return kept or self._prove(None, judge.baseline, judge)

    def _judge(self, combination: Combination, pipeline: Pipeline, judge: PipelineJudge) -> Judged:
        with ExitStack() as opened:
            loaded = {}
            for form in combination.forms:
                if form.name != BASELINE:
                    loaded[form.stage] = opened.enter_context(closing(Runtime.load(self._form(form.stage, form.name))))
            return judge.judge(pipeline.with_models(loaded), f"{combination} together")

    def _prove(self, combination: Combination | None, judged: Judged, judge: PipelineJudge) -> _Tried:
        folders = {BASELINE: self._folder / "combinations" / BASELINE}
        candidates = [as_candidate(BASELINE, folders[BASELINE], self._folder, judge.baseline)]
        if combination is not None:
            folders[JOINT] = self._write(
                JOINT, {form.stage: self._form(form.stage, form.name) for form in combination.forms}
            )
            candidates.append(as_candidate(JOINT, folders[JOINT], self._folder, judged))
        self._hears.ahead(MEASURE, MOST_SECONDS + CONFIRM_SECONDS, 0.0)
        self._hears.say(f"measuring whole frames in turns: {combination or 'the original'}")
        turns_s = TURNS * max(3.0, self._ends_s - monotonic()) if self._ends_s else None
        proving = Proving(
            frames=judge.frames,
            budget_ms=self._budget_ms,
            threads=max(model.threads for model in self._models),
            code=self._given.code,
            wish=self._wish,
            tell=self._hears.progress,
            seconds=turns_s,
            turns_s=turns_s or math.inf,
            ends_s=max(self._ends_s or math.inf, monotonic() + _LEAST_PROVING_S),
            time_limit_s=self._limit_s,
            limit_with=partial(limit_with, self._limit_s) if self._limit_s else None,
        )
        return _Tried(combination, judged, prove(candidates, folders, proving))

    def _form(self, stage: str, name: str) -> Path:
        return next(model.bundles[name] for model in self._models if model.stage == stage)

    def _write(self, name: str, bundles: Mapping[str, Path]) -> Path:
        folder = self._folder / "combinations" / name
        write_pipeline(folder, self._given.description, bundles, {}, package_versions())
        return folder

    def _load(self, name: str) -> Pipeline:
        return Pipeline.load(self._folder / "combinations" / name, stages=self._given.calls)

    def _bundle(self, names: Mapping[str, str], p50_ms: float | None, judged: Judged) -> Path:
        folder = self._folder / "bundle"
        accuracy = judged.accuracy
        expected = {
            "forms": dict(names),
            "metric": accuracy.metric if accuracy else "agreement",
            "accuracy": accuracy.value if accuracy else None,
            "agreement": judged.agreement,
            "proof": judged.judgement.proof if judged.judgement else None,
            "frame_p50_ms": p50_ms,
            "machine": read_environment().hash,
        }
        bundles = {stage: self._form(stage, name) for stage, name in names.items()}
        description = replace(self._given.description, budget_ms=self._budget_ms)
        write_pipeline(folder, description, bundles, expected, package_versions())
        return folder

    def _costs(self, decision: Decision, name: str) -> tuple[StageCost, ...]:
        costs = stage_costs(self._given.description, decision.samples[name], {}, self._budget_ms)
        runs = self._original.runs
        return tuple(
            replace(cost, runs_mean=float(runs[cost.name].mean()), runs_most=int(runs[cost.name].max()))
            if cost.name in runs
            else cost
            for cost in costs
        )

    def _mend(self, decision: Decision, name: str) -> str:
        frame_ms = float(decision.samples[name].steady().frame_ns.mean()) / 1e6
        costs = self._costs(decision, name)
        stage = find_stage_to_mend(self._given.description, costs, frame_ms, self._budget_ms, again="", optimize="")
        return f"{stage.what} ({stage.evidence}): {stage.do}"

    def _reason(self, tried: _Tried, forms: Sequence[Sequence[StageForm]], most_loss: float) -> str:
        chosen = tried.decision.chosen
        lossy = [form for of_stage in forms for form in of_stage if form.loss > most_loss]
        text = ", ".join(f"{form.stage} {form.name} loses {format_score(form.loss)} of the whole" for form in lossy)
        refused = f"; {text} ({most_loss:.4g} allowed)" if text else ""
        if tried.combination is None:
            return f"the models stay as they came: no combination of their forms is faster and accurate enough{refused}"
        loss = format_score(tried.combination.loss)
        expected = f"{tried.combination.frame_ms:.3g} ms and a loss of {loss} were expected"
        if chosen.name == BASELINE:
            return f"{chosen.reason}; tried together: {tried.combination} ({expected}){refused}"
        return f"{chosen.reason}; together: {tried.combination} ({expected}){refused}"
