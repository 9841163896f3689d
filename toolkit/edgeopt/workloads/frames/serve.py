"""`serve` of a model that answers pictures, or embeds texts."""

from __future__ import annotations

from edgeopt.running.serving import Hosted
from edgeopt.running.serving_frames import hosted_frames
from edgeopt.workloads._serving import ServeFlags, as_serve_options

__all__ = ["hosted"]


def hosted(source: str, options: ServeFlags) -> Hosted:
    """Return the model as one that can be served."""
    return hosted_frames(source, as_serve_options(options))
