"""Which form of a search is written: the fastest that agrees and, where there are labels, keeps the metric on them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from edgeopt.errors import Note, NoteKind
from edgeopt.measurement.accuracy.acceptance import keeps_accuracy
from edgeopt.measurement.accuracy.bootstrap import Drop, Scored, drop_between, why_unsure
from edgeopt.measurement.accuracy.evaluate import LabelledFrames
from edgeopt.pipeline.quantize_result import Tried
from edgeopt.pipeline.scoring import score_on_labels
from edgeopt.steps._context import Context, Setting
from edgeopt.steps.quantize.search.attempt import Attempt, for_labels
from edgeopt.steps.quantize.step import Searched

_MOST_SCORED = 3
"""Attempts that the labels judge: the fastest by agreement may still lose too much of the metric."""


@dataclass(slots=True)
class FormChoice:
    """Which form is written, by agreement and then by labels, and why."""

    context: Context
    setting: Setting
    """On which engine forms run."""
    searched: Searched
    labelled: LabelledFrames | None
    baseline: Scored | None
    """The original's metric; None without labels."""
    max_drop: float
    is_decided: bool
    """Whether an earlier run has chosen, so that nothing is refused."""
    tried: dict[str, Tried] = field(default_factory=dict)
    """By name, the best first."""
    reason: str = ""

    def make(self) -> Attempt | None:
        """Return the form that is written; None where the float model stays."""
        found, least = self.searched.found, self.context.least_agreement
        self.tried = {one.name: Tried(one.name, one.speed_ratio, one.agreement) for one in found.attempts}
        valid = [one for one in found.attempts if self.is_decided or one.is_valid(least)]
        if not valid or self.baseline is None:
            stays = (
                ""
                if valid or not found.attempts
                else "The float model stays: no INT8 form is faster and agrees with it."
            )
            self.reason = f"{stays} {found.reason}".strip()
            return valid[0] if valid else None
        refused = list[str]()
        for one in for_labels(valid, _MOST_SCORED):
            drop = self._drop(one, self.baseline)
            if self.is_decided or keeps_accuracy(drop.value, one.agreement, self.max_drop, least):
                if unsure := why_unsure(drop, self.max_drop, self.baseline.accuracy.n):
                    self.context.notes.append(Note(NoteKind.WARNING, unsure, "label more pictures"))
                self.reason = " ".join((*refused, one.reason)).strip()
                return one
            refused.append(f"{one.name} loses {drop}, {self.max_drop:g} is allowed.")
        self.reason = f"The float model stays: {' '.join(refused)} {found.reason}".strip()
        return None

    def _drop(self, one: Attempt, baseline: Scored) -> Drop:
        """Return what a form loses on the labels, and keep it."""
        model, engine = one.outcome.model, self.setting.engine.with_options(self.searched.options)
        session, task = engine.open(model, self.setting.precision), self.context.task(model, evaluating=True)
        scored = score_on_labels(self.context, self.labelled, session, task, one.name)
        session.close()
        assert scored is not None
        lost = baseline.accuracy.value - scored.accuracy.value
        drop = drop_between(baseline, scored) or Drop(lost, float("-inf"), float("inf"))  # of a single picture
        self.tried[one.name] = replace(self.tried[one.name], score=scored.accuracy.value, drop=drop)
        return drop
