"""`edgeopt export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgeopt.cli._options import format_option, target_option
from edgeopt.cli._output import show
from edgeopt.cli._values import FreeAxes, TypedShape


@click.command()
@click.argument("source")
@click.option(
    "--out", "-o", type=click.Path(path_type=Path), show_default="NAME/model.onnx", help="The ONNX file to write."
)
@click.option(
    "--input",
    "inputs",
    type=TypedShape(),
    multiple=True,
    metavar="NAME=1x3x224x224",
    help="Name and shape of an input, in order; of another type ids=1x128:int64. Repeatable.",
)
@click.option(
    "--dynamic",
    type=FreeAxes(),
    multiple=True,
    metavar="NAME=AXIS,AXIS",
    help="Axes of an input that stay free, such as images=0; repeatable.",
)
@target_option
@format_option
def export(
    *,
    source: str,
    out: Path | None,
    inputs: tuple[tuple[str, tuple[int, ...], str], ...],
    dynamic: tuple[tuple[str, tuple[int, ...]], ...],
    target: str,
    form: str,
) -> None:
    """Write an ONNX file of a PyTorch network, and prove that it answers alike.

    SOURCE is hf:FOLDER or hf:ID (Hugging Face), torch:package.module:factory (a module, or a function that returns
    one), FILE.pt2 (torch.export), or a TorchScript file. A recipe is written beside it where the source tells one.
    Nothing is written where the answers differ.
    """
    from edgeopt.pipeline.export.export import export as run
    from edgeopt.pipeline.export.network import NetworkInput
    from edgeopt.pipeline.export.summary import summarize

    given: dict[str, Any] = {"out": out, "dynamic": dict(dynamic), "target": target}
    show(summarize(run(source, inputs=[NetworkInput(*one) for one in inputs], **given)), form)


COMMAND = export
