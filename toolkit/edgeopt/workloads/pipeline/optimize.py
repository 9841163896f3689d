"""`optimize` of a pipeline."""

from __future__ import annotations

from typing import Any

from edgeopt.optimization.elsewhere import searched_target
from edgeopt.optimization.folder.handover import MadeHere
from edgeopt.optimization.pipelines.elsewhere import make_stages_for
from edgeopt.optimization.pipelines.optimize import optimize_pipeline
from edgeopt.optimization.pipelines.result import JointReport
from edgeopt.optimization.pipelines.summary import summarize
from edgeopt.steps._context import Listener
from edgeopt.system.machine.processor import Processor
from edgeopt.workloads import began_of, with_budget_of_fps
from edgeopt.workloads.pipeline.options import PipelineOptimize

__all__ = ["make_elsewhere", "summarize", "work"]


def work(source: str, options: PipelineOptimize, listener: Listener | None) -> JointReport:
    """Choose the forms of its models together, and prove the whole."""
    options, began_s = with_budget_of_fps(options), began_of(listener)
    return optimize_pipeline(source, target=options.target, began_s=began_s, **_arguments(options, listener))


def make_elsewhere(
    source: str, options: PipelineOptimize, address: str, processor: Processor, listener: Listener | None
) -> MadeHere | str:
    """Make candidates of its models here for a device elsewhere, which chooses; return why not where that cannot be.

    Raises:
        EdgeoptError: As `work`, for everything that can be known before candidates are measured.
    """
    options = with_budget_of_fps(options)
    target = searched_target(options.target, address, processor, options)
    if isinstance(target, str):
        return target
    return make_stages_for(source, target, named=options.target, **_arguments(options, listener))


def _arguments(options: PipelineOptimize, listener: Listener | None) -> dict[str, Any]:
    """Return what both take of the options, by name."""
    return {"code": options.code, "out": options.out, "options": options, "listener": listener}
