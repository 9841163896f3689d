"""Whether a run can be believed: TRUSTED, NOISY or INVALID, with named reasons.

NOISY keeps the figures and blocks gates; INVALID figures must not be used. A run is NOISY where a close figure would
really be wrong: its own times wander by more than such a figure, or the machine was so busy that they must. What every
machine does a little of (interruptions, a page from disk, another clock rate) is none of that: a warning that always
stands is none. `benchmarks/noise_truth.py` scores the limits on stored runs of a model against itself.

Thread migrations are not judged: no counter of them is open to every user.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EXIT_OF, EXIT_PASS
from edgeopt.measurement.resources.anchor import AnchorTimes, drift_ratio
from edgeopt.measurement.resources.readings import CounterReading
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.dependence import autocorrelation
from edgeopt.measurement.statistics.ratio import rounds_reach
from edgeopt.measurement.statistics.trend import block_spread, mode_gap, own_spread, without_inputs


class TrustLevel(StrEnum):
    """The trust that a run deserves."""

    TRUSTED = "trusted"
    NOISY = "noisy"
    INVALID = "invalid"

    @property
    def exit_code(self) -> int:
        """The exit code of a gate that must use this run."""
        return EXIT_PASS if self is TrustLevel.TRUSTED else EXIT_OF[self.upper()]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Limits of trust; a run's report prints all of them."""

    frequency_drop_ratio: float = 0.05
    steal_ratio: float = 0.005
    """Half of the frames that decide a p99 may be those that another guest held up."""
    switches_per_s: float = 200.0
    """Involuntary context switches of one worker; a timer that ticks causes some."""
    background_cores: float = 0.25
    pressure_ratio: float = 0.2
    """A program's own threads wait for each other too."""
    major_faults_per_s: float = 2.0
    """Opening a model reads some pages from disk."""
    throttled_per_s: float = 0.2
    heat_throttled: float = 0.0
    heat_margin_c: float = 0.0
    anchor_drift_ratio: float = 0.03
    block_spread_ratio: float = 0.05
    """More than that, and more than the same times show in any other order."""
    autocorrelation: float = 0.3
    """A sign only: of very even times, a drift of a thousandth is enough."""
    mode_gap: float = 5.0
    """A sign only: distance of two groups of times, in their own standard deviations; a normal distribution has 2.7."""
    rounds_reach_ratio: float = 0.02
    """The margin by which models in turns are told apart."""
    clock_step_s: float = 0.1
    send_lag_ratio: float = 0.05
    """Generator's p99 lateness over the period."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One way in which a run cannot be believed."""

    name: str
    level: TrustLevel
    measured: float
    allowed: float
    detail: str
    spans_ns: tuple[tuple[int, int], ...] = ()
    """Where it happened, if readings tell: pairs of wall-clock nanoseconds."""

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}"


OF_THE_MACHINE = ("steal", "background load", "page faults", "quota", "heat", "temperature")
"""Reasons that a program cannot bring about by its own load: cores that it fights over itself are not among them."""


@dataclass(frozen=True, slots=True)
class Trust:
    """The verdict on a run, with every threshold it was judged by."""

    level: TrustLevel
    reasons: tuple[Reason, ...]
    thresholds: Thresholds = field(default_factory=Thresholds)
    missing: tuple[str, ...] = ()
    """Sensors this machine does not have: nothing was judged by them."""
    signs: tuple[Reason, ...] = ()
    """Findings in the times that make no figure wrong."""

    def __str__(self) -> str:
        return "; ".join([self.level.upper(), *map(str, self.reasons)])

    @property
    def disturbances(self) -> tuple[str, ...]:
        """The disturbances that came from outside, each in words."""
        return tuple(reason.detail for reason in self.reasons if reason.name in OF_THE_MACHINE)

    @property
    def warning(self) -> str:
        """The warning to a reader of the figures; empty where the run is trusted."""
        return warning_of(str(self))

    def heeded(self, sentence: str) -> str:
        """Return what limits say, as it may be told of this run; where it is not trusted, nothing is decided."""
        return sentence if self.level is TrustLevel.TRUSTED or not sentence else _seen_only(sentence)

    def gate(self, exit_code: int) -> int:
        """Return the exit code of a gate: its own where the machine was quiet, otherwise what the noise says."""
        return exit_code if self.level is TrustLevel.TRUSTED else self.level.exit_code

    def lines(self) -> list[str]:
        """Return the verdict, then each threshold and each missing sensor, as text."""
        limits = [f"{name} <= {value:g}" for name, value in asdict(self.thresholds).items()]
        absent = [f"not measured here: {', '.join(self.missing)}"] if self.missing else []
        return [str(self), *limits, *absent]


_WARNINGS = {
    TrustLevel.TRUSTED: "",
    TrustLevel.NOISY: "do not trust small differences",
    TrustLevel.INVALID: "do not trust these figures",
}


def warning_of(trust: str) -> str:
    """Return what `Trust.warning` says, of the words of a stored run; every command warns by this sentence."""
    level, *reasons = trust.split("; ")
    text = _WARNINGS.get(TrustLevel(level.lower()), "") if level else ""
    names = ", ".join(reason.partition(":")[0] for reason in reasons)
    return f"{level}: {text}{f' ({names})' if names else ''}" if text else ""


def told_trust(trust: str) -> dict[str, Any] | None:
    """Return the words of a run's trust as the JSON of every result has them; None: nothing was recorded.

    They are `level` and `reasons`, each with `name` and `detail`; where a whole `Trust` is stored, it has more beside.

    Args:
        trust: `str(Trust)`.
    """
    level, *reasons = trust.split("; ")
    if level.lower() not in {*TrustLevel}:
        return None
    named = (reason.partition(": ") for reason in reasons)
    return {"level": level.lower(), "reasons": [{"name": name, "detail": detail} for name, _, detail in named]}


def read_trust(told: Any) -> str:
    """Return the words that `told_trust` made JSON of; those of an older result are words already.

    Raises:
        ValueError: If it is neither.
    """
    if told is None or isinstance(told, str):
        return told or ""
    try:
        reasons = [": ".join(filter(None, (str(each["name"]), str(each["detail"])))) for each in told["reasons"]]
        return "; ".join([TrustLevel(told["level"]).upper(), *reasons])
    except (KeyError, TypeError) as error:
        raise ValueError("trust has no level and reasons") from error


def undecided(level: str, seen: str) -> str:
    """Return what a gate says that must not use a run: its level, and what was seen."""
    return f"{level.upper()}: {_seen_only(seen)}"


def _seen_only(seen: str) -> str:
    return f"nothing is decided; seen: {seen}"


def judge_trust(
    samples: Samples,
    readings: Sequence[CounterReading],
    anchors: Sequence[AnchorTimes] = (),
    *,
    workers: int = 1,
    send_lag_ratio: float | None = None,
    thresholds: Thresholds | None = None,
) -> Trust:
    """Judge one run from what was recorded around and during it.

    Args:
        samples: The run; warm-up and lost frames are not judged.
        readings: In order of time, the first before the run and the last after it; more in between show where
            something happened. Fewer than two judge nothing.
        anchors: The fixed work, at least before and after.
        workers: Threads that may run at once.
        send_lag_ratio: The load generator's p99 lateness over its period, if there is a generator.
        thresholds: What is still trusted.
    """
    limits = thresholds or Thresholds()
    lag = send_lag_ratio or 0.0
    detail = f"the generator was late by {lag:.1%} of a period"
    reasons = [
        *_judge_times(samples, limits),
        _drift(anchors, limits, TrustLevel.NOISY),
        _over("send lag", lag, limits.send_lag_ratio, detail, TrustLevel.INVALID),
    ]
    return replace(_judge(reasons, readings, limits, workers), signs=_signs(samples, limits))


def judge_turns(
    rounds: NDArray[np.float64],
    readings: Sequence[CounterReading],
    anchors: Sequence[AnchorTimes] = (),
    *,
    workers: int = 1,
    thresholds: Thresholds | None = None,
) -> Trust:
    """Judge a run in turns by the first model against itself.

    A drift of the machine slows all models alike, so that of the fixed work is a sign only.

    Args:
        rounds: (n,) log(time of the first model / time of its second copy), one a round.
        readings: As of `judge_trust`.
        anchors: As of `judge_trust`.
        workers: As of `judge_trust`.
        thresholds: As of `judge_trust`.
    """
    limits = thresholds or Thresholds()
    reach = rounds_reach(rounds)
    detail = f"a model in turns with itself cannot be told from one {reach:.1%} faster or slower"
    reasons = [_over("rounds", reach, limits.rounds_reach_ratio, detail)]
    drift = _drift(anchors, limits, TrustLevel.TRUSTED)
    return replace(_judge(reasons, readings, limits, workers), signs=() if drift is None else (drift,))


def _drift(anchors: Sequence[AnchorTimes], limits: Thresholds, level: TrustLevel) -> Reason | None:
    drift = drift_ratio(anchors)
    return _over("anchor drift", drift, limits.anchor_drift_ratio, f"fixed work changed by {drift:.1%}", level)


def _judge(
    of_times: Sequence[Reason | None], readings: Sequence[CounterReading], limits: Thresholds, workers: int
) -> Trust:
    found = [*_judge_readings(readings, limits, workers), *of_times]
    reasons = tuple(reason for reason in found if reason is not None)
    levels = {reason.level for reason in reasons}
    level = next(
        (trust_level for trust_level in (TrustLevel.INVALID, TrustLevel.NOISY) if trust_level in levels),
        TrustLevel.TRUSTED,
    )
    return Trust(level, reasons, limits, readings[-1].missing if readings else ())


def _over(
    name: str, measured: float, allowed: float, detail: str, level: TrustLevel = TrustLevel.NOISY
) -> Reason | None:
    return Reason(name, level, measured, allowed, detail) if measured > allowed else None


Rate = Callable[[CounterReading, CounterReading], float | None]


def _judge_readings(readings: Sequence[CounterReading], limits: Thresholds, workers: int) -> list[Reason | None]:
    if len(readings) < 2:
        return []
    noisy, invalid = TrustLevel.NOISY, TrustLevel.INVALID
    checks: list[tuple[str, TrustLevel, Rate, float, str]] = [
        ("steal", noisy, _steal, limits.steal_ratio, "{:.2%} of the time went to other guests"),
        ("background load", noisy, _background, limits.background_cores, "other processes used {:.2f} cores"),
        ("pressure", noisy, _pressure, limits.pressure_ratio, "tasks waited for a core {:.1%} of the time"),
        (
            "context switches",
            noisy,
            _per_second("switches"),
            limits.switches_per_s * workers,
            "{:.0f} involuntary switches a second",
        ),
        (
            "page faults",
            noisy,
            _per_second("major_faults"),
            limits.major_faults_per_s,
            "{:.1f} pages a second were read from disk",
        ),
        (
            "quota",
            noisy,
            _per_second("throttled"),
            limits.throttled_per_s,
            "the container's quota stopped it {:.2g} times a second",
        ),
        ("heat", noisy, _count("heat_throttled"), limits.heat_throttled, "heat slowed a core {:.0f} times"),
        ("clock step", invalid, _clock_step, limits.clock_step_s, "the system clock was set by {:.2f} s"),
    ]
    reasons = [_rate_over(readings, *check) for check in checks]
    return [*reasons, _hot(readings, limits), _frequency(readings, limits)]


def _rate_over(
    readings: Sequence[CounterReading], name: str, level: TrustLevel, rate: Rate, allowed: float, detail: str
) -> Reason | None:
    measured = rate(readings[0], readings[-1])
    if measured is None or measured <= allowed:
        return None
    spans = tuple((a.wall_ns, b.wall_ns) for a, b in pairwise(readings) if (rate(a, b) or 0.0) > allowed)
    return Reason(name, level, measured, allowed, detail.format(measured), spans)


def _seconds(before: CounterReading, after: CounterReading) -> float:
    return max((after.monotonic_ns - before.monotonic_ns) / 1e9, 1e-9)


def _count(name: str) -> Rate:
    def rate(before: CounterReading, after: CounterReading) -> float | None:
        first, last = getattr(before, name), getattr(after, name)
        return None if first is None or last is None else float(last - first)

    return rate


def _per_second(name: str) -> Rate:
    def rate(before: CounterReading, after: CounterReading) -> float | None:
        count = _count(name)(before, after)
        return None if count is None else count / _seconds(before, after)

    return rate


def _steal(before: CounterReading, after: CounterReading) -> float | None:
    steal, total = _count("steal_s")(before, after), _count("total_s")(before, after)
    return None if steal is None or not total else steal / total


def _background(before: CounterReading, after: CounterReading) -> float | None:
    busy, own = _count("busy_s")(before, after), _count("own_s")(before, after)
    return None if busy is None or own is None else max(0.0, busy - own) / _seconds(before, after)


def _pressure(before: CounterReading, after: CounterReading) -> float | None:
    waited = _per_second("pressure_us")(before, after)
    return None if waited is None else waited / 1e6


def _clock_step(before: CounterReading, after: CounterReading) -> float | None:
    return abs((after.wall_ns - before.wall_ns) - (after.monotonic_ns - before.monotonic_ns)) / 1e9


def _hot(readings: Sequence[CounterReading], limits: Thresholds) -> Reason | None:
    margins = [reading.heat_margin_c for reading in readings if reading.heat_margin_c is not None]
    if not margins or min(margins) > limits.heat_margin_c:
        return None
    detail = "a sensor reached its limit"
    return Reason("temperature", TrustLevel.NOISY, min(margins), limits.heat_margin_c, detail)


def _frequency(readings: Sequence[CounterReading], limits: Thresholds) -> Reason | None:
    """Judge p10 against p90 of the fastest core: others may be idle and slow without harm."""
    fastest = [max(reading.frequency_mhz) for reading in readings if reading.frequency_mhz]
    if not fastest:
        return None
    low, high = (float(x) for x in np.quantile(fastest, [0.1, 0.9]))
    drop = 1 - low / high if high else 0.0
    return _over(
        "frequency",
        drop,
        limits.frequency_drop_ratio,
        f"the fastest core fell from {high:.0f} to {low:.0f} MHz",
    )


def _judge_times(samples: Samples, limits: Thresholds) -> list[Reason | None]:
    times = without_inputs(samples.steady().served())
    spread, allowed = block_spread(times), max(limits.block_spread_ratio, own_spread(times))
    return [_over("block spread", spread, allowed, f"medians of blocks differ by {spread:.0%}")]


def _signs(samples: Samples, limits: Thresholds) -> tuple[Reason, ...]:
    times, quiet = without_inputs(samples.steady().served()), TrustLevel.TRUSTED
    memory, gap = autocorrelation(times), mode_gap(times)
    signs = [
        _over("autocorrelation", memory, limits.autocorrelation, f"neighbours correlate by {memory:.2f}", quiet),
        _over("bimodality", gap, limits.mode_gap, f"times form two groups {gap:.1f} deviations apart", quiet),
    ]
    return tuple(sign for sign in signs if sign is not None)
