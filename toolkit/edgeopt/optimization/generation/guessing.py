"""Whether the bundle of a language model guesses: predicted first, then proven faster in turns, else not used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgeopt.executors.onnxruntime.sums import Sums
from edgeopt.measurement.generation.guesses import DRAFT, GuessPlan, forecast_guesses
from edgeopt.measurement.generation.sides.turns import Writes, measure_in_turns, ratio_between
from edgeopt.measurement.statistics.ratio import Change
from edgeopt.optimization.generation.result import GuessChoice, LanguageForm
from edgeopt.recipes.recipe import Recipe
from edgeopt.runtime.decoding.generation import AnswerOptions, Generation
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.memory import bytes_of_text
from edgeopt.system.text import format_bytes

_PROMPTS = 3
"""Prompts whose answers predict the gain."""


@dataclass(frozen=True, slots=True)
class _Guessing:
    """A model that guesses as planned, to be measured beside itself."""

    model: LanguageModel
    plan: GuessPlan

    def forget(self) -> None:
        self.model.forget()

    def generate(self, prompt: str | Sequence[int], asked: AnswerOptions | None = None) -> Generation:
        result = replace(
            asked or AnswerOptions(), guesses=self.plan.guesses, uses_draft=self.plan.by == DRAFT, exact=True
        )
        return self.model.generate(prompt, result)


def choose_guesses(
    form: LanguageForm,
    opened: LanguageModel,
    prompts: Sequence[Any],
    asked: AnswerOptions,
    seconds: float,
    left_bytes: float = math.inf,
) -> GuessChoice:
    """Return whether guesses make whole answers of the chosen form faster, and by how much.

    Args:
        form: The chosen one.
        opened: It, with the draft of its recipe.
        prompts: Tokens, one a round.
        asked: Of each answer.
        seconds: For answers in turns, at least.
        left_bytes: Memory that the form leaves of what is allowed; a draft that takes more makes no guesses.
    """
    if opened.states:
        return GuessChoice(told="not used: a wrong one cannot be taken back from states")
    if opened.sums is Sums.APART:
        return GuessChoice(told=f"not used: they may change the answers of {form.name}")
    draft_bytes = _bytes_of_draft(opened, prompts, asked) if left_bytes < math.inf else 0
    uses_draft = draft_bytes <= left_bytes
    large = (
        ""
        if uses_draft
        else f"; its draft, which takes {format_bytes(draft_bytes)}, does not fit beside it into --memory"
    )
    forecast = forecast_guesses(opened, prompts[:_PROMPTS], asked.most_tokens, uses_draft=uses_draft)
    if not forecast.pays:
        return GuessChoice(told=f"{forecast}{large}")
    plan = forecast.best
    models: dict[str, Writes] = {"plain": opened, "guessing": _Guessing(opened, plan)}
    turns = measure_in_turns(models, dict.fromkeys(models, prompts), asked, seconds)
    measured = ratio_between(turns["plain"], turns["guessing"], "answer")
    if measured.verdict is not Change.FASTER:
        text = f"not used: answers {measured} in turns, not proven faster; predicted: {forecast}{large}"
        return GuessChoice(told=text)
    text = f"{forecast} predicted; answers {measured} in turns{large}"
    return GuessChoice(plan.by, plan.guesses, text, draft_bytes if plan.by == DRAFT else 0)


def _bytes_of_draft(opened: LanguageModel, prompts: Sequence[Any], asked: AnswerOptions) -> int:
    """Return the memory of the draft, and of its cache beside the longest answer; 0: there is none."""
    draft = opened.opened_draft()
    return bytes_of_text(draft, max(map(len, prompts), default=0) + asked.most_tokens) if draft else 0


def with_guesses(recipe: Recipe, choice: GuessChoice | None) -> Recipe:
    """Return the recipe of the bundle, which names a draft only where it guesses."""
    generation, choice = recipe.generation, choice or GuessChoice()
    draft = generation.draft if choice.by == DRAFT else ""
    return replace(recipe, generation=replace(generation, guesses=choice.guesses, draft=draft))
