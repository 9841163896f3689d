"""`run` of a model that answers frames on a source."""

from __future__ import annotations

from pathlib import Path

from edgeopt.errors import EdgeoptError
from edgeopt.running.answers import RunListener
from edgeopt.running.live import LiveResult, run_live
from edgeopt.running.live_options import LiveOptions
from edgeopt.running.live_summary import summarize

__all__ = ["summarize", "work"]


def work(source: str, options: LiveOptions, hears: RunListener | None, sample: str | None = None) -> LiveResult:
    """Answer the frames of `sample` until they end."""
    if sample is None:
        raise EdgeoptError(
            "Missing argument 'SOURCE'",
            remedy="name pictures, a video or a camera; --prompt TEXT is for a language model",
        )
    return run_live(Path(source), sample, options, hears or RunListener())
