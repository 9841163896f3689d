"""`inspect` of a model that answers frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgeopt.errors import EdgeoptError
from edgeopt.inspection.inspect import Inspection, inspect
from edgeopt.inspection.inspect_summary import summarize as summarize_inspection
from edgeopt.report.document import Document
from edgeopt.steps.quantize.inspection.summary import summarize as summarize_quantized
from edgeopt.steps.quantize.inspection.view import QuantizedView, view_quantized
from edgeopt.workloads.frames.options import FrameInspect


@dataclass(frozen=True, slots=True)
class Inspected:
    """Facts, and whether all nodes are listed."""

    facts: Inspection | QuantizedView
    all_nodes: bool


def work(source: str, options: FrameInspect, hears: Any) -> Inspected:
    """Read its facts; with a target also where its nodes run."""
    del hears
    if not options.quantized:
        if options.calib or options.against:
            raise EdgeoptError("--calib and --float belong to --quantized", remedy="add --quantized")
        facts = inspect(source, target=options.target, recipe=options.recipe, shapes=options.shapes)
        return Inspected(facts, options.nodes)
    return Inspected(
        view_quantized(source, calib=options.calib, against=options.against, recipe=options.recipe), options.nodes
    )


def summarize(result: Inspected) -> Document:
    """Return what a reader sees."""
    if isinstance(result.facts, Inspection):
        return summarize_inspection(result.facts, all_nodes=result.all_nodes)
    return summarize_quantized(result.facts)
