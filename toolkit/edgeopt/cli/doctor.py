"""Show what this machine or a device can run."""

from __future__ import annotations

import click

from edgeopt.cli._options import format_option
from edgeopt.cli._output import show
from edgeopt.cli._remote import DeviceCommand, device_option


@click.command(cls=DeviceCommand, params=[device_option()])
@format_option
@click.pass_context
def doctor(ctx: click.Context, *, form: str) -> None:
    """Show what this machine, or the device of --on, can run, and what is missing."""
    from edgeopt.runtime.devices.checkup import examine, summarize

    checkup = examine()
    show(summarize(checkup), form)
    ctx.exit(checkup.exit_code)


COMMAND = doctor
