"""`inspect` of a model that writes tokens."""

from __future__ import annotations

from edgeopt.inspection.inspect import Inspection, inspect
from edgeopt.inspection.pair_facts import encoder_decoder_facts
from edgeopt.inspection.writer_facts import writer_facts
from edgeopt.steps.quantize.inspection.view import QuantizedView
from edgeopt.workloads.frames.inspect import summarize
from edgeopt.workloads.frames.inspect import work as work_on_graph
from edgeopt.workloads.frames.options import FrameInspect
from edgeopt.workloads.generation.source import is_encoder_decoder

__all__ = ["summarize", "work"]


def work(source: str, options: FrameInspect) -> Inspection | QuantizedView:
    """Read its facts; its integer tensors are those of any graph."""
    if options.quantized:
        return work_on_graph(source, options)
    facts = encoder_decoder_facts(source) if is_encoder_decoder(source) else writer_facts(source)
    return inspect(source, target=options.target, recipe=options.recipe, shapes=options.shapes, writer=facts)
