"""Which form of a language model is written: proven faster, and inside the budget where one is."""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.measurement.accuracy.judgement import Word
from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.measurement.statistics.ratio import Change
from edgeopt.optimization.generation.result import ORIGINALS, LanguageForm


def choose_form(forms: Sequence[LanguageForm], budget: AnswerBudget | None = None) -> str:
    """Return the form whose whole answers are proven fastest among those that are KEPT; the original where none is.

    Where none is KEPT, it is the safest that is not decided: that whose perplexity, or wrong words, rise least at most.

    In place of a form the same one with a cache in 8 bits is chosen where that is proven no slower.

    A form whose medians keep a budget comes before all that do not. Where the original misses a limit, what is proven
    faster in the part that it misses counts as well, though its whole answers are not: that is what was asked for.
    """
    original = next(form for form in forms if form.name in ORIGINALS)
    missed = budget.missed_by(original.times_ms) if budget else ()
    proven = [form for form in forms if _is_proven(form, ("answer",)) or (missed and _is_proven(form, missed))]
    if budget:
        keeps = [form for form in (original, *proven) if not budget.missed_by(form.times_ms)]
        proven = keeps or [form for form in proven if _is_proven(form, ("answer",))]
    if original.out:  # memory does not hold it: a form that is as fast, or slower, is what was asked for
        fitting = [form for form in forms if form is not original and _may_be(form)]
        proven = [form for form in proven if form is not original] or fitting
    kept = [form for form in proven if form.word != Word.NOT_DECIDED]
    still_open = [form for form in proven if form not in kept]
    if still_open and all(form is original for form in kept):
        return min(still_open, key=_most_rise).name
    best = max(kept or [original], key=_speed)
    return next((form for form in kept if form.replaces == best.name), best).name


def _most_rise(form: LanguageForm) -> float:
    return max((rise.high for rise in (form.rise, form.words) if rise), default=0.0)


def _is_proven(form: LanguageForm, parts: Sequence[str]) -> bool:
    return _may_be(form) and (all(form.speed[part].verdict is Change.FASTER for part in parts))


def _may_be(form: LanguageForm) -> bool:
    return bool(form.speed) and not (form.unfit or form.out or form.word == Word.LOST)


def _speed(form: LanguageForm) -> float:
    return form.speed["answer"].speedup if form.speed else 1.0
