"""Answers of two that take turns, and the ratio of their times."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from enlarged import SHIPPED

from edgeopt.measurement.statistics.ratio import Ratio, ratio_of_rounds
from edgeopt.recipes.texts.tokens import read_tokens
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel

NEXT = 32
"""Tokens whose TPOT is measured."""
Answer = Callable[[list[int]], tuple[float, float, list[int]]]
"""Tokens of a prompt -> TTFT and TPOT in seconds, and the tokens of the answer."""


def ours(model: LanguageModel) -> Answer:
    def answer(prompt: list[int]) -> tuple[float, float, list[int]]:
        model.forget()
        with model.generate(prompt, AnswerOptions(NEXT, ends=False)) as made:
            tokens = [piece.token for piece in made]
        times = made.account.token_at_ns
        return times[0] / 1e9, (times[-1] - times[0]) / 1e9 / (NEXT - 1), tokens

    return answer


def ratio(theirs: list[float], mine: list[float]) -> Ratio:
    return ratio_of_rounds(np.log(np.array(theirs) / np.array(mine)), pairs=len(mine))


def against(name: str, theirs: Answer, mine: Answer, rounds: int) -> None:
    """Print both times of another over ours, in turns."""
    text = read_tokens(SHIPPED / "tokenizer.json").encode((SHIPPED / "held_out.txt").read_text("utf-8"))
    both: dict[str, Answer] = {"edgeopt": mine, name: theirs}
    print(
        f"\n| context | TTFT, {name} over ours | TPOT, {name} over ours | same tokens |\n|--:|---|---|---|", flush=True
    )
    for length in (128, 512, 1024):
        found: dict[str, list[tuple[float, float, list[int]]]] = {one: [] for one in both}
        for number in range(-1, rounds):
            start = (number + 1) * 97 % (len(text) - length)
            prompt = [0, *text[start : start + length - 1]]
            for one in list(both)[:: -1 if number % 2 else 1]:
                made = both[one](prompt)
                if number >= 0:
                    found[one].append(made)
        same = sum(a[2] == b[2] for a, b in zip(found["edgeopt"], found[name], strict=True))
        told = [ratio([one[i] for one in found[name]], [one[i] for one in found["edgeopt"]]) for i in (0, 1)]
        print(f"| {length} | {told[0]} | {told[1]} | {same} of {rounds} |", flush=True)
