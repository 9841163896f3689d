"""JPEG files decoded at a part of their size for the chosen model: timed beside itself and the original, and judged.

Nobody need ask for it: it is kept where whole frames are proven faster and as much is proven of its accuracy as of the
model alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import monotonic

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.graph.model import load_model
from edgeopt.measurement.fresh_process.turns import FreshTurns, Runnable, feed_of, run_fresh
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.measurement.turns.interleaved import Pace, take_turns
from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.candidates.measure import late_s
from edgeopt.optimization.deployment import embedding
from edgeopt.optimization.deployment.embedding import (
    PROCESSES,
    EmbeddedParts,
    agreement_of,
    judged_as,
    runnable_with,
    scored_with,
    why_not_proven,
)
from edgeopt.optimization.plan import DEFAULT
from edgeopt.optimization.result import Inside
from edgeopt.optimization.run import Run
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.inputs.jpeg import ReducedDecoding, read_jpeg_head
from edgeopt.recipes.inputs.pictures import PictureReader
from edgeopt.recipes.recipe import Recipe
from edgeopt.steps import Step
from edgeopt.system.disk.files import read_file
from edgeopt.system.machine.place import current_place
from edgeopt.system.processes.time_limit import LONGER, OutOfTime, limited
from edgeopt.tasks import decoding_of

PART = "decode"
_LEAST_SHARE = 0.5
"""Share of pictures that must become smaller: what is measured and judged are all of them."""
_LOOKED_AT = 32
_MOST_BYTES = 256 << 20


def with_decoding(run: Run, best: Candidate) -> EmbeddedParts:
    """Return how pictures are decoded for a bundle: as the recipe has it, or smaller, if that was asked for or pays."""
    nothing = EmbeddedParts(run.context)
    asked = {name: step for name, step in run.plan.steps.items() if step.feeds}
    tried = {name: step for name, step in run.plan.tried.items() if step.feeds}
    if run.replay:
        return _kept(run, best, tried or asked) if run.replay.is_reduced and (tried or asked) else nothing
    if asked:
        return _kept(run, best, asked)
    try:
        is_tried = bool(tried) and _may_be_tried(run, best, tried)
    except EdgeoptError:  # a picture is gone, or cannot be read any more: nobody asked for this step
        return nothing
    return _if_faster(run, best, tried) if is_tried else nothing


def _recipe(run: Run, best: Candidate, steps: Mapping[str, Step]) -> Recipe:
    recipe = run.context.recipe_of(load_model(run.workspace.path(best.file), best.name))
    for step in steps.values():
        recipe = step.feeds(recipe) if step.feeds else recipe
    return recipe


def _reduced_share(frames: Frames, decoding: ReducedDecoding | None) -> float:
    """Return which share of frames are JPEG files that are decoded smaller; a few of them tell."""
    read = frames.read
    if decoding is None or not isinstance(read, PictureReader):
        return 0.0
    paths = [read.path(i) for i in range(len(frames))]
    some = paths[:: max(len(paths) // _LOOKED_AT, 1)]
    data = (read_file(path, remedy="check the file", most_bytes=_MOST_BYTES) for path in some)
    smaller = [decoding.reduction(read_jpeg_head(each)) > 1 for each in data]
    return sum(smaller) / max(len(smaller), 1)


def _may_be_tried(run: Run, best: Candidate, steps: Mapping[str, Step]) -> bool:
    """Whether whole frames begin at JPEG files here, most of them large enough, and there is time to measure."""
    is_measured = embedding.TRIAL_SECONDS > 0 and not run.untimed and not run.was_cut and current_place() is None
    has_time = run.context.ends_at - monotonic() > (PROCESSES + 2) * embedding.TRIAL_SECONDS
    if not is_measured or not has_time or load_model(run.workspace.path(best.file), best.name).is_outside:
        return False
    if any(step.embeds and step.embeds.takes_frames for step in run.plan.steps.values()):
        return False
    return _reduced_share(run.timed, decoding_of(_recipe(run, best, steps))) >= _LEAST_SHARE


def _kept(run: Run, best: Candidate, steps: Mapping[str, Step]) -> EmbeddedParts:
    """Return what was asked for, where the chosen model keeps its answers with it."""
    recipe = _recipe(run, best, steps)
    try:
        if not run.replay and not _reduced_share(run.timed, decoding_of(recipe)):
            text = f"{run.timed.source} holds no JPEG at least twice as large as the model's input: decoded whole"
            return _whole(run, Note(NoteKind.WARNING, text, f"leave the step {PART} out"))
        with limited(max(run.context.ends_at, monotonic()) + late_s(run.context.time_limit_s)):
            return _checked(run, best, recipe, is_asked=True)
    except EdgeoptError as error:
        note = Note(NoteKind.WARNING, f"JPEG files are decoded whole: {error.problem}", error.remedy)
    except OutOfTime:
        note = Note(NoteKind.WARNING, "JPEG files are decoded whole: no time to check less", LONGER)
    return _whole(run, note)


def _if_faster(run: Run, best: Candidate, steps: Mapping[str, Step]) -> EmbeddedParts:
    """Return what is tried, where whole frames are faster in this process and then in fresh ones."""
    recipe, alone = _recipe(run, best, steps), EmbeddedParts(run.context)
    after = EmbeddedParts(run.context, best.name, recipe=recipe)
    name, trial = f"{best.name} with {PART}", "JPEG files decoded at a part of their size"
    run.listener.say(f"trying {trial} for {best.name}")
    speed: Ratio | None = None
    try:
        with limited(run.context.ends_at):
            both = {best.name: runnable_with(run, best, alone), name: runnable_with(run, best, after)}
            openers, pace = {label: runnable.open for label, runnable in both.items()}, Pace(embedding.TRIAL_SECONDS)
            speed = take_turns(openers, run.timed, pace, workers=run.plan.threads).ratio(name, "frame")
            if speed.verdict is Change.FASTER:
                speed, total = _in_fresh(run, best, both, pace)
                if speed.verdict is Change.FASTER:
                    kept = _checked(run, best, recipe, is_asked=False)
                    reduced = replace(kept.reduced, speed=speed, total=total) if kept.reduced else None
                    return replace(kept, reduced=reduced)
        why = ""
    except KeyboardInterrupt:
        run.was_cut = True
        return alone
    except OutOfTime:
        return _whole(run, Note(NoteKind.SKIPPED, f"{trial}: not tried, no time", LONGER))
    except EdgeoptError as error:  # nobody asked for it: the bundle is written all the same
        why = f": {error.problem}"
    if speed is None:
        return _whole(run, Note(NoteKind.SKIPPED, f"{trial}: not tried{why}"))
    hint = f"--steps {DEFAULT},{PART} keeps what is not shown to lose"
    return _whole(run, Note(NoteKind.INFO, f"{trial}: whole frames {speed} as fast, left out{why}", hint))


def _whole(run: Run, note: Note) -> EmbeddedParts:
    return EmbeddedParts(run.context, notes=[note])


def _in_fresh(run: Run, best: Candidate, both: Mapping[str, Runnable], pace: Pace) -> tuple[Ratio, Ratio | None]:
    """Return the ratios to the same model and to the original, over fresh processes."""
    is_original = best.name == BASELINE
    first = {} if is_original else {BASELINE: runnable_with(run, run.candidates[0], EmbeddedParts(run.context))}
    feed, runnables = feed_of(run.timed), {**first, **both}
    done = [run_fresh(runnables, feed, pace, workers=run.plan.threads, seed=i) for i in range(PROCESSES)]
    turns, (alone, name) = FreshTurns(tuple(done)), both
    return turns.ratio(name, "frame", against=alone), None if is_original else turns.ratio(name, "frame")


def _checked(run: Run, best: Candidate, recipe: Recipe, *, is_asked: bool) -> EmbeddedParts:
    """Return it with what was measured.

    Raises:
        EdgeoptError: If it loses more than is allowed, or less is proven of it than of the model alone.
    """
    alone, made = EmbeddedParts(run.context), EmbeddedParts(run.context, best.name, recipe=recipe)
    before, after = runnable_with(run, best, alone), runnable_with(run, best, made)
    model = load_model(run.workspace.path(best.file), best.name)
    agreement, scored = agreement_of(run, before, after), scored_with(run, best, made, model)
    judged = judged_as(run, scored, after)
    if why := why_not_proven(best, judged, is_asked=is_asked):
        raise EdgeoptError(f"{best.name} {why} with it", remedy=f"leave the step {PART} out")
    share = _reduced_share(run.timed, decoding_of(recipe))
    inside = Inside((PART,), agreement, scored.accuracy if scored else None, judgement=judged)
    if not run.untimed and current_place() is None:
        inside = embedding.timed_beside(run, best, inside, before, after)
    note = Note(NoteKind.INFO, f"{share:.0%} of the pictures of {run.timed.source} are decoded at a part of their size")
    return EmbeddedParts(run.context, best.name, recipe=recipe, reduced=inside, notes=[note])
