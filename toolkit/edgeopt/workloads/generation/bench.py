"""`bench` of a model that writes tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.generation.bench import prepare_language
from edgeopt.measurement.generation.guesses import AUTO
from edgeopt.measurement.generation.sources import prepare_sources
from edgeopt.measurement.generation.summary import view_generation as view
from edgeopt.measurement.generation.writer_block import WriterBlock
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


__all__ = ["prepare", "view"]


@contextmanager
def prepare(source: str, options: GenerationBench) -> Iterator[WriterBlock]:
    """Open the model, and make what it is asked."""
    require_guesses(options.guesses, options.draft)
    if options.context and options.cold:
        raise EdgeoptError(
            "fresh processes of --cold reserve the model's own context", remedy="leave --context or --cold out"
        )
    options = replace(options, price_per_s=options.per_s())
    if is_encoder_decoder(source):
        refuse_others(options, _OF_PAIRS, "encoders with decoders")
        with prepare_sources(Path(source), options) as block:
            yield block
    else:
        with prepare_language(find_language_model(source), _with_draft(options), options.out) as block:
            yield block


def _with_draft(options: GenerationBench) -> GenerationBench:
    """Return the options with the file of the draft, and as many guesses as pay where only a draft is named."""
    guesses = AUTO if options.guesses is None and options.draft else options.guesses
    if options.draft == NONE:
        return replace(options, guesses=guesses, draft=None, uses_draft=False)
    draft = find_language_model(str(options.draft)) if options.draft else None
    return replace(options, guesses=guesses, draft=draft)
