"""Counts of requests and times of answers, for whoever watches the server."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, Final, Protocol

from edgeopt.runtime.stats import Stats
from edgeopt.runtime.stats.ring import StageRing


class TimeHistogram:
    """One series of times; any number of threads may write and read."""

    def __init__(self, name: str, told: str, limits_s: Sequence[float]) -> None:
        """Begin at zero.

        Args:
            name: Of the metric, with its unit.
            told: What it is, for a reader of the page.
            limits_s: Of its buckets, rising; one more takes what is longer.
        """
        self.name, self.told, self._limits_s = name, told, tuple(limits_s)
        self._counts, self._sum_s, self._turn = [0] * (len(self._limits_s) + 1), 0.0, Lock()

    def add(self, seconds: float) -> None:
        """Count one time."""
        with self._turn:
            self._counts[bisect_left(self._limits_s, seconds)] += 1
            self._sum_s += seconds

    def add_to(self, family: Any, name: str) -> None:
        """Add it to a `HistogramMetricFamily` of `prometheus_client.core`, as that of a model."""
        with self._turn:
            counts, sum_s = list(self._counts), self._sum_s
        sums = [sum(counts[: i + 1]) for i in range(len(counts))]
        limits = [*map(str, self._limits_s), "+Inf"]
        family.add_metric([name], list(zip(limits, sums, strict=True)), sum_s)


_TTFT_S: Final = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_TPOT_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
"""Limits of vLLM's histograms of the same names, with shorter times before them and without its longest."""


class Held(Protocol):
    """A model that may be freed while nobody asks."""

    @property
    def is_loaded(self) -> bool:
        """Whether a request finds it open."""
        ...

    @property
    def loads(self) -> int:
        """How often it was opened."""
        ...


class Tally:
    """Counts of one server; any number of threads may write and read.

    Each request is counted once, when it is over: as an answer (a frame of the ring, `served`), as lost (`dropped`
    where the client went away, `failed` where it broke) or as refused.
    """

    def __init__(self, name: str, stages: tuple[str, ...], held: Held, *, writes: bool = False) -> None:
        """Begin at zero.

        Args:
            name: Of the model.
            stages: Of an answer, in order.
            held: The model.
            writes: Whether answers are written token after token, and have TTFT and TPOT.
        """
        self.name, self.held, self.ring = name, held, StageRing(stages)
        self._ttft = TimeHistogram("edgeopt_time_to_first_token_seconds", "From a request to its first token.", _TTFT_S)
        text = "Of each answer, mean time of its tokens after the first."
        self._tpot = TimeHistogram("edgeopt_time_per_output_token_seconds", text, _TPOT_S)
        self.histograms = (self._ttft, self._tpot) if writes else ()
        self._turn = Lock()
        self._refused = Counter[int]()
        self._counts = Counter[str]()
        self.running = self.waiting = 0
        """Answers that are written now, and requests that wait for it."""

    def answer(self, stages_ns: Mapping[str, int], token_at_ns: Sequence[int] = ()) -> None:
        """Count a request that was answered.

        Args:
            stages_ns: What each stage took, by its name.
            token_at_ns: When tokens came: each, where they were written one by one.
        """
        times, whole_ns = [stages_ns[stage] for stage in self.ring.stages], sum(stages_ns.values())
        self.ring.feed()
        self.ring.record(times, whole_ns, whole_ns)
        if self.histograms and token_at_ns:
            writing_ns = token_at_ns[-1] - token_at_ns[0]
            self._ttft.add((whole_ns - writing_ns) / 1e9)
            if len(token_at_ns) > 1:
                self._tpot.add(writing_ns / (len(token_at_ns) - 1) / 1e9)

    def lose(self, *, is_gone: bool) -> None:
        """Count a request whose client went away, or that broke."""
        self.ring.feed()
        (self.ring.drop if is_gone else self.ring.fail)()

    def refuse(self, status: int) -> None:
        """Count a request that was refused."""
        with self._turn:
            self._refused[status] += 1

    def add_tokens(self, counts: Mapping[str, int]) -> None:
        """Count tokens by kind: `prompt`, `reused`, `computed`, `output`."""
        with self._turn:
            self._counts.update(counts)

    def read(self) -> tuple[Stats, Mapping[int, int], Mapping[str, int]]:
        """Return figures of answers, refusals by status and tokens by kind."""
        with self._turn:
            return self.ring.stats(), dict(self._refused), dict(self._counts)
