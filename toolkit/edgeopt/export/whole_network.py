"""A network of a Hugging Face folder, open in transformers with all its weights, in float32."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError
from edgeopt.export.from_torch import said, torch_of_export
from edgeopt.system.declared.optional import require


@dataclass(frozen=True)
class WholeNetwork:
    """A network, and the packages that hold it."""

    torch: Any
    transformers: Any
    module: Any
    framework: str
    """The packages with their versions."""


def open_whole(folder: Path, class_name: str) -> WholeNetwork:
    """Return the network of a folder of `save_pretrained`; no code beside the weights is run.

    Args:
        folder: Of the network.
        class_name: Class of transformers that opens it.

    Raises:
        MissingDependencyError: If torch, onnxscript or transformers is not installed.
        InvalidFileError: If transformers does not open it, or weights are missing.
    """
    torch = torch_of_export()
    transformers = require("transformers", extra="export", purpose="a network of Hugging Face")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    options = {"dtype": torch.float32, "attn_implementation": "eager", "local_files_only": True}
    try:
        opener = getattr(transformers, class_name).from_pretrained
        module, info = opener(folder, output_loading_info=True, **options)
    except Exception as error:  # whatever transformers says
        problem = f"{folder}: transformers does not open it: {said(error)}"
        raise InvalidFileError(problem, remedy="name a folder that save_pretrained wrote") from error
    if missing := sorted(info["missing_keys"]):
        raise InvalidFileError(f"{folder} has no weights for {missing[0]}", remedy="copy the folder again")
    framework = f"PyTorch {torch.__version__}, transformers {transformers.__version__}"
    return WholeNetwork(torch, transformers, module.eval(), framework)
