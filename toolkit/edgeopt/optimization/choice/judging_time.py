"""The samples and forms that a time limit leaves time to judge, and the limit that would have left more."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from edgeopt.errors import Note, NoteKind
from edgeopt.measurement.accuracy.bootstrap import identity_of
from edgeopt.measurement.accuracy.judgement import Judgement, samples_that_agree
from edgeopt.measurement.accuracy.pool import HERE
from edgeopt.measurement.fresh_process.proof_time import SPARE
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.candidates.measure import late_s
from edgeopt.optimization.candidates.scoring import stored_baseline
from edgeopt.optimization.choice.stored_scores import stored_scores
from edgeopt.optimization.choice.time_kept import AGREEING, LABELLED, judged_frame_s
from edgeopt.optimization.options import Prefer
from edgeopt.optimization.run import Run
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.system.processes.time_limit import LONGER, longer
from edgeopt.system.text import plural


def samples_that_judge(run: Run, answers: float) -> Frames:
    """Return all samples that judge forms; where a time limit is short, as many as it leaves time for.

    Args:
        run: With its samples and its time.
        answers: Answers of the original that take as long as those of all forms to one sample.
    """
    if run.labelled:
        return run.labelled.frames
    frames = run.context.pictures
    if frames.states:
        return run.context.judged_pictures  # of a stream the first in a row
    limit_s = run.context.time_limit_s
    if limit_s is None or not (frame_s := judged_frame_s(run)):
        return frames
    most = int(min(AGREEING * limit_s, _left_s(run)) / frame_s / (1 + answers))
    return frames.spread(max(most, len(run.context.judged_pictures)))


def forms_judged_in_time(run: Run, tested: Sequence[Candidate]) -> list[Candidate]:
    """Return the forms that are judged: where a time limit is too short to decide on all, the fastest that fit.

    A form that needs more time than there is takes none from the others. Where there is too little for any, all are
    tested with labels, the safest first, since the time is a rough estimate; without labels the form is judged that
    needs the fewest samples. What is left out depends on no label and on no answer that is judged: none is read yet.

    Args:
        run: Its notes name what is left out.
        tested: Forms that are proven faster, in the order of their tests.
    """
    is_elsewhere = run.context.pool is not HERE  # nobody knows how long a cluster takes
    if run.context.time_limit_s is None or is_elsewhere or not all(candidate.speed for candidate in tested):
        return [*tested]
    known = _scored_before(run, tested)
    kept = [*known]
    is_small_wanted = run.wish.prefer is Prefer.SIZE
    for candidate in sorted(tested, key=lambda form: form.size_bytes if is_small_wanted else -_speedup(form)):
        if candidate not in kept and _can_decide(run, [*kept, candidate], known):
            kept.append(candidate)
    if not kept and run.labelled:
        return [*tested]
    kept = kept or [min(tested, key=lambda form: (_samples_of(run, form), -_speedup(form)))]
    if left_out := [candidate for candidate in tested if candidate not in kept]:
        text = "accuracy not judged, as there was time for fewer forms: "
        text += ", ".join(candidate.name for candidate in left_out)
        wanted = max(_samples_of(run, candidate) for candidate in tested)
        run.context.notes.append(Note(NoteKind.WARNING, text, limit_to_judge(run, len(tested), wanted)))
    return [candidate for candidate in tested if candidate in kept]


def answers_of(forms: Sequence[Candidate]) -> float:
    """Return how many answers of the original take as long as those of some forms to one sample."""
    return sum(1 / max(_speedup(form), 1e-9) for form in forms)


def tell_of_few_samples(run: Run, frames: Frames, judged: Sequence[Judgement]) -> None:
    """Say where a time limit left too few samples to decide on a form, though enough are here.

    Args:
        run: Its notes are told.
        frames: Samples that judged.
        judged: What they proved of each form.
    """
    here = len(run.context.pictures)
    wanted = [judgement.wanted for judgement in judged if judgement.is_open and judgement.wanted <= here]
    if run.labelled or run.context.pictures.states or len(frames) >= here or not wanted:
        return
    text = f"accuracy is judged on {len(frames)} of {plural(here, frames.kind)}: the time limit left no more"
    run.context.notes.append(Note(NoteKind.WARNING, text, limit_to_judge(run, len(judged), max(wanted))))


def limit_to_judge(run: Run, forms: int, samples: int) -> str:
    """Return the time limit that leaves time for so many samples' answers of the original and some forms."""
    limit_s = run.context.time_limit_s
    if limit_s is None or not (needed_s := (1 + forms) * samples * judged_frame_s(run)):
        return LONGER
    share = LABELLED if run.labelled else AGREEING
    return longer(max(SPARE * needed_s / share, limit_s + SPARE * max(needed_s - _left_s(run), 0.0)))


def _left_s(run: Run) -> float:
    """Return the seconds until measuring and judging have to end."""
    return max(run.context.ends_at + late_s(run.context.time_limit_s) - monotonic(), 0.0)


def _can_decide(run: Run, forms: Sequence[Candidate], known: Sequence[Candidate]) -> bool:
    """Return whether there is time for the samples that decide on some forms; the scores of some are known."""
    answers = answers_of([form for form in forms if form not in known])
    if run.labelled:
        return (1 + answers) * len(run.labelled.frames) * judged_frame_s(run) <= _left_s(run)
    return len(samples_that_judge(run, answers)) >= max(_samples_of(run, form) for form in forms)


def _scored_before(run: Run, tested: Sequence[Candidate]) -> list[Candidate]:
    """Return the forms that an earlier run scored on these labels: they take no time."""
    original = stored_baseline(run) if run.labelled else None
    if run.labelled is None or original is None:
        return []
    identity = identity_of(run.labelled.labels)
    return [candidate for candidate in tested if stored_scores(run, candidate, identity)]


def _speedup(form: Candidate) -> float:
    return form.speed.speedup if form.speed else 1.0


def _samples_of(run: Run, form: Candidate) -> int:
    """Return how many samples should decide on a form: all labels; of agreement as many as the search's samples say."""
    if run.labelled:
        return len(run.labelled.frames)
    frames = run.context.judged_pictures if run.context.pictures.states else run.context.pictures
    return min(samples_that_agree(form.agreement or 0.0, run.context.least_agreement), len(frames))
