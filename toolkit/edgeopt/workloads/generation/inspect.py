"""`inspect` of a model that writes tokens."""

from __future__ import annotations

from typing import Any

from edgeopt.inspection.inspect import inspect
from edgeopt.inspection.pair_facts import encoder_decoder_facts
from edgeopt.inspection.writer_facts import writer_facts
from edgeopt.workloads.frames.inspect import Inspected, summarize
from edgeopt.workloads.frames.inspect import work as work_on_graph
from edgeopt.workloads.frames.options import FrameInspect
from edgeopt.workloads.generation.source import is_encoder_decoder

__all__ = ["summarize", "work"]


def work(source: str, options: FrameInspect, hears: Any) -> Inspected:
    """Read its facts; its integer tensors are those of any graph."""
    if options.quantized:
        return work_on_graph(source, options, hears)
    facts = encoder_decoder_facts(source) if is_encoder_decoder(source) else writer_facts(source)
    inspection = inspect(source, target=options.target, recipe=options.recipe, shapes=options.shapes, writer=facts)
    return Inspected(inspection, options.nodes)
