"""The times that clients of a server measured: alone, and all at once.

The clock starts when a request should be sent. Network: a round trip for the list of models on an open connection.
Queue: as the server says it (`Server-Timing: queue;dur=`). TTFT, TPOT and ITL as of a model on this machine
(`measurement/generation/answers/times.py`), with the network in TTFT.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from edgeopt.measurement.bench.finding import Finding
from edgeopt.measurement.bench.result import RAW, BenchResult, JudgedLimit
from edgeopt.measurement.endpoint.client import Exchange
from edgeopt.measurement.generation.answers.times import AnswerTimes
from edgeopt.measurement.resources.cost import TokenCost
from edgeopt.measurement.samples import Samples
from edgeopt.report.result import fields_as_json

MANY_PIECES = 8
"""Enough pieces: of fewer no one can tell whether they came one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointTimes(AnswerTimes):
    """Answers of one kind, as a client has them; tokens are counted by the server, and queues told by it."""

    problems: Mapping[str, int]
    """Requests without a whole answer, by reason: the first of those that differ in numbers only."""
    server_ttft_ms: float | None
    """Median of what the server says; None: it does not."""
    server_tpot_ms: float | None
    """The same."""
    burst_ratio: float | None
    """Median of the share of an answer that one read brought; None: of answers too short to tell."""
    seconds: float
    good: int
    """Answers within the limits of TTFT and TPOT."""

    @property
    def asked(self) -> int:
        """Requests that were sent."""
        return self.answers + sum(self.problems.values())

    @property
    def lost_ratio(self) -> float:
        """Share of the requests without a whole answer."""
        return (self.asked - self.answers) / max(self.asked, 1)

    @property
    def tokens_per_s(self) -> float:
        """The tokens of whole answers a second."""
        return self.answers * self.output_tokens / self.seconds if self.seconds else 0.0

    @property
    def good_per_s(self) -> float:
        """Goodput: answers a second that keep both limits."""
        return self.good / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class EndpointResult(BenchResult):
    """A server of a language model, from its client's side."""

    kind: ClassVar[str] = "endpoint"
    over_network: ClassVar[bool] = True
    address: str
    model: str
    connect_ms: float
    """Median of fresh connections."""
    round_trip_ms: float
    """Median."""
    tiny: EndpointTimes
    """Shortest prompt, one at a time."""
    alone: tuple[EndpointTimes, ...]
    """Times of requests sent singly, by length of the prompt."""
    load: str
    """How requests came together; empty: they did not."""
    loaded: EndpointTimes | None
    limits_ms: Mapping[str, float]
    """Limits of a good answer, by `TTFT` and `TPOT`."""
    output_tokens: int
    samples: Samples | None = None
    """Whole answers, one at a time, to every length of prompts; None: they were not kept."""
    turns: tuple[EndpointTimes, ...] = ()
    """Turns of conversations, the first one first; those that no conversation reached are left out."""
    findings: tuple[Finding, ...] = ()
    cost: TokenCost | None = None

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.model

    @property
    def judged(self) -> tuple[JudgedLimit, ...]:
        """Nothing: the limits of a good answer count goodput, and gate nothing."""
        return ()

    def own_figures(self) -> dict[str, Any]:
        """Return plain values."""
        samples = self.samples.to_json() if self.samples else None
        return fields_as_json(replace(self, samples=None)) | {"source": self.source, "samples": samples}

    @property
    def source(self) -> str:
        """Lengths of prompts and answers."""
        return f"{', '.join(times.name for times in self.alone)}, answers of {self.output_tokens} tokens"

    def raw_files(self) -> Mapping[str, Samples | str]:
        """Return the answers that came one at a time."""
        return {RAW: self.samples} if self.samples else {}


def times_of(name: str, exchanges: Sequence[Exchange], seconds: float, limits_ms: Mapping[str, float]) -> EndpointTimes:
    """Derive the figures of requests, in their order.

    Args:
        name: What was asked, for a reader: `prompt 128`.
        exchanges: What became of each.
        seconds: In which they were asked and answered.
        limits_ms: Of a good answer.
    """
    whole = [exchange for exchange in exchanges if exchange.is_whole]
    counted = [exchange.prompt_tokens for exchange in whole if exchange.prompt_tokens]
    written = [exchange.output_tokens for exchange in whole]
    told_ttft = [exchange.server_ttft_ms for exchange in whole if exchange.server_ttft_ms is not None]
    told_tpot = [exchange.server_tpot_ms for exchange in whole if exchange.server_tpot_ms is not None]
    bursts = [exchange.burst_ratio for exchange in whole if len(exchange.pieces_ns) >= MANY_PIECES]

    def is_good(exchange: Exchange) -> bool:
        result = {"TTFT": exchange.ttft_ns, "TPOT": exchange.tpot_ns}
        return all(result[part] <= limit * 1e6 for part, limit in limits_ms.items())

    return EndpointTimes.of(
        name,
        whole,
        _mean(counted),
        _mean(written),
        problems=count_problems([exchange.problem for exchange in exchanges if exchange.problem]),
        server_ttft_ms=float(np.median(told_ttft)) if told_ttft else None,
        server_tpot_ms=float(np.median(told_tpot)) if told_tpot else None,
        burst_ratio=float(np.median(bursts)) if bursts else None,
        seconds=seconds,
        good=sum(map(is_good, whole)),
    )


def _mean(counts: Sequence[int]) -> float:
    return float(np.mean(counts)) if counts else 0.0


def count_problems(problems: Sequence[str]) -> dict[str, int]:
    """Return how often each came; what differs in numbers only, the length of a prompt for example, is one."""
    parts = [problem.partition(":") for problem in problems]
    alike = [status + re.sub(r"\d+", "#", text) for status, _, text in parts]
    first = dict(reversed(list(zip(alike, problems, strict=True))))
    return {first[kind]: count for kind, count in Counter(alike).items()}
