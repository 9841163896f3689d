"""`edgeopt inspect`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from edgeopt.cli._lines import show
from edgeopt.cli._values import shape_option
from edgeopt.system.text import format_bytes

if TYPE_CHECKING:
    from edgeopt.pipeline.inspect import Inspection
    from edgeopt.steps.compile._placement import Partition
    from edgeopt.steps.quantize.inspection.view import QuantizedView


@click.command()
@click.argument("model")
@click.option("--target", "-t", help="Also show where this device's engine puts the nodes.")
@click.option("--recipe", "-r", help="How the model is fed and read [read from the model].")
@shape_option
@click.option("--quantized", is_flag=True, help="Show the integer tensors instead: scale, zero point, type.")
@click.option("--calib", default="", help="With --quantized: pictures, for saturation and error of each tensor.")
@click.option("--float", "against", default="", help="With --calib: the float model, for integers between integers.")
@click.option("--nodes", is_flag=True, help="With --target: list every node, not only the refused ones.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(
    *,
    model: str,
    target: str | None,
    recipe: str | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    quantized: bool,
    calib: str,
    against: str,
    nodes: bool,
    as_json: bool,
) -> None:
    """Show what MODEL is: inputs, outputs, ops, size, and with a target where its nodes run."""
    from edgeopt.pipeline.inspect import inspect as run

    if quantized:
        from edgeopt.steps.quantize.inspection.view import view_quantized

        _show_quantized(view_quantized(model, calib=calib, against=against, recipe=recipe), as_json=as_json)
        return
    if calib or against:
        raise click.UsageError("--calib and --float belong to --quantized")
    found = run(model, target=target, recipe=recipe, shapes=dict(shapes))
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
        return
    work = _why_unknown(found) if found.multiply_adds is None else f"{found.multiply_adds / 1e6:.1f} M"
    show(f"model    {found.name}, {format_bytes(found.size_bytes)}, opset {found.opset}")
    show(f"weights  {found.parameters:,} numbers; multiply-adds a run: {work}")
    if found.integers.kind:
        show(f"integers {found.integers}; --quantized shows each tensor")
    for kind, tensors in (("input", found.inputs), ("output", found.outputs)):
        for tensor in tensors:
            show(f"{kind:<8} {tensor}")
    show(f"recipe   {found.recipe}")
    show(f"ops      {', '.join(f'{op} {count}' for op, count in found.ops.items())}")
    if found.target:
        show(f"target   {found.target}: {found.verdict}")
    if found.partition:
        _show_partition(found.partition, all_nodes=nodes)


def _why_unknown(found: Inspection) -> str:
    free = next((one for one in found.inputs if not one.is_static), None)
    return f"unknown (free: {free}; give --shape)" if free else "unknown (a shape is not inferred)"


def _show_quantized(view: QuantizedView, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(view), indent=2))
        return
    measured = f", errors on {view.pictures} pictures, the worst first" if view.pictures else ""
    show(f"{view.model}: {len(view.tensors)} integer tensors{measured}")
    show(f"{'type':<7}{'scale':>20}{'zero':>9}  {'granularity':<19}{'saturated':>10}{'SQNR':>7}{'a channel':>10}  name")
    for one in view.tensors:
        share = "" if one.saturated_ratio is None else f"{'<=' if one.is_bound else ''}{one.saturated_ratio:.2%}"
        plain, normal = ("" if value is None else f"{value:.1f}" for value in (one.sqnr_db, one.channel_sqnr_db))
        grid = f"{one.dtype:<7}{_span(one.scales):>20}{_span(one.zero_points):>9}  {one.granularity:<19}"
        show(f"{grid}{share:>10}{plain:>7}{normal:>10}  {one.name}{' (weight)' if one.is_weight else ''}")
    for note in view.notes:
        show(f"{note.kind}: {note}")


def _span(values: Sequence[float]) -> str:
    """Return one number, or the smallest and the largest; nothing for none."""
    ends = dict.fromkeys(f"{one:.4g}" for one in ((min(values), max(values)) if values else ()))
    return "..".join(ends)


def _show_partition(partition: Partition, *, all_nodes: bool) -> None:
    if not all_nodes:
        for op, count in Counter(f"{node.op} on {node.provider}" for node in partition.nodes).most_common():
            show(f"         {count:>4} {op}")
    for node in partition.nodes if all_nodes else partition.refused:
        why = f": {node.reason}" if node.reason else ""
        mend = f" -> {partition.mends[node.node]}" if node.node in partition.mends else ""
        show(f"         {node.provider:<24}{node.op} {node.node}{why}{mend}")
    if partition.copies:
        show(f"         {partition.copies} tensors cross between the {partition.device.upper()} and the CPU")


COMMAND = inspect
