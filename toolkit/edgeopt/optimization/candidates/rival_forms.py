"""Models that stand beside the dense one: which of them go on, and how their forms are made like those of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.measurement.accuracy.judgement import is_within
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.choice.selection import Wish, loss
from edgeopt.optimization.plan import all_steps
from edgeopt.optimization.run import Run
from edgeopt.steps import Step
from edgeopt.steps._context import Setting, numbered

_ROOM = 0.5
"""Share of what may be lost that a rival should leave to integers."""
_MOST_ALIKE = 2
"""Integer forms of a rival: like the fastest of the dense model that keeps its accuracy, and like the most accurate."""


@dataclass(frozen=True, slots=True)
class Rival:
    """A float model and its candidate."""

    model: Model
    candidate: Candidate


def rival_name(rival: Rival | None, name: str) -> str:
    """Return what is called `quantize` of the dense model: `prune-quantize`."""
    return f"{rival.candidate.name}-{name}" if rival else name


def going_on(rivals: Sequence[Rival], wish: Wish) -> list[Rival]:
    """Return the rivals that are worth integer forms, the best first: those that leave room for them, then the others.

    A rival that was made of another by training is as fast: where it loses no more it comes before that one.

    Args:
        rivals: All that were made, the fastest of each step first.
        wish: What they must keep.
    """
    kept = [rival for rival in rivals if wish.keeps(rival.candidate)]
    roomy = within_share(kept, wish, _ROOM)
    ordered = [rival for known in kept for rival in (*_healed(known, kept), known)]
    once = {rival.candidate.name: rival for rival in ordered}  # each where it first stands
    return sorted(once.values(), key=lambda rival: rival not in roomy)


def _healed(rival: Rival, rivals: Sequence[Rival]) -> list[Rival]:
    """Return what training made of a rival, where that loses no more."""
    mine, steps = rival.candidate, all_steps()
    return [
        other
        for other in rivals
        if other.candidate.parent == mine.name
        and steps[other.candidate.steps[-1]].heals
        and loss(other.candidate) <= loss(mine)
    ]


def within_share(rivals: Sequence[Rival], wish: Wish, share: float) -> list[Rival]:
    """Return the rivals that lose at most a share of the agreement that may be lost, in their order."""
    return [rival for rival in rivals if wish.keeps(rival.candidate) and _leaves_room(rival.candidate, wish, share)]


def _leaves_room(candidate: Candidate, wish: Wish, share: float) -> bool:
    return is_within(loss(candidate), share * (1 - wish.asked_of(candidate)))


def like_which(run: Run, first: str) -> list[str]:
    """Return the names of a search's candidates that keep their accuracy: the first, and the one that loses least.

    Args:
        run: With them.
        first: The name of the first of them.
    """
    names = [numbered(first, i) for i in range(len(run.candidates))]
    kept = [candidate for candidate in run.candidates if candidate.name in names and run.wish.keeps(candidate)]
    surest = sorted(kept[1:], key=loss)
    return [candidate.name for candidate in (*kept[:1], *surest[: _MOST_ALIKE - 1])]


def make_alike(
    run: Run, step: Step, model: Model, dense: Model, setting: Setting, like: Sequence[str]
) -> Sequence[Outcome]:
    """Return what a step makes of a model, as it made named candidates of the dense one; else what it finds itself.

    Args:
        run: Whose candidates they are.
        step: That made them.
        model: The rival's.
        dense: What they were made of.
        setting: Of what is made.
        like: Names of candidates.
    """
    is_alike = {*model.op_counts} == {*dense.op_counts} and not run.replay
    if is_alike and step.make_alike:
        return step.make_alike(model, run.context, setting, like)
    return step.make(model, run.context, setting)
