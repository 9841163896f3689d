"""A recipe: how a model is fed, read and scored. It reads one TOML file and runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from edgeopt import assets
from edgeopt.errors import InvalidFileError, NotFoundError
from edgeopt.tables import parse_table, read_toml
from edgeopt.tensors import TensorSpec


class Colour(StrEnum):
    """Channel order of the model's input."""

    RGB = "RGB"
    BGR = "BGR"
    GREY = "GREY"


class Layout(StrEnum):
    """Axis order of the model's input."""

    NCHW = "NCHW"
    NHWC = "NHWC"


class Resize(StrEnum):
    """How a frame becomes the model's height and width."""

    STRETCH = "stretch"
    CENTRE_CROP = "centre_crop"
    LETTERBOX = "letterbox"


class Anchor(StrEnum):
    """Where a letterboxed frame lies."""

    TOP_LEFT = "top_left"
    CENTRE = "centre"


PICTURE_TYPES = ("float32", "float16", "uint8", "int8")
"""Element types that a picture can be written in."""
LEAST_AGREEMENT = 0.80
"""Without labels: below it, YOLOX-nano lost more than 0.01 AP in every form that was measured. A filter, no proof."""
_LEAST_BY_TASK = {"tensors": 0.99}
"""A cosine forgives more than matched boxes do: at 0.99 a seventh of an output is noise."""
LEAST_EQUAL = 0.90
"""Share of equal elements in outputs of whole numbers: on class maps most that differ lie between two classes."""


@dataclass(frozen=True, slots=True)
class Input:
    """The tensor that receives the frame."""

    tensor: str = ""
    """Empty: the model's only input."""
    size: tuple[int, ...] = ()
    """Height and width in pixels; empty: as the model says."""
    layout: Layout = Layout.NCHW
    dtype: str = "float32"
    fixed: Mapping[str, int] = field(default_factory=dict)
    """Sizes for named free dimensions, for example `batch = 1`."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Whole shapes of inputs by name, for example `ids = [1, 128]`; they come before all other sizes."""

    def __post_init__(self) -> None:
        if self.size and (len(self.size) != 2 or min(self.size) < 1):
            raise ValueError(f"size is {list(self.size)}, not [height, width]")
        if self.dtype not in PICTURE_TYPES:
            raise ValueError(f"dtype {self.dtype!r} is not float32, float16, uint8 or int8")


@dataclass(frozen=True, slots=True)
class Preprocess:
    """Frame to tensor: resize, colour, then (value * scale - mean) / std."""

    colour: Colour = Colour.RGB
    resize: Resize = Resize.STRETCH
    crop_from: int = 0
    """Centre crop: the shorter side before the crop, in pixels; 0: the model's own size."""
    pad: int = 114
    """Letterbox: the grey value of the border, 0..255."""
    anchor: Anchor = Anchor.TOP_LEFT
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        channels = 1 if self.colour is Colour.GREY else 3
        if len(self.mean) not in (1, channels) or len(self.std) not in (1, channels):
            raise ValueError(f"mean and std need 1 or {channels} values")
        if min(self.std) <= 0 or self.scale == 0:
            raise ValueError("std must be above zero and scale must not be zero")
        if not 0 <= self.pad <= 255:
            raise ValueError(f"pad {self.pad} is not 0..255")


@dataclass(frozen=True, slots=True)
class Postprocess:
    """Tensor to answer: the decoder's name and its numbers."""

    decoder: str
    strides: tuple[int, ...] = ()
    anchors: tuple[tuple[float, ...], ...] = ()
    """Anchor-based decoders: per stride, width and height in pixels, alternating."""
    score_threshold: float = 0.25
    """In an application; evaluation uses its own."""
    iou_threshold: float = 0.45
    max_detections: int = 100
    top: int = 5
    """Classification: how many classes an answer lists."""
    background: bool = False
    """Class 0 is background and never reported."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How accuracy is measured, and the data shipped for it (paths relative to the recipe)."""

    metric: str
    score_threshold: float = 0.01
    iou_threshold: float = 0.65
    max_detections: int = 100
    max_drop: float = 0.01
    least_agreement: float = 0.0
    """With the float model's answers, to 1: what agrees less is refused where no labels judge; 0: the task's own."""
    labels: str = ""
    calib: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """What `edgeopt check` allows against its baseline."""

    latency_ratio: float = 1.05
    """Time over the baseline's, of the execution and of the whole frame."""
    accuracy_drop: float = 0.01
    """Metric lost, in its own unit."""
    size_ratio: float = 1.05
    memory_ratio: float = 1.10
    """Peak resident memory of a fresh process."""
    cold_start_ratio: float = 1.20
    """From starting a process to its first answer."""
    max_nodes_off_device: int = 0
    """More nodes than the baseline's that may run elsewhere than on the first provider."""

    def __post_init__(self) -> None:
        ratios = (self.latency_ratio, self.size_ratio, self.memory_ratio, self.cold_start_ratio)
        if min(ratios) <= 0:
            raise ValueError("ratios must be above zero; 1.05 allows 5 % more")
        if self.accuracy_drop < 0 or self.max_nodes_off_device < 0:
            raise ValueError("accuracy_drop and max_nodes_off_device must not be below zero")


@dataclass(frozen=True, slots=True)
class Match:
    """What a model must look like for this recipe to be chosen without `--recipe`.

    Each output is a list of terms, one a dimension: a number, `any`, `cells` (of all strides), `classes`, `height`
    or `width`, each as `[k*]name[/d][+c]`, for example `3*cells` or `classes+5`.
    """

    outputs: tuple[tuple[str, ...], ...]
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Metadata keys that must be there and the text each must contain."""
    input_names: tuple[str, ...] = ()


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
    check: Check = field(default_factory=Check)
    match: tuple[Match, ...] = ()
    labels: str = ""
    """File of class names, one a line, relative to the recipe."""
    model: str = ""
    """The shipped ONNX file, relative to the recipe."""
    folder: Path = field(default=Path(), compare=False)
    class_names: tuple[str, ...] = ()

    def path_of(self, relative: str) -> Path | None:
        """Return the path of a shipped file, or None when the recipe ships none."""
        return self.folder / relative if relative else None

    @property
    def least_agreement(self) -> float:
        """What a model must agree with the float one where no labels judge: the recipe's own, or the task's."""
        return self.evaluation.least_agreement or _LEAST_BY_TASK.get(self.task, LEAST_AGREEMENT)

    def with_size(self, height: int, width: int) -> Recipe:
        """Return the recipe for a model of this input height and width, in pixels."""
        return replace(self, input=replace(self.input, size=(height, width)))

    def with_inputs(self, inputs: Sequence[TensorSpec]) -> Recipe:
        """Return the recipe with the whole shape of each of these inputs that has one."""
        whole = {
            one.name: tuple(size for size in one.shape if isinstance(size, int)) for one in inputs if one.is_static
        }
        return replace(self, input=replace(self.input, shapes={**self.input.shapes, **whole}))


def read_recipe(path: Path) -> Recipe:
    """Read one recipe file.

    Raises:
        InvalidFileError: If it is not TOML, a key is unknown or missing, or a value is refused.
    """
    values = read_toml(path)
    for computed in ("folder", "class_names"):
        if computed in values:
            raise InvalidFileError(f"{path}: unknown {computed}", remedy="leave the key out; it is derived")
    recipe = parse_table(Recipe, values, str(path))
    return replace(recipe, folder=path.parent, class_names=_read_class_names(path.parent, recipe.labels))


def _read_class_names(folder: Path, labels: str) -> tuple[str, ...]:
    if not labels:
        return ()
    try:
        lines = (folder / labels).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidFileError(
            f"{folder / labels} cannot be read: {error}", remedy="one class name a line, UTF-8"
        ) from error
    return tuple(line.strip() for line in lines if line.strip())


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
