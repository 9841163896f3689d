"""Options of `bench` for a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgeopt.measurement.common_options import (
    ARRIVALS,
    EXAMPLES,
    LENGTH,
    MODEL,
    answer_tokens_option,
    prompt_lengths_option,
    recipe_option,
    seed_option,
    shapes_option,
    source_option,
)
from edgeopt.measurement.generation.options import OUTPUT_TOKENS, PROMPT_TOKENS
from edgeopt.system.declared.options import FileUse, OptionGroup, Syntax, option

SERVERS = OptionGroup("server", "Servers", "measure a server over HTTP")
_SECONDS = 10.0


@dataclass(frozen=True)
class EndpointOptions:
    """Requests to a server, and how long they go on."""

    url: str = option(
        "",
        "Measure a server as its client sees it; MODEL then names one of its models. It has OpenAI's, KServe's or "
        "edgeopt's interface.",
        "--endpoint",
        group=SERVERS,
        common=True,
        metavar="URL",
        names_source=True,
    )
    model: str = option(
        "", "The server's model that is asked.", group=SERVERS, metavar="NAME", shown="the first in its list"
    )
    """Empty: the first that it lists, of KServe's the only one."""
    encodings: tuple[str, ...] = option(
        (),
        "How frames are sent to the server, such as json,binary or jpeg,png; compared in turns.",
        group=SERVERS,
        syntax=Syntax.NAMES,
        shown="all that the server takes",
    )
    """Names of the interface's encodings; empty: all."""
    turns: int = option(
        1,
        "Also hold conversations of this many turns with a language model.",
        group=SERVERS,
        syntax=Syntax.WHOLE,
        least=1,
        most=100,
        shown="none",
    )
    """Turns of each conversation; 1: none are held."""
    source: str | Path | None = source_option(MODEL, "for a server made up")
    """Pictures or tensors for a server of frames."""
    recipe: str | None = recipe_option(MODEL)
    """How a picture becomes the tensor of a server that takes no files."""
    shapes: Mapping[str, tuple[int, ...]] = shapes_option(MODEL)
    """Whole shapes of inputs by name, for what a server leaves free."""
    prompt_tokens: tuple[int, ...] = prompt_lengths_option(PROMPT_TOKENS)
    output_tokens: int = answer_tokens_option(OUTPUT_TOKENS)
    load: str = option(
        "closed", "How frames arrive: {}.", group=ARRIVALS, help_from=EXAMPLES, file_use=FileUse.READ_WITHIN
    )
    seconds: float = option(
        _SECONDS,
        "Measure at least this long.",
        group=LENGTH,
        syntax=Syntax.SECONDS,
        shown=f"for a server {_SECONDS:g}s",
    )
    """One request at a time, and again under the load."""
    seed: int = seed_option(ARRIVALS, "arrivals, phases and orders")
    key: str = field(default="", repr=False)
    timeout_s: float = 120.0
    limits_ms: Mapping[str, float] | None = None
    """Limits of a good answer, by `TTFT` and `TPOT`, of a frame by `frame`; None: `LIVE_MS`, and no gate."""
    price_per_s: float | None = None
    """Price a second of the server's machine."""
