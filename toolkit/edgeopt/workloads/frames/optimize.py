"""`optimize` of a model that answers frames."""

from __future__ import annotations

from dataclasses import replace

from edgeopt.errors import EdgeoptError
from edgeopt.export.network import NetworkInput
from edgeopt.optimization.optimize import optimize, show_plan
from edgeopt.optimization.report.summary import summarize as summarize_report
from edgeopt.optimization.result import Report
from edgeopt.report.document import Document
from edgeopt.steps._context import Listener
from edgeopt.workloads import began_of
from edgeopt.workloads.frames.options import FrameOptimize


def work(source: str, options: FrameOptimize, listener: Listener | None) -> Report | Document:
    """Make it fast and prove it; with `dry_run` only say how."""
    if options.fps is not None:
        if options.budget_ms is not None:
            raise EdgeoptError("--budget and --fps both say how long a frame may take", remedy="give one of them")
        options = replace(options, budget_ms=1000 / options.fps)
    if options.dry_run:
        return show_plan(source, target=options.target, recipe=options.recipe, options=options)
    return optimize(
        source,
        target=options.target,
        out=options.out,
        recipe=options.recipe,
        options=options,
        listener=listener,
        inputs=[NetworkInput(*each) for each in options.inputs],
        task=options.task,
        began_s=began_of(listener),
    )


def summarize(result: Report | Document) -> Document:
    """Return what a reader sees."""
    return result if isinstance(result, Document) else summarize_report(result)
