"""Proof of the candidates' accuracy, after that of their speed: labels that steered nothing are opened here.

What is not proven faster, or slower and more changed than another, is left out before the labels are opened. The rest
is tested in an order that the search's own samples give, the safest first, until the first that is not proven.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import ge
from typing import Any

import numpy as np

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.executors import Session
from edgeopt.graph.model import load_model
from edgeopt.measurement.accuracy.bootstrap import Scored, score
from edgeopt.measurement.accuracy.judgement import (
    NO_TIME,
    Judgement,
    Word,
    in_order,
    judge_agreement,
    judge_numbers,
    judge_scores,
    unproven,
)
from edgeopt.measurement.fresh_process.turns import Runnable
from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.candidates.scoring import store_baseline, stored_baseline
from edgeopt.optimization.choice.judging_time import (
    answers_of,
    forms_judged_in_time,
    limit_to_judge,
    samples_that_judge,
    tell_of_few_samples,
)
from edgeopt.optimization.choice.label_looks import count_look
from edgeopt.optimization.choice.selection import is_proven
from edgeopt.optimization.choice.stored_scores import ScoredAnswers, share_of_level, store_scores, stored_scores
from edgeopt.optimization.expected_progress import JUDGE
from edgeopt.optimization.labelling.offer import (
    judge_by_answers,
    open_labelling,
    write_boxes_to_label,
    write_labelling,
)
from edgeopt.optimization.options import Prefer
from edgeopt.optimization.run import Run
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.system.machine.processor import cpu_name
from edgeopt.system.processes.time_limit import OutOfTime
from edgeopt.system.text import plural
from edgeopt.tasks import Task


def prove_accuracy(run: Run, marked: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates with a judgement of each that may be chosen.

    Args:
        run: With the labels that prove, or the samples on which agreement is judged.
        marked: From `mark`, with the speeds that were proven.
    """
    finalists = [finalist for finalist in _finalists(run, marked) if finalist.judgement is None]
    judged = {
        finalist.name: judge_numbers(_decibels(finalist), run.plan.max_drop)
        for finalist in finalists
        if finalist.is_rewrite
    }
    tested = sorted((one for one in finalists if one.name not in judged), key=lambda one: -(one.agreement or 0.0))
    if tested:
        tested = forms_judged_in_time(run, tested)
        frames = samples_that_judge(run, answers_of(tested))
        run.course.expect(JUDGE, (1 + len(tested)) * len(frames) * run.course.frame_s)
        run.course.begin(JUDGE)
        run.listener.say(f"judging the accuracy of {plural(len(tested), 'candidate')}")
        with run.context.pool.expecting(_expected(run, tested), frames):
            judgements = _test(run, tested, frames)
        judged |= {candidate.name: judgement for candidate, judgement in zip(tested, in_order(judgements), strict=True)}
        tell_of_few_samples(run, frames, [judged[candidate.name] for candidate in tested])
    original = marked[0].score  # of what computes the same, the metric is the same
    scores = dict.fromkeys(judged, original) | run.judged_scores
    return tuple(
        replace(candidate, judgement=judged[candidate.name], score=scores[candidate.name])
        if candidate.name in judged
        else candidate
        for candidate in marked
    )


def _finalists(run: Run, marked: Sequence[Candidate]) -> list[Candidate]:
    """Return what may be chosen, and is not both slower and more changed than another that may be.

    What computes what the original does is beaten by its like alone: labels may leave all others undecided.
    """
    open_to = [candidate for candidate in marked if candidate.name != BASELINE and not candidate.refused]
    if not any(candidate.speed for candidate in open_to):
        return open_to
    if run.wish.prefer is Prefer.SIZE:
        return _undominated(open_to, lambda candidate: -candidate.size_bytes)
    return _undominated([one for one in open_to if is_proven(one)], lambda one: one.speed.speedup if one.speed else 1.0)


def _undominated(candidates: Sequence[Candidate], gain: Callable[[Candidate], float]) -> list[Candidate]:
    def place(candidate: Candidate) -> tuple[float, float, bool]:
        return gain(candidate), candidate.agreement or 0.0, candidate.is_rewrite

    def is_beaten(candidate: Candidate) -> bool:
        mine = place(candidate)
        others = [place(other) for other in candidates if other is not candidate]
        return any(other != mine and all(map(ge, other, mine)) for other in others)

    return [candidate for candidate in candidates if not is_beaten(candidate)]


def _decibels(candidate: Candidate) -> float:
    return candidate.drift.worst_db if candidate.drift else 0.0


def _expected(run: Run, tested: Sequence[Candidate]) -> dict[str, Callable[[], Runnable | None]]:
    """Return the models that will answer, as `AnswerPool.expecting` takes them: scores may be known of those before."""

    def runnable_of(candidate: Candidate) -> Runnable | None:
        return run.runnable_of(candidate, load_model(run.workspace.path(candidate.file), candidate.name))

    fresh = [candidate for candidate in tested if not candidate.is_resumed]
    return {_word(candidate): partial(runnable_of, candidate) for candidate in fresh}


def _word(candidate: Candidate) -> str:
    return f"judge {candidate.name}"


def _test(run: Run, tested: Sequence[Candidate], frames: Frames) -> list[Judgement]:
    """Return what is proven of each, in the order of the tests."""
    judgements, answered = list[Judgement](), dict[str, Sequence[Any]]()
    try:
        reference = answers_of_original(run, frames)
        before = _scored_original(run, reference)
        if before:
            count_look(run, before.pictures_sha256)
        for candidate in tested:
            known = stored_scores(run, candidate, before.pictures_sha256) if before else None
            if known is None:
                model = load_model(run.workspace.path(candidate.file), candidate.name)
                task = run.context.task(model, evaluating=True)
                session, runnable = run.open_candidate(candidate, model), run.runnable_of(candidate, model)
                mine = _answers_of(run, runnable, session, task, frames, _word(candidate))
                if run.labelled is None or before is None:
                    answered[candidate.name] = mine
                    judgements.append(judge_answers(run, task, mine, reference))
                    continue
                scored = score(task, mine, run.labelled.labels)
                changed = count_changed(task, mine, reference)
                known = ScoredAnswers(scored, changed, cpu_name(), share_of_level(run, candidate))
                store_scores(run, candidate, known)
            judgements.append(_judge_scored(run, candidate, before, known))
        if answered:
            judgements = _by_answers(run, frames, reference, answered, judgements)
    except OutOfTime:
        text = f"no time to judge the accuracy of {tested[len(judgements)].name}"
        remedy = limit_to_judge(run, len(tested), len(frames))
        run.context.notes.append(Note(NoteKind.WARNING, text, remedy))
        judgements += [_unjudged(run, remedy) for _ in tested[len(judgements) :]]
    return judgements


def _judge_scored(run: Run, candidate: Candidate, before: Scored | None, known: ScoredAnswers) -> Judgement:
    """Return what the labels prove of a candidate, and keep its metric."""
    assert before is not None  # scores are of labels, which were opened for the original first
    run.judged_scores[candidate.name] = known.scored.accuracy
    level, later = known.share * run.look.level, known.share * run.look.later
    judged = judge_scores(before, known.scored, run.plan.max_drop, level=level, later=later)
    assert judged is not None  # both were scored on the same labels
    return replace(as_labels_prove(run, judged), changed=known.changed)


def as_labels_prove(run: Run, judged: Judgement) -> Judgement:
    """Return a judgement, not decided where the labels prove nothing."""
    return unproven(judged, run.no_proof) if run.no_proof else judged


def _by_answers(
    run: Run,
    frames: Frames,
    reference: Sequence[Any],
    answered: Mapping[str, Sequence[Any]],
    agreeing: list[Judgement],
) -> list[Judgement]:
    """Return what a person's labels of changed answers prove, where there are any; write what is to be labelled."""
    labelling = open_labelling(run, frames, reference, answered)
    if labelling is None:
        write_boxes_to_label(run, frames)
        return agreeing
    try:
        judged = judge_by_answers(labelling)
    except EdgeoptError as error:
        run.context.notes.append(Note(NoteKind.WARNING, error.problem, error.remedy))
        judged = {}
    write_labelling(labelling)
    names = [*answered]
    return [as_labels_prove(run, judged.get(name, judgement)) for name, judgement in zip(names, agreeing, strict=True)]


def _unjudged(run: Run, remedy: str) -> Judgement:
    """Return that nothing is known, the greatest risk of all, and which time limit leaves time to judge."""
    least = run.context.least_agreement
    return Judgement(Word.NOT_DECIDED, 0, least, agreement_least=0.0, why=NO_TIME, instead=remedy)


def answers_of_original(run: Run, frames: Frames) -> list[Any]:
    """Return what the original answers to some samples."""
    context, original = run.context, run.context.original
    task, session = context.task(original, evaluating=True), context.open(original)
    runnable = context.runnable(original, context.engine, context.engine.target.float_precision)
    return _answers_of(run, runnable, session, task, frames, "answers of the original")


def _scored_original(run: Run, reference: Sequence[Any]) -> Scored | None:
    """Return how the original did on the labels that prove, and keep it; None without labels."""
    if run.labelled is None:
        return None
    known = stored_baseline(run)
    scored = score(run.context.task(run.context.original, evaluating=True), reference, run.labelled.labels)
    if known is None or known.pictures_sha256 != scored.pictures_sha256:
        store_baseline(run, scored)
    return scored


def _answers_of(
    run: Run, runnable: Runnable | None, session: Session, task: Task, frames: Frames, what: str
) -> list[Any]:
    try:
        return run.context.pool.answers(runnable, session, task, frames, run.listener.progress, what)
    finally:
        session.close()


def judge_answers(run: Run, task: Task, found: Sequence[Any], reference: Sequence[Any]) -> Judgement:
    """Return what is proven without labels: by the answers to all samples, and by each alone."""
    whole, each = task.agreement(found, reference), agreement_of_each(task, found, reference)
    changed = count_changed(task, found, reference)
    return judge_agreement(whole, each, run.context.least_agreement, changed=changed)


def count_changed(task: Task, answers: Sequence[Any], reference: Sequence[Any]) -> int | None:
    """Return how many answers are not the reference's; None where an answer is no single choice."""
    pairs = [(task.choice(a), task.choice(b)) for a, b in zip(answers, reference, strict=True)]
    if any(None in pair for pair in pairs):
        return None
    return sum(a != b for a, b in pairs)


def agreement_of_each(task: Task, answers: Sequence[Any], reference: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Return (samples,) the agreement of each answer: beside the others where that matters, else alone."""
    if (known := task.agreement_of_each(answers, reference)) is not None:
        return known
    return np.array([task.agreement([a], [b]) for a, b in zip(answers, reference, strict=True)], np.float64)
