"""What a measurement of a language model found.

The clock starts when an answer is asked for. TTFT: until its first token is there. TPOT: (last token - first token) /
(tokens - 1), one number an answer (AIPerf calls its mean ITL). ITL: the single gaps between tokens.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from edgeopt.errors import Note
from edgeopt.measurement.statistics.quantile import Summary


@dataclass(frozen=True, slots=True)
class LengthTimes:
    """Answers to prompts of one length."""

    prompt_tokens: int
    output_tokens: int
    answers: int
    ttft: Summary
    tpot: Summary
    itl: Summary
    tokenize: Summary
    """Of the prompt's text; the prompt itself is fed as tokens, so that it has its length."""
    prefill: Summary
    """Running the prompt, without choosing a token."""

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Prompt tokens over the median of their time."""
        p50 = self.prefill.p50.value_ns
        return None if not p50 else self.prompt_tokens / p50 * 1e9

    @property
    def decode_tokens_per_s(self) -> float | None:
        """One over the median TPOT, at this depth of the context."""
        p50 = self.tpot.p50.value_ns
        return None if not p50 else 1e9 / p50


@dataclass(frozen=True, slots=True)
class GenerationBench:
    """A language model on this machine."""

    model: str
    file: str
    size_bytes: int
    parameters_told: str
    """The recipe's description."""
    threads: int
    cpu: str
    load_ms: float
    """Opening the model once, from the page cache or the disk."""
    token_bytes: int
    """Of the cache."""
    context: int
    lengths: tuple[LengthTimes, ...]
    seconds: float
    notes: tuple[Note, ...] = ()

    @property
    def cache_bytes(self) -> int:
        """Of a text that fills the context."""
        return self.token_bytes * self.context

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)
