"""`bench` of a model that answers frames."""

from __future__ import annotations

from edgeopt.measurement.frames.run import prepare_frames as prepare
from edgeopt.measurement.frames.summary import view_frames as view

__all__ = ["prepare", "view"]
