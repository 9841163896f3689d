"""Plan the replicas that keep an objective."""

from __future__ import annotations

from pathlib import Path

import click

from edgeopt.cli._help import HelpCommand
from edgeopt.cli._options import TERMINAL, format_option
from edgeopt.cli._output import show
from edgeopt.cli._progress import Progress
from edgeopt.cli._values import Duration, FilePath, Milliseconds, Number


@click.command(cls=HelpCommand)
@click.argument("result", type=FilePath())
@click.option(
    "--within",
    type=Milliseconds(),
    help="Promised time of a response, such as 50ms.",
    show_default="the budget of RESULT",
)
@click.option(
    "--percentile",
    type=Number(min=50, max=99.9),
    default=99,
    show_default=True,
    help="Share of the responses that must keep it, in %.",
)
@click.option(
    "--rate", type=Number(min=0, min_open=True), help="Requests a second.", show_default="the peak of --rates"
)
@click.option(
    "--rates",
    type=FilePath(),
    help="File with the rates of a day: requests a second in each interval, a number on each line.",
)
@click.option(
    "--interval", type=Duration("s"), default="5m", show_default=True, help="Length of an interval of --rates."
)
@click.option(
    "--lag", type=Duration("s"), default="30s", show_default=True, help="Time until the scaler sees a new rate."
)
@click.option("--cold", type=Duration("s"), default="10s", show_default=True, help="Time until a new replica answers.")
@format_option
def slo(
    *,
    result: Path,
    within: float | None,
    percentile: float,
    rate: float | None,
    rates: Path | None,
    interval: float,
    lag: float,
    cold: float,
    form: str,
) -> None:
    """Plan replicas that keep an objective, from the times that RESULT, a folder of edgeopt bench -o, holds.

    Requests are simulated: how many replicas each way of load balancing needs, at which rate they miss the objective,
    and what replicas that follow a day's rate miss because they come late.
    """
    from edgeopt.measurement.slo.run import plan_from, summarize

    with Progress(quiet=form != TERMINAL) as progress:
        plan = plan_from(
            result,
            within_ms=within,
            share=percentile / 100,
            rate_per_s=rate,
            rates=rates,
            interval_s=interval,
            delay_s=lag + cold,
            tell=progress.progress,
        )
    show(summarize(plan), form)


COMMAND = slo
