"""The integer tensors of a model as a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgeopt.report.document import Document, Section, make_table
from edgeopt.steps.quantize.inspection.tensors import QuantizedTensor
from edgeopt.steps.quantize.inspection.view import QuantizedView


def summarize(view: QuantizedView) -> Document:
    """Return what a reader sees: one row a tensor."""
    columns: dict[str, Callable[[QuantizedTensor], str]] = {
        "name": lambda tensor: tensor.name,
        "type": lambda tensor: tensor.dtype,
        "scale": lambda tensor: _span(tensor.scales),
        "zero": lambda tensor: _span(tensor.zero_points),
        "granularity": lambda tensor: tensor.granularity,
        "saturated": _saturated,
        "SQNR": lambda tensor: _db(tensor.sqnr_db),
        "a channel": lambda tensor: _db(tensor.channel_sqnr_db),
        "": lambda tensor: "weight" if tensor.is_weight else "",
    }
    measured = f", errors on {view.pictures} pictures, the worst first" if view.pictures else ""
    title = f"{view.model}: {len(view.tensors)} integer tensors{measured}"
    table = make_table(view.tensors, columns, words=["type", "granularity", ""])
    return Document(view, view.model, title, (Section(title, table, notes=view.notes),))


def _saturated(tensor: QuantizedTensor) -> str:
    if tensor.saturated_ratio is None:
        return ""
    return f"{'<=' if tensor.is_bound else ''}{tensor.saturated_ratio:.2%}"


def _db(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _span(values: Sequence[float]) -> str:
    """Return one number, or the smallest and the largest; nothing for none."""
    ends = dict.fromkeys(f"{number:.4g}" for number in ((min(values), max(values)) if values else ()))
    return "..".join(ends)
