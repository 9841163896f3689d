"""Models that write tokens side by side, for `compare` and `check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from edgeopt.measurement.generation.options import OUTPUT_TOKENS, PROMPT_TOKENS, SideOptions
from edgeopt.measurement.generation.sides.side_by_side import labels_for
from edgeopt.measurement.sides import Sides
from edgeopt.workloads.generation.options import GenerationCheck
from edgeopt.workloads.generation.writer_sides import GenerationSides, open_models

_BASELINE, _NOW = "baseline", "now"


def open_sides(sources: Sequence[str], options: SideOptions) -> Sides:
    """Open language models, or encoders with decoders; beside language models the rivals that are asked for.

    Raises:
        EdgeoptError: If one does not open, or the lengths do not fit.
    """
    if options.rivals or options.rival_models:
        from edgeopt.workloads.generation.rival_sides import open_rivals  # it writes files of other formats

        return open_rivals(sources, options)
    return open_models(labels_for(sources), sources, options, is_compared=True)


def open_checked(sources: Sequence[str], options: GenerationCheck, settings: Mapping[str, Any]) -> GenerationSides:
    """Open what is checked, and before it the baseline's model.

    Raises:
        EdgeoptError: If one does not open, or the lengths do not fit.
    """
    side_options = SideOptions(
        seconds=options.seconds,
        threads=options.threads,
        prompt_tokens=options.prompt_tokens or int(settings.get("prompt_tokens", PROMPT_TOKENS)),
        output_tokens=options.output_tokens or int(settings.get("output_tokens", OUTPUT_TOKENS)),
        eval=options.eval,
    )
    labels = [*[_BASELINE] * (len(sources) - 1), _NOW]
    opened = open_models(labels, sources, side_options, is_compared=False)
    now = replace(opened.sides[-1], label=opened.sides[-1].recipe.name)
    return replace(opened, sides=(*opened.sides[:-1], now), budget=options.budget)
