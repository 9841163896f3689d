"""What a SOURCE of `edgeopt export` names, and which kinds are refused."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.system.files import require_regular
from edgeopt.system.text import short


class Kind(StrEnum):
    """Where a network comes from."""

    MODULE = "torch"
    """`torch:package.module:factory`."""
    PROGRAM = "pt2"
    """What `torch.export.save` wrote."""
    TORCHSCRIPT = "torchscript"
    """What `torch.jit.save` wrote."""
    HUGGING_FACE = "hf"
    """`hf:FOLDER` or `hf:ID`."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a network comes from."""

    kind: Kind
    where: str
    """`package.module:factory`, a path, or an id."""

    def __str__(self) -> str:
        prefix = next((one for one, kind in _PREFIXES.items() if kind is self.kind), "")
        return f"{prefix}{self.where[:_MOST_TOLD]}"

    @property
    def name(self) -> str:
        """What the model is called."""
        if self.kind is Kind.MODULE:
            return self.where.rpartition(":")[2].rpartition(".")[2]
        if self.kind is Kind.HUGGING_FACE:
            return Path(self.where).resolve().name if Path(self.where).is_dir() else self.where.rpartition("/")[2]
        return Path(self.where).name.partition(".")[0]


_MOST_TOLD = 200
"""Characters of a source in a message."""
FORMS = "hf:FOLDER, hf:ID, torch:package.module:factory, FILE.pt2, or a TorchScript file (FILE.pt, FILE.torchscript)"
_PREFIXES = {"hf:": Kind.HUGGING_FACE, "torch:": Kind.MODULE}
_TORCHSCRIPT = (".pt", ".pth", ".ts", ".torchscript")
_TENSORFLOW = (".tflite", ".keras", ".h5", ".hdf5", ".pb")


def is_source(name: str) -> bool:
    """Return whether a name is one that is exported, and neither an ONNX file nor a shipped model."""
    return name.startswith(tuple(_PREFIXES)) or Path(name).suffix.lower() in (*_TORCHSCRIPT, ".pt2", *_TENSORFLOW)


def read_source(text: str) -> Source:
    """Return what a SOURCE names.

    Raises:
        UnsupportedError: If it is TensorFlow's.
        EdgeoptError: If it has no known form, or the file is absent.
    """
    for prefix, kind in _PREFIXES.items():
        if text.startswith(prefix):
            return _named(kind, text.removeprefix(prefix))
    path = Path(text)
    end = path.suffix.lower()
    if end in _TENSORFLOW:
        raise UnsupportedError(
            f"{short(text)} is a model of TensorFlow; edgeopt exports those of PyTorch alone",
            remedy="convert it with python -m tf2onnx.convert (pip install tf2onnx tensorflow, half a gigabyte), and "
            "name the ONNX file; docs/export.md has the commands",
        )
    if end == ".onnx":
        raise EdgeoptError(f"{short(text)} is an ONNX file already", remedy=f"edgeopt optimize {path} takes it")
    if end != ".pt2" and end not in _TORCHSCRIPT:
        raise EdgeoptError(f"{short(text)} is no source of an export", remedy=f"write {FORMS}")
    require_regular(path, remedy="name a file that may be read")
    return Source(Kind.PROGRAM if end == ".pt2" else Kind.TORCHSCRIPT, text)


def _named(kind: Kind, where: str) -> Source:
    if not where or (kind is Kind.MODULE and not all(where.rpartition(":")[::2])):
        raise EdgeoptError(
            f"{kind}:{short(where)} names nothing to export",
            remedy="write torch:package.module:factory" if kind is Kind.MODULE else "write hf:FOLDER or hf:ID",
        )
    return Source(kind, where)
