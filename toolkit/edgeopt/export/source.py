"""A SOURCE of `edgeopt export`: what it names, and which kinds are refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.graph.files.exported_folder import folder_name
from edgeopt.graph.files.foreign_models import TENSORFLOW, conversion
from edgeopt.recipes.drafting.optimum_tasks import GENERATION, OptimumTask, read_task
from edgeopt.system.disk.files import require_no_pointer, require_regular
from edgeopt.system.text import short


class NetworkKind(StrEnum):
    """Where a network comes from."""

    MODULE = "torch"
    """`torch:package.module:factory`."""
    PROGRAM = "pt2"
    """A file written by `torch.export.save`."""
    TORCHSCRIPT = "torchscript"
    """A file written by `torch.jit.save`."""
    HUGGING_FACE = "hf"
    """`hf:FOLDER` or `hf:ID`."""
    GGUF = "gguf"
    """`gguf:FILE`, or a `.gguf` file of llama.cpp."""


@dataclass(frozen=True, slots=True)
class NetworkSource:
    """Where a network comes from."""

    kind: NetworkKind
    where: str
    """`package.module:factory`, a path, or an id."""
    task: OptimumTask | None = None
    """Task for which a network of Hugging Face is opened; None: the task of its own class."""

    def __str__(self) -> str:
        prefix = next((name for name, kind in _PREFIXES.items() if kind is self.kind), "")
        return f"{prefix}{self.where[:_MOST_TOLD]}"

    @property
    def writes(self) -> bool:
        """Whether a network that writes token after token is wanted whole, and not its body."""
        return self.task is None or self.task.name == GENERATION

    @property
    def name(self) -> str:
        """The model's name."""
        if self.kind is NetworkKind.MODULE:
            return self.where.rpartition(":")[2].rpartition(".")[2]
        if self.kind is NetworkKind.HUGGING_FACE:
            return folder_name(Path(self.where)) if Path(self.where).is_dir() else self.where.rpartition("/")[2]
        return Path(self.where).stem if self.kind is NetworkKind.GGUF else Path(self.where).name.partition(".")[0]


_MOST_TOLD = 200
"""Characters of a source in a message."""
FORMS = (
    "hf:FOLDER, hf:ID, torch:package.module:factory, FILE.pt2, FILE.gguf, or a TorchScript file "
    "(FILE.pt, FILE.torchscript)"
)
_PREFIXES = {"hf:": NetworkKind.HUGGING_FACE, "torch:": NetworkKind.MODULE, "gguf:": NetworkKind.GGUF}
_TORCHSCRIPT = (".pt", ".pth", ".ts", ".torchscript")
_GGUF = ".gguf"


def is_source(name: str) -> bool:
    """Return whether a name is one that is exported, and neither an ONNX file nor a shipped model."""
    ends = (*_TORCHSCRIPT, ".pt2", _GGUF, *TENSORFLOW)
    return name.startswith(tuple(_PREFIXES)) or Path(name).suffix.lower() in ends or _is_saved_model(Path(name))


def _is_saved_model(path: Path) -> bool:
    return (path / "saved_model.pb").is_file()


def read_source(text: str, task: str = "") -> NetworkSource:
    """Return what a SOURCE names.

    Args:
        text: As the user writes it.
        task: Optimum's name of what a network of Hugging Face is opened for; empty: what its own class is for.

    Raises:
        UnsupportedError: If it is TensorFlow's, or no network is exported for the task.
        EdgeoptError: If it has no known form, the file is absent, or the task has another name.
    """
    source = _read_source(text)
    if task and source.kind is not NetworkKind.HUGGING_FACE:
        raise EdgeoptError(
            f"--task chooses a class of Hugging Face, and {short(text)} is none of its folders",
            remedy="leave --task out, or name hf:FOLDER",
        )
    return replace(source, task=read_task(task)) if task else source


def _read_source(text: str) -> NetworkSource:
    for prefix, kind in _PREFIXES.items():
        if text.startswith(prefix):
            return _named(kind, text.removeprefix(prefix))
    path = Path(text)
    end = path.suffix.lower()
    if end in TENSORFLOW or _is_saved_model(path):
        raise UnsupportedError(
            f"{short(text)} is a model of TensorFlow; edgeopt exports those of PyTorch alone",
            remedy=conversion(path, end),
        )
    if end == ".onnx":
        raise EdgeoptError(f"{short(text)} is an ONNX file already", remedy=f"edgeopt optimize {path} takes it")
    if end == _GGUF:
        return NetworkSource(NetworkKind.GGUF, text)
    if (path / "config.json").is_file():
        problem = f"{short(text)} is a folder of Hugging Face, and none is taken without hf: before it"
        raise EdgeoptError(problem, remedy=f"edgeopt export hf:{path}")
    if end != ".pt2" and end not in _TORCHSCRIPT:
        raise EdgeoptError(f"{short(text)} is no source of an export", remedy=f"write {FORMS}")
    require_regular(path, remedy="name a file that may be read")
    require_no_pointer(path)
    return NetworkSource(NetworkKind.PROGRAM if end == ".pt2" else NetworkKind.TORCHSCRIPT, text)


def _named(kind: NetworkKind, where: str) -> NetworkSource:
    if not where or (kind is NetworkKind.MODULE and not all(where.rpartition(":")[::2])):
        raise EdgeoptError(
            f"{kind}:{short(where)} names nothing to export",
            remedy=f"write {FORMS}",
        )
    if kind is NetworkKind.HUGGING_FACE and not Path(where).is_dir() and _is_path(where):
        raise EdgeoptError(f"there is no folder {short(where)}", remedy="name a folder that save_pretrained wrote")
    return NetworkSource(kind, where)


def _is_path(where: str) -> bool:
    """Whether it names a place on the disk, as no id of Hugging Face begins or is so deep."""
    return where.startswith((".", "/", "~")) or where.count("/") > 1
