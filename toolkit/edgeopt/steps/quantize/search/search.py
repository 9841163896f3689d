"""Find the fastest INT8 form of a model that still agrees with it. Labels judge afterwards.

The order follows what was learned on real models: islands first (nearly all of a collapse sits in one or two
tensors), then the form, then layers that are faster in float, then what changes only the answer: rounding,
ranges, equalization. Each attempt is measured; what gains nothing is not built upon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from edgeopt.errors import EdgeoptError, MissingDependencyError, NoteKind, UnavailableError, UnsupportedError
from edgeopt.graph.graph import Graph, attribute
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.quantize.api import Form, open_graph, tensors_on_grids
from edgeopt.steps.quantize.calibration.calibrate import Calibration
from edgeopt.steps.quantize.calibration.findings import NO_GRID_DB, study
from edgeopt.steps.quantize.formats.matmul_integer import is_made_of_products
from edgeopt.steps.quantize.grids.ranges import Method
from edgeopt.steps.quantize.keep_float.layer_times import LayerTimes
from edgeopt.steps.quantize.keep_float.sensitivity import sensitivities_db
from edgeopt.steps.quantize.patterns import is_silu, key
from edgeopt.steps.quantize.repairs.fitted_silu import keep_worst, note_of
from edgeopt.steps.quantize.repairs.rescaling import is_rescalable
from edgeopt.steps.quantize.repairs.smoothquant import ALPHAS
from edgeopt.steps.quantize.scheme import Scheme
from edgeopt.steps.quantize.search.attempt import Attempt, for_labels, has_integers, ranked
from edgeopt.steps.quantize.search.decisions import decisions_of
from edgeopt.steps.quantize.search.explain import NO_INTEGERS, Kept, cut_short, kept_tensors, reason, refusals
from edgeopt.steps.quantize.search.found import Found
from edgeopt.steps.quantize.search.sources import Sources
from edgeopt.steps.quantize.search.variant import (
    ALL_SUMS,
    Variant,
    first_variant,
    keep_first,
    make_variant,
    make_with_scheme,
    scheme_of,
    time_layers,
    with_float,
    with_front,
)
from edgeopt.system.target import Int8Rules

LEAST_AGREEMENT = 0.85
_STRICTER_DB = (13.0, 16.0, 20.0)
_BORDER_WEIGHTS = (4.0, 2.0, 1.0)
"""A border is one or two passes over the tensor where the engine joins them with others, four where it does not or
where caches are shared with other programs."""
_MOST_CONFIRMED, _AS_FAST = 4, 0.98
"""Openings that may be measured again, and the share of the first speed that confirms it."""
_EXACT_SHARES = (0.1, 0.2, 0.3, 0.5)
"""Of all numbers that SiLUs compute, in a model that computes the others as fitted HardSwishes. On YOLOX-nano the
first tenth costs 0.2 of 4.6 ms; without it 0.006 AP are lost, with it none (means of four to five calibrations)."""
_METHODS = (Method.PERCENTILE, Method.MINMAX)
_SENSITIVE_BELOW_DB, _MOST_SENSITIVE, _SENSITIVITY_FRAMES = 20.0, 8, 2
_CALIBRATION_SHARE = 0.4
"""Of the time budget; what is left pays for at least a few attempts."""
_LEAST_IMAGES, _KEPT_IMAGES = 4, 8
_MOST_JUDGED = 3
"""Attempts that labels may judge: only they say why."""


@dataclass(slots=True)
class _Search:
    sources: Sources
    rules: Int8Rules
    agreement: Callable[[Model], float]
    speed: Callable[[Model], float]
    least_agreement: float
    ends_at_s: float
    on_attempt: Callable[[Attempt], None] | None
    attempts: dict[Variant, Attempt] = field(default_factory=dict)
    refused: dict[Variant, str] = field(default_factory=dict)
    """What could not be built or run, and why."""
    times: LayerTimes | None = None
    sensitivities: dict[str, float] = field(default_factory=dict)
    untried: dict[str, None] = field(default_factory=dict)
    """What the time was over for, in the order of the search."""
    longest_s: float = 0.0
    _unrounded: float | None = None
    """Agreement of the best variant without rounding."""

    def attempt(self, variant: Variant, like: Variant | None = None) -> None:
        """Build and measure one variant, unless it is known or the time is over.

        Args:
            variant: What to make.
            like: A measured one, of the same speed if it has the same operators.
        """
        if variant in self.attempts or variant in self.refused:
            return
        if self.attempts and not self.has_time(str(variant)):
            return
        started = time.monotonic()
        try:
            self.attempts[variant] = self._measured(variant, like)
        except (MissingDependencyError, UnavailableError):
            raise
        except Exception as error:  # what one form cannot do, another may: nothing found so far is lost
            problem = error.problem if isinstance(error, EdgeoptError) else f"{type(error).__name__}: {error}"
            self.refused[variant] = problem.strip().split("\n")[0]
        self.longest_s = max(self.longest_s, time.monotonic() - started)
        if self.on_attempt and variant in self.attempts:
            self.on_attempt(self.attempts[variant])

    def _measured(self, variant: Variant, like: Variant | None) -> Attempt:
        model, findings = self.sources.of(variant)
        outcome, scheme = make_with_scheme(model, findings, self.rules, variant, self.ends_at_s)
        if not has_integers(outcome):
            real = [
                note.detail for note in outcome.notes if note.kind is NoteKind.CHOICE and " in INT8" not in note.detail
            ]
            raise UnsupportedError(": ".join((NO_INTEGERS, *real[:1])), remedy="keep the float model")
        if variant.fitted:
            outcome = replace(outcome, notes=(*outcome.notes, note_of(self.sources.fits_of(variant))))
        known = self.attempts[like] if like is not None else None
        is_known = known is not None and known.outcome.model.op_counts == outcome.model.op_counts
        speed = known.speed_ratio if known is not None and is_known else self.speed(outcome.model)
        decisions = decisions_of(self.sources, variant, scheme)
        return Attempt(str(variant), outcome, self.agreement(outcome.model), speed, decisions=decisions)

    @property
    def is_over(self) -> bool:
        """Whether the time budget has no room for one more attempt."""
        return time.monotonic() + self.longest_s > self.ends_at_s

    def has_time(self, what: str) -> bool:
        """Whether the time budget has room for one more attempt; what it has none for is kept, to be told."""
        if self.is_over:
            self.untried[what] = None
        return not self.is_over

    @property
    def agrees(self) -> bool:
        """Whether the best so far agrees well enough; what is too slow gains nothing from more float."""
        return self.attempts[self.best()].agreement >= self.least_agreement

    def best(self) -> Variant:
        """Return the variant that leads."""
        first = ranked(self.attempts.values(), self.least_agreement)[0]
        return next(variant for variant, one in self.attempts.items() if one is first)

    def run(self, forms: tuple[Form, ...], threads: int) -> None:
        """Try forms, layers in float, rescaling, ways of writing, fits, roundings, ranges, equalization, islands."""
        first, *others = sorted(forms, key=lambda form: (form is not Form.NHWC, -forms.index(form)))
        self.attempt(first_variant(first))
        if first is Form.NHWC and first_variant(first) in self.attempts and self.has_time("layers in float for speed"):
            for variant in self._with_float_layers(first_variant(first), threads):
                self.attempt(variant)
        if Form.NHWC in forms and is_made_of_products(open_graph(self.sources.model)):
            others.append(Form.DYNAMIC)
        for form in others:
            self.attempt(first_variant(form))
        if self.attempts:
            self._refine(first, others)

    def _refine(self, first: Form, others: Sequence[Form]) -> None:
        """Build on what leads, one change after another.

        Args:
            first: The form that was tried first.
            others: The forms that were tried after it.
        """
        if self.has_time("rescaled tensors") and (scaled := self._rescalable()):
            self.attempt(replace(self.best(), rescaled=scaled))
        if self.sources.can_smooth:
            self._smooth(first_variant(first))
        for variant in self._ways(self.best()):
            self.attempt(variant)
        self._fit()
        for change in self._finer():
            best = self.best()
            self.attempt(change(best), like=best)
        self._fit()
        if Form.DYNAMIC in others:
            self._be_sure()
        if not self.agrees:
            self._keep_more()
        self._confirm()

    def _confirm(self) -> None:
        """Measure what leads once more, in a session of its own; the slower of both times counts.

        Where memory falls when a session opens makes a small model faster or slower than its next opening.
        """
        for _ in range(_MOST_CONFIRMED):
            lead = self.attempts[self.best()]
            if self.is_over or not lead.is_valid(self.least_agreement):
                return
            again = self.speed(lead.outcome.model)
            if again >= lead.speed_ratio * _AS_FAST:
                return
            for variant, one in self.attempts.items():
                if one.speed_ratio == lead.speed_ratio and one.outcome.model.op_counts == lead.outcome.model.op_counts:
                    self.attempts[variant] = replace(one, speed_ratio=again)

    def _with_float_layers(self, twin: Variant, threads: int) -> Iterator[Variant]:
        made, model = self.attempts[twin].outcome.model, self.sources.model
        self.times = time_layers(model, made, self.sources.frames[0], threads)
        for weight in _BORDER_WEIGHTS:
            yield with_float(model, twin, self.times, weight)
        yield with_front(model, twin, self.times)

    def _smooth(self, start: Variant) -> None:
        """Try SmoothQuant's alphas; layers may leave their islands, so all are timed."""
        for variant in dict.fromkeys((self.best(), start)):
            self.attempt(replace(variant, smoothing=ALPHAS[0]))
        for alpha in ALPHAS[1:]:
            self.attempt(replace(self.best(), smoothing=alpha))

    def _fit(self) -> None:
        """Compute SiLUs as fitted HardSwishes, without more and more of the worst, until the answers agree."""
        start = self.best()
        if not self.agrees or any(one.fitted for one in self.attempts):
            return  # what is spoiled without fits already may be mended before they are tried again
        for share in _EXACT_SHARES:
            if not self.rules.fitted_silu or not self.has_time("SiLU as fitted HardSwish") or not self.sources.fits:
                return
            variant = replace(start, fitted=frozenset(one.name for one in keep_worst(self.sources.fits, share)))
            self.attempt(variant)
            made = self.attempts.get(variant)
            if made is None or made.agreement >= self.least_agreement:
                return

    def _be_sure(self) -> None:
        """Try what agrees best with grids for each picture: slower than grids for all, but labels may refuse those."""
        alpha = self.best().smoothing or (ALPHAS[0] if self.sources.can_smooth else 0.0)
        self.attempt(replace(first_variant(Form.DYNAMIC), smoothing=alpha, rounding=True))

    def _ways(self, start: Variant) -> Iterator[Variant]:
        graph = open_graph(self.sources.model)
        depthwise = frozenset(key(node) for node in graph.nodes("Conv") if attribute(node, "group", 1) > 1)
        if start.form is Form.INPUTS and depthwise:  # they gain little from integers, and pay for pairs of their own
            yield replace(start, front=start.front | depthwise)
        if start.form is Form.NHWC and any(is_silu(graph, node) for node in graph.nodes("Mul")):
            yield replace(start, options=replace(start.options, direct_up_to=ALL_SUMS))
            yield replace(start, options=replace(start.options, direct_up_to=0))
            yield replace(start, options=replace(start.options, integer_silu=True))

    def _finer(self) -> Iterator[Callable[[Variant], Variant]]:
        """Yield changes that leave the operators as they are."""
        yield lambda best: replace(best, rounding=True)
        for method in _METHODS:
            yield lambda best, method=method: replace(best, method=method)  # type: ignore[misc]
        if self.has_time("equalized") and self.sources.can_equalize and not self.best().rescaled:
            yield lambda best: replace(best, equalized=True)

    def with_reason(self, variant: Variant, kept: tuple[Kept, ...] | None = None) -> Attempt:
        """Return an attempt that says why it is what it is.

        Args:
            variant: Of an attempt.
            kept: Its tensors that stay real; None: without what that saves, which takes time to learn.
        """
        one = self.attempts[variant]
        if kept is None:
            kept = kept_tensors(self.sources, variant, self.rules, self.times)
        others = [other for other in ranked(self.attempts.values(), self.least_agreement) if other is not one]
        return replace(one, reason=reason(variant, one, others, self.least_agreement, self.times, kept))

    def kept(self) -> tuple[Kept, ...]:
        """Return the worst tensors that stay real in the best variant, each tried on integers if there is time."""
        best, last_s = self.best(), self.ends_at_s - self.longest_s
        return () if self.is_over else kept_tensors(self.sources, best, self.rules, self.times, self._lost, last_s)

    def _lost(self, forced: Variant) -> float:
        """Return the agreement that a variant of the best loses; without rounding, as that is quick to make."""
        best = self.best()
        if self._unrounded is None:
            plain = replace(best, rounding=False)
            self._unrounded = self._agreement_of(plain) if best.rounding else self.attempts[best].agreement
        return self._unrounded - self._agreement_of(replace(forced, rounding=False))

    def _agreement_of(self, variant: Variant) -> float:
        model, findings = self.sources.of(variant)
        return self.agreement(make_variant(model, findings, self.rules, variant).model)

    def rounded(self) -> frozenset[str]:
        """Return the tensors that the best variant rounds to integers."""
        graph, scheme = self._best_scheme()
        return frozenset(tensors_on_grids(graph, scheme, self.best().form))

    def _rescalable(self) -> frozenset[str]:
        """Return the tensors that the best variant keeps real because one grid cannot hold them, and that need not."""
        graph, scheme = self._best_scheme()
        bad = (name for name, score_db in scheme.bad_db.items() if score_db > NO_GRID_DB)
        return frozenset(name for name in bad if is_rescalable(graph, name))

    def _best_scheme(self) -> tuple[Graph, Scheme]:
        best = self.best()
        model, findings = self.sources.of(best)
        graph = open_graph(model)
        return graph, scheme_of(graph, findings, self.rules, best)[0]

    def learn_sensitivities(self) -> None:
        """Learn what each of the worst tensors alone does to the answer, once and if there is time."""
        model, findings = self.sources.of(self.best())
        rounded, scores = self.rounded(), findings.scores_db
        worst = [name for name in rounded & scores.keys() if scores[name] < _SENSITIVE_BELOW_DB]
        worst = sorted(worst, key=lambda name: (scores[name], name))[:_MOST_SENSITIVE]
        if worst and not self.sensitivities and not self.is_over:
            few = self.sources.frames[:_SENSITIVITY_FRAMES]
            self.sensitivities = sensitivities_db(model, worst, findings.affines, few)

    def _keep_more(self) -> None:
        """Keep the most sensitive tensors real, then all that score badly."""
        self.learn_sensitivities()
        order = [*self.sensitivities]
        for count in (2, 4, 8) if order else ():
            if not self.agrees:
                self.attempt(replace(self.best(), kept=frozenset(order[:count])))
        for least_db in _STRICTER_DB:
            if not self.agrees:
                self.attempt(replace(self.best(), least_db=least_db))
        if not self.agrees:
            self.attempt(replace(self.best(), method=Method.ENTROPY))  # slow to find, and seldom the best


def search_int8(
    model: Model,
    calibration_inputs: Iterable[Tensors],
    rules: Int8Rules,
    *,
    agreement: Callable[[Model], float],
    speed: Callable[[Model], float],
    forms: tuple[Form, ...] = (Form.QDQ,),
    threads: int = 1,
    least_agreement: float = LEAST_AGREEMENT,
    time_budget_s: float = 180.0,
    progress: Callable[[int], None] | None = None,
    on_attempt: Callable[[Attempt], None] | None = None,
    cache: Path | None = None,
    known: Calibration | None = None,
) -> Found:
    """Return the attempts at an INT8 form of `model`, best first.

    Args:
        model: A float model, opset 13 or later.
        calibration_inputs: Real model inputs, one image each; read once, and no longer than a part of the budget.
        rules: What INT8 form the target runs.
        agreement: Of a model with the float one, 0 to 1, without labels.
        speed: Time of the float model over that of a model, measured in turns.
        forms: What the target's engine reads; NHWC only for ONNX Runtime on a CPU, and tried first.
        threads: With which layers are timed.
        least_agreement: Attempts below it are never ranked above one that reaches it.
        time_budget_s: Seconds for calibration and attempts; the first attempt is always made.
        progress: Called with the number of calibration images done.
        on_attempt: Called with each attempt as soon as it is measured, so that the best so far is never lost.
        cache: Folder in which calibration keeps finished chunks for a search after an interrupt; None: nowhere.
        known: `Found.calibration` of a search of this model on these images, for another engine: it is used again.

    Raises:
        UnsupportedError: If the weights of a layer are NaN or infinite, or the opset is too old.
        EdgeoptError: If there are no calibration images.
    """
    started = time.monotonic()
    kept: list[Tensors] = []
    frames = _in_time(keep_first(calibration_inputs, kept, _KEPT_IMAGES), started + _CALIBRATION_SHARE * time_budget_s)
    findings = study(model, open_graph(model), frames, rules, progress=progress, cache=cache, known=known)
    few = kept or list(islice(frames, _KEPT_IMAGES))  # where calibration is known, it read none
    sources = Sources(model, findings, rules, few)
    search = _Search(sources, rules, agreement, speed, least_agreement, started + time_budget_s, on_attempt)
    search.run(forms, threads)
    return _found(search)


def _in_time(frames: Iterable[Tensors], ends_at_s: float) -> Iterator[Tensors]:
    """Yield frames until the time is over, but at least a few."""
    for i, frame in enumerate(frames):
        if i >= _LEAST_IMAGES and time.monotonic() > ends_at_s:
            return
        yield frame


def _found(search: _Search) -> Found:
    notes = (
        *search.sources.findings.notes,
        *refusals(search.refused),
        *cut_short(search.untried, len(search.attempts)),
    )
    calibration = search.sources.findings.calibration
    if not search.attempts:
        why = next(iter(search.refused.values()))
        stays = f"The float model stays: no INT8 form of it could be made: {why}"
        return Found((), stays, notes, calibration=calibration)
    best, kept = search.best(), search.kept()
    _, findings = search.sources.of(best)  # its tensors are the answer's, also where the model was changed before
    if not search.is_over:
        search.learn_sensitivities()
    judged = for_labels(ranked(search.attempts.values(), search.least_agreement), _MOST_JUDGED)
    for variant, one in [*search.attempts.items()]:
        if any(one is other for other in judged):
            search.attempts[variant] = search.with_reason(variant, kept if variant == best else None)
    attempts = ranked(search.attempts.values(), search.least_agreement)
    return Found(
        attempts,
        attempts[0].reason,
        notes,
        findings.scores_db,
        findings.plain_db,
        search.sensitivities,
        kept,
        search.rounded(),
        calibration,
        search.times,
    )
