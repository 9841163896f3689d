"""Scores, costs and kind of each tensor that a search may quantize: as a file, and its worst rows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgeopt.steps.quantize.search.attempt import SearchResult

TENSORS = "tensors.json"
"""File beside the first candidate of a search."""
COLUMNS = ("tensor", "channels dB", "SQNR dB", "answer dB", "kept in float")
_SCHEMA, _SHOWN = 1, 10


def tensors_json(result: SearchResult) -> str:
    """Return the rows of `tensor_rows` as the text of a file."""
    return json.dumps({"schema": _SCHEMA, "tensors": tensor_rows(result)}, indent=1, allow_nan=False) + "\n"


def tensor_rows(result: SearchResult) -> list[dict[str, Any]]:
    """Return all tensors that may be quantized, the worst first, as plain values.

    Of each: `sqnr_db` on its grid, `channel_sqnr_db` the same normalised channel by channel, `answer_sqnr_db` of the
    answer with this tensor alone quantized (the worst only, else null), `rounded` whether the best form has it on
    integers, of a tensor that stays in float what that costs and saves (those that were tried, else null), and
    `float_ms` and `integer_ms` of the layer that makes it, where that was timed.
    """
    kept = {
        kept_tensor.name: {"cost_ms": kept_tensor.cost_ms, "saved_agreement": kept_tensor.saved_agreement}
        for kept_tensor in result.kept
    }
    return [
        {
            "name": name,
            "channel_sqnr_db": score,
            "sqnr_db": result.plain_db.get(name),
            "answer_sqnr_db": result.sensitivities_db.get(name),
            "rounded": name in result.rounded,
            "kept": kept.get(name),
            **_layer(result, name),
        }
        for name, score in sorted(result.scores_db.items(), key=lambda item: (item[1], item[0]))
    ]


def _layer(result: SearchResult, name: str) -> dict[str, float | None]:
    """Return how long the layer that makes a tensor takes both ways; None where it was not timed."""
    time = result.times.layers.get(name) if result.times else None
    float_ms, integer_ms = (time.float_ns / 1e6, time.integer_ns / 1e6) if time else (None, None)
    return {"float_ms": float_ms, "integer_ms": integer_ms}


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One layer: what integers cost its output in accuracy, and what they save in time."""

    name: str
    """Name of the tensor that it makes."""
    sqnr_db: float
    """SQNR of that tensor on its grid, mean over channels."""
    answer_db: float | None
    """Agreement of the answer with this tensor alone on integers; None where that was not tried."""
    float_ms: float
    integer_ms: float
    is_kept: bool
    """Whether it was kept in float for its accuracy."""


def timed_layers(file: Path) -> tuple[LayerRow, ...]:
    """Return the layers that were timed both ways; none where the file is absent or tells no times.

    Args:
        file: What `tensors_json` gave.
    """
    if not file.is_file():
        return ()
    return tuple(
        LayerRow(
            name=load["name"],
            sqnr_db=load["channel_sqnr_db"],
            answer_db=load["answer_sqnr_db"],
            float_ms=load["float_ms"],
            integer_ms=load["integer_ms"],
            is_kept=load["kept"] is not None,
        )
        for load in json.loads(file.read_text("utf-8"))["tensors"]
        if load.get("float_ms") is not None and load.get("integer_ms") is not None
    )


def worst_tensors(file: Path, most: int = _SHOWN) -> tuple[tuple[str, ...], ...]:
    """Return rows of text under `COLUMNS` for the tensors that suffer most; none where the file is absent.

    Args:
        file: What `tensors_json` gave.
        most: Rows.
    """
    if not file.is_file():
        return ()
    known = json.loads(file.read_text("utf-8"))["tensors"]
    rows = [value for value in known if value["rounded"] or value["kept"]][:most]
    numbers = ("channel_sqnr_db", "sqnr_db", "answer_sqnr_db")
    return tuple((row["name"], *(_db(row[key]) for key in numbers), _kept(row["kept"])) for row in rows)


def _db(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _kept(kept: dict[str, float | None] | None) -> str:
    if kept is None:
        return ""
    cost = "" if kept["cost_ms"] is None else f"costs {kept['cost_ms']:.2f} ms, "
    return f"{cost}saves {kept['saved_agreement']:.3f} agreement"
