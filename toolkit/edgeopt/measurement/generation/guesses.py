"""Whether guesses pay, known before they are used: from what runs of several tokens cost, and which guesses are right.

A round of k guesses costs a run of k + 1 tokens and the guessing, and writes the right ones and one token more: the
gain is E[tokens a round] / (guessing + cost(k + 1)), in plain runs (Leviathan et al., 2023, arXiv:2211.17192).
Rounds are counted on answers that the model wrote, so nothing is assumed of how right guesses follow each other. Where
single tokens sum otherwise than several, a run that guesses is one of pairs, and so it is timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors.onnxruntime.sums import Sums
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.guessing import Guesser
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.system.processes.time_limit import require_time

COUNTS, _ODD_COUNTS = (1, 2, 4, 8), (1, 3, 7)
"""Guesses a round that are tried; in runs of pairs the token before them makes an even number of odd ones."""
AUTO = -1
"""Value in place of a number of guesses: take the number that is predicted to be best."""
_WIDTHS = (1, 2, 3, 5, 9)
"""Tokens of a run whose cost is measured; those between are interpolated."""
_ROUNDS = 9
_QUARTILE, _REPLICATES, _SEED = 0.25, 500, 0
"""Quartile, replicates and seed of the times of a run; of the bootstrap over texts and rounds of timing."""
DRAFT, TEXT = "draft", "text"
LEAST_GAIN = 1.05
"""Predicted: less is not worth trying."""


@dataclass(frozen=True, slots=True)
class GuessPlan:
    """So many guesses a round, by one guesser."""

    by: str
    """`draft` or `text`."""
    guesses: int
    acceptance: float
    """Share of the guesses that are right; 0 where there was none."""
    tokens_a_run: float
    gain: float
    """Predicted TPOT without guesses over that with them."""
    low: float
    """Low of the interval of 95 % of the gain, from texts and times drawn anew."""
    high: float

    @property
    def gain_told(self) -> str:
        """The gain with its interval."""
        return f"{self.gain:.2f}x [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Times of runs on this machine, in nanoseconds, one number a round of timing."""

    plain: NDArray[np.float64]
    """(rounds,) of one token without guesses."""
    widths: tuple[int, ...]
    """Tokens of a run that verifies."""
    verifying: NDArray[np.float64]
    """(rounds, widths)."""

    def costs(self, rounds: NDArray[np.intp]) -> tuple[float, NDArray[np.float64]]:
        """Return the lower quartile over some rounds, of one plain token and of a run by its width up to the widest.

        What disturbs a run makes it longer only, and a long run more often.
        """
        times = np.quantile(self.verifying[rounds], _QUARTILE, axis=0)
        each = np.interp(np.arange(self.widths[-1] + 1), self.widths, times)
        return float(np.quantile(self.plain[rounds], _QUARTILE)), each


@dataclass(frozen=True, slots=True)
class _Rounds:
    """The rounds of one text."""

    tokens: int
    runs: int
    guessed: int
    right: int
    guessing_ns: float
    by_width: NDArray[np.float64]
    """How many runs had so many tokens."""


@dataclass(frozen=True, slots=True)
class GuessForecast:
    """All plans, and what runs cost."""

    costs: tuple[tuple[int, float], ...]
    """Tokens of a run, and its time over that of one token."""
    plans: tuple[GuessPlan, ...]

    @property
    def best(self) -> GuessPlan:
        """The one with the largest gain."""
        return max(self.plans, key=lambda plan: plan.gain)

    @property
    def pays(self) -> bool:
        """Whether the best one is worth trying."""
        return self.best.gain >= LEAST_GAIN

    def __str__(self) -> str:
        best = self.best
        right = f"{best.acceptance:.0%} right, {best.tokens_a_run:.1f} tokens a run"
        head = f"{best.guesses} by the {best.by}, {right}, a run of 5 tokens costs {dict(self.costs)[5]:.1f} of one"
        return f"{head}: TPOT {best.gain_told}" if self.pays else f"not used: {best.gain_told} at best ({head})"


def forecast_guesses(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    output_tokens: int,
    counts: Sequence[int] = (),
    *,
    uses_draft: bool = True,
) -> GuessForecast:
    """Return what guesses would gain on greedy answers to these prompts.

    Args:
        model: With its draft, if any.
        prompts: Tokens, without those that begin every text.
        output_tokens: Of each answer.
        counts: Guesses a round that are tried; empty: some.
        uses_draft: Whether its draft is tried.

    Raises:
        UnsupportedError: If the model has states, which cannot take a wrong guess back.
        EdgeoptError: If the draft does not open, or the model does not run.
        OutOfTime: At the end of a time limit.
    """
    model.require_takes_back()
    counts = counts or (_ODD_COUNTS if model.sums is Sums.PAIRED else COUNTS)
    texts = list[tuple[list[int], int]]()
    for prompt in prompts:
        require_time()
        with model.generate(prompt, AnswerOptions(output_tokens, guesses=0, ends=False)) as answer:
            found = [piece.token for piece in answer]
        texts.append(([*prompt, *found], len(prompt)))
    times = _times_ns(model, texts[0][0], texts[0][1])
    plans = list[GuessPlan]()
    for by in (DRAFT, TEXT) if model.has_draft and uses_draft else (TEXT,):
        for count in counts:
            require_time()
            model.forget()
            plans.append(
                _plan(by, count, [_rounds(model, by, count, *text, times.widths[-1]) for text in texts], times)
            )
    plain, each = times.costs(np.arange(len(times.plain)))
    return GuessForecast(tuple((width, float(each[width] / plain)) for width in times.widths), tuple(plans))


def _times_ns(model: LanguageModel, text: Sequence[int], past: int) -> RunTimes:
    """Return the times of runs of some tokens behind a prompt, in turns."""
    past = max(1, min(past, model.context - max(_WIDTHS) - 1))  # an empty prompt begins with the answer's first token
    decoder = model.decoder(past + max(_WIDTHS) + 1)
    decoder.run(text[:past])
    is_paired = model.sums is Sums.PAIRED
    kinds = [(1, False), *((width, True) for width in _WIDTHS)]
    found: list[list[float]] = []
    more = [*text[past:], *text[:past]] * max(_WIDTHS)
    for number in range(-1, _ROUNDS):
        require_time()
        times = list[float]()
        for width, verifies in kinds:
            decoder.is_exact = verifies and is_paired
            begun_ns = perf_counter_ns()
            decoder.run(more[:width])
            times.append(perf_counter_ns() - begun_ns)
            decoder.rewind(past)
        if number >= 0:
            found.append(times)
    every = np.array(found, np.float64)
    if not is_paired:  # it is the same run: noise between two measurements of it would look like a gain
        every[:, 1] = every[:, 0]
    return RunTimes(every[:, 0], _WIDTHS, every[:, 1:])


def _rounds(model: LanguageModel, by: str, count: int, text: Sequence[int], past: int, widest: int) -> _Rounds:
    """Return what guessing a known answer, which begins behind `past` tokens, takes."""
    guesser: Guesser = model.guesser(uses_draft=by == DRAFT)
    runs = guessed = right = 0
    guessing_ns, by_width = 0.0, np.zeros(widest + 1)
    place = past + 1  # the first token comes with the prompt
    while place < len(text):
        begun_ns = perf_counter_ns()
        guesses = guesser.guess(text[:place], min(count, len(text) - place - 1))
        guessing_ns += perf_counter_ns() - begun_ns
        pairs = zip(guesses, text[place:], strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(guesses))
        by_width[min(len(guesses) + 1, widest)] += 1
        runs, guessed, right, place = runs + 1, guessed + len(guesses), right + same, place + same + 1
    guesser.close()
    return _Rounds(len(text) - past - 1, runs, guessed, right, guessing_ns, by_width)


def _plan(by: str, count: int, texts: Sequence[_Rounds], times: RunTimes) -> GuessPlan:
    runs, guessed = sum(one.runs for one in texts), sum(one.guessed for one in texts)
    tokens, every = sum(text.tokens for text in texts), np.arange(len(times.plain))
    chance = np.random.default_rng(_SEED)
    drawn = [
        _gain(
            [texts[i] for i in chance.integers(0, len(texts), len(texts))],
            times.costs(chance.integers(0, len(every), len(every))),
        )
        for _ in range(_REPLICATES)
    ]
    low, high = np.quantile(drawn, (0.025, 0.975))
    right = sum(text.right for text in texts) / guessed if guessed else 0.0
    gain = _gain(texts, times.costs(every))
    return GuessPlan(by, count, right, tokens / max(runs, 1), gain, float(low), float(high))


def _gain(texts: Sequence[_Rounds], costs: tuple[float, NDArray[np.float64]]) -> float:
    plain, each = costs
    spent_ns = sum(text.guessing_ns + float(text.by_width @ each) for text in texts)
    return sum(text.tokens for text in texts) * plain / spent_ns if spent_ns else 1.0
