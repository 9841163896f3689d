"""`edgeopt inspect`."""

from __future__ import annotations

import click

from edgeopt.cli._options import format_option, recipe_option, shape_option
from edgeopt.cli._output import show
from edgeopt.cli._values import ModelName, TargetName


@click.command()
@click.argument("model", type=ModelName())
@click.option(
    "--target", "-t", type=TargetName(), metavar="NAME|FILE", help="Also show where this device runs each node."
)
@recipe_option
@shape_option
@click.option("--quantized", is_flag=True, help="Show the integer tensors instead: type, scale, zero point.")
@click.option(
    "--calib", default="", metavar="PICTURES", help="With --quantized: also measure the error of each tensor."
)
@click.option("--float", "against", default="", metavar="FILE", help="With --calib: the float model to compare with.")
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
    """Show what MODEL is, and where a device runs its nodes."""
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
