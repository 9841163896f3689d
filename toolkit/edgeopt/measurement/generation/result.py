"""The result of a measurement of a model that writes tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from edgeopt.measurement.bench.finding import Finding
from edgeopt.measurement.bench.result import RAW, BenchResult, JudgedLimit
from edgeopt.measurement.fresh_process.cold_start import ColdStart
from edgeopt.measurement.generation.answers.times import AnswerTimes
from edgeopt.measurement.generation.budget import AnswerVerdict
from edgeopt.measurement.generation.guesses import GuessForecast
from edgeopt.measurement.generation.under_load.load_result import LoadTimes
from edgeopt.measurement.resources.cost import TokenCost, cost_per_token
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.quantile import Summary
from edgeopt.report.result import fields_as_json
from edgeopt.system.text import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthTimes(AnswerTimes):
    """Answers to prompts of one length, one at a time, and the parts of their times."""

    tokenize: Summary
    """Nanoseconds of the prompt's text, which is fed as tokens, so that it has its length; or of a sound's features."""
    detokenize: Summary
    """Making texts of all tokens of an answer."""
    prefill: Summary
    """Running the prompt, without choosing a token."""
    encode: Summary | None = None
    """Running the encoder; None: there is none."""
    rows: int = 0
    """Rows of encoder output."""
    images: int = 0
    """Pictures of each prompt, whose encoder `encode` times."""
    first: Summary | None = None
    """Rest of TTFT behind pictures, tokens and prefill: choosing a token. None: there are no pictures."""
    judged: AnswerVerdict | None = None
    """Verdict of the answers on the budget; None: no budget was set."""

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Prompt tokens over the median of their time."""
        p50 = self.prefill.p50.value_ns
        return None if not p50 or not self.prompt_tokens else self.prompt_tokens / p50 * 1e9

    @property
    def decode_tokens_per_s(self) -> float | None:
        """One over the median TPOT, at this depth of the context."""
        p50 = self.tpot.p50.value_ns
        return None if not p50 else 1e9 / p50


@dataclass(frozen=True, slots=True)
class GenerationResult(BenchResult):
    """A language model on this machine."""

    kind: ClassVar[str] = "generation"
    model: str
    file: str
    size_bytes: int
    parameters_told: str
    """The recipe's description, or the type of an encoder with a decoder."""
    threads: int
    load_ms: float
    """Opening the model once, from the page cache or the disk."""
    first_ttft_ms: float
    """TTFT of the very first answer, to a prompt of the first length: with the load, a cold start in a running
    process."""
    token_bytes: int
    """Token bytes of the cache; of an encoder with a decoder of an answer's."""
    context: int
    lengths: tuple[LengthTimes, ...]
    loads: tuple[LoadTimes, ...] = ()
    """Times under the load, one entry for each number of slots."""
    heard_bytes: int = 0
    """Bytes of the cache for one row of encoder output; 0: there is no encoder."""
    state_bytes: int = 0
    """Bytes of the states beside keys and values, for one text of any length; 0: there are none."""
    forecast: GuessForecast | None = None
    """Forecast of guesses; None where none were asked for."""
    price_per_s: float | None = None
    """Price a second of the machine, in the currency of the prices."""
    cold: ColdStart | None = None
    """Starts of fresh processes up to the second token of a prompt of the first length."""
    samples: Samples | None = None
    """Answers, one at a time; None: they were not kept."""
    findings: tuple[Finding, ...] = ()
    """Complaints that are recognised from the figures."""

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.model

    @property
    def cpu(self) -> str:
        """The processor."""
        return self.environment.cpu

    @property
    def cache_bytes(self) -> int:
        """The cache of a text that fills the context, in bytes."""
        return self.token_bytes * self.context

    def cost_of(self, length: LengthTimes) -> TokenCost | None:
        """Return what the tokens of answers to prompts of one length cost, one answer at a time; None: no price."""
        ttft, tpot = length.ttft.p50.value_ns, length.tpot.p50.value_ns
        if self.price_per_s is None or not ttft or tpot is None:
            return None
        whole_s = (ttft + tpot * (length.output_tokens - 1)) / 1e9
        return cost_per_token(self.price_per_s, length.output_tokens / whole_s)

    @property
    def best_slots(self) -> LoadTimes | None:
        """The run under load that gave the most: good answers where there is a budget, else tokens."""
        return max(
            self.loads, key=lambda load: (load.goodput.per_s if load.goodput else 0.0, load.tokens_per_s), default=None
        )

    @property
    def limited(self) -> tuple[tuple[str, AnswerVerdict], ...]:
        """Answers that were held against the budget: one at a time, and those under a load."""
        alone = ((f"prompts of {length.name}", length.judged) for length in self.lengths)
        loaded = ((f"{load.load} in {plural(load.slots, 'slot')}", load.judged) for load in self.loads)
        return tuple((name, verdict) for name, verdict in (*alone, *loaded) if verdict)

    @property
    def decisive(self) -> tuple[tuple[str, AnswerVerdict], ...]:
        """The answers on which the verdict rests: under a load those of the best slots."""
        best = self.best_slots
        return tuple(pair for pair in self.limited if best is None or pair[1] is best.judged)

    @property
    def judged(self) -> tuple[JudgedLimit, ...]:
        """The verdicts that decide, as every kind tells them."""
        return tuple(
            JudgedLimit(name, verdict.verdict, "; ".join(map(str, verdict.limits))) for name, verdict in self.decisive
        )

    @property
    def source(self) -> str:
        """Lengths of prompts and answers."""
        prompts = ", ".join(length.name for length in self.lengths)
        return f"prompts of {prompts}, answers of {self.lengths[0].output_tokens:g} tokens" if self.lengths else ""

    def raw_files(self) -> Mapping[str, Samples | str]:
        """Return the answers that came one at a time."""
        return {RAW: self.samples} if self.samples else {}

    def own_figures(self) -> dict[str, Any]:
        """Return plain values."""
        samples = self.samples.to_json() if self.samples else None
        more = {"cpu": self.cpu, "source": self.source, "samples": samples}
        cold = {"cold": self.cold.to_json()} if self.cold else {}
        return fields_as_json(replace(self, cold=None, samples=None)) | more | cold
