"""Does the choice of `edgeopt optimize` tell the truth? Scripted machines of known noise, through the real functions.

Measuring in turns, the list of promising candidates, fresh processes, the proof and the choice are the product's own.
Only time is scripted (executor `null`): the machine warms up by 8 %, is slow in bursts, and lays each session of each
process elsewhere in memory, which moves it by up to 20 % for as long as that process lives. Candidates as fast as the
original must not be called faster; one that is truly 1.10x as fast should be found.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgeopt.executors import SessionOptions
from edgeopt.executors.null import Null, Script
from edgeopt.graph.tensors import Frame, Tensors, TensorSpec
from edgeopt.measurement.accuracy.judgement import judge_agreement
from edgeopt.measurement.clock import ScriptedClock
from edgeopt.measurement.load.workers import Pipeline
from edgeopt.measurement.resources.anchor import AnchorTimes
from edgeopt.measurement.resources.readings import CounterReading
from edgeopt.measurement.turns.interleaved import Pace, Turns, TurnsMachine, take_turns
from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.candidates.measure import Bench, Decision, measure_and_choose
from edgeopt.optimization.choice.selection import Wish
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.tasks import FrameTask

EXECUTE_NS = 25_000_000
_LOAD_NS = 1_000_000
_START_NS = 700_000_000
"""A fresh process up to its first session."""
_WARMING, _WARMING_NS = 0.08, 60e9
_MEMORY = 0.20
"""Largest share of time that a session's place in memory costs."""
_SLOW_SHARE, _SLOW_FRAMES, _SLOWNESS = 0.02, 20, 2.5
"""Bursts of a neighbour: share of frames, mean length, how much slower."""
_JITTER = 0.03
AGREES = judge_agreement(1.0, np.ones(400), 0.9)
"""Only time differs here."""
SCRIPT = Script((TensorSpec("x", "uint8", (1,)),), ({"y": np.zeros(1)},), execute_ns=(EXECUTE_NS,))


class NoTask(FrameTask):
    """A task without work: the clock passes in reading and in execution."""

    def preprocess(self, frame: Frame) -> tuple[Tensors, Any]:
        """Take the frame as it is."""
        return {"x": frame}, None

    def postprocess(self, outputs: Tensors, geometry: Any) -> list[Any]:
        """Find nothing."""
        return []

    def count(self, answer: list[Any]) -> int:
        """Return 0."""
        return len(answer)


@dataclass
class NoisyMachine:
    """A scripted machine; `is_slow` is the state of its neighbour."""

    rng: np.random.Generator
    clock: ScriptedClock
    is_slow: bool = False

    def pass_time(self, factor: float, duration_ns: int) -> None:
        """Let scripted time pass, with everything that a machine does to it."""
        ends, begins = 1 / _SLOW_FRAMES, _SLOW_SHARE / _SLOW_FRAMES
        self.is_slow ^= bool(self.rng.random() < (ends if self.is_slow else begins))
        warm = 1 + _WARMING * min(1.0, self.clock.now_ns / _WARMING_NS)
        noise = float(np.exp(_JITTER * self.rng.standard_normal())) * (_SLOWNESS if self.is_slow else 1.0)
        self.clock.advance(int(duration_ns * factor * warm * noise))

    def process(self, speeds: dict[str, float]) -> dict[str, Callable[[], Pipeline]]:
        """Start a process: each session that it opens has a place in memory of its own, and keeps it."""
        self.clock.advance(_START_NS)
        places = {name: [1 + _MEMORY * self.rng.random() for _ in range(2)] for name in speeds}
        opened = dict.fromkeys(speeds, 0)

        def open_one(name: str) -> Pipeline:
            place = places[name][opened[name] % 2 if name == BASELINE else 0]  # the original is opened twice
            opened[name] += 1
            wait = partial(self.pass_time, place / speeds[name])
            return NoTask(), Null(wait).open(SCRIPT.to_bytes(), SessionOptions())  # type: ignore[return-value]

        return {name: partial(open_one, name) for name in speeds}

    def machine(self) -> TurnsMachine:
        """Return the clock and sensors that see nothing wrong."""
        return TurnsMachine(self.clock, lambda: CounterReading(self.clock(), self.clock()), lambda: AnchorTimes((1, 1)))


def decide(seed: int, speeds: Sequence[float]) -> Decision:
    """Return what `optimize` decides on candidates whose true speeds are given, on a machine of that seed."""
    rng = np.random.default_rng(seed)
    noisy = NoisyMachine(rng, ScriptedClock())
    true = {BASELINE: 1.0} | {f"candidate-{i + 1}": speed for i, speed in enumerate(speeds)}
    candidates = [
        Candidate(
            name,
            BASELINE if i else "",
            (name,) if i else (),
            "fp32",
            f"{name}.onnx",
            1000,
            agreement=1.0,
            judgement=AGREES,
        )
        for i, name in enumerate(true)
    ]

    def read(index: int) -> Frame:
        noisy.pass_time(1.0, _LOAD_NS)
        return np.zeros(1, np.uint8)

    frames = Frames(tuple(map(str, range(8))), read, Path("scripted"))

    def fresh(names: Sequence[str], pace: Pace, order: int) -> Turns:
        openers = noisy.process({name: true[name] for name in (BASELINE, *names)})
        return take_turns(openers, frames, pace, seed=order, machine=noisy.machine())

    bench = Bench(noisy.process(true), frames, 100.0, 1, fresh, 5.0, machine=noisy.machine(), seed=seed)
    return measure_and_choose(candidates, bench, Wish(max_drop=0.01))


def called_faster(decision: Decision) -> list[str]:
    """Return the candidates that are called faster, or were chosen as such."""
    named = {one.name for one in decision.candidates if one.speed and one.speed.verdict == "FASTER"}
    return sorted(named | ({decision.chosen.name} - {BASELINE}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    given = parser.parse_args()
    for title, speeds in (
        ("three candidates as fast as the original", (1.0, 1.0, 1.0)),
        ("one of three is 1.05x as fast", (1.0, 1.05, 1.0)),
        ("one of three is 1.10x as fast", (1.0, 1.10, 1.0)),
        ("one of three is 1.20x as fast", (1.0, 1.20, 1.0)),
        ("one of three is slower, 0.90x", (1.0, 0.90, 1.0)),
    ):
        found = [decide(seed, speeds) for seed in range(given.runs)]
        true = {f"candidate-{i + 1}" for i, speed in enumerate(speeds) if speed > 1}
        false = sum(bool(set(called_faster(one)) - true) for one in found)
        right = sum(one.chosen.name in true for one in found)
        slower = sum(
            any(each.speed and each.speed.verdict == "SLOWER" for each in one.candidates[1:] if each.name in true)
            for one in found
        )
        print(
            f"{title}: called faster falsely in {false / given.runs:.1%}, chosen rightly in {right / given.runs:.1%},"
            f" called slower falsely in {slower / given.runs:.1%} of {given.runs} runs",
            flush=True,
        )


if __name__ == "__main__":
    main()
