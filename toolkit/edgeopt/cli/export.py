"""Write an ONNX file of a network, and prove its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgeopt.cli._help import HelpCommand
from edgeopt.cli._options import format_option, input_option, target_option, task_option
from edgeopt.cli._output import show
from edgeopt.cli._values import FreeAxes


@click.command(cls=HelpCommand)
@click.argument("source")
@click.option(
    "--out", "-o", type=click.Path(path_type=Path), show_default="NAME/model.onnx", help="The ONNX file to write."
)
@input_option
@click.option(
    "--dynamic",
    type=FreeAxes(),
    multiple=True,
    metavar="NAME=AXIS,AXIS",
    help="Axes of an input whose size stays free, such as images=0; repeatable.",
)
@task_option
@click.option(
    "--word-times",
    is_flag=True,
    help="Let the decoder of a model that hears tell where it looks: words of a transcription get their times.",
)
@target_option("The device that the file is for. It decides the opset, except of a model that writes tokens.")
@format_option
def export(
    *,
    source: str,
    out: Path | None,
    inputs: tuple[tuple[str, tuple[int, ...], str], ...],
    dynamic: tuple[tuple[str, tuple[int, ...]], ...],
    task: str,
    word_times: bool,
    target: str,
    form: str,
) -> None:
    """Write an ONNX file of a network, and prove that it gives the same answers.

    SOURCE is hf:FOLDER or hf:ID (Hugging Face), torch:package.module:factory (a module, or a function that returns
    one), FILE.pt2 (torch.export), a TorchScript file, or FILE.gguf (llama.cpp). A recipe is written beside it where
    the source tells one. Nothing is written where the answers differ.
    """
    from edgeopt.export.export import export as run
    from edgeopt.export.network import NetworkInput
    from edgeopt.export.summary import summarize

    values: dict[str, Any] = {"out": out, "dynamic": dict(dynamic), "task": task, "target": target}
    values["word_times"] = word_times
    show(summarize(run(source, inputs=[NetworkInput(*input_) for input_ in inputs], **values)), form)


COMMAND = export
