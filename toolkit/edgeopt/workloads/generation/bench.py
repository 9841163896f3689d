"""`bench` of a model that writes tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.generation.bench import bench_generation
from edgeopt.measurement.generation.guesses import AUTO
from edgeopt.measurement.generation.result import GenerationResult as Result
from edgeopt.measurement.generation.sources import bench_sources
from edgeopt.measurement.generation.summary import summarize_generation as summarize
from edgeopt.measurement.sides import Tell
from edgeopt.report.formats import write_pages
from edgeopt.running.writing import find_language_model
from edgeopt.workloads import refuse_others
from edgeopt.workloads.generation.guessing import NONE, require_guesses
from edgeopt.workloads.generation.options import GenerationBench
from edgeopt.workloads.generation.source import is_encoder_decoder

_OF_PAIRS = (
    *("prompt_tokens", "output_tokens", "threads", "seed", "seconds", "budget", "max_miss_ratio", "out"),
    *("cold", "repeats"),
)
"""Options of an encoder with a decoder."""


__all__ = ["summarize", "work"]


def work(source: str, options: GenerationBench, tell: Tell | None) -> Result:
    """Measure it, and write what was asked for."""
    tell = tell or (lambda *_: None)
    require_guesses(options.guesses, options.draft)
    if options.context and options.cold:
        raise EdgeoptError(
            "fresh processes of --cold reserve the model's own context", remedy="leave --context or --cold out"
        )
    options = replace(options, price_per_s=options.per_s())
    if is_encoder_decoder(source):
        refuse_others(options, _OF_PAIRS, "encoders with decoders")
        result = bench_sources(Path(source), options, tell=tell)
    else:
        result = bench_generation(find_language_model(source), _with_draft(options), out=options.out, tell=tell)
    if options.out is not None:
        write_pages(summarize(result), options.out, "bench")
    return result


def _with_draft(options: GenerationBench) -> GenerationBench:
    """Return the options with the file of the draft, and as many guesses as pay where only a draft is named."""
    guesses = AUTO if options.guesses is None and options.draft else options.guesses
    if options.draft == NONE:
        return replace(options, guesses=guesses, draft=None, uses_draft=False)
    draft = find_language_model(str(options.draft)) if options.draft else None
    return replace(options, guesses=guesses, draft=draft)
