"""`serve` of a model that writes tokens."""

from __future__ import annotations

from dataclasses import replace

from edgeopt.errors import EdgeoptError
from edgeopt.running.serving import Hosted
from edgeopt.running.serving_pairs import hosted_pair
from edgeopt.running.serving_texts import hosted_texts
from edgeopt.running.writing import Prompting
from edgeopt.workloads import refuse_others
from edgeopt.workloads._serving import ServeFlags, as_serve_options
from edgeopt.workloads.generation.guessing import NONE, require_guesses
from edgeopt.workloads.generation.options import GenerationServe
from edgeopt.workloads.generation.source import is_encoder_decoder

__all__ = ["hosted"]


def hosted(source: str, generation_serve: GenerationServe) -> Hosted:
    """Return the model as one that can be served.

    Raises:
        EdgeoptError: If options contradict each other.
    """
    options = as_serve_options(generation_serve)
    if is_encoder_decoder(source):
        taken = (*ServeFlags.__dataclass_fields__, "voice_activity")
        refuse_others(generation_serve, taken, "encoders with decoders")
        return hosted_pair(source, replace(options, voice=generation_serve.voice_activity or ""))
    if generation_serve.voice_activity:
        raise EdgeoptError(f"--voice-activity is for models that hear, and {source} reads texts", remedy="leave it out")
    if generation_serve.prefixes is not None and generation_serve.system is None:
        raise EdgeoptError("--prefixes belongs to --system", remedy="add --system, or leave it out")
    require_guesses(generation_serve.guesses, generation_serve.draft)
    draft = "" if generation_serve.draft in (None, NONE) else str(generation_serve.draft)
    options = replace(
        options,
        prompting=Prompting(
            generation_serve.system, generation_serve.prefixes, context=generation_serve.context, draft=draft
        ),
        guesses=generation_serve.guesses,
        uses_draft=generation_serve.draft != NONE,
        exact=generation_serve.exact,
        limits=replace(
            options.limits, looks_ahead=not generation_serve.no_ahead, token_s=(generation_serve.tpot_ms or 0.0) / 1e3
        ),
    )
    return hosted_texts(source, options)
