"""The result of `quantize` as a document."""

from __future__ import annotations

from collections.abc import Callable

from edgeopt.pipeline.quantize_result import QuantizeResult, Tried
from edgeopt.report.document import Document, Section, Value, make_table


def summarize(result: QuantizeResult) -> Document:
    """Return what a reader sees: every form that was tried, notes, and the choice with its reason."""
    columns: dict[str, Callable[[Tried], str]] = {
        "form": lambda one: one.name,
        "estimated speed": lambda one: f"{one.speed_ratio:.2f}x",
        "agreement": lambda one: f"{one.agreement:.3f}",
        result.metric or "metric": lambda one: "" if one.score is None else f"{one.score:.4f}",
        "drop": lambda one: str(one.drop) if one.drop else "",
    }
    chosen = result.tried.index(result.chosen) if result.chosen else None
    return Document(
        command="quantize",
        subject=result.model,
        title=f"{result.model} in INT8 for {result.target}",
        data=result.as_json(),
        sections=(
            Section("Forms that were tried", make_table(result.tried, columns, chosen=chosen), is_detail=True),
            Section(notes=result.notes),
        ),
        summary=_summary(result),
    )


def _summary(result: QuantizeResult) -> tuple[Value, ...]:
    chosen = result.chosen
    if chosen is None:
        return (Value("why", result.reason), Value("chosen", "none: the float model stays"))
    values = [
        Value("why", result.reason),
        Value("chosen", chosen.name),
        Value("speed", f"estimated {chosen.speed_ratio:.2f}x the float model's; edgeopt compare proves it"),
        Value("agreement", f"{chosen.agreement:.3f} with the float model, without labels"),
    ]
    if chosen.score is not None:
        figures = f"{result.metric} {chosen.score:.4f}, the original {result.baseline:.4f}"
        values.append(Value("metric", f"{figures}; lost {chosen.drop} (95 % over {result.pictures} pictures)"))
    return (*values, Value("file", str(result.file)))
