"""Times of the answers to one kind of prompt, wherever they were written: alone, under a load, by a server.

The clock starts when an answer should have been asked for. TTFT: until its first token is there. TPOT: (last token -
first token) / (tokens - 1), one number an answer (AIPerf calls its mean ITL). ITL: the single gaps between tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from edgeopt.measurement.statistics.quantile import Summary, summarize


class TimedAnswer(Protocol):
    """The times of one whole answer, in nanoseconds since it should have been asked for."""

    @property
    def output_tokens(self) -> int:
        """Tokens of the answer."""
        ...

    @property
    def queue_ns(self) -> int | None:
        """How long it waited before anybody worked on it; None: nobody says."""
        ...

    @property
    def ttft_ns(self) -> int:
        """Until the first token."""
        ...

    @property
    def tpot_ns(self) -> int:
        """Mean time of each token after the first."""
        ...

    @property
    def gaps_ns(self) -> Sequence[int]:
        """Times between its tokens."""
        ...

    @property
    def end_ns(self) -> int:
        """Until the last token."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTimes:
    """The times of answers to one kind of prompt."""

    name: str
    """Prompt in words: `128 tokens`, `30 s of sound`, `under closed:4`."""
    answers: int
    prompt_tokens: float
    """Mean; 0: the prompt is no text, or nobody counted."""
    output_tokens: float
    """Mean tokens of an answer."""
    queue: Summary
    """Until somebody works on it; empty where nobody says."""
    ttft: Summary
    tpot: Summary
    itl: Summary
    answer: Summary
    """End to end: until the last token."""

    @classmethod
    def of(
        cls, name: str, answers: Sequence[TimedAnswer], prompt_tokens: float, output_tokens: float, **more: Any
    ) -> Self:
        """Derive the figures of whole answers.

        Args:
            name: Prompt in words.
            answers: In the order in which they were asked for.
            prompt_tokens: Mean; 0: the prompt is no text, or nobody counted.
            output_tokens: Mean tokens of an answer.
            more: The fields that a class adds to these.
        """
        return cls(
            name=name,
            answers=len(answers),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            queue=summary_of([answer.queue_ns for answer in answers if answer.queue_ns is not None]),
            ttft=summary_of([answer.ttft_ns for answer in answers]),
            tpot=summary_of([answer.tpot_ns for answer in answers if answer.output_tokens > 1]),
            itl=summary_of([gap for answer in answers for gap in answer.gaps_ns]),
            answer=summary_of([answer.end_ns for answer in answers]),
            **more,
        )


def summary_of(times_ns: Sequence[int]) -> Summary:
    """Return the quantiles of nanoseconds."""
    return summarize(np.array(times_ns, np.int64))
