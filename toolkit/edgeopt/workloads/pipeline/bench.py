"""`bench` of a pipeline."""

from __future__ import annotations

from edgeopt.measurement.pipelines.bench import prepare_pipeline as prepare
from edgeopt.measurement.pipelines.summary import view_pipeline as view

__all__ = ["prepare", "view"]
