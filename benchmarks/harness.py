"""The cost of the harness itself for a frame, when no stage does anything.

    python benchmarks/harness.py

Runs frames through a task and a session that do nothing, seven times, and prints the median time from the start of
one frame to the start of the next: all of it is the loop, its clock and its records. It should stay below 20 us on
an idle machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeopt.executors.null import NullSession, Script
from edgeopt.graph.tensors import Frame, Tensors, TensorSpec
from edgeopt.measurement.load.closed_loop import run_frames
from edgeopt.tasks import FrameTask

NOTHING = Script((TensorSpec("x", "float32", (1,)),), ({"y": np.ones(1, np.float32)},), execute_ns=(0,))
INPUT = {"x": np.ones(1, np.float32)}


class Nothing(FrameTask):
    """A task whose stages do nothing."""

    def preprocess(self, frame: Frame) -> tuple[Tensors, Any]:
        """Return the same tensor for every frame."""
        return INPUT, None

    def postprocess(self, outputs: Tensors, geometry: Any) -> Any:
        """Return what the session returned."""
        return outputs["y"]

    def count(self, answer: Any) -> int:
        """Return that there is one answer."""
        return 1


def microseconds_a_frame() -> float:
    """Return the median time between the starts of two frames (us)."""
    session = NullSession(NOTHING, lambda ns: None)
    frames = [np.zeros((4, 4, 3), np.uint8)]
    samples = run_frames(frames, Nothing(), session, seconds=0.5, min_frames=2000, warmup_s=0.1)
    return float(np.median(np.diff(samples.started_ns))) / 1e3


if __name__ == "__main__":
    times_us = sorted(microseconds_a_frame() for _ in range(7))
    print(f"{times_us[3]:.1f} us a frame (median of 7 runs, {times_us[0]:.1f} to {times_us[-1]:.1f})")
