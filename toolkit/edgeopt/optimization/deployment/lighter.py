"""Lighter models to which an app may degrade: each is judged by its own answers to all samples before deployment."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.graph.model import load_model
from edgeopt.measurement.accuracy.bootstrap import score
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.candidates.measure import late_s
from edgeopt.optimization.candidates.scoring import stored_baseline
from edgeopt.optimization.choice.accuracy_proof import answers_of_original
from edgeopt.optimization.choice.judging_time import samples_that_judge
from edgeopt.optimization.choice.selection import USABLE, lighter_than
from edgeopt.optimization.run import Run
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.system.processes.time_limit import OutOfTime, limited
from edgeopt.system.text import format_score, plural
from edgeopt.tasks import Task


def judged_lighter(
    run: Run, candidates: Sequence[Candidate], best: Candidate, notes: list[Note]
) -> tuple[Candidate, ...]:
    """Return the lighter models of a bundle, the fastest first.

    The search looks at a few samples. A form that answers those as it must may be wrong on the others, so its answers
    to all of them are asked for: on labels it keeps most of the metric, without them what the recipe asks.

    Args:
        run: With the samples that judge.
        candidates: Those that are fed as the choice is, the baseline first.
        best: The choice.
        notes: Gets why a model was left out.
    """
    least = run.context.least_agreement
    lighter = lighter_than(best, candidates, least)
    if not lighter:
        return ()
    began_s, frames = monotonic(), samples_that_judge(run, len(lighter))
    judge = _Judge(run, frames)
    kept = []
    for candidate in lighter:
        try:
            with limited(max(run.context.ends_at, began_s) + late_s(run.context.time_limit_s)):
                why_not = judge.why_not(candidate)
        except OutOfTime:
            why_not = "no time is left to judge it"
        except EdgeoptError as error:
            why_not = error.problem
        if why_not:
            notes.append(Note(NoteKind.SKIPPED, f"{candidate.name} is no lighter model of the bundle: {why_not}"))
        else:
            kept.append(candidate)
    return tuple(kept)


class _Judge:
    """The original's answers, and what others make of the same samples."""

    def __init__(self, run: Run, frames: Frames) -> None:
        self._run, self._frames = run, frames
        self._reference: list[Any] | None = None

    def why_not(self, candidate: Candidate) -> str:
        """Return why an app must not degrade to a model; empty: it may."""
        run, on = self._run, plural(len(self._frames), self._frames.kind)
        if run.labelled is None:
            agreement = self._agreement(candidate)
            least = run.context.least_agreement
            return "" if agreement >= least else f"it agrees in {agreement:.3f} on {on}, {least:g} is asked"
        before = stored_baseline(run)
        if before is None:
            return "it is not known how the original does on the labels"
        value = (
            run.judged_scores[candidate.name].value if candidate.name in run.judged_scores else self._score(candidate)
        )
        least = USABLE * before.accuracy.value
        lost = f"its {before.accuracy.metric} is {format_score(value)} on {on}, {format_score(least)} is asked"
        return "" if value >= least else lost

    def _agreement(self, candidate: Candidate) -> float:
        if (
            candidate.judgement is not None
            and candidate.judgement.agreement is not None
            and candidate.judgement.samples
        ):
            return candidate.judgement.agreement
        if self._reference is None:
            self._reference = answers_of_original(self._run, self._frames)
        task, result = self._answers(candidate)
        return task.agreement(result, self._reference)

    def _score(self, candidate: Candidate) -> float:
        assert self._run.labelled is not None
        task, result = self._answers(candidate)
        return score(task, result, self._run.labelled.labels).accuracy.value

    def _answers(self, candidate: Candidate) -> tuple[Task, list[Any]]:
        """Return the task of a candidate, and its answers to all samples."""
        model = load_model(self._run.workspace.path(candidate.file), candidate.name)
        task = self._run.context.task(model, evaluating=True)
        session = self._run.open_candidate(candidate, model)
        try:
            runnable, tell = self._run.runnable_of(candidate, model), self._run.listener.progress
            pool, what = self._run.context.pool, f"judge {candidate.name}"
            return task, pool.answers(runnable, session, task, self._frames, tell, what)
        finally:
            session.close()
