"""`optimize` of a model that writes tokens."""

from __future__ import annotations

from typing import Any

from edgeopt.export.export import names_pair
from edgeopt.optimization.elsewhere import searched_target
from edgeopt.optimization.encoder_decoder.optimize import make_pair_forms_for, optimize_encoder_decoder
from edgeopt.optimization.folder.handover import MadeHere
from edgeopt.optimization.generation.optimize import make_language_forms_for, optimize_language_model
from edgeopt.optimization.generation.result import LanguageReport
from edgeopt.optimization.generation.summary import summarize_language as summarize
from edgeopt.optimization.run import Silence
from edgeopt.steps._context import Listener
from edgeopt.system.machine.processor import Processor
from edgeopt.workloads import began_of, refuse_others
from edgeopt.workloads.generation.options import GenerationOptimize
from edgeopt.workloads.generation.source import is_encoder_decoder

__all__ = ["make_elsewhere", "summarize", "work"]

_OF_PAIRS = (
    *("target", "out", "eval", "output_tokens", "max_drop", "budget", "threads", "resume", "time_limit_s"),
    "task",
)
"""Options of an encoder with a decoder."""


def work(source: str, options: GenerationOptimize, listener: Listener | None) -> LanguageReport:
    """Make its forms, judge and measure them, and write what is proven fastest."""
    make = optimize_encoder_decoder if _is_pair(source, options) else optimize_language_model
    return make(source, target=options.target, **_arguments(options, listener))


def make_elsewhere(
    source: str, options: GenerationOptimize, address: str, processor: Processor, listener: Listener | None
) -> MadeHere | str:
    """Make its forms here for a device elsewhere, which judges and measures them; return why not where that cannot be.

    Raises:
        EdgeoptError: As `work`, for everything that can be known before forms are judged.
    """
    make = make_pair_forms_for if _is_pair(source, options) else make_language_forms_for
    target = searched_target(options.target, address, processor)
    if isinstance(target, str):
        return target
    return make(source, target, named=options.target, **_arguments(options, listener))


def _is_pair(source: str, options: GenerationOptimize) -> bool:
    """Return whether a source is an encoder with a decoder.

    Raises:
        EdgeoptError: If it is, and does not take an option.
    """
    is_pair = is_encoder_decoder(source) or names_pair(source, options.task)
    if is_pair:
        refuse_others(options, _OF_PAIRS, "encoders with decoders")
    return is_pair


def _arguments(options: GenerationOptimize, listener: Listener | None) -> dict[str, Any]:
    """Return what both take of the options, by name."""
    return {
        "out": options.out,
        "options": options,
        "listener": listener or Silence(),
        "began_s": began_of(listener),
    }
