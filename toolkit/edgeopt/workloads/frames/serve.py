"""`serve` of a model that answers pictures."""

from __future__ import annotations

from edgeopt.workloads._serving import summarize, work

__all__ = ["summarize", "work"]
