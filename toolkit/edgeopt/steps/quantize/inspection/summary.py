"""The integer tensors of a model as a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from edgeopt.report.document import Document, Section, make_table
from edgeopt.steps.quantize.inspection.tensors import QuantizedTensor
from edgeopt.steps.quantize.inspection.view import QuantizedView


def summarize(view: QuantizedView) -> Document:
    """Return what a reader sees: one row a tensor."""
    columns: dict[str, Callable[[QuantizedTensor], str]] = {
        "name": lambda one: one.name,
        "type": lambda one: one.dtype,
        "scale": lambda one: _span(one.scales),
        "zero": lambda one: _span(one.zero_points),
        "granularity": lambda one: one.granularity,
        "saturated": _saturated,
        "SQNR": lambda one: _db(one.sqnr_db),
        "a channel": lambda one: _db(one.channel_sqnr_db),
        "": lambda one: "weight" if one.is_weight else "",
    }
    measured = f", errors on {view.pictures} pictures, the worst first" if view.pictures else ""
    title = f"{view.model}: {len(view.tensors)} integer tensors{measured}"
    table = make_table(view.tensors, columns, words=["type", "granularity", ""])
    return Document("inspect", view.model, title, asdict(view), (Section(title, table, notes=view.notes),))


def _saturated(one: QuantizedTensor) -> str:
    if one.saturated_ratio is None:
        return ""
    return f"{'<=' if one.is_bound else ''}{one.saturated_ratio:.2%}"


def _db(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _span(values: Sequence[float]) -> str:
    """Return one number, or the smallest and the largest; nothing for none."""
    ends = dict.fromkeys(f"{one:.4g}" for one in ((min(values), max(values)) if values else ()))
    return "..".join(ends)
