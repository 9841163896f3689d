"""Folders of Hugging Face that hold ONNX files, as `optimum-cli export onnx` and the hub lay them out."""

from __future__ import annotations

from pathlib import Path

from edgeopt.errors import InvalidFileError

_CONFIGURATION = "config.json"
_INNER = "onnx"
"""Where the hub keeps ONNX files beside the weights."""
_MODEL = "model.onnx"
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_MOST_NAMED = 8
"""Files in a message."""


def exported_in(folder: Path) -> Path | None:
    """Return the model of a folder with a `config.json`: `model.onnx`, or its only ONNX file; None of another folder.

    Raises:
        InvalidFileError: If it holds several models and none is called `model.onnx`, or weights alone.
    """
    if not (folder / _CONFIGURATION).is_file() or (folder / "manifest.json").is_file():
        return None
    paths = next((files for path in (folder, folder / _INNER) if (files := sorted(path.glob("*.onnx")))), [])
    whole = [path for path in paths if path.name == _MODEL] or paths
    if len(whole) == 1:
        return whole[0]
    if paths:
        names = ", ".join(path.name for path in paths[:_MOST_NAMED]) + (", ..." if len(paths) > _MOST_NAMED else "")
        first = min(paths, key=lambda path: "decoder" in path.name)  # a decoder asks token after token
        raise InvalidFileError(f"{folder} holds {len(paths)} models: {names}", remedy=f"name one of them: {first}")
    if any(True for weight in WEIGHTS for _ in folder.glob(weight)):
        problem = f"{folder} holds weights of Hugging Face, and no ONNX file"
        raise InvalidFileError(problem, remedy=f"edgeopt export hf:{folder}, or edgeopt optimize hf:{folder}")
    return None


def name_of(model: Path) -> str:
    """Return what a model is called: the file's stem, or its folder's name where that is `model`."""
    if model.stem != "model":
        return model.stem
    above = model.parent.resolve()
    is_inner = above.name == _INNER and (above.parent / _CONFIGURATION).is_file()
    return folder_name(above.parent if is_inner else above) or model.stem


def folder_name(folder: Path) -> str:
    """Return what the model in a folder is called: its name, in Hugging Face's cache that of the repository."""
    place = folder.resolve()
    is_snapshot = place.parent.name == "snapshots" and place.parents[1].name.startswith("models--")
    return place.parents[1].name.rpartition("--")[2] if is_snapshot else place.name
