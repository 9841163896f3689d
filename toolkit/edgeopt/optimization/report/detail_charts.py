"""The facts of `optimize` beside times as charts: answers, layers, and where nodes run."""

from __future__ import annotations

from edgeopt.measurement.charts import ms
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.result import ModelReport
from edgeopt.report.contact_sheet import ANSWERS, find_pairs
from edgeopt.report.figures import (
    Axis,
    BeforeAfter,
    Cell,
    Cells,
    ChartPoint,
    Emphasis,
    Estimate,
    Facts,
    Figure,
    Picture,
    PicturePair,
    Points,
)
from edgeopt.steps.compile._partition_files import NODES, PlacedNode, read_nodes
from edgeopt.steps.compile._partition_svg import PICTURE
from edgeopt.steps.quantize.inspection.table import LayerRow

_WORST = 3
"""Layers that are named in the chart."""


def answers(report: ModelReport) -> tuple[Figure, ...]:
    """Return pictures with the original's answers and with those of what was chosen."""
    title, sheet = "Before and after", "answers.png"
    if not (report.folder / sheet).is_file():
        return ()
    pairs = tuple(
        PicturePair(f"Picture {number}", f"{ANSWERS}/{before}", f"{ANSWERS}/{after}")
        for number, (before, after) in enumerate(find_pairs(report.folder / ANSWERS), 1)
    )
    text = f"The original's answers, and those of {report.chosen}."
    if not pairs:
        return (Picture(title=title, text=text, file=sheet),)
    return (BeforeAfter(title=title, text=text, file=sheet, before="original", after=report.chosen, pairs=pairs),)


def placement_map(report: ModelReport, candidate: Candidate) -> tuple[Figure, ...]:
    """Return where the nodes of a candidate run, for a target that may leave some to the CPU."""
    if not candidate.placement:
        return ()
    title, file = "Where the nodes run", candidate.file.replace("model.onnx", PICTURE)
    cells = tuple(map(_cell, read_nodes((report.folder / candidate.file).with_name(NODES))))
    if not cells:
        return (Picture(title=title, text=candidate.placement, file=file),)
    return (Cells(title=title, text=candidate.placement, file=file, cells=cells),)


def _cell(node: PlacedNode) -> Cell:
    facts = (("op", node.op), ("why", node.reason), ("mended by", node.mend))
    kind = "on the CPU" if node.is_refused else "on the device"
    return Cell(node.name, kind, tuple(fact for fact in facts if fact[1]), node.is_refused)


def layer_chart(rows: tuple[LayerRow, ...]) -> tuple[Figure, ...]:
    """Return what integers save in each layer, over how well they hold its output."""
    if len(rows) < 2:
        return ()
    saved_ms = sum(row.float_ms - row.integer_ms for row in rows)
    slower = sum(row.float_ms < row.integer_ms for row in rows)
    worst = {one.name for one in sorted(rows, key=lambda one: one.sqnr_db)[:_WORST]}
    points = tuple(
        ChartPoint(
            row.name,
            Estimate(row.float_ms - row.integer_ms),
            Estimate(row.sqnr_db),
            _layer_facts(row),
            Emphasis.CHOSEN if row.is_kept else Emphasis.PLAIN if row.name in worst else Emphasis.FAINT,
        )
        for row in rows
    )
    text = f"On integers the {len(rows)} timed layers take {ms(abs(saved_ms))} {'less' if saved_ms > 0 else 'more'}"
    also = f"; {slower} of them are slower so" if slower else ""
    return (
        Points(
            title="Layers: accuracy against time",
            text=f"{text}{also}. Integers hold badly what is low, and save no time left of 0.",
            x=Axis("time saved by integers", "ms"),
            y=Axis("signal to noise of a layer's output on integers", "dB"),
            points=points,
        ),
    )


def _layer_facts(layer_row: LayerRow) -> Facts:
    known = {
        "saved": f"{layer_row.float_ms - layer_row.integer_ms:+.3f} ms",
        "in float": f"{layer_row.float_ms:.3f} ms",
        "on integers": f"{layer_row.integer_ms:.3f} ms",
        "its output": f"{layer_row.sqnr_db:.1f} dB",
        "the answer": ""
        if layer_row.answer_db is None
        else f"{layer_row.answer_db:.1f} dB with this one alone on integers",
        "kept": "in float" if layer_row.is_kept else "",
    }
    return tuple((label, text) for label, text in known.items() if text)
