"""`edgeopt doctor`."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from edgeopt.cli._lines import show


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def doctor(ctx: click.Context, *, as_json: bool) -> None:
    """Show what this machine can run, and what is missing."""
    from edgeopt.executors._checkup import examine

    found = examine()
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
        ctx.exit(found.exit_code)
    machine = found.environment
    show(f"machine   {machine.cpu}, {machine.architecture}, {machine.cores} core(s), {machine.memory_mib} MiB")
    show(f"          {', '.join(machine.instructions) or 'no notable instructions'}")
    show(f"system    {machine.system}, Python {machine.python}")
    for name, version in machine.packages.items():
        show(f"package   {name} {version}")
    for name, reason in found.executors.items():
        show(f"executor  {name}: {reason or 'runs'}")
    for name, reason in found.targets.items():
        show(f"target    {name}: {reason or 'this machine'}")
    for note in found.notes:
        show(f"{note.kind:<9} {note}")
    ctx.exit(found.exit_code)


COMMAND = doctor
