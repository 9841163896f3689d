"""The chosen model with parts of its recipe inside: made with the bundle, checked and timed beside itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.graph.model import Model, load_model
from edgeopt.measurement.accuracy.bootstrap import Scored, score
from edgeopt.measurement.accuracy.evaluate import answers
from edgeopt.measurement.accuracy.judgement import Judgement, judge_scores
from edgeopt.measurement.fresh_process.turns import FreshTurns, Runnable, feed_of, run_fresh
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.measurement.turns.interleaved import Pace, take_turns
from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.candidates.measure import late_s, latency_of
from edgeopt.optimization.candidates.scoring import stored_baseline
from edgeopt.optimization.choice.accuracy_proof import as_labels_prove, judge_answers
from edgeopt.optimization.choice.judging_time import samples_that_judge
from edgeopt.optimization.choice.label_looks import count_look
from edgeopt.optimization.plan import DEFAULT
from edgeopt.optimization.result import Inside
from edgeopt.optimization.run import Run
from edgeopt.recipes.drafting.hugging_face import read_configuration
from edgeopt.recipes.recipe import Recipe
from edgeopt.steps import Step
from edgeopt.steps._class_map import ARGMAX
from edgeopt.steps._context import AGREEMENT_PICTURES, Context, Setting
from edgeopt.system.processes.time_limit import LONGER, OutOfTime, limited
from edgeopt.tasks import make_task

SECONDS = 5.0
"""Seconds for the time of a frame beside that of the same model with nothing embedded."""
_MOST_FRAMES, _MOST_SECONDS = 600, 60.0
"""Frames that judge a budget, where one is asked for, and the longest that they may take."""
TRIAL_SECONDS = 1.0
"""Seconds for the first look at whole frames with parts embedded unasked, and for each fresh process of its proof; 0:
no look."""
PROCESSES = 5
"""Fresh ones of its proof."""
LEAST_AGREEMENT = 0.9
"""Least agreement with the answers of the same model, where no labels judge: pixels differ by a step of 255, few boxes
by that."""


@dataclass(frozen=True)
class EmbeddedParts:
    """Parts of the recipe inside the models of a bundle, and how it has frames read; without steps, nothing inside."""

    context: Context
    name: str = ""
    """Name of the chosen candidate."""
    steps: Mapping[str, Step] = field(default_factory=dict)
    recipe: Recipe | None = None
    """Recipe of the bundle; None: as that of the model, nothing is embedded."""
    inside: Inside | None = None
    """Figures of the chosen model with the parts inside; None: no part is inside."""
    reduced: Inside | None = None
    """Figures of the chosen model with JPEG files decoded at a part of their size; None: they are decoded whole."""
    notes: Sequence[Note] = ()

    def deployed(self, candidate: Candidate) -> Candidate:
        """Return a candidate with what is proven of what is deployed of it: the word that is told holds for that."""
        last = self.measured
        if last is None or last.judgement is None or candidate.name != self.name:
            return candidate
        is_original = candidate.name == BASELINE  # its own metric is what all are compared with
        score = candidate.score if is_original else last.score or candidate.score
        return replace(candidate, judgement=last.judgement, score=score)

    @property
    def measured(self) -> Inside | None:
        """The figures of what is deployed, where that is not the chosen model alone."""
        return self.inside or self.reduced

    def put_into(self, model: Model) -> Model:
        """Return a model with the parts inside.

        Raises:
            UnsupportedError: If a part of the recipe is not embedded.
        """
        return _put_into(model, self.steps, self.context)


def embed(run: Run, best: Candidate, base: EmbeddedParts) -> EmbeddedParts:
    """Return what the bundle's models are to hold: what was asked for, or what is proven faster, if answers stay.

    Args:
        run: With its workspace.
        best: The choice.
        base: How it is deployed with nothing inside.
    """
    if steps := {name: step for name, step in run.plan.steps.items() if step.embeds}:
        embedding = _asked(run, best, steps, base)
        run.listener.say(f"putting {_told(embedding)} into {best.name}")
        return _kept(run, best, embedding, base)
    recipe = base.recipe or run.context.recipe
    tried = run.plan.tried_on(run.engine_of(best).target.executor)
    tried = {name: step for name, step in tried.items() if not step.why_not_of(recipe)}
    if run.replay:
        is_same = tried and tuple(str(step.embeds) for step in tried.values()) == run.replay.embedded
        return _kept(run, best, _asked(run, best, tried, base), base) if is_same else base
    if tried and run.context.target.embeds:
        return _kept(run, best, _asked(run, best, tried, base), base)
    if not tried or not _may_be_tried(run, best):
        return base
    return _if_faster(run, best, _asked(run, best, tried, base), base)


def _without(base: EmbeddedParts, note: Note) -> EmbeddedParts:
    return replace(base, notes=[*base.notes, note])


def _asked(run: Run, best: Candidate, steps: Mapping[str, Step], base: EmbeddedParts) -> EmbeddedParts:
    parts = [step.embeds for step in steps.values() if step.embeds]
    recipe = base.recipe or run.context.recipe_of(load_model(run.workspace.path(best.file), best.name))
    return replace(base, name=best.name, steps=steps, recipe=recipe.with_embedded(*parts))


def _kept(run: Run, best: Candidate, embedding: EmbeddedParts, base: EmbeddedParts) -> EmbeddedParts:
    """Return what is asked for, where the chosen model keeps its answers with it."""
    try:
        with limited(max(run.context.ends_at, monotonic()) + late_s(run.context.time_limit_s)):
            return _checked(run, best, embedding, base)
    except EdgeoptError as error:
        takes_frames = any(step.embeds and step.embeds.takes_frames for step in embedding.steps.values())
        has_one_size = takes_frames and run.engine_of(best).target.static_only
        remedy = "embed-normalise in place of embed-preprocess: its pictures have the model's size"
        note = Note(NoteKind.WARNING, f"nothing embedded: {error.problem}", remedy if has_one_size else error.remedy)
        return _without(base, note)
    except OutOfTime:
        return _without(base, Note(NoteKind.WARNING, f"nothing embedded: no time to check {_told(embedding)}", LONGER))


def _may_be_tried(run: Run, best: Candidate) -> bool:
    """Whether whole frames can be measured here, and nothing but their time speaks against it.

    What Hugging Face's configurations belong to is loaded by optimum, which feeds tensors. A map of a frame's classes
    takes memory for each class and pixel, which nobody gets unasked.
    """
    if run.context.recipe.postprocess.decoder == ARGMAX:
        return False
    is_measured = TRIAL_SECONDS > 0 and not run.untimed and not run.was_cut and run.timed.holds_pictures
    is_own = read_configuration(run.configurations) is None
    has_time = run.context.ends_at - monotonic() > (PROCESSES + 2) * TRIAL_SECONDS
    return is_measured and is_own and has_time and not load_model(run.workspace.path(best.file), best.name).is_outside


def _if_faster(run: Run, best: Candidate, embedding: EmbeddedParts, base: EmbeddedParts) -> EmbeddedParts:
    """Return what is tried, where whole frames are faster in this process and then in fresh ones."""
    name = f"{best.name} with {_told(embedding)}"
    try:
        with limited(run.context.ends_at):
            both = {best.name: runnable_with(run, best, base), name: runnable_with(run, best, embedding)}
            openers = {label: runnable.open for label, runnable in both.items()}
            speed = take_turns(openers, run.timed, Pace(TRIAL_SECONDS), workers=run.plan.threads).ratio(name, "frame")
            if speed.verdict is Change.FASTER:
                feed, pace = feed_of(run.timed), Pace(TRIAL_SECONDS)
                turns = [run_fresh(both, feed, pace, workers=run.plan.threads, seed=i) for i in range(PROCESSES)]
                speed = FreshTurns(tuple(turns)).ratio(name, "frame")
            if speed.verdict is Change.FASTER:
                return _kept_if_judged(run, best, embedding, base, speed)
    except KeyboardInterrupt:
        run.was_cut = True
        return base
    except (Exception, OutOfTime) as error:  # nobody asked for it: the bundle is written all the same
        why = error.problem if isinstance(error, EdgeoptError) else f"{type(error).__name__}: {error}"
        why = "no time" if isinstance(error, OutOfTime) else why
        return _without(base, Note(NoteKind.SKIPPED, f"{_told(embedding)} not tried inside the model: {why}"))
    text = f"{_told(embedding)} inside the model: whole frames {speed} as fast, left out"
    return _without(base, Note(NoteKind.INFO, text, f"--steps {','.join((DEFAULT, *embedding.steps))} keeps it"))


def _kept_if_judged(
    run: Run, best: Candidate, embedding: EmbeddedParts, base: EmbeddedParts, speed: Ratio
) -> EmbeddedParts:
    """Return what is proven faster, where as much is proven of its accuracy as of the model alone."""
    try:
        kept = _checked(run, best, embedding, base)
    except EdgeoptError as error:
        text = f"{_told(embedding)} inside the model: whole frames {speed} as fast, left out: {error.problem}"
        return _without(
            base, Note(NoteKind.INFO, text, f"--steps {','.join((DEFAULT, *embedding.steps))} keeps what is open")
        )
    return replace(kept, inside=replace(kept.inside, speed=speed)) if kept.inside else kept


def _put_into(model: Model, steps: Mapping[str, Step], context: Context) -> Model:
    setting = Setting(context.engine, context.target.float_precision, model.name)
    context = replace(context, recipe=context.recipe_of(model))
    for step in steps.values():
        model = step.make(model, context, setting)[0].model
    return model


def _checked(run: Run, best: Candidate, embedding: EmbeddedParts, base: EmbeddedParts) -> EmbeddedParts:
    """Return it with what was measured; without steps where answers are lost."""
    assert embedding.recipe is not None
    before, model = (
        runnable_with(run, best, base),
        load_model(run.workspace.path(best.file), best.name),
    )
    after = runnable_with(run, best, embedding)
    agreement = agreement_of(run, before, after)
    scored = scored_with(run, best, embedding, model)
    judged = judged_as(run, scored, after)
    is_asked = embedding.steps.keys() <= run.plan.steps.keys()
    if why := _why_not(best, judged, agreement, is_asked=is_asked):
        raise EdgeoptError(f"{best.name} {why} with {_told(embedding)} inside", remedy="leave the step out")
    parts = tuple(map(str, embedding.recipe.embedded))
    inside = Inside(parts, agreement, scored.accuracy if scored else None, judgement=judged)
    return replace(embedding, inside=inside if run.untimed else timed_beside(run, best, inside, before, after))


def _told(embedding: EmbeddedParts) -> str:
    return " and ".join(step.embeds for step in embedding.steps.values() if step.embeds)


def runnable_with(run: Run, best: Candidate, what: EmbeddedParts) -> Runnable:
    """Return how another process opens a candidate as it would be deployed."""
    model = what.put_into(load_model(run.workspace.path(best.file), best.name))
    engine = run.engine_of(best)
    source = engine.executor.converted(model.source)
    recipe = what.recipe or run.context.recipe_of(model)
    return Runnable(engine.opening(best.precision), source, recipe, model.inputs, model.outputs)


def agreement_of(run: Run, before: Runnable, after: Runnable) -> float:
    """Return how far the answers of an application stay the same."""
    pictures, result = run.context.judged_pictures, list[list[Any]]()
    if pictures.tensors is not None:
        pictures = run.timed.spread(min(AGREEMENT_PICTURES, run.context.most_pictures))
    for runnable in (before, after):
        task, session = runnable.open()
        result.append(answers(session, task, pictures))
        session.close()
    task = make_task(before.recipe, before.inputs, before.outputs, evaluating=False)
    return task.agreement(result[1], result[0])


def judged_as(run: Run, scored: Scored | None, after: Runnable) -> Judgement:
    """Return what is proven of what is deployed: on the labels that prove, else by its answers and the original's."""
    before = stored_baseline(run)
    if before and scored:
        count_look(run, before.pictures_sha256)
        judged = judge_scores(before, scored, run.plan.max_drop, level=run.look.level, later=run.look.later)
        if judged is not None:
            return as_labels_prove(run, judged)
    frames = run.timed if run.context.pictures.tensors is not None else samples_that_judge(run, 1)
    result = list[list[Any]]()
    for runnable in (runnable_with(run, run.candidates[0], EmbeddedParts(run.context)), after):
        task, session = runnable.open()
        result.append(run.context.pool.answers(runnable, session, task, frames, is_evaluating=False))
        session.close()
    return judge_answers(run, task, result[1], result[0])


def _why_not(best: Candidate, judged: Judgement, agreement: float, *, is_asked: bool) -> str:
    """Return why a model must not be deployed with parts inside; empty: it may.

    The rule is that of every candidate, the next test after the model's own. What is open may be deployed where
    somebody asked for it, or where nothing more is proven of the model alone; the word is then that of what is there.
    """
    if judged.drop is None and agreement < LEAST_AGREEMENT:
        return f"agrees with itself in {agreement:.3f} only"
    return why_not_proven(best, judged, is_asked=is_asked)


def why_not_proven(best: Candidate, judged: Judgement, *, is_asked: bool) -> str:
    """Return why less is proven of what would be deployed than of the model alone, or it loses too much; empty: not."""
    is_tested = best.judgement is not None and best.judgement.is_proven and best.judgement.samples > 0
    is_proven = best.judgement is not None and best.judgement.is_proven
    may_be_open = not is_tested if is_asked else not is_proven
    if judged.is_proven or (judged.is_open and may_be_open):
        return ""
    return f"is {judged.word}: {judged}"


def scored_with(run: Run, best: Candidate, embedding: EmbeddedParts, model: Model) -> Scored | None:
    """Return the metric of the model with the parts inside, at the thresholds of the evaluation."""
    if run.labelled is None:
        return None
    recipe = run.context.recipe_of(model)
    if embedding.recipe:
        recipe = replace(recipe, preprocess=embedding.recipe.preprocess)
    thresholds = {name: getattr(recipe.evaluation, name) for name in _THRESHOLDS}
    strict = replace(recipe, postprocess=replace(recipe.postprocess, **thresholds, top=max(recipe.postprocess.top, 5)))
    made = _put_into(model, embedding.steps, replace(run.context, recipe=strict))
    engine, read = run.engine_of(best), strict.with_embedded(*(embedding.recipe.embedded if embedding.recipe else ()))
    session, frames, tell = engine.open(made, best.precision), run.labelled.frames, run.listener.progress
    task = make_task(read, made.inputs, made.outputs, evaluating=True)
    runnable = replace(run.context.runnable(made, engine, best.precision), recipe=read)
    result = run.context.pool.answers(runnable, session, task, frames, tell, "evaluate what is embedded")
    session.close()
    return score(task, result, run.labelled.labels)


_THRESHOLDS = ("score_threshold", "iou_threshold", "max_detections")


def timed_beside(run: Run, best: Candidate, inside: Inside, before: Runnable, after: Runnable) -> Inside:
    """Return it with the times of whole frames, in turns with the same model alone."""
    seconds = min(_seconds_of(run, best), max(run.context.ends_at - monotonic(), 0.0))
    name = f"{best.name} with {' and '.join(inside.parts)}"
    openers = {best.name: before.open, name: after.open}
    try:
        turns = take_turns(openers, run.timed, Pace(seconds), workers=run.plan.threads)
    except OutOfTime:
        return inside
    latency = latency_of(turns.samples[name], run.plan.budget_ms)
    # where an app has none of edgeopt's own parts, a ratio to frames with those tells nothing
    speed = None if run.context.target.embeds else turns.ratio(name, "frame")
    frame = latency.frame
    return replace(inside, frame_p50_ms=frame.p50_ms, frame_p99_ms=frame.p99_ms, speed=speed, latency=latency)


def _seconds_of(run: Run, best: Candidate) -> float:
    """Return how long two models take turns: where a budget is asked for, until both have the frames of the contest."""
    if not run.plan.budget_asked or best.latency is None:
        return SECONDS
    frames = min(best.latency.frames, _MOST_FRAMES)
    return max(SECONDS, min(2 * frames * (best.latency.frame.p50_ms or 0.0) / 1e3, _MOST_SECONDS))
