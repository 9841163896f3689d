"""Options of servers, by verb."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeopt.measurement.common_options import BUDGET, MODEL, out_option
from edgeopt.measurement.endpoint.options import SERVERS, EndpointOptions
from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.measurement.resources.prices import Prices
from edgeopt.system.declared.options import Syntax, option


@dataclass(frozen=True)
class EndpointBench(EndpointOptions, Prices):
    """Options of `bench` for a server."""

    key_from: str | None = option(
        None, "Environment variable that holds the server's key.", group=SERVERS, metavar="NAME"
    )
    budget: AnswerBudget | None = option(
        None,
        "For a language model: ttft:200ms,tpot:20ms (first token, each next token).",
        group=BUDGET,
        syntax=Syntax.SERVER_BUDGET,
    )
    out: Path | None = out_option(MODEL, "bench.json, .md, .html and the raw samples")


_BOTH = (
    *("url", "model", "load", "seconds", "seed", "key_from", "budget", "out"),
    *("device_price", "life_years", "watts", "kwh_price", "cloud_price"),
)
FOR_FRAMES = (*_BOTH, "encodings", "source", "recipe", "shapes")
"""Options that a server of frames takes."""
FOR_TEXTS = (*_BOTH, "prompt_tokens", "output_tokens", "turns")
"""Options that a server of a language model takes."""
OPTIONS: Mapping[str, type] = {"bench": EndpointBench}
