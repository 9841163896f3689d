"""Times of answers under a load, and how many were good enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.measurement.generation.answers.answered import Answered
from edgeopt.measurement.generation.answers.times import AnswerTimes
from edgeopt.measurement.generation.budget import AnswerVerdict, judge_answers
from edgeopt.measurement.generation.options import MAX_MISS
from edgeopt.measurement.generation.under_load.load import LoadRun

_NEVER_NS = 1 << 60
"""Time of what was given up: longer than any limit."""
_GROWING = 0.1
"""Seconds by which waiting grows in a second: above it, and with twice as many waiting as slots, no queue keeps up."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that were answered whole and within the limits."""

    budget: AnswerBudget
    good: int
    requests: int
    per_s: float

    def __str__(self) -> str:
        return f"{self.per_s:.3g} per s ({self.good} of {self.requests})"


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """A language model under a load, in so many slots."""

    load: str
    slots: int
    is_together: bool
    """Whether the next tokens of several texts are one run."""
    turns_told: str
    """Why they are not; empty: they are."""
    cache_bytes: int
    seconds: float
    """Time in which requests were sent."""
    requests: int
    unfinished: int
    """Given up long after the last request was sent."""
    growth_ratio: float | None
    """Seconds by which waiting grows in a second, where no queue keeps up: its times only say how long was measured."""
    requests_per_s: float
    """Answered in these seconds."""
    tokens_per_s: float
    """Tokens a second of answers."""
    prompt_tokens_per_s: float
    texts_a_run: float
    """Next tokens that a run gives, mean."""
    all: AnswerTimes
    by_length: tuple[AnswerTimes, ...]
    goodput: Goodput | None
    judged: AnswerVerdict | None
    """Verdict of the answers on the budget, where requests that were given up exceed every limit; None: no budget was
    set."""


def summarize_run(run: LoadRun, budget: AnswerBudget | None, max_miss_ratio: float = MAX_MISS) -> LoadTimes:
    """Derive the figures of a run.

    Args:
        run: Of `run_load`.
        budget: Limits of a good answer; without it there is no goodput, and nothing is judged.
        max_miss_ratio: Share of the requests that may be over a limit.
    """
    whole = [request for request in run.requests if request.is_whole]
    seconds = run.window_ns / 1e9
    ends = np.array([answered.intended_ns + answered.end_ns for answered in whole], np.int64)
    tokens = np.concatenate([_token_instants(request) for request in run.requests] or [np.zeros(0, np.int64)])
    firsts = [request.prompt_tokens for request in run.requests if _is_begun_in(request, run.window_ns)]
    rows = {
        "TTFT": [request.ttft_ns if request.is_whole else _NEVER_NS for request in run.requests],
        "TPOT": [request.tpot_ns if request.is_whole else _NEVER_NS for request in run.requests],
    }
    goodput = None if budget is None else _goodput(budget, rows, seconds)
    return LoadTimes(
        load=run.load,
        slots=run.slots,
        is_together=run.is_together,
        turns_told=run.turns_told,
        cache_bytes=run.cache_bytes,
        seconds=seconds,
        requests=len(run.requests),
        unfinished=len(run.requests) - len(whole),
        growth_ratio=_growth_ratio(run, whole),
        requests_per_s=float((ends <= run.window_ns).sum()) / seconds,
        tokens_per_s=float((tokens <= run.window_ns).sum()) / seconds,
        prompt_tokens_per_s=sum(firsts) / seconds,
        texts_a_run=run.work.tokens / max(run.work.token_runs, 1),
        all=_times(whole, 0),
        by_length=tuple(_times(whole, length) for length in sorted({answered.prompt_tokens for answered in whole})),
        goodput=goodput,
        judged=judge_answers(budget, rows, max_miss_ratio) if budget else None,
    )


def _goodput(budget: AnswerBudget, rows: Mapping[str, Sequence[int]], seconds: float) -> Goodput:
    each = [np.array(rows[part]) <= limit * 1e6 for part, limit in budget.limits_ms.items()]
    good = int(np.logical_and.reduce(each).sum())
    return Goodput(budget, good, len(each[0]), good / seconds)


def _token_instants(answered: Answered) -> np.ndarray:
    return np.array(answered.account.token_at_ns, np.int64) + answered.intended_ns + answered.late_ns


def _is_begun_in(answered: Answered, window_ns: int) -> bool:
    """Return whether the first token, and with it the whole prompt, was done in the window."""
    return bool(answered.account.token_at_ns) and answered.intended_ns + answered.ttft_ns <= window_ns


def _times(answers: Sequence[Answered], length: int) -> AnswerTimes:
    """Return the times of answers to prompts of one length; 0: of any."""
    rows = [answer for answer in answers if length in (0, answer.prompt_tokens)]
    tokens = sum(row.output_tokens for row in rows) / max(len(rows), 1)
    return AnswerTimes.of(f"{length} tokens" if length else "all prompts", rows, length, tokens)


def _growth_ratio(run: LoadRun, whole: Sequence[Answered]) -> float | None:
    """Return the slope of the waiting time over the instants, by least squares; None where the queue keeps up."""
    if not run.is_open:
        return None
    if len(whole) < 2:
        return 1.0 if run.waiting > 2 * run.slots else None
    at_s, waited_s = (
        np.array([getattr(answered, name) for answered in whole]) / 1e9 for name in ("intended_ns", "queue_ns")
    )
    centred = at_s - at_s.mean()
    slope = float(centred @ waited_s) / max(float(centred @ centred), 1e-12)
    keeps_up = run.waiting <= 2 * run.slots and len(whole) == len(run.requests)
    return None if keeps_up or slope < _GROWING else slope
