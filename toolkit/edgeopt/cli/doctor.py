"""`edgeopt doctor`."""

from __future__ import annotations

import json
from dataclasses import asdict

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def doctor(ctx: click.Context, *, as_json: bool) -> None:
    """Show what this machine can run, and what is missing."""
    from edgeopt.checkup import examine

    found = examine()
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
        ctx.exit(found.exit_code)
    machine = found.environment
    click.echo(f"machine   {machine.cpu}, {machine.architecture}, {machine.cores} core(s), {machine.memory_mib} MiB")
    click.echo(f"          {', '.join(machine.instructions) or 'no notable instructions'}")
    click.echo(f"system    {machine.system}, Python {machine.python}")
    for name, version in machine.packages.items():
        click.echo(f"package   {name} {version}")
    for name, reason in found.executors.items():
        click.echo(f"executor  {name}: {reason or 'runs'}")
    for name, reason in found.targets.items():
        click.echo(f"target    {name}: {reason or 'this machine'}")
    for note in found.notes:
        click.echo(f"{note.kind:<9} {note}")
    ctx.exit(found.exit_code)


COMMAND = doctor
