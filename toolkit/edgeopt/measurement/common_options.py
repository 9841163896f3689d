"""Options that several verbs have in the same words."""

from __future__ import annotations

from typing import Any

from edgeopt.system.declared.options import FileUse, OptionGroup, Syntax, option
from edgeopt.system.machine.threads import DEFAULT_THREADS

MODEL = OptionGroup("model", "Model and device", "how the model is fed, and what computes it")
LENGTH = OptionGroup("time", "How long", "seconds, frames or minutes of the measurement")
BUDGET = OptionGroup("budget", "The budget", "the allowed time, and the highest rate that keeps it")
ARRIVALS = OptionGroup("load", "How frames arrive", "rate, cameras, queue, sessions")
BESIDES = OptionGroup("also", "Also measured", "batches, starts, operators, other models")
MEASURED = OptionGroup("measure", "What is measured", "samples, labels and length")
LANGUAGE = OptionGroup("language", "Language models", "prompts, and the answers to them")
EXPORTED = OptionGroup("export", "Models that are exported first", "from Hugging Face or PyTorch")
PIPELINES = OptionGroup("pipeline", "Pipelines", "the app's own functions")
"""Groups of options that several verbs or kinds have."""
LABEL_KINDS = "COCO JSON, YOLO or VOC files, class folders, masks, a CSV"
"""Kinds of labels that `--eval` reads, in a few words; docs/recipes.md has the rest."""
SAMPLE_KINDS = "a folder, a video, an .npz, sounds (.wav) or texts"
"""Kinds of unlabelled samples, in a few words."""
QUEUES = "Which frames wait: all of them (fifo), up to K (bounded:K), or only the newest (latest)"
"""Help of `queue`."""
WITHOUT_DRAFT = "; with the word none they are made from the text so far"
"""End of the help of `draft`."""
DEVICE = "The device, by its name in edgeopt targets; or a TOML file."
"""Help of `target`."""
TASK = "Task of a model from Hugging Face, by optimum's name, such as feature-extraction."
"""Help of `task`."""
INPUT = (
    "Name and shape of an input for the export; ids=1x128:int64 tells its type too. Repeat it for each input in order."
)
"""Help of `inputs`."""
PRUNED = (
    "Channels to remove: as many as pay on this machine (auto), a share such as 0.3, as many as make the model 1.5x as "
    "fast, or none (off)."
)
"""Help of `prune`."""
EXAMPLES = "edgeopt.measurement.load.models:examples"
"""Function that fills the help of `load`, as `module:name`."""


DEFAULT_TARGET = "cpu"
SECONDS = 5.0
"""Least time of a measurement of one workload alone."""
COLD_STARTS = 10
"""Starts of each kind that are timed."""
MAX_MISS_RATIO = 0.01
"""Share of the frames that may miss a budget."""


def source_option(group: OptionGroup, shown: str = "the recipe's own") -> Any:
    """Return `source`, the pictures or other samples that a model is fed."""
    return option(
        None,
        f"Samples that the model is fed: a picture, {SAMPLE_KINDS}.",
        "--source",
        "-s",
        group=group,
        common=True,
        metavar="PICTURES",
        shown=shown,
        file_use=FileUse.READ,
    )


def shapes_option(group: OptionGroup) -> Any:
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


def threads_option(group: OptionGroup, shown: str = DEFAULT_THREADS) -> Any:
    """Return `threads`, of the engine; 0: what `shown` says."""
    return option(0, "Threads of the engine.", group=group, syntax=Syntax.WHOLE, least=1, shown=shown)


def seed_option(group: OptionGroup, decides: str = "the order of what runs in turns") -> Any:
    """Return `seed`."""
    return option(0, f"Seed of the random numbers: they decide {decides}.", group=group, syntax=Syntax.WHOLE, least=0)


def target_option(group: OptionGroup, *, required: bool = False) -> Any:
    """Return `target`, the device: a shipped name or the path of a TOML file."""
    return option(
        "" if required else DEFAULT_TARGET,
        DEVICE if required else f"{DEVICE} Of a bundle for several targets, one of these.",
        "--target",
        "-t",
        group=group,
        common=True,
        syntax=Syntax.TARGET,
        metavar="NAME|FILE",
        required=required,
    )


def recipe_option(group: OptionGroup) -> Any:
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


def out_option(group: OptionGroup, what: str) -> Any:
    """Return `out`, the folder for what a verb writes."""
    return option(
        None,
        f"Folder for the result: {what}.",
        "--out",
        "-o",
        group=group,
        common=True,
        syntax=Syntax.FILE,
        file_use=FileUse.WRITE,
    )


def optimize_out_option(group: OptionGroup) -> Any:
    """Return `out`, the folder of `optimize`."""
    return option(
        None,
        "Folder for candidates, bundle and report.",
        "--out",
        "-o",
        group=group,
        common=True,
        syntax=Syntax.FILE,
        shown="out/MODEL-TARGET",
        file_use=FileUse.WRITE,
    )


def code_option(group: OptionGroup = PIPELINES) -> Any:
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
    return option(default, text, group=LANGUAGE, syntax=Syntax.WHOLE, least=1, shown=shown)


def prompt_lengths_option(default: int) -> Any:
    """Return `prompt_tokens`, several lengths of a language model's prompts."""
    text = "Lengths of a language model's prompts: 128,512 measures two."
    return option((default,), text, group=LANGUAGE, common=True, syntax=Syntax.COUNTS, shown=str(default))


def answer_tokens_option(default: int) -> Any:
    """Return `output_tokens` beside several lengths of prompts."""
    return option(default, "Tokens of each answer.", group=LANGUAGE, syntax=Syntax.WHOLE, least=2)


def output_tokens_option(default: int, shown: str = "") -> Any:
    """Return `output_tokens`, the length of a language model's answers."""
    text = "Length of the answers."
    return option(default, text, group=LANGUAGE, syntax=Syntax.WHOLE, least=2, shown=shown)
