"""The watch of a run: what its frames are compared with, and how often it looks."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from edgeopt.errors import EdgeoptError
from edgeopt.running.live_options import LiveOptions
from edgeopt.runtime.drift.of_bundle import NONE
from edgeopt.runtime.drift.watch import DriftWatch
from edgeopt.runtime.pipelines.pipeline import Pipeline
from edgeopt.runtime.runtime import Runtime

_USUAL_FPS: Final = 30.0


def watch_frames(served: Runtime | Pipeline, source: str, options: LiveOptions) -> DriftWatch | None:
    """Begin to watch the frames of a run; None where nobody wishes that.

    Pictures of a folder are no stream: each is looked at.

    Raises:
        EdgeoptError: If there is nothing to compare with, or several models run.
    """
    if not options.drift and options.false_alarms != LiveOptions.false_alarms:
        raise EdgeoptError("--false-alarms is for --drift", remedy="add --drift bundle, or leave it out")
    if not options.drift and options.learn_drift is None:
        return None
    if isinstance(served, Pipeline):
        raise EdgeoptError(
            "--drift and --learn-drift watch the frames of one model, and a pipeline has several",
            remedy="run the bundle of one of them, or call watch_drift on a model of edgeopt.Pipeline.load(...)",
        )
    every = 1 if Path(source).is_dir() else None
    fps, most = options.fps or _USUAL_FPS, options.false_alarms
    return served.watch_drift(options.drift or NONE, fps=fps, false_alarms_per_week=most, every=every)
