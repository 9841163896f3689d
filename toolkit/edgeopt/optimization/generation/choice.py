"""Which form of a language model is written: proven faster, and inside the budget where one is."""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.measurement.statistics.ratio import Change
from edgeopt.optimization.generation.result import BASELINE, LanguageForm


def choose_form(forms: Sequence[LanguageForm], budget: AnswerBudget | None = None) -> str:
    """Return the form whose whole answers are proven fastest; the original where none is.

    A form whose medians keep a budget comes before all that do not. Where the original misses a limit, what is proven
    faster in the part that it misses counts as well, though its whole answers are not: that is what was asked for.
    """
    original = next(form for form in forms if form.name == BASELINE)
    missed = budget.missed_by(original.times_ms) if budget else ()
    proven = [form for form in forms if _is_proven(form, ("answer",)) or (missed and _is_proven(form, missed))]
    if budget:
        keeps = [form for form in (original, *proven) if not budget.missed_by(form.times_ms)]
        proven = keeps or [form for form in proven if _is_proven(form, ("answer",))]
    return max(proven or [original], key=_speed).name


def _is_proven(form: LanguageForm, parts: Sequence[str]) -> bool:
    return (
        bool(form.speed)
        and not (form.unfit or form.out)
        and all(form.speed[part].verdict is Change.FASTER for part in parts)
    )


def _speed(form: LanguageForm) -> float:
    return form.speed["answer"].speedup if form.speed else 1.0
