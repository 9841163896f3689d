"""Options that several verbs have in the same words."""

from __future__ import annotations

from typing import Any

from edgeopt.system.declared.options import FileUse, Syntax, option
from edgeopt.system.machine.threads import DEFAULT_THREADS

LABEL_KINDS = "COCO JSON, YOLO or VOC files, class folders, masks, a CSV"
"""Kinds of labels that `--eval` reads, in a few words; docs/recipes.md has the rest."""
SAMPLE_KINDS = "a folder, a video, an .npz, sounds (.wav) or texts"
"""Kinds of unlabelled samples, in a few words."""
EXAMPLES = "edgeopt.measurement.load.models:examples"
"""Function that fills the help of `load`, as `module:name`."""


DEFAULT_TARGET = "cpu"
SECONDS = 5.0
"""Least time of a measurement of one workload alone."""
COLD_STARTS = 10
"""Starts of each kind that are timed."""
MAX_MISS_RATIO = 0.01
"""Share of the frames that may miss a budget."""


def source_option(group: str, shown: str = "the recipe's own") -> Any:
    """Return `source`, the pictures or other samples that a model is fed."""
    return option(
        None,
        f"A picture, {SAMPLE_KINDS}.",
        "--source",
        "-s",
        group=group,
        metavar="PICTURES",
        shown=shown,
        file_use=FileUse.READ,
    )


def shapes_option(group: str) -> Any:
    """Return `shapes`, whole shapes of inputs by name, for what a model leaves free; a bundle has its own."""
    return option(
        dict,
        "The shape of an input that the model leaves free; repeatable.",
        "--shape",
        group=group,
        syntax=Syntax.SHAPE,
        metavar="INPUT=1x3x48x192",
        repeatable=True,
    )


def threads_option(group: str, shown: str = DEFAULT_THREADS) -> Any:
    """Return `threads`, of the engine; 0: what `shown` says."""
    return option(0, "Threads of the engine.", group=group, syntax=Syntax.WHOLE, least=1, shown=shown)


def seed_option(group: str, decides: str = "the order of what runs in turns") -> Any:
    """Return `seed`."""
    return option(0, f"Decides {decides}.", group=group, syntax=Syntax.WHOLE, least=0)


def target_option(group: str, *, required: bool = False) -> Any:
    """Return `target`, the device: a shipped name or the path of a TOML file."""
    text = "name of edgeopt targets, or a TOML file."
    return option(
        "" if required else DEFAULT_TARGET,
        f"The device: a {text}" if required else f"The device, for a model or a bundle for several targets: a {text}",
        "--target",
        "-t",
        group=group,
        syntax=Syntax.TARGET,
        metavar="NAME|FILE",
        required=required,
    )


def recipe_option(group: str) -> Any:
    """Return `recipe`, how a model is fed and read: a shipped name or the path of a TOML file."""
    return option(
        None,
        "How the model is fed and read: a name of edgeopt models, or a TOML file.",
        "--recipe",
        "-r",
        group=group,
        syntax=Syntax.RECIPE,
        metavar="NAME|FILE",
        shown="read from the model",
    )


def out_option(group: str, what: str) -> Any:
    """Return `out`, the folder for what a verb writes."""
    return option(None, f"Folder for {what}.", "--out", "-o", group=group, syntax=Syntax.FILE, file_use=FileUse.WRITE)


def optimize_out_option(group: str) -> Any:
    """Return `out`, the folder of `optimize`."""
    text = "Folder to write."
    shown = "out/MODEL-TARGET"
    return option(None, text, "--out", "-o", group=group, syntax=Syntax.FILE, shown=shown, file_use=FileUse.WRITE)


def code_option(group: str = "Pipelines") -> Any:
    """Return `code`, the folder of the functions that a pipeline calls."""
    return option(
        None,
        "Folder with the Python modules that the pipeline's stages call. Their code is run.",
        group=group,
        syntax=Syntax.FILE,
        metavar="FOLDER",
        shown="no code is run",
    )


def prompt_tokens_option(default: int, shown: str = "") -> Any:
    """Return `prompt_tokens`, the length of a language model's prompts."""
    text = "Length of the prompts."
    return option(default, text, group="Language models", syntax=Syntax.WHOLE, least=1, shown=shown)


def prompt_lengths_option(default: int) -> Any:
    """Return `prompt_tokens`, several lengths of a language model's prompts."""
    text = "Prompt lengths to measure, such as 128,512."
    return option((default,), text, group="Language models", syntax=Syntax.COUNTS, shown=str(default))


def answer_tokens_option(default: int) -> Any:
    """Return `output_tokens` beside several lengths of prompts."""
    return option(default, "Tokens of each answer.", group="Language models", syntax=Syntax.WHOLE, least=2)


def output_tokens_option(default: int, shown: str = "") -> Any:
    """Return `output_tokens`, the length of a language model's answers."""
    text = "Length of the answers."
    return option(default, text, group="Language models", syntax=Syntax.WHOLE, least=2, shown=shown)
