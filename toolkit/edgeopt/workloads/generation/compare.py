"""`compare` of models that write tokens."""

from __future__ import annotations

from edgeopt.measurement.generation.options import SideOptions
from edgeopt.measurement.generation.sides.compare import WriterComparison, compare_language_models
from edgeopt.measurement.generation.sides.compare_summary import summarize_comparison as summarize
from edgeopt.measurement.generation.sides.side_by_side import Tell, labels_for
from edgeopt.running.writing import find_language_model

__all__ = ["summarize", "work"]


def work(sources: tuple[str, ...], options: SideOptions, tell: Tell | None) -> WriterComparison:
    """Run them in turns, the first as the standard."""
    models = {label: find_language_model(source) for label, source in zip(labels_for(sources), sources, strict=True)}
    return compare_language_models(models, options, tell=tell or (lambda *_: None))
