"""`inspect` of a model that answers frames."""

from __future__ import annotations

from edgeopt.errors import EdgeoptError
from edgeopt.inspection.inspect import Inspection, inspect
from edgeopt.inspection.inspect_summary import summarize as summarize_inspection
from edgeopt.report.document import Document
from edgeopt.steps.quantize.inspection.summary import summarize as summarize_quantized
from edgeopt.steps.quantize.inspection.view import QuantizedView, view_quantized
from edgeopt.workloads.frames.options import FrameInspect


def work(source: str, options: FrameInspect) -> Inspection | QuantizedView:
    """Read its facts; with a target also where its nodes run."""
    if not options.quantized:
        if options.calib or options.against:
            raise EdgeoptError("--calib and --float belong to --quantized", remedy="add --quantized")
        return inspect(source, target=options.target, recipe=options.recipe, shapes=options.shapes)
    return view_quantized(source, calib=options.calib, against=options.against, recipe=options.recipe)


def summarize(facts: Inspection | QuantizedView, options: FrameInspect) -> Document:
    """Return what a reader sees."""
    if isinstance(facts, Inspection):
        return summarize_inspection(facts, all_nodes=options.nodes)
    return summarize_quantized(facts)
