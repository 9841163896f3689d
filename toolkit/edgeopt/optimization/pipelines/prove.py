"""A combination measured as a whole against the original: whole frames in turns, then in fresh processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from edgeopt.measurement.accuracy.evaluate import Progress
from edgeopt.measurement.fresh_process.turns import feed_of, run_fresh
from edgeopt.measurement.pipelines.marked import RunnablePipeline
from edgeopt.measurement.turns.interleaved import Pace, Turns
from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.candidates.measure import CONFIRM_SECONDS, MOST_SECONDS, Bench, Decision, measure_and_choose
from edgeopt.optimization.choice.selection import Wish
from edgeopt.optimization.pipelines.judge import Judged
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.runtime.pipelines.bundle import FILE

JOINT = "joint"
"""The name of the combination that was chosen together."""


@dataclass(frozen=True)
class Proving:
    """The frames and options that combinations are measured with."""

    frames: Frames
    budget_ms: float
    threads: int
    code: Path | None
    wish: Wish
    tell: Progress | None
    seconds: float | None = None
    """None: as long as `optimize` takes for a model."""
    turns_s: float = math.inf
    """Most seconds of the turns: what a time limit leaves behind them is for fresh processes."""
    ends_s: float = math.inf
    """Instant on the monotonic clock at which fresh processes end; two rounds of the turns are run all the same."""
    time_limit_s: float | None = None
    """Time limit of the whole command."""
    limit_with: Callable[[float], float] | None = None
    """Returns the time limit that would have left so many seconds more; None: there is none."""


def prove(candidates: Sequence[Candidate], folders: Mapping[str, Path], proving: Proving) -> Decision:
    """Measure the original and a combination, and choose by the rule that holds for every candidate.

    Args:
        candidates: The original first, judged as a whole.
        folders: The bundle of each, by name.
        proving: What they are measured on.
    """
    code = proving.code.resolve() if proving.code else None
    runnables = {name: RunnablePipeline(folder.resolve(), code) for name, folder in folders.items()}
    feed = feed_of(proving.frames)

    def once(names: Sequence[str], pace: Pace, seed: int) -> Turns:
        chosen = {name: runnables[name] for name in (BASELINE, *names)}
        return run_fresh(chosen, feed, pace, workers=proving.threads, seed=seed)

    bench = Bench(
        openers={name: runnable.open for name, runnable in runnables.items()},
        frames=proving.frames,
        budget_ms=proving.budget_ms,
        workers=proving.threads,
        fresh=once,
        seconds=min(MOST_SECONDS, proving.seconds or MOST_SECONDS),
        confirm_seconds=min(CONFIRM_SECONDS, proving.seconds or CONFIRM_SECONDS),
        tell=proving.tell,
        time_limit_s=proving.time_limit_s,
        limit_with=proving.limit_with,
        until_s=proving.ends_s,
        turns_until_s=monotonic() + proving.turns_s,
        is_measured_late=True,
    )
    return measure_and_choose(candidates, bench, proving.wish)


def as_candidate(name: str, folder: Path, root: Path, judged: Judged) -> Candidate:
    """Return a whole pipeline as a candidate: judged by the same rule as any model.

    Args:
        name: `baseline` or `joint`.
        folder: Of its bundle.
        root: The output folder.
        judged: How accurate the whole is.
    """
    is_first = name == BASELINE
    return Candidate(
        name=name,
        parent="" if is_first else BASELINE,
        steps=(),
        precision="",
        file=(folder / FILE).relative_to(root).as_posix(),
        size_bytes=sum(path.stat().st_size for path in folder.glob("*/model.*")),
        score=judged.accuracy,
        agreement=None if is_first else judged.agreement,
        judgement=None if is_first else judged.judgement,
    )
