"""One form for each model of a pipeline: the least accuracy of the whole lost, within one budget. Pure.

A form costs time and loses accuracy. Of all combinations only those on the front can be best: no other is at least as
fast and loses at most as much. Going along the front, each next one loses more and is faster: time is taken where it
costs least accuracy. The front is found stage by stage, and no combination that could lie on it is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgeopt.optimization.candidate import BASELINE


@dataclass(frozen=True, slots=True)
class StageForm:
    """One candidate of one model, in the pipeline."""

    stage: str
    name: str
    frame_ms: float
    """Milliseconds in a frame: the time of a run, as often as the model runs."""
    loss: float
    """Drop of the pipeline's metric, or of its agreement, with this form alone in place; 0 or more."""


@dataclass(frozen=True, slots=True)
class Combination:
    """A form for each model."""

    forms: tuple[StageForm, ...]
    frame_ms: float
    """Ratio of the whole frame, the stages without a model included."""
    loss: float
    """The sum over the forms: what the whole is expected to lose."""

    @property
    def names(self) -> Mapping[str, str]:
        """The name of each stage's form."""
        return {form.stage: form.name for form in self.forms}

    def __str__(self) -> str:
        return ", ".join(f"{form.stage} {'original' if form.name == BASELINE else form.name}" for form in self.forms)


def front_of(fixed_ms: float, forms: Sequence[Sequence[StageForm]]) -> tuple[Combination, ...]:
    """Return the combinations worth looking at: what loses least first, each next one faster.

    Args:
        fixed_ms: What a frame takes outside the models.
        forms: Of each model, the original first; of forms that are alike in both figures the first stays.
    """
    front = [Combination((), fixed_ms, 0.0)]
    for of_stage in forms:
        wider = [
            Combination((*combination.forms, form), combination.frame_ms + form.frame_ms, combination.loss + form.loss)
            for combination in front
            for form in of_stage
        ]
        front = _unbeaten(wider)
    return tuple(front)


def _unbeaten(combinations: Sequence[Combination]) -> list[Combination]:
    """Return those that no other beats, what loses least first; of equal ones the first."""
    kept: list[Combination] = []
    for one in sorted(combinations, key=lambda one: (one.loss, one.frame_ms)):
        if not kept or one.frame_ms < kept[-1].frame_ms:
            kept.append(one)
    return kept


def choose_jointly(front: Sequence[Combination], budget_ms: float, most_loss: float) -> Combination | None:
    """Return the combination that loses least within the budget; the fastest where none is within it.

    Args:
        front: From `front_of`.
        budget_ms: What a frame may take.
        most_loss: What the whole may lose; None of the front loses that little: nothing is returned.
    """
    allowed = [combination for combination in front if combination.loss <= most_loss + 1e-9]
    within = [combination for combination in allowed if combination.frame_ms <= budget_ms]
    return next(iter(within), allowed[-1] if allowed else None)
