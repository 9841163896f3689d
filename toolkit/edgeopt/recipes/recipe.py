"""A recipe: how a model is fed, read and scored."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from edgeopt.errors import InvalidFileError, NotFoundError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.default_limits import MAX_DROP, Check, Share
from edgeopt.recipes.embedded import Embedded
from edgeopt.recipes.inputs.audio import Audio
from edgeopt.recipes.inputs.preprocess import Input, Preprocess
from edgeopt.recipes.inputs.seen.table import ImageTable
from edgeopt.recipes.metrics import find_metric, require_metric_of
from edgeopt.recipes.outputs.columns import Column
from edgeopt.recipes.scoring.keypoints import Keypoints
from edgeopt.recipes.texts.alphabet import Alphabet
from edgeopt.recipes.texts.generation import GENERATION, GenerationTable
from edgeopt.recipes.texts.text import Text
from edgeopt.recipes.texts.tokenizer import Tokenizer
from edgeopt.system.declared import registry
from edgeopt.system.disk import assets
from edgeopt.system.disk.files import read_text
from edgeopt.system.disk.links import lies_in_tree
from edgeopt.system.toml import Within, parse_table, read_toml


class Boxes(StrEnum):
    """Unit of a detector's raw boxes."""

    USUAL = "usual"
    """As the decoder's exporter writes them."""
    CELLS = "cells"
    """Relative to a cell of a grid: the decoder applies the grid."""
    PIXELS = "pixels"
    """Pixels of the model's input."""
    RELATIVE = "relative"
    """Fractions of the model's input, 0..1."""


class Scores(StrEnum):
    """The scale of a detector's raw scores."""

    USUAL = "usual"
    """As the decoder's exporter writes them."""
    PROBABILITIES = "probabilities"
    LOGITS = "logits"
    """The decoder applies a sigmoid, or a softmax where classes include a background."""


class Centres(StrEnum):
    """Where the middle of a cell lies, from which a decoder measures."""

    USUAL = "usual"
    """As the decoder's exporter has it."""
    MIDDLE = "middle"
    """(i + 0.5) * stride."""
    CLIPPED = "clipped"
    """(i + 0.5) * stride, and no further than the input."""
    CORNER = "corner"
    """i * stride."""
    EVEN = "even"
    """(i + 0.5) * side / cells: the cells share the input evenly."""


LEAST_AGREEMENT = 0.80
"""Where no labels judge. Below it YOLOX-nano lost more than 0.01 AP in every form measured; above it may lose too."""
_LEAST_UNDECODED = 0.99
"""Where outputs are the answer: at 0.99 the noise of a map is a tenth of it (20 dB), or 1 of 100 decisions differs."""
NO_DECODER = "none"
"""The `decoder` of a recipe whose answer is the outputs themselves."""
OUTPUT_KINDS = ("probability", "map")
LEAST_EQUAL = 0.90
"""Share of equal elements that outputs of whole numbers need: in class maps most that differ lie on an edge."""
_LEAST_READ = 0.99
"""Least agreement of recognisers of text: where 1 of 100 characters differs, the error rate differs by 0.01 at most."""
READERS = ("ctc",)
"""Decoders of the task ocr."""
_MOST_LABEL_BYTES = 2**22
_TERM = re.compile(r"(?:([1-9]\d{0,8})\*)?([a-z]+)(?:/([1-9]\d{0,8}))?(?:\+(\d{1,9}))?")

"""1.05 allows 5 % more."""
Count = Annotated[int, Within(1, 100_000)]


@dataclass(frozen=True, slots=True)
class Postprocess:
    """Tensor to answer: the decoder's name and its numbers."""

    decoder: str
    strides: tuple[Annotated[int, Within(1, 1024)], ...] = ()
    anchors: tuple[tuple[Annotated[float, Within(1e-3, 1e5)], ...], ...] = ()
    """Anchor-based decoders: per stride, width and height in pixels, alternating."""
    boxes: Boxes = Boxes.USUAL
    """Detection: the unit of the raw boxes."""
    scores: Scores = Scores.USUAL
    """Detection: what the raw scores are."""
    score_threshold: Share = 0.25
    """Least score in an application; evaluation uses its own."""
    iou_threshold: Share = 0.45
    max_detections: Count = 100
    top: Count = 5
    """Classification: how many classes an answer lists."""
    background: bool = False
    """Class 0 is background and never reported."""
    centres: Centres = Centres.USUAL
    """Detection: where the middle of a cell lies."""
    variances: tuple[Annotated[float, Within(1e-3, 1e3)], ...] = ()
    """Decoders of anchors: what offsets of centres and of sizes are multiplied by; none: as usual for the decoder."""
    map_threshold: Share = 0.3
    """Detection on a map: above it a pixel belongs to a region."""
    unclip: Annotated[float, Within(0, 100)] = 1.5
    """Detection on a map: by how much of area over perimeter a region grows on each side."""
    bins: Annotated[int, Within(0, 64)] = 0
    """Detectors that give a side of a box as a distribution: over how many distances; 0: as usual for the decoder."""

    columns: tuple[Column, ...] = ()
    """Rows of boxes that are suppressed already: what each column holds; none: as the output's name or width tells."""

    def __post_init__(self) -> None:
        if self.columns and Column.SCORE not in self.columns:
            raise ValueError(f"columns are {list(map(str, self.columns))}, no score among them")
        if len(self.strides) > 8 or len(set(self.strides)) != len(self.strides):
            raise ValueError(f"strides are {list(self.strides)}, not up to 8 that differ")
        if len(self.variances) not in (0, 2):
            raise ValueError(f"variances are {list(self.variances)}, not two: of centres and of sizes")
        if self.anchors and len(self.anchors) != len(self.strides):
            raise ValueError(f"{len(self.anchors)} lists of anchors for {len(self.strides)} strides")
        for sizes in self.anchors:
            if not sizes or len(sizes) % 2:
                raise ValueError("anchors of a stride are pairs of width and height")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How accuracy is measured, and the data shipped for it (paths relative to the recipe)."""

    metric: str
    """A file of `metrics/`: what candidates are judged by."""
    score_threshold: Share = 0.01
    iou_threshold: Share = 0.65
    max_detections: Count = 100
    max_drop: Share = MAX_DROP
    least_agreement: Share = 0.0
    """Agreement with the float model, 0 to 1, that is needed where no labels judge; 0: the default."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Kind of an output, by name: `probability` (yes above one half) or `map`; other kinds are seen in the values."""
    labels: str = ""
    calib: str = ""

    def __post_init__(self) -> None:
        for name, kind in self.kinds.items():
            if kind not in OUTPUT_KINDS:
                raise ValueError(f"kinds of {name} is {kind!r}, not {' or '.join(OUTPUT_KINDS)}")


@dataclass(frozen=True, slots=True)
class Match:
    """Shapes and metadata of the models for which this recipe is chosen without `--recipe`.

    Each output is a list of terms, one a dimension: a number, `any`, `rows` (free, and no batch of the input), `cells`
    (of all strides), `priors` (UltraFace's boxes), `classes`, `height` or `width`, each as `[k*]name[/d][+c]`, for
    example `3*cells` or `classes+5`.
    """

    outputs: tuple[tuple[str, ...], ...]
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Metadata keys that must be there and the text each must contain."""
    input_names: tuple[str, ...] = ()
    columns_in_name: bool = False
    """Whether the first output's name must list its columns, such as `batchno_classid_score_x1y1x2y2`."""
    output_names: tuple[str, ...] = ()
    """Names of the outputs, in the order of `outputs`; where they are given, no shape is read without its name."""
    ops: tuple[str, ...] = ()
    """The operator that makes the values of each of `outputs`: what copies, such as Concat, is not one.
    `ConvTranspose > Sigmoid` asks for the operator in front of it too, whatever stored is added between; several stand
    with `or` between them; empty: any."""

    def __post_init__(self) -> None:
        for term in (term for output in self.outputs for term in output):
            if not (term.isdecimal() and len(term) < 10):
                read_term(term)
        for told in (self.output_names, self.ops):
            if told and len(told) != len(self.outputs):
                raise ValueError(f"{list(told)} for {len(self.outputs)} outputs of a match")

    @property
    def sees_graph(self) -> bool:
        """Whether it asks for more than shapes and the exporter's metadata."""
        return bool(self.output_names or self.ops or self.columns_in_name)


def read_term(term: str) -> tuple[int, str, int, int]:
    """Return k, name, d and c of `[k*]name[/d][+c]`.

    Raises:
        ValueError: If the term has another form.
    """
    match = _TERM.fullmatch(term)
    if match is None:
        raise ValueError(f"match term {term!r} is not a number or [k*]name[/d][+c]")
    return int(match[1] or 1), match[2], int(match[3] or 1), int(match[4] or 0)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is fed, read and scored."""

    name: str
    task: str
    description: str
    license: str
    source: str
    postprocess: Postprocess
    evaluation: Evaluation
    input: Input = field(default_factory=Input)
    preprocess: Preprocess = field(default_factory=Preprocess)
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    text: Text = field(default_factory=Text)
    audio: Audio = field(default_factory=Audio)
    check: Check = field(default_factory=Check)
    generation: GenerationTable = field(default_factory=GenerationTable)
    image: ImageTable = field(default_factory=ImageTable)
    """Pictures of a prompt."""
    keypoints: Keypoints = field(default_factory=Keypoints)
    """Task keypoints: the points of a pose."""
    alphabet: Alphabet = field(default_factory=Alphabet)
    """Alphabet of a recogniser of text."""
    guesses: tuple[str, ...] = ()
    """Keys, such as `preprocess.colour`, whose values nobody told: `edgeopt recipe` writes them, who checks one takes
    it out."""
    match: tuple[Match, ...] = ()
    labels: str = ""
    """File of class names, one a line, relative to the recipe."""
    model: str = ""
    """The shipped ONNX file, relative to the recipe."""
    folder: Path = field(default=Path(), compare=False)
    class_names: tuple[str, ...] = ()
    embedded: tuple[Embedded, ...] = ()
    """Parts that lie in the model of a bundle; a recipe file holds none."""

    def path_of(self, relative: str) -> Path | None:
        """Return the path of a shipped file, or None when the recipe ships none."""
        return self.folder / relative if relative else None

    def class_name(self, index: int) -> str:
        """Return the name of a class, or `class 7` where it has none."""
        return self.class_names[index] if index < len(self.class_names) else f"class {index}"

    @property
    def files(self) -> tuple[str, ...]:
        """All files and folders that it names, as it names them."""
        scored, writes = self.evaluation, self.generation
        named = (self.labels, self.model, self.alphabet.file, self.tokenizer.file, scored.labels, scored.calib)
        beside = (writes.encoder, writes.prefill, writes.draft, self.image.encoder)
        return tuple(file for file in (*named, *beside) if file)

    @property
    def decodes(self) -> bool:
        """Whether a decoder turns outputs into the answer; else the outputs are the answer."""
        return self.postprocess.decoder != NO_DECODER

    @property
    def kind(self) -> str:
        """The kind of an application's frames, as `Frames.kind` calls it; `picture` also where it feeds tensors."""
        return "text" if self.tokenizer.file else "sound" if self.audio.rate_hz else "picture"

    @property
    def takes_arrays(self) -> bool:
        """Whether an application may feed arrays, so that a frame need not begin at a picture."""
        return not self.decodes

    @property
    def least_agreement(self) -> float:
        """Agreement with the float model that is needed where no labels judge: the recipe's, or the default."""
        default = _LEAST_READ if self.postprocess.decoder in READERS else LEAST_AGREEMENT
        return self.evaluation.least_agreement or (default if self.decodes else _LEAST_UNDECODED)

    @property
    def reads_labels(self) -> bool:
        """Whether its metric is scored against labels."""
        return find_metric(self.evaluation.metric).reads_labels

    def with_size(self, height: int, width: int) -> Recipe:
        """Return the recipe for a model of this input height and width, in pixels."""
        return replace(self, input=replace(self.input, size=(height, width)))

    def for_inputs(self, inputs: Sequence[TensorSpec]) -> Recipe:
        """Return the recipe of a form of the model that may take smaller pictures; the same part of a frame is seen.

        Args:
            inputs: Of that form.
        """
        picture = next((spec for spec in inputs if spec.name == self.input.tensor), inputs[0] if inputs else None)
        is_fed_otherwise = any(part.takes_pictures for part in self.embedded)
        if not self.input.size or picture is None or len(picture.shape) != len(self.input.layout) or is_fed_otherwise:
            return self
        height, width = (picture.shape[axis] for axis in self.input.layout.plane)
        if not isinstance(height, int) or not isinstance(width, int) or (height, width) == tuple(self.input.size):
            return self
        share = min(height, width) / min(self.input.size)
        crop_from = round(self.preprocess.crop_from * share)
        shapes = {name: shape for name, shape in self.input.shapes.items() if name != picture.name}
        smaller = replace(self.with_size(height, width), preprocess=replace(self.preprocess, crop_from=crop_from))
        return replace(smaller, input=replace(smaller.input, shapes=shapes))

    def with_embedded(self, *parts: Embedded) -> Recipe:
        """Return the recipe of the model that holds these parts of it."""
        if not any(part.takes_pictures for part in parts):
            return replace(self, embedded=parts)
        return replace(self, embedded=parts, input=replace(self.input, tensor="", shapes={}))

    def with_inputs(self, inputs: Sequence[TensorSpec]) -> Recipe:
        """Return the recipe with the whole shape of each of these inputs that has one."""
        whole = {
            spec.name: tuple(size for size in spec.shape if isinstance(size, int)) for spec in inputs if spec.is_static
        }
        return replace(self, input=replace(self.input, shapes={**self.input.shapes, **whole}))


def read_recipe(path: Path, *, stays_inside: bool = False) -> Recipe:
    """Read one recipe file.

    Args:
        path: Of the TOML file.
        stays_inside: Refuse files outside the recipe's folder: for a recipe that nobody asked for by name.

    Raises:
        InvalidFileError: If it is not TOML, a key is unknown or missing, or a value is refused.
    """
    values = read_toml(path)
    for computed in ("folder", "class_names", "embedded"):
        if computed in values:
            raise InvalidFileError(f"{path}: unknown {computed}", remedy="leave the key out; it is derived")
    recipe = parse_table(Recipe, values, str(path))
    _require_parts(recipe, path)
    if stays_inside:
        _require_inside(path, recipe.files)
    alphabet, names = recipe.alphabet.read_in(path.parent), read_class_names(path.parent, recipe.labels)
    return replace(recipe, folder=path.parent, class_names=names, alphabet=alphabet)


def _require_inside(path: Path, files: Sequence[str]) -> None:
    for file in files:
        if not lies_in_tree(path.parent / file, path.parent, path):
            raise InvalidFileError(
                f"{path}: {file} lies outside the recipe's folder",
                remedy=f"put it beside the recipe, or name the recipe: --recipe {path}",
            )


def _require_parts(recipe: Recipe, path: Path) -> None:
    """Raise where there is no such task or metric."""
    try:
        if recipe.task not in (known := (*registry.names_in("tasks"), GENERATION)):
            raise NotFoundError("task", recipe.task, known)
        require_metric_of(recipe.task, recipe.evaluation.metric)
    except NotFoundError as error:
        raise InvalidFileError(f"{path}: {error.problem}", remedy=error.remedy) from error


def read_class_names(folder: Path, labels: str) -> tuple[str, ...]:
    """Return the class names of a file, one a line; none where no file is named.

    Raises:
        InvalidFileError: If it cannot be read.
    """
    if not labels:
        return ()
    text = read_text(folder / labels, remedy="one class name a line, UTF-8", most_bytes=_MOST_LABEL_BYTES)
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def find_recipe(name: str) -> Recipe:
    """Return the shipped recipe called `name`, or read the TOML file at that path.

    Raises:
        NotFoundError: If it is neither.
        InvalidFileError: If the file is wrong.
    """
    shipped = assets.model_folders()
    if name in shipped:
        return read_recipe(shipped[name] / "recipe.toml")
    path = Path(name)
    if path.suffix == ".toml" and path.is_file():
        return read_recipe(path)
    if (path / "recipe.toml").is_file():
        return read_recipe(path / "recipe.toml")
    raise NotFoundError("recipe", name, shipped)
