"""The guard of `check` for pipelines: the last answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgeopt.errors import Note, NoteKind
from edgeopt.measurement.accuracy.bootstrap import Drop, Scored, drop_between, drop_of_means
from edgeopt.measurement.check.result import CheckResult, CheckVerdict, judge_accuracy, judge_agreement
from edgeopt.measurement.sides import Baselined, Tell
from edgeopt.optimization.pipelines.judge import Judged, PipelineJudge
from edgeopt.recipes.default_limits import MAX_DROP, Check
from edgeopt.runtime.pipelines.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class HeldAnswers:
    """Answers to labelled pictures as a baseline holds them."""

    scored: Scored | None
    """Accuracy by the metric of the last model's task; None: labels are answers."""
    right: tuple[float, ...]
    """Judgement of each picture: 1 where the answer is right, else 0; empty where `scored` tells."""


@dataclass(frozen=True, slots=True)
class AnswerGuard:
    """Guards the last answers: against labels, else against the baseline's answers."""

    make_judge: Callable[[Tell | None], PipelineJudge]
    """Asks the first of the sides."""
    pipeline: Pipeline
    """The last of them."""
    least_agreement: float
    is_made_up: bool
    """Whether the pictures are, which prove nothing."""

    def hold(self, tell: Tell | None) -> dict[str, Any] | None:
        """Return the accuracy on the labels; None without labels."""
        if self.is_made_up:
            return None
        judged = self.make_judge(tell).baseline
        if judged.accuracy is None:
            return None
        return {"scored": judged.scored.to_json() if judged.scored else None, "right": [*judged.of_each]}

    def read(self, held: Any) -> HeldAnswers:
        """Return the accuracy."""
        scored = Scored.from_json(held["scored"]) if held["scored"] else None
        return HeldAnswers(scored, tuple(float(each) for each in held["right"]))

    def judge(self, then: Baselined, limits: Check, tell: Tell | None) -> list[CheckResult]:
        """Judge the drop against the baseline, or the agreement with its answers."""
        allowed = MAX_DROP if limits.accuracy_drop is None else limits.accuracy_drop
        if self.is_made_up:
            return [_undecided("made-up pictures prove no accuracy: pass --source with real ones, or --eval")]
        judge = self.make_judge(tell)
        now = judge.judge(self.pipeline, "judge this pipeline") if then.is_open else judge.baseline
        if now.accuracy is None:
            if not then.is_open:
                return [_undecided(f"no labels (pass --eval), and {then.why_gone}")]
            agreed = judge_agreement(now.agreement, self.least_agreement, len(judge.answers), proves=True)
            return [agreed]
        before: HeldAnswers | None = then.held
        if then.is_open:
            before = HeldAnswers(judge.baseline.scored, judge.baseline.of_each)
        drop = _drop(before, now) if before else None
        why_none = f"{then.why_gone}, and it was judged by other labels, or by none"
        return [judge_accuracy(drop, now.accuracy, allowed, "" if drop else why_none)]

    def note_unheld(self) -> tuple[Note, ...]:
        """Return what a baseline without labels cannot guard."""
        detail = "the baseline holds no labels: check compares answers only while its pipeline is there"
        if self.is_made_up:
            detail = "the baseline holds no labels, and its pictures are made up: check cannot pass accuracy against it"
        return (Note(NoteKind.WARNING, detail, "pass --eval to guard accuracy"),)


def _drop(before: HeldAnswers, now: Judged) -> Drop | None:
    """Return the drop on the same labels; None: they are others."""
    if before.scored and now.scored:
        return drop_between(before.scored, now.scored)
    if len(before.right) < 2 or len(before.right) != len(now.of_each):
        return None
    return drop_of_means(np.array(before.right), np.array(now.of_each))


def _undecided(why: str) -> CheckResult:
    return CheckResult("accuracy", CheckVerdict.INCONCLUSIVE, None, None, why, "")
