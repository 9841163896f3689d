"""Whether answers keep their limits, of the first token and of each token after it: proven, or what would."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

import numpy as np

from edgeopt.measurement.generation.answer_budget import PARTS, AnswerBudget
from edgeopt.measurement.generation.options import MAX_MISS
from edgeopt.measurement.generation.sides.turns import Prompt, Writes
from edgeopt.measurement.statistics.budget import BudgetResult, Verdict, judge_budget, worst_of
from edgeopt.measurement.statistics.quantile import Quantile, quantile
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.system.processes.time_limit import time_left_s
from edgeopt.system.text import format_budget

BUDGET_SECONDS = 3
"""Times the seconds of the turns that proving a budget may take."""
_LEAST_ANSWERS = 6
"""Fewer give a median no interval."""


@dataclass(frozen=True, slots=True)
class LimitResult:
    """One limit, and what answers prove about it."""

    part: str
    limit_ms: float
    median: Quantile
    counted: BudgetResult

    def __str__(self) -> str:
        word = {Verdict.PASS: "met", Verdict.FAIL: "missed"}.get(self.counted.verdict, "not decided")
        return f"{self.part} {word}: p50 {self.median} ms; {self.counted.told(noun='answers')}"


@dataclass(frozen=True, slots=True)
class AnswerVerdict:
    """All limits of a budget."""

    limits: tuple[LimitResult, ...]

    @property
    def verdict(self) -> Verdict:
        """FAIL where one limit is missed, PASS where all are met."""
        return worst_of([limit.counted.verdict for limit in self.limits])

    @property
    def is_decided(self) -> bool:
        """Whether each limit is met or missed, proven."""
        return all(limit.counted.verdict is not Verdict.INCONCLUSIVE for limit in self.limits)

    @property
    def exit_code(self) -> int:
        """0 met; 2 missed, proven; 3 not decided."""
        return self.verdict.exit_code

    @property
    def sentence(self) -> str:
        """Which limits are met, and which not."""
        words = {Verdict.FAIL: "missed", Verdict.INCONCLUSIVE: "not decided", Verdict.PASS: "met"}
        named = {
            word: [limit for limit in self.limits if limit.counted.verdict is verdict]
            for verdict, word in words.items()
        }
        return "; ".join(
            f"{word}: {', '.join(f'{limit.part} {format_budget(limit.limit_ms)} ms' for limit in limits)}"
            for word, limits in named.items()
            if limits
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"verdict": self.verdict, "limits": [asdict(limit) for limit in self.limits]}


def judge_answers(
    budget: AnswerBudget, times_ns: Mapping[str, Sequence[float]], max_miss_ratio: float = MAX_MISS
) -> AnswerVerdict:
    """Judge the answers of one length against their limits.

    Args:
        budget: The limits.
        times_ns: By part, one number an answer in order of time.
        max_miss_ratio: Share of the answers that may be over a limit, 0 < ratio < 1.
    """
    limit_results = list[LimitResult]()
    for part, limit_ms in budget.limits_ms.items():
        values = np.asarray(times_ns[part], np.int64)
        limit_results.append(
            LimitResult(part, limit_ms, quantile(values, 0.5), judge_budget(values, limit_ms, max_miss_ratio))
        )
    return AnswerVerdict(tuple(limit_results))


def prove_budget(
    model: Writes,
    prompts: Sequence[Prompt],
    asked: AnswerOptions,
    budget: AnswerBudget,
    seconds: float,
    tell: Callable[[int, int], None],
) -> AnswerVerdict:
    """Let a model answer, no cache reused, until each limit is decided.

    Args:
        model: Open.
        prompts: Tokens; one an answer, in turns.
        asked: Of each answer.
        budget: The limits.
        seconds: At most so long, but 6 answers at least; a time limit ends it after any.
        tell: Hears how many tenths of a second of how many are over.
    """
    times: dict[str, list[float]] = {part: [] for part in PARTS.values()}
    number, began_s = -1, monotonic()  # one answer warms up
    while True:
        model.forget()
        with model.generate(prompts[number % len(prompts)], asked) as answer:
            for _ in answer:
                pass
        at_ns = answer.account.token_at_ns
        if number >= 0:
            times["TTFT"].append(at_ns[0])
            times["TPOT"].append((at_ns[-1] - at_ns[0]) / max(len(at_ns) - 1, 1))
        number += 1
        judged, took_s = judge_answers(budget, times), monotonic() - began_s
        tell(min(int(10 * took_s), int(10 * seconds)), int(10 * seconds))
        if judged.is_decided or (took_s >= seconds and number >= _LEAST_ANSWERS) or time_left_s() < 0:
            return judged


def fewest_to_pass(max_miss_ratio: float) -> int:
    """Return how many answers prove a limit where none of them is over it, 0 < ratio < 1.

    Source: none of n is over it with probability (1 - ratio)^n, which must be 5 % at most.
    """
    return math.ceil(math.log(0.05) / math.log(1 - max_miss_ratio))
