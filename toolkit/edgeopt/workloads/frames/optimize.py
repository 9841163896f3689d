"""`optimize` of a model that answers frames."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgeopt.export.network import NetworkInput
from edgeopt.measurement.accuracy.cluster.address import read_cluster_address
from edgeopt.measurement.accuracy.cluster.pool import ClusterPool
from edgeopt.optimization.elsewhere import make_for, searched_target
from edgeopt.optimization.folder.handover import MadeHere
from edgeopt.optimization.optimize import optimize, show_plan
from edgeopt.optimization.report.summary import summarize as summarize_report
from edgeopt.optimization.result import ModelReport
from edgeopt.optimization.run import Silence
from edgeopt.report.document import Document
from edgeopt.steps._context import Listener
from edgeopt.system.machine.processor import Processor
from edgeopt.workloads import began_of, with_budget_of_fps
from edgeopt.workloads.frames.options import FrameOptimize


def work(source: str, options: FrameOptimize, listener: Listener | None) -> ModelReport | Document:
    """Make it fast and prove it; with `dry_run` only say how."""
    options = with_budget_of_fps(options)
    address = read_cluster_address(options.cluster) if options.cluster else None
    if options.dry_run:
        return show_plan(source, target=options.target, recipe=options.recipe, options=options)
    if address is None:
        return optimize(source, target=options.target, **_arguments(options, listener))
    with ClusterPool(address, (listener or Silence()).say) as pool:
        return optimize(source, target=options.target, pool=pool, **_arguments(options, listener))


def make_elsewhere(
    source: str,
    options: FrameOptimize,
    address: str,
    processor: Processor,
    listener: Listener | None,
    *,
    has_one_engine: bool = False,
) -> MadeHere | str:
    """Make the candidates here for a device elsewhere, which measures them; return why not where that cannot be.

    Args:
        source: The model.
        options: What to do.
        address: Of the device.
        processor: Of the device.
        listener: Hears progress.
        has_one_engine: Whether the device has the target's own engine alone: nothing is made for those beside it.
    """
    options = with_budget_of_fps(options)
    if options.dry_run:
        return "a plan is made where it runs"
    target = searched_target(options.target, address, processor, options)
    if isinstance(target, str):
        return target
    if has_one_engine:
        target = replace(target, alternatives=())
    return make_for(source, target, named=options.target, **_arguments(options, listener))


def _arguments(options: FrameOptimize, listener: Listener | None) -> dict[str, Any]:
    """Return what both take of the options, by name."""
    return {
        "out": options.out,
        "recipe": options.recipe,
        "options": options,
        "listener": listener,
        "inputs": [NetworkInput(*each) for each in options.inputs],
        "task": options.task,
        "began_s": began_of(listener),
    }


def summarize(result: ModelReport | Document) -> Document:
    """Return what a reader sees."""
    return result if isinstance(result, Document) else summarize_report(result)
