"""Answers of several forms of one language model in turns, so that what slows the machine slows all alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.sound import Sound
from edgeopt.measurement.statistics.ratio import Ratio, ratio_of_rounds
from edgeopt.runtime.decoding.generation import Account, AnswerOptions
from edgeopt.system.processes.time_limit import require_time

LEAST_ROUNDS, MOST_ROUNDS = 8, 40
Prompt = Sequence[int] | Sound
"""Tokens, or a sound that an encoder hears."""
PARTS = ("answer", "TTFT", "TPOT")
"""The whole answer of the lengths asked for; its first token; each one after it."""


class TurnAnswer(Protocol):
    """An answer on its way, or over: iterate over it for its tokens."""

    @property
    def account(self) -> Account:
        """Its times so far."""
        ...

    def __iter__(self) -> Iterator[Any]: ...

    def __enter__(self) -> TurnAnswer: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Writes(Protocol):
    """A model that answers prompts: a `LanguageModel`, or another with its own way of asking."""

    def forget(self) -> None:
        """Free what is kept of earlier answers."""
        ...

    def generate(self, prompt: Any, asked: AnswerOptions | None = None) -> TurnAnswer:
        """Return the answer to a prompt."""
        ...


@dataclass(frozen=True, slots=True)
class FormTurns:
    """Times of one form, one row a round."""

    times_ns: NDArray[np.float64]
    """(rounds, 3) of an answer: the whole, TTFT, TPOT."""

    def joined(self, more: FormTurns) -> FormTurns:
        """Return these rounds and more of them."""
        return FormTurns(np.concatenate([self.times_ns, more.times_ns]))

    def median_ms(self, part: str) -> float:
        """Return the median of one of `PARTS`."""
        return float(np.median(self.times_ns[:, PARTS.index(part)])) / 1e6


def measure_in_turns(
    models: Mapping[str, Writes],
    prompts: Mapping[str, Sequence[Prompt]],
    asked: AnswerOptions,
    seconds: float,
    tell: Callable[[int, int], None] = lambda *_: None,
    *,
    least: int = LEAST_ROUNDS,
    most: int = MOST_ROUNDS,
    first: int = 0,
) -> dict[str, FormTurns]:
    """Return the times of each model, which take their turns in an order of their own in each round.

    Args:
        models: By name; the original may be there twice, to tell what a ratio of two equal models looks like.
        prompts: By name, tokens; one a round.
        asked: Of each answer.
        seconds: At least so long.
        tell: Hears how many tenths of a second of how many are over.
        least: Rounds, at least.
        most: Rounds, at most.
        first: Number of the first round, which says whose turn it is and which prompt is answered.

    Raises:
        OutOfTime: At the end of a time limit.
    """
    rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in models}
    number, began_s = -1, monotonic()  # one round warms up
    while number < least or (monotonic() - began_s < seconds and number < most):
        for name in _order(list(models), first + number):
            model = models[name]
            require_time()
            model.forget()
            with model.generate(prompts[name][(first + number) % len(prompts[name])], asked) as answer:
                for _ in answer:
                    pass
            times = answer.account.token_at_ns
            if number >= 0:
                rows[name].append((times[-1], times[0], (times[-1] - times[0]) / max(len(times) - 1, 1)))
        number += 1
        began_s = monotonic() if number == 0 else began_s
        tell(min(int(10 * (monotonic() - began_s)), int(10 * seconds)), int(10 * seconds))
    return {name: FormTurns(np.array(row)) for name, row in rows.items()}


def _order(names: list[str], number: int) -> list[str]:
    """Return the order of a round: every other one is the one before backwards, and each pair begins with another.

    Whoever is the last of a round is the first of the next, and finds its weights in the caches: each is so as often.
    With the same ends in all pairs a model in the middle was 2 to 4 % slower than itself.
    """
    shift = (number // 2) % len(names)
    turned = [*names[shift:], *names[:shift]]
    return turned[::-1] if number % 2 else turned


def ratio_between(
    original: FormTurns, other: FormTurns, part: str, null: Ratio | None = None, margin: float = 0.02
) -> Ratio:
    """Return how many times as fast another form is in one of `PARTS`, over the rounds."""
    logs = logs_between(original, other, part)
    return ratio_of_rounds(logs, pairs=len(logs), margin=margin, null=null)


def logs_between(original: FormTurns, other: FormTurns, part: str) -> NDArray[np.float64]:
    """Return (rounds,) log(original / other) of one of `PARTS`."""
    place = PARTS.index(part)
    times = [one.times_ns[:, place] for one in (original, other)]
    logs: NDArray[np.float64] = np.log(np.maximum(times[0], 1) / np.maximum(times[1], 1))
    return logs
