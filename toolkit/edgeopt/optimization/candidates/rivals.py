"""The fate of models that stand beside the dense one: they cost accuracy, and the dense one goes on as before.

A rival that keeps its accuracy is made into what the dense model was made into: integer forms, other engines and
precisions. What was decided for the dense model holds for a rival with the same operators, so that nothing is searched
twice. The choice is then among all, by what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from edgeopt.executors._child import EngineAbortError
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.candidates.other_engines import offer_as_it_is, offer_engines
from edgeopt.optimization.candidates.rival_forms import Rival, going_on, like_which, make_alike, rival_name
from edgeopt.optimization.candidates.scoring import add_candidate
from edgeopt.optimization.folder.resume import finished_candidates, made_none, outcome_on_disk
from edgeopt.optimization.run import Run
from edgeopt.steps import Step
from edgeopt.steps._context import Setting, numbered, out_of_time

_MOST_TRIED = 2
"""Rivals that are made into integer forms, where those of the first lose too much."""


def offer_rivals(run: Run, rivals: Sequence[Rival], dense: Rival) -> None:
    """Make of rivals what was made of the dense model.

    Args:
        run: With all candidates of the dense model.
        rivals: All that were made, step by step, the fastest of each step first.
        dense: The float model that went on beside them.
    """
    wanted = going_on(rivals, run.wish)
    best = wanted[0] if wanted else None
    for rival in wanted[:_MOST_TRIED]:
        made = [
            integer for name, step in _integer_steps(run) for integer in _make_integers(run, rival, dense, name, step)
        ]
        if not made or any(map(run.wish.keeps, made)):
            best = rival if made else best
            break
    if best and not run.by_rule:
        offer_engines(run, dense, best)
        last = [other for other in rivals if other.candidate.steps[-1] == rivals[-1].candidate.steps[-1]]
        for rival in [other for other in last if run.wish.keeps(other.candidate) and other is not best][:1]:
            offer_as_it_is(run, rival)


def _integer_steps(run: Run) -> list[tuple[str, Step]]:
    return [(name, step) for name, step in run.plan.steps.items() if step.in_line and step.precision]


def _make_integers(run: Run, rival: Rival, dense: Rival, name: str, step: Step) -> list[Candidate]:
    """Make and score the integer forms of a rival; none where the dense model has none that keeps its accuracy."""
    first, engine = rival_name(rival, name), run.context.engine
    like = like_which(run, name)
    if not like or made_none(run, first):
        return []
    if monotonic() > run.context.searches_end:
        run.context.notes.append(out_of_time(first))
        return []
    setting, finished = Setting(engine, step.precision, first), finished_candidates(run, first)
    outcomes = [outcome_on_disk(run, candidate) for candidate in finished]
    outcomes = outcomes or [*make_alike(run, step, rival.model, dense.model, setting, like)]
    made, steps = list[Candidate](), (*rival.candidate.steps, name)
    for i, outcome in enumerate(outcomes):
        if i and not finished and monotonic() > run.context.candidates_end:
            run.context.notes.append(out_of_time(numbered(first, i)))
            return made  # a resumed run makes it whole
        known, whose = finished[i] if finished else None, rival.candidate.name
        try:
            made.append(add_candidate(run, numbered(first, i), whose, steps, outcome, setting, resumed=known))
        except EngineAbortError as abort:
            run.leave_out(numbered(first, i), abort)
    run.workspace.finish(first, [candidate.file for candidate in made])
    return made
