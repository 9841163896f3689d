"""Options of servers, by verb."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeopt.measurement.common_options import out_option
from edgeopt.measurement.endpoint.options import SERVERS, EndpointOptions
from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.measurement.resources.prices import Prices
from edgeopt.system.declared.options import Syntax, option


@dataclass(frozen=True)
class EndpointBench(EndpointOptions, Prices):
    """Options of `bench` for a server."""

    key_from: str | None = option(
        None, "Variable of the environment that holds the server's key.", group=SERVERS, metavar="NAME"
    )
    budget: AnswerBudget | None = option(
        None, "Of a language model ttft:200ms,tpot:20ms.", group="The budget, a gate", syntax=Syntax.ANSWER_BUDGET
    )
    out: Path | None = out_option("Model and device", "bench.json, .md, .html and the raw samples")


OPTIONS: Mapping[str, type] = {"bench": EndpointBench}
