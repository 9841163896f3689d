"""The life of one call of `export`: a network in, an ONNX file that is proven to answer as it does out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from numpy import __version__ as numpy_version

from edgeopt.errors import EdgeoptError, Note, NoteKind, NotFoundError, UnsupportedError
from edgeopt.graph.model import Model, save_model
from edgeopt.graph.tensors import TensorSpec
from edgeopt.pipeline.companions import copy_companions
from edgeopt.pipeline.export.decoder.folder import (
    TEXTS,
    compare_with_reference,
    decoder_recipe,
    is_decoder,
)
from edgeopt.pipeline.export.decoder.llama import read_configuration, write_llama
from edgeopt.pipeline.export.decoder.tensors_file import TensorFiles
from edgeopt.pipeline.export.from_torch import open_module, open_program, open_torchscript
from edgeopt.pipeline.export.hugging_face import open_pretrained
from edgeopt.pipeline.export.likeness import SAMPLES, OutputDrift, compare_with_framework, names_of_outputs
from edgeopt.pipeline.export.network import Network, NetworkInput
from edgeopt.pipeline.export.recipe_file import RECIPE, write_recipe
from edgeopt.pipeline.export.source import Kind, Source, read_source
from edgeopt.pipeline.export.to_onnx import Axes, choose_opset, to_onnx
from edgeopt.runtime.availability import find_device
from edgeopt.system.files import require_writable

_OPENERS: Mapping[Kind, Callable[[Source, Sequence[NetworkInput]], Network]] = {
    Kind.MODULE: open_module,
    Kind.PROGRAM: open_program,
    Kind.TORCHSCRIPT: open_torchscript,
    Kind.HUGGING_FACE: open_pretrained,
}


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What was exported, and how near it is to the original."""

    source: str
    file: Path
    name: str
    framework: str
    opset: int
    size_bytes: int
    nodes: int
    inputs: tuple[TensorSpec, ...]
    samples: int
    """On which both were asked."""
    outputs: tuple[OutputDrift, ...]
    beside: tuple[Path, ...]
    """Recipe, class names, configurations; empty: none was written."""
    notes: tuple[Note, ...]
    writes: bool = False
    """Whether it is a language model, which writes token after token."""

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "file": str(self.file), "beside": [str(one) for one in self.beside]}


def export(
    source: str,
    *,
    out: str | Path | None = None,
    inputs: Sequence[NetworkInput] = (),
    dynamic: Axes | None = None,
    target: str = "cpu",
) -> ExportResult:
    """Export a network of PyTorch to an ONNX file, check it, and compare it with the network on several inputs.

    Args:
        source: `hf:FOLDER`, `hf:ID`, `torch:package.module:factory`, a `.pt2` or a TorchScript file.
        out: The file to write; None: `NAME/model.onnx` here. A recipe lies beside it where the source tells one.
        inputs: In the order in which the network takes them; a Hugging Face network and a `.pt2` know their own.
        dynamic: Input to its axes that stay free.
        target: Shipped name or path of a TOML file: its opset is written.

    Raises:
        EdgeoptError: If the source cannot be read or exported, or the model answers differently: nothing is written.
    """
    named, device = read_source(source), find_device(target)
    file = Path(out) if out else Path(named.name) / "model.onnx"
    _require_onnx(file)
    if named.kind is Kind.HUGGING_FACE and is_decoder(Path(named.where)):
        return _export_decoder(source, named, file, inputs, dynamic or {})
    network = _OPENERS[named.kind](named, inputs)
    axes = _known_axes(network, dynamic or {})
    opset, notes = choose_opset(device, network.form)
    names = names_of_outputs(network)
    model = to_onnx(network, names, axes, opset)
    drifts = compare_with_framework(network, model, names, axes)
    save_model(model, file)
    beside = write_recipe(network.recipe, file.parent) if network.recipe else ()
    if network.recipe and not beside:
        notes = (*notes, Note(NoteKind.INFO, f"{file.parent / RECIPE} is left as it is", "another than export wrote"))
    return ExportResult(
        source=source,
        file=file,
        name=network.name,
        framework=network.framework,
        opset=model.opset,
        size_bytes=model.size_bytes,
        nodes=len(model.proto.graph.node),
        inputs=model.inputs,
        samples=SAMPLES,
        outputs=drifts,
        beside=(*beside, *copy_companions(network.companions, file.parent)),
        notes=(*network.notes, *notes, *_unread(network, model)),
    )


def _export_decoder(
    source: str, named: Source, file: Path, inputs: Sequence[NetworkInput], dynamic: Axes
) -> ExportResult:
    """Write a language model from its weights, with its cache, tokenizer and recipe."""
    if inputs or dynamic:
        raise UnsupportedError(
            "the inputs of a language model are its tokens and its cache, of any length",
            remedy="leave --input and --dynamic out",
        )
    folder = Path(named.where)
    config, weights = read_configuration(folder), TensorFiles(folder)
    recipe = decoder_recipe(folder, config, named.name)
    model = write_llama(config, weights, named.name)
    drift = compare_with_reference(config, weights, model)
    save_model(model, file)
    beside, notes = write_recipe(recipe, file.parent), tuple[Note, ...]()
    if not beside:
        notes = (Note(NoteKind.INFO, f"{file.parent / RECIPE} is left as it is", "another than export wrote"),)
    return ExportResult(
        source=source,
        file=file,
        name=named.name,
        framework=f"NumPy {numpy_version}, its weights computed plainly",
        opset=model.opset,
        size_bytes=model.size_bytes,
        nodes=len(model.proto.graph.node),
        inputs=model.inputs[:2],
        samples=TEXTS,
        outputs=(OutputDrift("logits", (1, 1, config.vocabulary), drift),),
        beside=beside,
        notes=notes,
        writes=True,
    )


def export_for(source: str, shapes: Mapping[str, tuple[int, ...]], target: str, out: Path | None) -> ExportResult:
    """Export what `optimize` is given: into `NAME/model.onnx` beside its output folder.

    Args:
        source: As `export`.
        shapes: Of inputs by name, in the order in which the network takes them.
        target: As `export`.
        out: The output folder of `optimize`; None: below `out`.
    """
    name = read_source(source).name
    folder = (out.parent if out else Path("out")) / name
    if folder == out:
        folder = out.with_name(f"{name}-export")
    inputs = [NetworkInput(name, shape) for name, shape in shapes.items()]
    return export(source, out=folder / "model.onnx", inputs=inputs, target=target)


def _require_onnx(file: Path) -> None:
    if file.suffix.lower() != ".onnx":
        raise EdgeoptError(f"{file} is no name of an ONNX file", remedy=f"write -o {file.with_suffix('.onnx')}")
    require_writable(file)


def _known_axes(network: Network, dynamic: Axes) -> Axes:
    """Return the axes that stay free.

    Raises:
        NotFoundError: If no input has such a name.
        UnsupportedError: If an input has not so many axes, or the program fixed them.
    """
    by_name = {one.name: one for one in network.inputs}
    if dynamic and network.form == "program":
        raise UnsupportedError(
            "torch.export has decided which axes of this program are free",
            remedy="leave --dynamic out, or give dynamic_shapes to torch.export.export",
        )
    for name, axes in dynamic.items():
        if name not in by_name:
            raise NotFoundError("input", name, by_name)
        rank = len(by_name[name].shape)
        if not all(0 <= axis < rank for axis in axes):
            raise UnsupportedError(f"input {name} has {rank} axes, not {max(axes)}", remedy=f"write 0 to {rank - 1}")
    return dynamic


def _unread(network: Network, model: Model) -> tuple[Note, ...]:
    left = {one.name for one in network.inputs} - {one.name for one in model.inputs}
    return tuple(Note(NoteKind.WARNING, f"no output depends on input {name}: it is left out") for name in sorted(left))
