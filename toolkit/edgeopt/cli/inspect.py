"""`edgeopt inspect`."""

from __future__ import annotations

import click

from edgeopt.cli._output import format_option, show
from edgeopt.cli._values import shape_option


@click.command()
@click.argument("model")
@click.option("--target", "-t", help="Also show where this device's engine puts the nodes.")
@click.option("--recipe", "-r", help="How the model is fed and read [read from the model].")
@shape_option
@click.option("--quantized", is_flag=True, help="Show the integer tensors instead: scale, zero point, type.")
@click.option("--calib", default="", help="With --quantized: pictures, for saturation and error of each tensor.")
@click.option("--float", "against", default="", help="With --calib: the float model, for integers between integers.")
@click.option("--nodes", is_flag=True, help="With --target: list every node, not only the refused ones.")
@format_option
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
    form: str,
) -> None:
    """Show what MODEL is: inputs, outputs, ops, size, and with a target where its nodes run."""
    from edgeopt.pipeline.inspect import inspect as run
    from edgeopt.pipeline.inspect_summary import summarize

    if quantized:
        from edgeopt.steps.quantize.inspection.summary import summarize as summarize_quantized
        from edgeopt.steps.quantize.inspection.view import view_quantized

        view = view_quantized(model, calib=calib, against=against, recipe=recipe)
        show(summarize_quantized(view), form)
        return
    if calib or against:
        raise click.UsageError("--calib and --float belong to --quantized")
    found = run(model, target=target, recipe=recipe, shapes=dict(shapes))
    show(summarize(found, all_nodes=nodes), form)


COMMAND = inspect
