"""`edgeopt targets`."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from edgeopt.cli._lines import show


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def targets(*, as_json: bool) -> None:
    """List the device profiles, and whether this machine is such a device."""
    from edgeopt.executors._availability import why_unavailable
    from edgeopt.system import assets
    from edgeopt.system.target import Choice, read_target, target_names

    found = [read_target(assets.folder("targets") / f"{name}.toml") for name in target_names()]
    if as_json:
        click.echo(json.dumps([asdict(target) for target in found], indent=2))
        return
    for target in found:
        if isinstance(target, Choice):
            show(f"{target.name:<18} {target.description}: the first that fits of {', '.join(target.choose)}")
        else:
            here = (target.why_not_here() or why_unavailable(target) or "").partition(";")[0].partition(" (")[0]
            precisions = ", ".join(target.precisions)
            show(f"{target.name:<18} {target.description} [{precisions}]{f' - not here: {here}' if here else ''}")


COMMAND = targets
