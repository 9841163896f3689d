"""Candidates measured together, frame by frame in turns, stage by stage. It makes and chooses none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from edgeopt.benchmarking.blocks import MIN_ROUNDS
from edgeopt.benchmarking.budget import judge_budget
from edgeopt.benchmarking.comparison import Ratio, compare_stages
from edgeopt.benchmarking.interleaving import run_interleaved
from edgeopt.benchmarking.quantile import Summary
from edgeopt.benchmarking.samples import Samples
from edgeopt.candidate import Latency, SpeedRatio, StageTime
from edgeopt.executors import Session
from edgeopt.frames import Frames
from edgeopt.tasks import Task
from edgeopt.tensors import Sample

FRAMES_FOR_P99 = 400
"""The two-sided 95 % interval of a p99 needs 368."""
MOST_SECONDS = 60.0
_BLOCK_SECONDS = 0.25
"""Long against a cache refill, short against a thermal drift."""
_PICTURES = 32


@dataclass(frozen=True)
class Measurement:
    """Raw samples of each candidate, and the ratio of its execution to others'."""

    samples: Mapping[str, Samples]
    ratios: Mapping[str, Mapping[str, Ratio]]
    """against -> candidate -> ratio of the stage `execute`."""


def measure(
    variants: Mapping[str, tuple[Task, Session]],
    frames: Frames,
    *,
    against: Sequence[str],
    seconds: float = MOST_SECONDS,
) -> Measurement:
    """Run all variants in turns until each has enough frames for a p99, or the time is up.

    Args:
        variants: Task and session by name, two or more.
        frames: Where the pictures come from; reading one is the stage `load`.
        against: Variants that the others are compared with.
        seconds: At most so long, apart from five rounds that always run.
    """
    chosen = frames.spread(_PICTURES)
    readers: list[Callable[[], Sample]] = [partial(chosen.read, i) for i in range(len(chosen))]
    frame_s = sum(_seconds_a_frame(task, session, readers[0]) for task, session in variants.values())
    block = frames_a_block(frame_s, len(variants), seconds)
    samples = run_interleaved(readers, variants, seconds=seconds, enough=FRAMES_FOR_P99, block=block)
    ratios = {one: _execute_ratios(samples, one) for one in dict.fromkeys(against)}
    return Measurement(samples, ratios)


def frames_a_block(frame_s: float, variants: int, seconds: float) -> int:
    """Return how many frames a variant runs in a row, 3 to 25: blocks that always run fit into the time if they can.

    Args:
        frame_s: One frame of every variant.
        variants: How many.
        seconds: To measure.
    """
    always = 2 * MIN_ROUNDS + 1  # the first block of each is warm-up
    return max(3, min(25, int(min(_BLOCK_SECONDS * variants, seconds / always) / max(frame_s, 1e-6))))


def _seconds_a_frame(task: Task, session: Session, read: Callable[[], Sample]) -> float:
    def once() -> float:
        started = perf_counter()
        inputs, geometry = task.preprocess(read())
        task.postprocess(session.run(inputs), geometry)
        return perf_counter() - started

    return min(once() for _ in range(3))


def _execute_ratios(samples: Mapping[str, Samples], against: str) -> Mapping[str, Ratio]:
    compared = compare_stages(samples, baseline=against)
    return {name: ratios["execute"] for name, ratios in compared.items()}


def speed_of(ratio: Ratio, against: str) -> SpeedRatio:
    """Return a ratio of times as a speed: above 1 is faster."""
    return SpeedRatio(against, 1 / ratio.value, 1 / ratio.high, 1 / ratio.low, ratio.verdict.upper())


def latency_of(samples: Samples, budget_ms: float, max_miss_ratio: float = 0.01) -> Latency:
    """Return the stage times and the verdict against a budget.

    Args:
        samples: Of one candidate.
        budget_ms: What a frame may take.
        max_miss_ratio: Share of frames that may take longer.
    """
    summary = samples.summary()
    result = judge_budget(samples.steady().frame_ns, budget_ms, max_miss_ratio)
    return Latency(
        frames=summary["frame"].n,
        frame=_stage_time(summary["frame"]),
        stages={name: _stage_time(summary[name]) for name in samples.stages},
        verdict=result.verdict.upper(),
        detail=str(result).split(": ", 1)[1],
    )


def _stage_time(summary: Summary) -> StageTime:
    mean = None if summary.mean_ns is None else summary.mean_ns / 1e6
    return StageTime(mean, summary.p50.value_ms, summary.p99.value_ms)
