"""Answers of a fixed length to one kind of prompt after the other, timed until there are enough of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

import numpy as np

from edgeopt.measurement.generation.budget import AnswerVerdict, judge_answers
from edgeopt.measurement.generation.options import GenerationOptions
from edgeopt.measurement.generation.result import LengthTimes
from edgeopt.measurement.generation.sides.turns import Prompt, Writes
from edgeopt.measurement.statistics.quantile import Summary, summarize
from edgeopt.runtime.decoding.generation import Account, AnswerOptions
from edgeopt.system.amounts import Tenths

LEAST_ANSWERS = 6
"""Least answers of each length: fewer give a median no interval."""
LONGER = 12
"""Times the seconds asked for, while a budget is not decided."""
_WARM_UP = 1
"""Answers of each length that are not counted."""


@dataclass(slots=True)
class AnswerSeries:
    """Answers to prompts of one length, or to one sound; times in nanoseconds."""

    name: str
    """Prompt in words: `128 tokens`, `30 s of sound`."""
    prompt_tokens: int
    """0: it is no text."""
    next_prompt: Callable[[], tuple[Prompt, int | None]]
    """Returns the next prompt, and what making its tokens of a text took; None: the answer's account tells."""
    rows: int = 0
    """Rows of encoder output; 0: there is no encoder."""
    images: int = 0
    """Pictures of each prompt."""
    ttft: list[int] = field(default_factory=list)
    tpot: list[int] = field(default_factory=list)
    itl: list[int] = field(default_factory=list)
    tokenize: list[int] = field(default_factory=list)
    encode: list[int] = field(default_factory=list)
    prefill: list[int] = field(default_factory=list)
    detokenize: list[int] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)

    def add(self, account: Account, tokenize_ns: int | None) -> None:
        """Keep the times of an answer."""
        times = account.token_at_ns
        self.ttft.append(times[0])
        self.prefill.append(account.prefill_ns)
        self.encode.append(account.encode_ns)
        self.tokenize.append(account.tokenize_ns if tokenize_ns is None else tokenize_ns)
        self.detokenize.append(account.detokenize_ns)
        self.answer.append(times[-1])
        self.rows, self.images = account.heard_rows or account.image_rows, account.images
        self.first.append(max(times[0] - account.encode_ns - account.tokenize_ns - account.prefill_ns, 0))
        if len(times) > 1:
            self.tpot.append((times[-1] - times[0]) // (len(times) - 1))
            self.itl += np.diff(times).tolist()

    def judged(self, options: GenerationOptions) -> AnswerVerdict | None:
        """Return what they prove about the budget; None without one, and where answers under a load are judged."""
        times = {"TTFT": self.ttft, "TPOT": self.tpot}
        budget = None if options.whole_load else options.budget
        return judge_answers(budget, times, options.max_miss_ratio) if budget else None

    def summary(self, options: GenerationOptions) -> LengthTimes:
        """Return the figures."""
        return LengthTimes(
            name=self.name,
            prompt_tokens=self.prompt_tokens,
            output_tokens=options.output_tokens,
            answers=len(self.ttft),
            ttft=_summary(self.ttft),
            tpot=_summary(self.tpot),
            itl=_summary(self.itl),
            tokenize=_summary(self.tokenize),
            detokenize=_summary(self.detokenize),
            prefill=_summary(self.prefill),
            answer=_summary(self.answer),
            encode=_summary(self.encode) if self.rows else None,
            rows=self.rows,
            images=self.images,
            first=_summary(self.first) if self.images else None,
            judged=self.judged(options),
        )


def _summary(values: Sequence[int]) -> Summary:
    return summarize(np.array(values, np.int64))


def measure_answers(
    opened: Writes,
    series: Sequence[AnswerSeries],
    asked: AnswerOptions,
    options: GenerationOptions,
    tell: Callable[[str, int, int], None],
) -> float:
    """Ask for one answer of each series after the other, until there are enough of each.

    Args:
        opened: Answers; no cache of an earlier answer is reused.
        series: Is filled.
        asked: Of each answer.
        options: How long, and which budget is decided.
        tell: Hears what is done, how far, of how much.

    Returns:
        TTFT of the very first answer in milliseconds.
    """
    first_ttft_ms, rounds, began_s, least_s = 0.0, -_WARM_UP, monotonic(), 0.0
    while rounds < LEAST_ANSWERS or _goes_on(series, options, monotonic() - began_s):
        for each in series:
            opened.forget()
            prompt, tokenize_ns = each.next_prompt()
            with opened.generate(prompt, asked) as answer:
                for _ in answer:
                    pass
            first_ttft_ms = first_ttft_ms or answer.account.token_at_ns[0] / 1e6
            if rounds >= 0:
                each.add(answer.account, tokenize_ns)
        if rounds == -1:
            least_s, began_s = LEAST_ANSWERS * (monotonic() - began_s), monotonic()
        rounds += 1
        tell(*progress_of(options, monotonic() - began_s, least_s))
    return first_ttft_ms


def _goes_on(series: Sequence[AnswerSeries], options: GenerationOptions, took_s: float) -> bool:
    """Whether more answers are wanted: for the time asked for, or to decide a budget."""
    if took_s < options.seconds or options.budget is None or took_s >= LONGER * options.seconds:
        return took_s < options.seconds
    verdicts = (each.judged(options) for each in series)
    return any(verdict is not None and not verdict.is_decided for verdict in verdicts)


def progress_of(options: GenerationOptions, took_s: float, least_s: float) -> tuple[str, int, int]:
    """Return what is done, how far, of how much.

    Args:
        options: What is measured.
        took_s: So far.
        least_s: That the least number of answers takes, as the first of each length did.
    """
    title, planned_s = "measure answers", options.seconds
    if least_s > planned_s:
        text = f"{LEAST_ANSWERS} of each length take about {least_s:.0f} s, {options.seconds:g} s were asked for"
        title, planned_s = f"measure answers ({text})", least_s
    elif took_s > planned_s:
        planned_s *= LONGER
    whole = Tenths(10 * planned_s)
    return title, min(int(10 * took_s), whole), whole
