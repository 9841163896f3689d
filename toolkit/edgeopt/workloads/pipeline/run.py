"""`run` of a pipeline on a source: the live loop is that of any frames."""

from __future__ import annotations

from edgeopt.workloads.frames.run import summarize, work

__all__ = ["summarize", "work"]
