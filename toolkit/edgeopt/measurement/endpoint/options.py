"""Options of `bench` for a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgeopt.measurement.common_options import EXAMPLES, seed_option
from edgeopt.measurement.generation.options import LANGUAGE, OUTPUT_TOKENS, PROMPT_TOKENS
from edgeopt.system.declared.options import Syntax, option

SERVERS = "Servers"
"""Heading of the help."""


@dataclass(frozen=True)
class EndpointOptions:
    """Requests to a server, and how long they go on."""

    url: str = option(
        "",
        "Measure a server that speaks OpenAI's interface, as its client; MODEL is then one of its own.",
        "--endpoint",
        group=SERVERS,
        metavar="URL",
        names_source=True,
    )
    model: str = option(
        "", "Of a server: the model that is asked.", group=SERVERS, metavar="NAME", shown="the first that it lists"
    )
    """Empty: the first that it lists."""
    prompt_tokens: tuple[int, ...] = option(
        (PROMPT_TOKENS,),
        "Of a language model: lengths of its prompts, such as 128,512.",
        group=LANGUAGE,
        syntax=Syntax.COUNTS,
        shown=str(PROMPT_TOKENS),
    )
    output_tokens: int = option(
        OUTPUT_TOKENS, "Tokens of each such answer.", group=LANGUAGE, syntax=Syntax.WHOLE, least=2
    )
    load: str = option("closed", "How frames arrive: {}.", group="How frames arrive", help_from=EXAMPLES)
    seconds: float = option(
        10.0, "Measure at least so long.", group="How long", syntax=Syntax.SECONDS, shown="a server: 10s"
    )
    """One request at a time, and again under the load."""
    seed: int = seed_option("How frames arrive", "arrivals, phases and orders")
    key: str = field(default="", repr=False)
    timeout_s: float = 120.0
    limits_ms: Mapping[str, float] | None = None
    """Limits of a good answer; None: `LIVE_MS`."""
    price_per_s: float | None = None
    """Price a second of the server's machine."""
