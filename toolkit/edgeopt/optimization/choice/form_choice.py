"""Which form of a search is written: the fastest that agrees and, where there are labels, keeps the metric on them.

On a machine that is not the target no form's speed is known: the form that is the surest of its accuracy is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from edgeopt.errors import Note, NoteKind
from edgeopt.measurement.accuracy.bootstrap import Scored
from edgeopt.measurement.accuracy.evaluate import LabelledFrames
from edgeopt.measurement.accuracy.judgement import Judgement, NoProof, in_order, judge_scores, unproven
from edgeopt.optimization.candidates.scoring import score_on_labels
from edgeopt.optimization.one_step.quantize_result import Tried
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
    """Setting of the engine on which forms run."""
    searched: Searched
    labelled: LabelledFrames | None
    baseline: Scored | None
    """The original's metric; None without labels."""
    max_drop: float
    is_decided: bool
    """Whether an earlier run has chosen, so that nothing is refused."""
    no_proof: NoProof | None = None
    """Why the labels prove nothing; None: they prove."""
    tried: dict[str, Tried] = field(default_factory=dict)
    """Forms by name, the best first."""
    reason: str = ""

    @property
    def untimed(self) -> str:
        """Why no form's speed is known; empty: it was measured here."""
        return self.context.target.why_untimed() or ""

    def make(self) -> Attempt | None:
        """Return the form that is written; None where the float model stays."""
        result = self.searched.found
        self.tried = {
            attempt.name: Tried(attempt.name, None if self.untimed else attempt.speed_ratio, attempt.agreement)
            for attempt in result.attempts
        }
        valid = [attempt for attempt in result.attempts if self.is_decided or self._is_good(attempt)]
        if self.untimed:
            valid.sort(key=lambda attempt: -attempt.agreement)
        if not valid or self.baseline is None:
            wanted = "agrees with it" if self.untimed else "is faster and agrees with it"
            stays = "" if valid or not result.attempts else f"The float model stays: no INT8 form {wanted}."
            self.reason = f"{stays} {self._why(valid[0], result.reason) if valid else self._why_none()}".strip()
            return valid[0] if valid else None
        candidates = valid[:_MOST_SCORED] if self.untimed else for_labels(valid, _MOST_SCORED)
        tested = sorted(candidates, key=lambda attempt: -attempt.agreement)
        judged = [*zip(tested, in_order([self._judge(attempt, self.baseline) for attempt in tested]), strict=True)]
        for other, judgement in judged:
            self.tried[other.name] = replace(self.tried[other.name], judgement=judgement)
        chosen = self._chosen(judged)
        refused = [
            f"{attempt.name}: {judgement.word}, {judgement}." for attempt, judgement in judged if attempt is not chosen
        ]
        if chosen:
            self.reason = " ".join((*refused, self._why(chosen, chosen.reason))).strip()
            return chosen
        self.reason = f"The float model stays: {' '.join(refused)} {self._why_none()}".strip()
        return None

    def _is_good(self, attempt: Attempt) -> bool:
        """Whether it is fast and agrees; where speeds are not known, whether it agrees."""
        least = self.context.least_agreement
        return attempt.agreement >= least if self.untimed else attempt.is_valid(least)

    def _why(self, attempt: Attempt, reason: str) -> str:
        """Return why a form is chosen: the search's reason, whose speeds hold where the target is here."""
        if not self.untimed or self.is_decided:
            return reason
        return f"{attempt.name}: its agreement is {attempt.agreement:.3f}. No form was timed: {self.untimed}."

    def _why_none(self) -> str:
        """Return what the search says where nothing is chosen; nothing where its speeds are not the target's."""
        return "" if self.untimed else self.searched.found.reason

    def _chosen(self, judged: Sequence[tuple[Attempt, Judgement]]) -> Attempt | None:
        """Return the fastest that is KEPT, the surest where none was timed, or else the safest that is open."""
        kept = [(attempt, judgement) for attempt, judgement in judged if judgement.is_proven]
        if kept and self.untimed:
            return min(kept, key=lambda pair: pair[1].risk)[0]
        if kept:
            return max(kept, key=lambda pair: pair[0].pace)[0]
        still_open = [(attempt, judgement) for attempt, judgement in judged if judgement.is_open or self.is_decided]
        if not still_open:
            return None
        other, judgement = min(still_open, key=lambda pair: (pair[1].risk, -pair[0].pace))
        self.context.notes.append(Note(NoteKind.WARNING, f"accuracy not decided: {judgement}", judgement.remedy))
        return other

    def _judge(self, attempt: Attempt, baseline: Scored) -> Judgement:
        """Return what is proven of a form on the labels, and keep its metric."""
        model, engine = attempt.outcome.model, self.setting.engine.with_options(self.searched.options)
        session, task = engine.open(model, self.setting.precision), self.context.task(model, evaluating=True)
        runnable = self.context.runnable(model, engine, self.setting.precision)
        scored = score_on_labels(self.context, self.labelled, session, task, attempt.name, runnable)
        session.close()
        assert scored is not None
        judgement = judge_scores(baseline, scored, self.max_drop)
        assert judgement is not None  # both were scored on the same labels
        self.tried[attempt.name] = replace(self.tried[attempt.name], score=scored.accuracy.value)
        return unproven(judgement, self.no_proof) if self.no_proof else judgement
