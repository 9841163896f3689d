"""Which language models that see are written, and by what."""

from __future__ import annotations

from pathlib import Path

from edgeopt.errors import UnsupportedError
from edgeopt.export.seeing.idefics import write_idefics
from edgeopt.export.seeing.qwen import write_qwen
from edgeopt.export.seeing.written import WrittenSeeing, configuration
from edgeopt.recipes.drafting.image_drafting import IN_PATCHES, IN_TILES

_WHY_NOT = {
    "paligemma": "its decoder sees what comes behind each token of the prompt, which is not done here",
    "mllama": "its decoder looks at pictures across, which is not done here",
    "idefics2": "its pictures keep their own proportions, which is not done here",
    "qwen3_vl_moe": "experts beside pictures are not done here",
}


def write_seeing(folder: Path, name: str) -> WrittenSeeing:
    """Return encoder and decoder of a folder, both compared with what its weights say.

    Raises:
        MissingDependencyError: If torch or transformers is not installed, where the encoder is traced by it.
        InvalidFileError: If a file of the folder is damaged or missing.
        UnsupportedError: If its kind is not done here, or a graph answers differently.
    """
    kind = str(configuration(folder).get("model_type"))
    if kind in IN_PATCHES:
        return write_qwen(folder, name)
    if kind in IN_TILES:
        return write_idefics(folder, name)
    why = _WHY_NOT.get(kind, "its pictures are not done here")
    names = ", ".join([*IN_TILES.values(), *IN_PATCHES.values()])
    raise UnsupportedError(f"{folder} is a {kind}: {why}", remedy=f"name a folder of one of these: {names}")
