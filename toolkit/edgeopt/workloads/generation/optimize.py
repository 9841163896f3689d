"""`optimize` of a model that writes tokens."""

from __future__ import annotations

from edgeopt.export.export import names_pair
from edgeopt.optimization.encoder_decoder.optimize import optimize_encoder_decoder
from edgeopt.optimization.generation.optimize import optimize_language_model
from edgeopt.optimization.generation.result import LanguageReport
from edgeopt.optimization.generation.summary import summarize_language as summarize
from edgeopt.optimization.run import Silence
from edgeopt.steps._context import Listener
from edgeopt.workloads import began_of, refuse_others
from edgeopt.workloads.generation.options import GenerationOptimize
from edgeopt.workloads.generation.source import is_encoder_decoder

__all__ = ["summarize", "work"]

_OF_PAIRS = (
    *("target", "out", "eval", "output_tokens", "max_drop", "budget", "threads", "resume", "time_limit_s"),
    "task",
)
"""Options of an encoder with a decoder."""


def work(source: str, options: GenerationOptimize, listener: Listener | None) -> LanguageReport:
    """Make its forms, judge and measure them, and write what is proven fastest."""
    is_pair = is_encoder_decoder(source) or names_pair(source, options.task)
    if is_pair:
        refuse_others(options, _OF_PAIRS, "encoders with decoders")
    make = optimize_encoder_decoder if is_pair else optimize_language_model
    return make(
        source,
        target=options.target,
        out=options.out,
        options=options,
        listener=listener or Silence(),
        began_s=began_of(listener),
    )
