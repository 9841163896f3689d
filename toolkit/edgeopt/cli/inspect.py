"""`edgeopt inspect`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from edgeopt.text import format_bytes

if TYPE_CHECKING:
    from edgeopt.executors import Placement


@click.command()
@click.argument("model")
@click.option("--target", "-t", help="Also show where this device's engine puts the nodes.")
@click.option("--recipe", "-r", help="How the model is fed and read [read from the model].")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(*, model: str, target: str | None, recipe: str | None, as_json: bool) -> None:
    """Show what MODEL is: inputs, outputs, ops, size, and with a target where its nodes run."""
    from edgeopt.inspection import inspect as run

    found = run(model, target=target, recipe=recipe)
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
        return
    work = "unknown (a shape is free)" if found.multiply_adds is None else f"{found.multiply_adds / 1e6:.1f} M"
    click.echo(f"model    {found.name}, {format_bytes(found.size_bytes)}, opset {found.opset}")
    click.echo(f"weights  {found.parameters:,} numbers; multiply-adds a run: {work}")
    for kind, tensors in (("input", found.inputs), ("output", found.outputs)):
        for tensor in tensors:
            click.echo(f"{kind:<8} {tensor}")
    click.echo(f"recipe   {found.recipe}")
    click.echo(f"ops      {', '.join(f'{op} {count}' for op, count in found.ops.items())}")
    if found.target:
        click.echo(f"target   {found.target}: {found.verdict}")
        for op, count in _ops_by_provider(found.placement):
            click.echo(f"         {count:>4} {op}")


def _ops_by_provider(placement: Iterable[Placement]) -> list[tuple[str, int]]:
    counts = Counter(f"{node.op} on {node.provider}" for node in placement)
    return counts.most_common()


COMMAND = inspect
