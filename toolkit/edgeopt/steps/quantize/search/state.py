"""The state of a search: its attempts, the refusals, and what it had no time for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from edgeopt.errors import EdgeoptError, NoteKind
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.steps.quantize.calibration.findings import NO_GRID_DB
from edgeopt.steps.quantize.calibration.observation import Observation
from edgeopt.steps.quantize.forms import WRITERS, Form
from edgeopt.steps.quantize.keep_float.layer_times import LayerTimer, LayerTimes, time_layers
from edgeopt.steps.quantize.keep_float.sensitivity import sensitivities_db
from edgeopt.steps.quantize.repairs import Setting, find_repair, weight_repairs
from edgeopt.steps.quantize.scheme import Scheme, open_graph
from edgeopt.steps.quantize.search.attempt import Attempt, KeptTensor, Refusal, for_labels, ranked
from edgeopt.steps.quantize.search.choose import choose_scheme, why_float
from edgeopt.steps.quantize.search.decisions import decisions_of
from edgeopt.steps.quantize.search.explain import kept_tensors, reason
from edgeopt.steps.quantize.search.make import make_variant
from edgeopt.steps.quantize.search.off_layers import find_off_layers
from edgeopt.steps.quantize.search.sources import Sources
from edgeopt.steps.quantize.search.variant import Variant
from edgeopt.system.declared.target import Int8Rules
from edgeopt.system.processes.time_limit import OutOfTime

_MOST_CONFIRMED, _AS_FAST = 4, 0.98
"""Openings that may be measured again, and the share of the first speed that confirms it."""
_SENSITIVE_BELOW_DB, _MOST_SENSITIVE, _SENSITIVITY_FRAMES = 20.0, 8, 2
_MOST_JUDGED = 3
"""Attempts that labels may judge: only they say why."""


@dataclass(slots=True)
class SearchState:
    """One search on its way."""

    sources: Sources
    agreement: Callable[[Model], float]
    speed: Callable[[Model], float | None] | None
    """None: no time is measured, as this machine's would be another's."""
    least_agreement: float
    ends_at_s: float
    """Second of the monotonic clock at which the search ends."""
    time_layers: LayerTimer = time_layers
    attempts: dict[Variant, Attempt] = field(default_factory=dict)
    refused: dict[Variant, Refusal] = field(default_factory=dict)
    """Variants that could not be built or run, each with the reason."""
    times: LayerTimes | None = None
    sensitivities_db: dict[str, float] = field(default_factory=dict)
    untried: dict[str, None] = field(default_factory=dict)
    """Changes for which no time was left, in the order of the search."""
    last: Variant | None = None
    """The last proposal."""
    longest_s: float = 0.0
    """Most seconds of one attempt."""
    looked_at: set[str] = field(default_factory=set)
    """Forms that were looked at for layers that they compute otherwise."""
    _quick: float | None = None
    """Agreement of the best variant without slow repairs."""

    def judge(self, variant: Variant, outcome: Outcome, scheme: Scheme, like: Variant | None) -> None:
        """Measure what was made of a variant and keep it as an attempt; refuse the float model and a known one.

        Args:
            variant: What was made.
            outcome: The model.
            scheme: What was written.
            like: A measured variant, of the same speed if it has the same operators.
        """
        if not _has_integers(outcome):
            self.refused[variant] = self._is_float(variant, scheme)
            return
        made = outcome.model.fingerprint
        if same := next((other for other in self.attempts.values() if other.outcome.model.fingerprint == made), None):
            self.refused[variant] = Refusal(f"it is {same.name} again", is_known=True)
            return
        for name, setting in variant.model_repairs:
            outcome = outcome.noted(*find_repair(name).notes(self.sources.prepared(name), setting))
        known = self.attempts[like] if like is not None else None
        is_known = known is not None and known.outcome.model.op_counts == outcome.model.op_counts
        speed = known.speed_ratio if known is not None and is_known else self._speed(outcome.model)
        agreement = self.agreement(outcome.model)
        decisions = decisions_of(self.sources, variant, scheme)
        self.attempts[variant] = Attempt(str(variant), outcome, agreement, speed, decisions=decisions)

    def _speed(self, model: Model) -> float | None:
        return None if self.speed is None else self.speed(model)

    def _is_float(self, variant: Variant, scheme: Scheme) -> Refusal:
        model, findings = self.sources.of(variant)
        notes = (*findings.notes, *why_float(open_graph(model), scheme, variant, findings.off_in(str(variant.form))))
        why = next((f": {note.detail}" for note in notes if note.kind is NoteKind.CHOICE), "")
        return Refusal(f"every layer stays in float{why}".split("\n")[0], is_float=True)

    def refuse(self, variant: Variant, error: Exception) -> None:
        """Keep why a variant could not be made or run."""
        problem = error.problem if isinstance(error, EdgeoptError) else f"{type(error).__name__}: {error}"
        self.refused[variant] = Refusal(problem.strip().split("\n")[0])

    def is_doubtful(self, variant: Variant) -> bool:
        """Whether a variant does not run, or agrees badly, and its form was not looked at for layers that are off."""
        if str(variant.form) in self.looked_at:
            return False
        refusal, attempt = self.refused.get(variant), self.attempts.get(variant)
        if refusal is not None:
            return not refusal.is_float and not refusal.is_known
        return attempt is not None and variant.form is not Form.QDQ and attempt.agreement < self.least_agreement

    def finds_off_layers(self, variant: Variant) -> bool:
        """Find the layers that the form of a variant computes otherwise, and forget the variant where there are any."""
        self.looked_at.add(str(variant.form))
        refused = variant in self.refused
        off_layers = find_off_layers(
            *self.sources.of(variant),
            self.rules,
            variant,
            self.sources.frames,
            runs=self._runs if refused else None,
            may_go_on=lambda: not self.is_over,
        )
        if off_layers:
            self.sources.off[str(variant.form)] = off_layers
            self.attempts.pop(variant, None)
            self.refused.pop(variant, None)
        return bool(off_layers)

    def _runs(self, made: Model) -> bool:
        try:
            self.agreement(made)
        except OutOfTime:
            raise
        except EdgeoptError:
            return False
        return True

    @property
    def is_over(self) -> bool:
        """Whether the time limit has no room for one more attempt."""
        return time.monotonic() + self.longest_s > self.ends_at_s

    def has_time(self, change: str) -> bool:
        """Whether the time limit has room for one more attempt; where it has none, the change is kept as untried."""
        if self.is_over:
            self.untried[change] = None
        return not self.is_over

    @property
    def agrees(self) -> bool:
        """Whether the best so far agrees well enough; what is too slow gains nothing from more float."""
        return self.attempts[self.best()].agreement >= self.least_agreement

    @property
    def ranked(self) -> tuple[Attempt, ...]:
        """The attempts so far, best first."""
        return ranked(self.attempts.values(), self.least_agreement)

    def best(self) -> Variant:
        """Return the variant that leads."""
        first = self.ranked[0]
        return next(variant for variant, attempt in self.attempts.items() if attempt is first)

    def confirm(self) -> None:
        """Measure what leads once more, in a session of its own; the slower of both times counts.

        Where memory falls when a session opens makes a small model faster or slower than its next opening.
        """
        for _ in range(_MOST_CONFIRMED):
            lead = self.attempts[self.best()]
            if self.speed is None or self.is_over or not lead.is_valid(self.least_agreement):
                return
            again = self.speed(lead.outcome.model)
            if again is None or again >= lead.pace * _AS_FAST:
                return
            for variant, attempt in self.attempts.items():
                if (
                    attempt.speed_ratio == lead.speed_ratio
                    and attempt.outcome.model.op_counts == lead.outcome.model.op_counts
                ):
                    self.attempts[variant] = replace(attempt, speed_ratio=again)

    def explain(self, kept: tuple[KeptTensor, ...]) -> None:
        """Give those attempts that labels may judge the reason why they are what they are.

        Args:
            kept: Of the best; the tensors of the others are told without what they save, which takes time to learn.
        """
        best, judged = self.best(), for_labels(self.ranked, _MOST_JUDGED)
        for variant, attempt in [*self.attempts.items()]:
            if any(attempt is other for other in judged):
                tensors = kept if variant == best else kept_tensors(self.sources, variant, self.times)
                others = [other for other in self.ranked if other is not attempt]
                why = reason(variant, attempt, others, self.least_agreement, self.times, tensors)
                self.attempts[variant] = replace(attempt, reason=why)

    def kept(self) -> tuple[KeptTensor, ...]:
        """Return the worst tensors that stay in float in the best variant, each tried on integers if there is time."""
        best, last_s = self.best(), self.ends_at_s - self.longest_s
        return () if self.is_over else kept_tensors(self.sources, best, self.times, self._lost, last_s)

    def _lost(self, forced: Variant) -> float | None:
        """Return the agreement that a variant of the best loses, None where it does not run.

        It is made without slow repairs, as that is quick.
        """
        best, slow = (
            self.best(),
            {name: False for name, weight_repair in weight_repairs().items() if weight_repair.is_slow},
        )
        if self._quick is None:
            plain = best.repaired(**slow)
            self._quick = self.attempts[best].agreement if plain == best else self._agreement_of(plain)
        try:
            return self._quick - self._agreement_of(forced.repaired(**slow))
        except OutOfTime:
            raise
        except EdgeoptError:
            return None

    def _agreement_of(self, variant: Variant) -> float:
        model, findings = self.sources.of(variant)
        return self.agreement(make_variant(model, findings, self.sources.rules, variant)[0].model)

    def rounded(self) -> frozenset[str]:
        """Return the tensors that the best variant rounds to integers."""
        graph, scheme = self._best_scheme()
        return frozenset(WRITERS[self.best().form].tensors(graph, scheme))

    def graph(self) -> Graph:
        """Return the float model as it came, to be looked at or changed."""
        return open_graph(self.sources.model)

    def best_graph(self) -> Graph:
        """Return the float model that the best variant is made of, to be looked at."""
        return open_graph(self.sources.model_of(self.best()))

    @property
    def seen(self) -> Mapping[str, Observation]:
        """Calibration's observation of the model as it came."""
        return self.sources.seen

    @property
    def rules(self) -> Int8Rules:
        """The INT8 form that the target runs."""
        return self.sources.rules

    def unheld(self) -> tuple[str, ...]:
        """Return the tensors that the best variant keeps in float because no grid holds them."""
        _, scheme = self._best_scheme()
        return tuple(name for name, score_db in scheme.bad_db.items() if score_db > NO_GRID_DB)

    @property
    def is_last_in_need(self) -> bool:
        """Whether the last variant was made and does not agree well enough."""
        last = self.attempts.get(self.last) if self.last is not None else None
        return last is not None and last.agreement < self.least_agreement

    def prepared(self, name: str) -> Any:
        """Return what a repair has prepared."""
        return self.sources.prepared(name)

    def setting(self, name: str) -> Setting:
        """Return how the best variant is repaired by a repair."""
        return self.best().setting(name)

    def was_tried(self, name: str) -> bool:
        """Whether any variant so far has a repair."""
        return any(variant.setting(name) for variant in self.attempts)

    def _best_scheme(self) -> tuple[Graph, Scheme]:
        best = self.best()
        model, findings = self.sources.of(best)
        graph = open_graph(model)
        return graph, choose_scheme(graph, findings, self.sources.rules, best)

    def learn_sensitivities(self) -> None:
        """Learn what each of the worst tensors alone does to the answer, once and if there is time."""
        model, findings = self.sources.of(self.best())
        rounded, scores = self.rounded(), findings.scores_db
        worst = [name for name in rounded & scores.keys() if scores[name] < _SENSITIVE_BELOW_DB]
        worst = sorted(worst, key=lambda name: (scores[name], name))[:_MOST_SENSITIVE]
        if worst and not self.sensitivities_db and not self.is_over:
            few = self.sources.frames[:_SENSITIVITY_FRAMES]
            self.sensitivities_db = sensitivities_db(model, worst, findings.affines, few)


def _has_integers(outcome: Outcome) -> bool:
    """Whether anything is left of INT8: where every layer is faster in float, the form is the float model again."""
    return any("Linear" in op or "Integer" in op or "NBits" in op for op in outcome.model.op_counts)
