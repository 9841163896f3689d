"""The files that rivals of a language model are opened with: the user's own, or made of the same weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeopt.errors import EdgeoptError, NotFoundError, UnsupportedError
from edgeopt.export.decoder.gguf.writing import FORMS, write_gguf_file
from edgeopt.export.decoder.graph_weights import read_graph_weights
from edgeopt.export.decoder.llama import LlamaConfiguration, read_configuration
from edgeopt.export.decoder.quantized import QuantizedFolder, open_weights
from edgeopt.export.decoder.tensors_file import NamedTensors
from edgeopt.graph.model import load_model
from edgeopt.measurement.generation import rivals
from edgeopt.measurement.generation.options import SideOptions
from edgeopt.measurement.generation.rivals import EngineRequest, RivalEngine, RivalWeights
from edgeopt.measurement.generation.sides.apart import ApartModel, prepared
from edgeopt.measurement.generation.sides.side_by_side import WriterSide
from edgeopt.recipes.drafting.generation_drafting import TOKENIZER
from edgeopt.recipes.recipe import Recipe
from edgeopt.running.writing import find_language_model
from edgeopt.runtime.decoding.language_model import LanguageModel, Origin
from edgeopt.runtime.decoding.opening import decoder_file, recipe_beside

_FLOAT_BITS = 16
"""RivalWeights in float are compared with rivals' 16 bits, their usual form; `NAME:f32` asks for all 32."""
_PACKED = "MatMulNBits"
_OPTION = "--rival-model"
_CONFIG = "config.json"
_OWN_MARKS = ("openvino_model.xml", "genai_config.json")
"""Files of folders that a rival's own exporter wrote."""


@dataclass(frozen=True, slots=True)
class RivalWish:
    """One rival, as the user asked for it."""

    rival: RivalEngine
    form: str
    """Empty: the one with the bits of the first side."""
    file: str
    """Empty: it is made."""

    @property
    def label(self) -> str:
        """Name and form."""
        return f"{self.rival.name} {self.form}" if self.form else self.rival.name


def read_wishes(options: SideOptions) -> tuple[RivalWish, ...]:
    """Return the rivals that are asked for.

    Raises:
        NotFoundError: If there is no such rival, or no such form of it.
        EdgeoptError: If a file is named for none of them, or a rival stands there twice.
    """
    files = dict[str, str]()
    for text in options.rival_models:
        name, equals, file = text.partition("=")
        if not (equals and name.strip() and file.strip()):
            raise EdgeoptError(
                f"{_OPTION} {text} names no rival and its file", remedy=f"write {_OPTION} llama.cpp=FILE"
            )
        files[rivals.find(name).name] = file.strip()
    wishes = tuple(_wish(text, files) for text in options.rivals)
    if strange := set(files) - {wish.rival.name for wish in wishes}:
        name = min(strange)
        raise EdgeoptError(f"{_OPTION} names a file for {name}, which is not compared", remedy=f"add --rivals {name}")
    labels = [wish.label for wish in wishes]
    if doubled := next((label for label in labels if labels.count(label) > 1), ""):
        raise EdgeoptError(f"--rivals names {doubled} twice", remedy="name it once, or with another form: NAME:FORM")
    return wishes


def _wish(text: str, files: Mapping[str, str]) -> RivalWish:
    name, _, form = text.partition(":")
    rival, form = rivals.find(name), form.strip().lower()
    known = tuple(dict.fromkeys((*rival.forms.values(), *rival.more_forms)))
    if form and not known:
        raise EdgeoptError(
            f"{rival.name} reads the compared file itself, in no other form",
            remedy=f"write {rival.name} without :{form}",
        )
    if form and form not in known:
        raise NotFoundError(f"form of {rival.name}", form, known)
    return RivalWish(rival, form, files.get(rival.name, ""))


def bits_of(model: LanguageModel) -> int:
    """Return the bits of most weights of the first side: those of its blocks, or 16 for floats."""
    counts = dict[int, int]()
    for node in load_model(model.origin.file, in_place=True).proto.graph.node:
        if node.op_type == _PACKED:
            bits = next((int(attribute.i) for attribute in node.attribute if attribute.name == "bits"), 4)
            counts[bits] = counts.get(bits, 0) + 1
    return max(counts, key=counts.__getitem__) if counts else _FLOAT_BITS


class RivalFiles:
    """Files of the rivals of a comparison; what is made lies in one folder, and is made once."""

    def __init__(self, sides: Sequence[WriterSide], work: Path, threads: int, context: int) -> None:
        """Make files of the weights of one of the sides, the first from which they can be had.

        Args:
            sides: That are compared, language models.
            work: The folder.
            threads: Of each engine.
            context: Tokens for which each reserves memory.
        """
        self._sides, self._work, self._threads, self._context = sides, work, threads, context
        self._written = dict[tuple[str, str], Path]()

    def model(self, wish: RivalWish) -> ApartModel:
        """Return what the process of a rival opens.

        Raises:
            EdgeoptError: If no file can be made, or the one named is not there.
        """
        first = self._sides[0]
        assert isinstance(first.model, LanguageModel)
        work = self._work / rivals.file_of(wish.label)
        work.mkdir()
        form = "" if _is_own(wish.file) else wish.form or wish.rival.form_for(bits_of(first.model))
        label = wish.label if wish.form or not form else f"{wish.rival.name} {form}"
        file, made = self._file(wish, form)
        request = EngineRequest(file, self._threads, self._context, form, work)
        model = ApartModel(
            label=label,
            engine=rivals.file_of(wish.rival.name),
            request=request,
            begin=first.recipe.generation.begin,
            origin=Origin(file, size_of(file), self._threads),
            tokenizer=first.model.tokenizer,
        )
        if not made or wish.rival.prepare is None:
            return model
        ready = prepared(model)
        if wish.rival.weights is RivalWeights.GRAPH:  # the file is the compared one, with a configuration beside it
            return ready
        origin = Origin(ready.request.file, size_of(ready.request.file), self._threads)
        return ApartModel(label, model.engine, ready.request, model.begin, origin, model.tokenizer)

    def _file(self, wish: RivalWish, form: str) -> tuple[Path, bool]:
        """Return the file of a rival, and whether it is to be prepared by the rival's own tool."""
        if _is_own(wish.file):
            path = Path(wish.file)
            if not path.exists():
                raise EdgeoptError(f"{path} is not there", remedy=f"name {wish.rival.own_files} in {_OPTION}")
            return path, False
        if wish.rival.weights is RivalWeights.GRAPH:
            if wish.file:
                problem = f"{wish.file} is nothing that {wish.rival.name} opens"
                raise EdgeoptError(problem, remedy=f"name {wish.rival.own_files}, or leave {_OPTION} out")
            return self._sides[0].model.origin.file, True
        written = form if wish.rival.prepare is None else "f32"
        if written not in FORMS:
            raise EdgeoptError(f"edgeopt writes no {written}", remedy=f"name a file of it in {_OPTION}")
        key = (wish.file, written)
        if key not in self._written:
            config, weights, tokenizer = self._weights(wish)
            file = self._work / f"{len(self._written)}-{written}.gguf"
            write_gguf_file(config, weights, tokenizer, file, written, self._sides[0].recipe.name)
            self._written[key] = file
        return self._written[key], True

    def _weights(self, wish: RivalWish) -> tuple[LlamaConfiguration, NamedTensors, Path]:
        """Return weights in float: of what the user names, or of the first side that has them."""
        if wish.file:
            return _weights_of(Path(wish.file), None)
        why = ""
        for side in self._sides:
            try:
                source = side.recipe.source
                is_folder = bool(source) and (Path(source) / _CONFIG).is_file()
                return _weights_of(Path(source) if is_folder else side.model.origin.file, side.recipe)
            except EdgeoptError as error:
                why = why or error.problem
        raise EdgeoptError(
            f"no file of the same weights can be written for {wish.rival.name}: {why}",
            remedy=f"name its weights in float, a folder of Hugging Face or a model: {_OPTION} {wish.rival.name}=MODEL",
        )


def _is_own(file: str) -> bool:
    """Return whether the user's file is a rival's own, opened as it is."""
    path = Path(file)
    return bool(file) and (path.suffix == ".gguf" or any((path / name).is_file() for name in _OWN_MARKS))


def _weights_of(path: Path, recipe: Recipe | None) -> tuple[LlamaConfiguration, NamedTensors, Path]:
    """Return configuration, weights and tokenizer of a folder of Hugging Face, or of a model that `export` wrote.

    Raises:
        EdgeoptError: If it is neither, or is not written as GGUF.
    """
    if (path / _CONFIG).is_file():
        config, weights = read_configuration(path), open_weights(path)
        if isinstance(weights, QuantizedFolder):
            problem = f"{path} is quantized already, and would be rounded once more"
            raise UnsupportedError(problem, remedy="name a folder in floats, or the rival's own file")
        return config, weights, path / TOKENIZER
    file = decoder_file(find_language_model(str(path)))
    recipe = recipe or recipe_beside(file)
    graph = read_graph_weights(file, recipe.generation)
    return graph.config, graph, recipe.path_of(recipe.tokenizer.file) or file.parent / TOKENIZER


def size_of(path: Path) -> int:
    """Return the bytes of a file with weights beside it, or of the networks in a folder."""
    if path.is_dir():
        kinds = (".onnx", ".data", ".xml", ".bin", ".gguf")
        return sum(file.stat().st_size for file in path.iterdir() if file.suffix in kinds)
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*") if file.is_file())
