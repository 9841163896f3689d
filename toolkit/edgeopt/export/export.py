"""The life of one call of `export`: a network in, an ONNX file that is proven to answer as it does out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from edgeopt.errors import EdgeoptError, Note, NoteKind, NotFoundError, UnsupportedError
from edgeopt.executors._guard import guarded
from edgeopt.export.companions import copy_companions
from edgeopt.export.decoder.folder import TEXTS, write_decoder, write_gguf
from edgeopt.export.decoder.tensors_file import is_large
from edgeopt.export.encoder_decoder import is_encoder_with_decoder, write_encoder_decoder
from edgeopt.export.from_torch import open_module, open_program, open_torchscript
from edgeopt.export.hub import decoder_folder, seeing_folder
from edgeopt.export.hugging_face import open_pretrained
from edgeopt.export.likeness import SAMPLES, OutputDrift, compare_with_framework, names_of_outputs
from edgeopt.export.network import Network, NetworkInput
from edgeopt.export.seeing.write import write_seeing
from edgeopt.export.source import NetworkKind, NetworkSource, is_source, read_source
from edgeopt.export.to_onnx import Axes, choose_opset, to_onnx
from edgeopt.graph.files.large_constants import FOLDER, kept_in
from edgeopt.graph.model import Model, save_model
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.drafting.image_drafting import IMAGE_ENCODER
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.recipe_text import recipe_text
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.recipes.texts.chat_template import TEMPLATE_FILE, chat_files
from edgeopt.recipes.texts.encoder_decoder import ENCODER
from edgeopt.recipes.texts.generation import GENERATION
from edgeopt.report.result import Result, fields_as_json
from edgeopt.runtime.devices.availability import find_device
from edgeopt.system.disk.files import read_file, require_writable, write_beside
from edgeopt.system.machine.environment import Environment, read_environment

RECIPE, LABELS, ALPHABET = "recipe.toml", "labels.txt", "alphabet.txt"
_MOST_BYTES = 128 << 20
"""Most bytes of a tokenizer."""
_FIRST = "# Written by edgeopt export: yours to change; without this line the next export leaves it as it is."


def write_recipe(recipe: Recipe, folder: Path) -> tuple[Path, ...]:
    """Write a recipe and the files that it needs; return what was written: nothing over somebody else's recipe.

    Args:
        recipe: What the source tells.
        folder: Of the model.
    """
    file, labels = folder / RECIPE, folder / LABELS
    if file.exists() and not file.read_bytes().startswith(_FIRST.encode()):
        return ()
    names, tokenizer = recipe.class_names, recipe.path_of(recipe.tokenizer.file)
    written = [file]
    if names:
        write_beside(labels, "".join(f"{name}\n" for name in names))
        written.append(labels)
    if symbols := recipe.alphabet.symbols:
        write_beside(folder / ALPHABET, "".join(f"{symbol}\n" for symbol in symbols))
        written.append(folder / ALPHABET)
        recipe = replace(recipe, alphabet=replace(recipe.alphabet, file=ALPHABET, characters=""))
    for path in (tokenizer, *chat_files(tokenizer if recipe.task == GENERATION else None)):
        if path:
            beside = folder / (recipe.tokenizer.file if path == tokenizer else path.name)
            write_beside(beside, read_file(path, remedy="copy the folder again", most_bytes=_MOST_BYTES))
            written.append(beside)
    write_beside(file, f"{_FIRST}\n{recipe_text(recipe, name=recipe.name, labels=LABELS if names else '')}")
    return tuple(written)


_OPENERS: Mapping[NetworkKind, Callable[[NetworkSource, Sequence[NetworkInput]], Network]] = {
    NetworkKind.MODULE: open_module,
    NetworkKind.PROGRAM: open_program,
    NetworkKind.TORCHSCRIPT: open_torchscript,
    NetworkKind.HUGGING_FACE: open_pretrained,
}


@dataclass(frozen=True, slots=True)
class ExportResult(Result):
    """An exported model, and how near it is to the original."""

    command: ClassVar[str] = "export"

    source: str
    file: Path
    name: str
    framework: str
    opset: int
    size_bytes: int
    nodes: int
    inputs: tuple[TensorSpec, ...]
    samples: int
    """Number of samples on which the framework and ONNX Runtime were compared."""
    outputs: tuple[OutputDrift, ...]
    beside: tuple[Path, ...]
    """Recipe, class names, configurations; empty: none was written."""
    notes: tuple[Note, ...]
    writes: bool = False
    """Whether it is a language model, which writes token after token."""
    hears: bool = False
    """Whether it writes what it hears."""
    sees: bool = False
    """Whether it writes of pictures."""
    needs_recipe: bool = False
    """Whether nothing tells how it is fed and read: no recipe lies beside it, and its shapes are no known model's."""
    environment: Environment | None = None
    """The machine on which both answered, and its software."""

    def own_figures(self) -> dict[str, Any]:
        """Return plain values."""
        return {**fields_as_json(self), "file": str(self.file), "beside": [str(path) for path in self.beside]}


@guarded()
def export(
    source: str,
    *,
    out: str | Path | None = None,
    inputs: Sequence[NetworkInput] = (),
    dynamic: Axes | None = None,
    task: str = "",
    target: str = "cpu",
    word_times: bool = False,
) -> ExportResult:
    """Export a network of PyTorch to an ONNX file, check it, and compare it with the network on several inputs.

    Args:
        source: `hf:FOLDER`, `hf:ID`, `torch:package.module:factory`, a `.gguf`, a `.pt2` or a TorchScript file.
        out: The file to write; None: `NAME/model.onnx` here. A recipe lies beside it where the source tells one. Of an
            encoder with a decoder the folder.
        inputs: In the order in which the network takes them; a Hugging Face network and a `.pt2` know their own.
        dynamic: Input to its axes that stay free.
        task: Optimum's name of what a Hugging Face network is opened for; empty: what its own class is for.
        target: Shipped name or path of a TOML file: its opset is written.
        word_times: Whether the decoder of a model that hears tells where it looks, by which words get their times.

    Raises:
        EdgeoptError: If the source cannot be read or exported, or the model answers differently: nothing is written.
    """
    written = _write(source, out, inputs, dynamic, task, target, word_times=word_times)
    return replace(written, environment=read_environment())


def _write(
    source: str,
    out: str | Path | None,
    inputs: Sequence[NetworkInput],
    dynamic: Axes | None,
    task: str,
    target: str,
    *,
    word_times: bool,
) -> ExportResult:
    named, device = read_source(source, task), find_device(target)
    file = Path(out) if out else Path(named.name) / "model.onnx"
    if is_pair(named):
        _require_no_inputs(inputs, dynamic, "an encoder with a decoder are its sounds or texts, and its cache")
        folder = file.parent if file.suffix.lower() == ".onnx" else file
        return _export_pair(source, named, folder, word_times=word_times)
    if word_times:
        raise EdgeoptError(f"{source} writes no words that it hears", remedy="leave --word-times out")
    _require_onnx(file)
    if _is_written_by(named):
        _require_no_inputs(inputs, dynamic, "a language model are its tokens and its cache, of any length")
        return _export_seeing(source, named, file) if is_seeing(named) else _export_decoder(source, named, file)
    network = _OPENERS[named.kind](named, inputs)
    axes = _known_axes(network, dynamic or {})
    opset, notes = choose_opset(device, network.form)
    names = names_of_outputs(network)
    model = to_onnx(network, names, axes, opset)
    drifts = compare_with_framework(network, model, names, axes)
    save_model(model, file)
    beside = write_recipe(network.recipe, file.parent) if network.recipe else ()
    if network.recipe and not beside:
        notes = (*notes, _left_as_it_is(file.parent))
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
        beside=tuple(dict.fromkeys((*beside, *copy_companions(network.companions, file.parent)))),
        notes=(*network.notes, *notes, *_unread(network, model)),
        needs_recipe=not _is_known(model, file),
    )


def _is_known(model: Model, file: Path) -> bool:
    """Whether `optimize` finds a recipe: beside the file, or by the model's shapes and names."""
    try:
        choose_recipe(None, file, model.inputs, model.outputs, model.metadata)
    except EdgeoptError:
        return False
    return True


def _export_decoder(source: str, named: NetworkSource, file: Path) -> ExportResult:
    """Write a language model from its weights, with its cache, tokenizer and recipe."""
    weights = Path(named.where) if named.kind is NetworkKind.GGUF else decoder_folder(named)
    assert weights is not None
    with TemporaryDirectory() as between, kept_in(file.parent / FOLDER if is_large(weights) else None):
        if named.kind is NetworkKind.GGUF:
            made = write_gguf(weights, Path(between), named.name)
        else:
            made = write_decoder(weights, named.name)
            if weights != Path(named.where):  # fetched by its id
                made = replace(made, recipe=replace(made.recipe, source=named.where))
        model, notes = made.model.gathered(), made.notes
        save_model(model, file)
        beside = write_recipe(made.recipe, file.parent)
    if not beside:
        notes = (*notes, _left_as_it_is(file.parent))
    return ExportResult(
        source=source,
        file=file,
        name=named.name,
        framework=made.framework,
        opset=model.opset,
        size_bytes=model.size_bytes,
        nodes=len(model.proto.graph.node),
        inputs=model.inputs[:2],
        samples=made.texts,
        outputs=(OutputDrift("logits", (1, 1, made.vocabulary), made.drift),),
        beside=beside,
        notes=notes,
        writes=True,
    )


def is_seeing(named: NetworkSource) -> bool:
    """Return whether a source is a Hugging Face folder of a language model that sees, which is wanted whole."""
    return named.kind is NetworkKind.HUGGING_FACE and named.writes and seeing_folder(named) is not None


def _export_seeing(source: str, named: NetworkSource, file: Path) -> ExportResult:
    """Write a language model that sees: its decoder, beside it the encoder of pictures, recipe, tokenizer, template."""
    require_writable(file.parent / IMAGE_ENCODER)
    folder = seeing_folder(named)
    assert folder is not None
    with kept_in(file.parent / FOLDER if is_large(folder) else None):
        made = write_seeing(folder, named.name)
        save_model(made.decoder.model, file)
        save_model(made.encoder, file.parent / IMAGE_ENCODER)
        sizes = made.decoder.model.size_bytes, made.encoder.size_bytes
    decoder = replace(made.decoder, recipe=replace(made.decoder.recipe, source=f"hf:{named.where}"))
    beside = list(write_recipe(decoder.recipe, file.parent))
    notes = made.notes if beside else (*made.notes, _left_as_it_is(file.parent))
    if made.template:
        write_beside(file.parent / TEMPLATE_FILE, made.template)
        beside.append(file.parent / TEMPLATE_FILE)
    models = decoder.model, made.encoder
    return ExportResult(
        source=source,
        file=file,
        name=named.name,
        framework=decoder.framework,
        opset=decoder.model.opset,
        size_bytes=sum(sizes),
        nodes=sum(len(model.proto.graph.node) for model in models),
        inputs=(*made.encoder.inputs, *decoder.model.inputs[:2]),
        samples=decoder.texts,
        outputs=(
            OutputDrift("image_rows", made.rows, made.encoder_drift),
            OutputDrift("logits", (1, 1, decoder.vocabulary), decoder.drift),
        ),
        beside=(file.parent / IMAGE_ENCODER, *beside),
        notes=notes,
        writes=True,
        sees=True,
    )


def _require_no_inputs(inputs: Sequence[NetworkInput], dynamic: Axes | None, own: str) -> None:
    if inputs or dynamic:
        raise UnsupportedError(f"the inputs of {own}", remedy="leave --input and --dynamic out")


def _left_as_it_is(folder: Path) -> Note:
    return Note(NoteKind.INFO, f"{folder / RECIPE} is left as it is", "another than export wrote")


def is_pair(named: NetworkSource) -> bool:
    """Return whether a source is a Hugging Face folder of an encoder with its decoder, which is wanted whole."""
    return named.kind is NetworkKind.HUGGING_FACE and named.writes and is_encoder_with_decoder(Path(named.where))


def _export_pair(source: str, named: NetworkSource, folder: Path, *, word_times: bool) -> ExportResult:
    """Write an encoder and its decoder, with their caches, configurations and tokenizer."""
    require_writable(folder / ENCODER)
    made = write_encoder_decoder(Path(named.where), folder, named.name, word_times=word_times)
    models = made.pair.encoder, made.pair.decoder
    return ExportResult(
        source=source,
        file=folder,
        name=named.name,
        framework=made.framework,
        opset=models[0].opset,
        size_bytes=sum(model.size_bytes for model in models),
        nodes=sum(len(model.proto.graph.node) for model in models),
        inputs=models[0].inputs,
        samples=TEXTS,
        outputs=(OutputDrift("logits", (1, 1, made.vocabulary), made.drift),),
        beside=made.beside,
        notes=(),
        writes=True,
        hears=made.hears,
    )


def names_pair(source: str, task: str = "") -> bool:
    """Return whether a SOURCE is a Hugging Face folder of an encoder with its decoder, which is wanted whole."""
    return is_source(source) and is_pair(read_source(source, task))


def names_decoder(source: str, task: str = "") -> bool:
    """Return whether a SOURCE is a Hugging Face folder, or a GGUF file, of a network that writes token after token.

    Args:
        source: As `export`.
        task: As `export`: of another task such a network is read whole, and writes nothing.
    """
    return is_source(source) and _is_written_by(read_source(source, task))


def _is_written_by(named: NetworkSource) -> bool:
    """Whether it is exported as a decoder with its cache."""
    if named.kind is NetworkKind.GGUF:
        return True
    return (
        named.kind is NetworkKind.HUGGING_FACE
        and named.writes
        and (is_seeing(named) or decoder_folder(named) is not None)
    )


def export_for(
    source: str, target: str, out: Path | None, *, inputs: Sequence[NetworkInput] = (), task: str = ""
) -> ExportResult:
    """Export what `optimize` is given: into `NAME/model.onnx` beside its output folder.

    Args:
        source: As `export`.
        target: As `export`.
        out: The output folder of `optimize`; None: below `out`.
        inputs: As `export`.
        task: As `export`.
    """
    named = read_source(source)
    folder = (out.parent if out else Path("out")) / named.name
    if folder == out or folder.resolve() == Path(named.where).resolve():  # the source stays as it is
        folder = folder.with_name(f"{named.name}-export")
    return export(source, out=folder / "model.onnx", inputs=inputs, task=task, target=target)


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
    by_name = {input_.name: input_ for input_ in network.inputs}
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
    left = {port.name for port in network.inputs} - {port.name for port in model.inputs}
    return tuple(Note(NoteKind.WARNING, f"no output depends on input {name}: it is left out") for name in sorted(left))
