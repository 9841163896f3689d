"""Answers of a fixed length to one kind of prompt after the other, timed until there are enough of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

import numpy as np

from edgeopt.measurement.generation.answers.answered import Answered
from edgeopt.measurement.generation.answers.times import TimedAnswer, summary_of
from edgeopt.measurement.generation.budget import AnswerVerdict, judge_answers
from edgeopt.measurement.generation.options import GenerationOptions
from edgeopt.measurement.generation.result import LengthTimes
from edgeopt.measurement.generation.sides.turns import PARTS, Prompt, Writes
from edgeopt.measurement.samples import Samples
from edgeopt.runtime.decoding.generation import Account, AnswerOptions
from edgeopt.system.amounts import Tenths

LEAST_ANSWERS = 6
"""Least answers of each length: fewer give a median no interval."""
LONGER = 12
"""Times the seconds asked for, while a budget is not decided."""
_MOST_BLOCKS, _BLOCK = 20, 2
"""Blocks of a run at most, and rounds of each at least: of six rounds there are three blocks, the fewest that have an
interval."""
_WARM_UP = 1
"""Answers of each length that are not counted."""


@dataclass(slots=True)
class AnswerSeries:
    """Answers to prompts of one length, or to one sound."""

    name: str
    """Prompt in words: `128 tokens`, `30 s of sound`."""
    prompt_tokens: int
    """0: it is no text."""
    next_prompt: Callable[[], tuple[Prompt, int | None]]
    """Returns the next prompt, and what making its tokens of a text took; None: the answer's account tells."""
    answers: list[Answered] = field(default_factory=list)
    tokenize: list[int] = field(default_factory=list)
    """Nanoseconds of each prompt's text, or of a sound's features."""

    def add(self, account: Account, tokenize_ns: int | None) -> None:
        """Keep the times of an answer."""
        self.answers.append(Answered(self.prompt_tokens, 0, 0, account))
        self.tokenize.append(account.tokenize_ns if tokenize_ns is None else tokenize_ns)

    def judged(self, options: GenerationOptions) -> AnswerVerdict | None:
        """Return what they prove about the budget; None without one, and where answers under a load are judged."""
        if options.whole_load or options.budget is None:
            return None
        times = {
            "TTFT": [answer.ttft_ns for answer in self.answers],
            "TPOT": [answer.tpot_ns for answer in self.answers if answer.output_tokens > 1],
        }
        return judge_answers(options.budget, times, options.max_miss_ratio)

    def summary(self, options: GenerationOptions) -> LengthTimes:
        """Return the figures."""
        accounts = [answer.account for answer in self.answers]
        rows, images = accounts[-1].heard_rows or accounts[-1].image_rows, accounts[-1].images
        before = ("encode_ns", "tokenize_ns", "prefill_ns")
        choosing = [max(each.token_at_ns[0] - sum(getattr(each, part) for part in before), 0) for each in accounts]
        return LengthTimes.of(
            self.name,
            self.answers,
            self.prompt_tokens,
            options.output_tokens,
            tokenize=summary_of(self.tokenize),
            detokenize=summary_of([account.detokenize_ns for account in accounts]),
            prefill=summary_of([account.prefill_ns for account in accounts]),
            encode=summary_of([account.encode_ns for account in accounts]) if rows else None,
            rows=rows,
            images=images,
            first=summary_of(choosing) if images else None,
            judged=self.judged(options),
        )


def samples_of_series(series: Sequence[AnswerSeries], model: str) -> Samples:
    """Return answers as raw samples in the order in which they were written; each kind of prompt is an input."""
    rows = [answer for answers in zip(*(each.answers for each in series), strict=True) for answer in answers]
    return samples_of_answers(rows, len(series), model)


def samples_of_answers(answers: Sequence[TimedAnswer], kinds: int, model: str) -> Samples:
    """Return whole answers as raw samples, in blocks of rounds that a later comparison takes medians of.

    Args:
        answers: In the order in which they were written, one to each kind of prompt after the other.
        kinds: How many kinds of prompts there are.
        model: That wrote them.
    """
    order = np.arange(len(answers), dtype=np.int64)
    rounds = max(len(answers) // max(kinds, 1), 1)
    blocks = min(_MOST_BLOCKS, max(rounds // _BLOCK, 1))
    return Samples(
        stages=PARTS[1:],
        times_ns=np.array([(answer.ttft_ns, answer.tpot_ns) for answer in answers], np.int64).reshape(-1, 2),
        frame_ns=np.array([answer.end_ns for answer in answers], np.int64),
        warmup=np.zeros(len(answers), np.bool_),
        variant=model,
        whole=PARTS[0],
        input_id=order % max(kinds, 1),
        round_id=order // max(kinds, 1) * blocks // rounds,
    )


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
