"""Recipes from the configurations of Hugging Face: `config.json` and `preprocessor_config.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError, Note, NoteKind
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.drafting.optimum_tasks import OptimumTask, task_of_class
from edgeopt.recipes.inputs.audio import Audio, Features, Pad, Scaling, Window
from edgeopt.recipes.inputs.preprocess import Colour, Input, Preprocess, Resize
from edgeopt.recipes.recipe import NO_DECODER, READERS, Evaluation, Postprocess, Recipe
from edgeopt.recipes.texts.alphabet import Alphabet
from edgeopt.recipes.texts.heard_letters import letters_in
from edgeopt.system.disk.links import beside, files_of
from edgeopt.system.toml import read_json

_FFT, _STEP = 400, 160
"""Samples of a frame, and from one to the next, of Whisper's and AST's features; no others of their kind are made."""
_RATE = 16_000


def audio_told(processor: Mapping[str, Any], spec: TensorSpec) -> Audio | None:
    """Return the table `[audio]` for the input of a model; None where the processor is another, or fits no such input.

    Args:
        processor: Settings, as `feature_extractor_type` of one of them names it.
        spec: Of the input.
    """
    rate = processor.get("sampling_rate")
    sizes = [size for size in spec.shape[1:] if isinstance(size, int)]
    if not isinstance(rate, int) or rate <= 0 or len(sizes) != len(spec.shape) - 1:
        return None
    kind = processor.get("feature_extractor_type")
    if kind == "WhisperFeatureExtractor" and len(sizes) == 2:
        bands, frames = sizes
        told = processor.get("n_fft", _FFT), processor.get("hop_length", _STEP), processor.get("feature_size", bands)
        if told == (_FFT, _STEP, bands):
            evens = bool(processor.get("do_normalize", False))
            return Audio(rate, Features.WHISPER, samples=frames * _STEP, bands=bands, normalise=evens)
    if kind == "Wav2Vec2FeatureExtractor" and len(sizes) == 1:
        scaling = Scaling.WHOLE if processor.get("do_normalize", True) else Scaling.NONE
        return Audio(rate_hz=rate, samples=sizes[0], scaling=scaling)
    if kind == "ASTFeatureExtractor" and sizes == [processor.get("max_length"), processor.get("num_mel_bins")]:
        return _of_ast(processor, rate, *sizes)
    return None


def _of_ast(processor: Mapping[str, Any], rate: int, frames: int, bands: int) -> Audio | None:
    """Return how the Audio Spectrogram Transformer hears: Kaldi's bands under a Hann window, (x - mean) / (2 std)."""
    if rate != _RATE:  # frames of 25 ms every 10 are written here in samples
        return None
    does_scale = processor.get("do_normalize", True)
    mean, std = (float(processor.get(one, 0.0 if one == "mean" else 0.5)) for one in ("mean", "std"))
    scaled = {"mean": mean, "std": 2 * std} if does_scale else {}
    samples = _FFT + (frames - 1) * _STEP
    how = {"window": Window.HANN, "pad": Pad.FEATURES}
    return Audio(rate, Features.KALDI, samples=samples, bands=bands, **how, **scaled)  # type: ignore[arg-type]


CONFIGURATION = "config.json"
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
"""The first that is there tells how a picture is fed."""
COMPANIONS = (
    CONFIGURATION,
    *PROCESSORS,
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab.txt", "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model"),
)
"""Files that optimum reads beside an ONNX file."""
PICTURE = "pixel_values"
"""Name of the input that takes pictures."""
_TOKENS = 128
"""Length of a text where none is asked for."""
_SIDE = 224
"""Pixels of a picture's side where no configuration tells them."""
_WAVEFORM = 16_000
"""Samples of a second of speech."""
_FRAMES = 1500
"""Positions of Whisper's encoder where its configuration does not tell: of thirty seconds."""
_LEAST_UNCROPPED = 384
"""Pixels: to a shorter side than this a processor with a `crop_pct` cuts what it has made larger."""
_REMEDY = "copy the folder again, or pass --recipe"
_KEEPS_SHAPE = Note(
    NoteKind.WARNING,
    "the processor keeps the shape of a picture, which a fixed input cannot: the recipe stretches",
    'or write resize = "letterbox"',
)


@dataclass(frozen=True, slots=True)
class NetworkHead:
    """The task of a network's class."""

    task: str
    """Task of its recipe."""
    decoder: str
    metric: str
    outputs: tuple[str, ...] = ()
    """Names of the outputs that the task reads, all of which must be there."""


_BACKGROUND = NetworkHead("detection", "detr", "AP", ("logits", "pred_boxes"))
_SEEN = NetworkHead("embedding", NO_DECODER, "recall1", ("image_embeds",))
_LETTERS = NetworkHead("ocr", READERS[0], "character_accuracy", ("logits",))
_SIGMOID = NetworkHead("detection", "rtdetr", "AP", ("logits", "pred_boxes"))
_WITH_BACKGROUND = ("DetrForObjectDetection", "TableTransformerForObjectDetection", "YolosForObjectDetection")
"""Classes whose last class is no object; others have a sigmoid for each."""
_HEADS = {
    "audio-classification": NetworkHead("classification", "logits", "top1", ("logits",)),
    "image-classification": NetworkHead("classification", "logits", "top1", ("logits",)),
    "semantic-segmentation": NetworkHead("segmentation", "argmax", "mIoU", ("logits",)),
    "object-detection": _SIGMOID,
    "depth-estimation": NetworkHead("image", NO_DECODER, "psnr", ("predicted_depth",)),
    "image-to-image": NetworkHead("image", NO_DECODER, "psnr", ("reconstruction",)),
}
"""Optimum's task to what reads it."""
_OTHER = NetworkHead("tensors", NO_DECODER, "agreement")


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configurations beside a network."""

    values: Mapping[str, Any]
    """Values of `config.json`."""
    processor: Mapping[str, Any] = field(default_factory=dict)
    """Values of the processor of pictures or sounds; empty: there is none."""
    alphabet: Alphabet = field(default_factory=Alphabet)
    """Alphabet of a network that hears letters; empty: none is told."""

    @property
    def class_name(self) -> str:
        """The network's class; empty where none is told."""
        names = self.values.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""

    def task_of(self, inputs: Iterable[str] = (), outputs: Iterable[str] | None = None) -> OptimumTask | None:
        """Return the task that it was exported for, by its class and the names of its tensors; None: not known."""
        return task_of_class(self.class_name, tuple(inputs), None if outputs is None else tuple(outputs))

    def head_of(self, outputs: Iterable[str] | None, inputs: Iterable[str] = ()) -> NetworkHead:
        """Return what reads it, where the network has these outputs; None: the class's own."""
        names = None if outputs is None else {*outputs}
        task = self.task_of(inputs, names)
        head = _HEADS.get(task.name, _OTHER) if task else _OTHER
        head = _BACKGROUND if self.class_name in _WITH_BACKGROUND else head
        head = _SEEN if self.class_name.endswith("VisionModelWithProjection") else head
        head = _LETTERS if self.class_name.endswith("ForCTC") and self.alphabet.characters else head
        return head if names is None or {*head.outputs} <= names else _OTHER

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of its classes in order; none where they are only numbered."""
        told = self.values.get("id2label")
        if not isinstance(told, Mapping) or not all(str(key).isdecimal() for key in told):
            return ()
        names = [" ".join(str(name).split()) for _, name in sorted(told.items(), key=lambda pair: int(pair[0]))]
        is_numbered = all(name == f"LABEL_{i}" for i, name in enumerate(names))
        return () if is_numbered else tuple(names)


def folder_of(model: Path) -> Path:
    """Return where the configurations of an ONNX file lie: beside it, or above a folder `onnx`."""
    above = model.parent.resolve()
    is_inner = above.name == "onnx" and not (above / CONFIGURATION).is_file()
    return above.parent if is_inner else beside(model, CONFIGURATION).parent


def companions_in(folder: Path) -> tuple[Path, ...]:
    """Return what optimum reads of a folder beside an ONNX file; links out of it are left out."""
    return tuple(files_of(folder, COMPANIONS))


def read_configuration(folder: Path) -> Configuration | None:
    """Return what is written in a folder; None where there is no `config.json` of a network.

    Raises:
        InvalidFileError: If a configuration is no JSON.
    """
    file = folder / CONFIGURATION
    if not file.is_file():
        return None
    values = read_json(file, remedy=_REMEDY)
    if not isinstance(values, dict) or not {"architectures", "model_type"} & values.keys():
        return None
    path = next((folder / processor for processor in PROCESSORS if (folder / processor).is_file()), None)
    return Configuration(values, read_processor(path) if path else {}, letters_in(folder, values))


def read_processor(file: Path) -> Mapping[str, Any]:
    """Return the settings of the processor of pictures or sounds, also where they lie within those of several.

    Raises:
        InvalidFileError: If it is no JSON, or holds no settings.
    """
    values = read_json(file, remedy=_REMEDY)
    found = values if isinstance(values, dict) else {}
    values = next((found[one] for one in ("image_processor", "feature_extractor") if one in found), values)
    if not isinstance(values, dict):
        raise InvalidFileError(f"{file} holds no settings", remedy=_REMEDY)
    return values


def shape_of(name: str, configuration: Configuration) -> tuple[int, ...]:
    """Return the shape in which an input of this name is asked; empty where the name is not known here."""
    values = configuration.values
    if name == PICTURE:
        channels = values.get("num_channels", 3)
        return (1, channels if isinstance(channels, int) else 3, *_size(configuration))
    if name in ("input_ids", "attention_mask", "token_type_ids"):
        most = values.get("max_position_embeddings", values.get("n_positions"))
        return (1, min(_TOKENS, most) if isinstance(most, int) and most > 0 else _TOKENS)
    if name == "input_features" and isinstance(values.get("num_mel_bins"), int):
        return (1, values["num_mel_bins"], 2 * int(values.get("max_source_positions") or _FRAMES))
    if name == "input_values":
        frames, bands = values.get("max_length"), values.get("num_mel_bins")
        if "num_mel_bins" not in values:
            return (1, _WAVEFORM)
        return (1, frames, bands) if isinstance(frames, int) and isinstance(bands, int) else ()
    return ()


def recipe_told(
    configuration: Configuration, inputs: Sequence[TensorSpec], outputs: Iterable[str] | None, *, name: str, source: str
) -> tuple[Recipe | None, tuple[Note, ...]]:
    """Return the recipe that configurations tell, and what they cannot tell; None where mean and std are not told.

    Args:
        configuration: Beside the network.
        inputs: Of the network, whose free dimensions are fixed as the configurations say.
        outputs: Names of the network's outputs; None: as its class has them.
        name: Of the network.
        source: Where it comes from.
    """
    fed = [spec.name for spec in inputs]
    head = configuration.head_of(outputs, fed)
    shapes = {spec.name: _fixed(spec, shape_of(spec.name, configuration)) for spec in inputs}
    audio = None
    if len(inputs) == 1:
        audio = audio_told(configuration.processor, replace(inputs[0], shape=shapes[inputs[0].name] or inputs[0].shape))
    if head.task != _OTHER.task and fed != [PICTURE] and not audio:
        head = _OTHER
    recipe = Recipe(
        name=name,
        task=head.task,
        description=f"{configuration.class_name or 'network'} of Hugging Face transformers",
        license="that of the weights",
        source=source,
        postprocess=Postprocess(head.decoder),
        evaluation=Evaluation(head.metric),
        class_names=configuration.class_names if head.task in ("classification", "detection", "segmentation") else (),
    )
    if fed != [PICTURE]:
        free = {spec.name for spec in inputs if not spec.is_static}
        recipe = replace(
            recipe, input=Input(shapes={key: shape for key, shape in shapes.items() if key in free and shape})
        )
        if audio:
            recipe = replace(
                recipe, audio=audio, alphabet=configuration.alphabet if head is _LETTERS else recipe.alphabet
            )
        return recipe, ()
    if not configuration.processor:
        problem = f"no {PROCESSORS[0]} tells mean and std"
        return None, (Note(NoteKind.WARNING, problem, "write a recipe.toml, or pass --recipe"),)
    if len(inputs[0].shape) != 4:
        return None, ()
    is_grey = shapes[PICTURE][1] == 1
    preprocess, notes = _preprocess(configuration.processor, is_grey)
    whole = {} if isinstance(inputs[0].shape[1], int) else shapes  # nothing else tells how many channels it has
    return replace(recipe, input=Input(size=shapes[PICTURE][2:], shapes=whole), preprocess=preprocess), notes


def _fixed(tensor: TensorSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape with the sizes that a tensor has; empty where it has other axes."""
    if len(shape) != len(tensor.shape):
        return ()
    return tuple(mine if isinstance(mine, int) else size for mine, size in zip(tensor.shape, shape, strict=True))


def _size(configuration: Configuration) -> tuple[int, int]:
    """Return height and width in pixels: after the processor's crop or resize, or the configuration's."""
    processor = configuration.processor
    does_crop = processor.get("do_center_crop") and processor.get("crop_size")
    asked = processor.get("crop_size") if does_crop else processor.get("size")
    for size in (asked, configuration.values.get("image_size", 0)):
        if isinstance(size, Mapping):
            shortest = size.get("shortest_edge")
            sides: list[Any] = [size.get("height", shortest), size.get("width", shortest)]
        else:
            sides = list(size) if isinstance(size, list | tuple) else [size, size]
        if len(sides) == 2 and all(isinstance(side, int) and side > 0 for side in sides):
            return sides[0], sides[1]
    return _SIDE, _SIDE


def _preprocess(processor: Mapping[str, Any], is_grey: bool) -> tuple[Preprocess, tuple[Note, ...]]:
    """Return `[preprocess]`: a processor too computes (value * scale - mean) / std.

    Raises:
        InvalidFileError: If a number is none.
    """
    try:
        return _read_preprocess(processor, is_grey)
    except (TypeError, ValueError) as error:
        raise InvalidFileError(f"the processor's configuration cannot be read: {error}", remedy=_REMEDY) from error


def _read_preprocess(processor: Mapping[str, Any], is_grey: bool) -> tuple[Preprocess, tuple[Note, ...]]:
    notes = []
    size = processor.get("size")
    shortest = size.get("shortest_edge") if isinstance(size, Mapping) else size
    colour = Colour.BGR if processor.get("do_flip_channel_order") else Colour.RGB
    made = Preprocess(Colour.GREY, mean=(0.0,), std=(1.0,)) if is_grey else Preprocess(colour)
    share = processor.get("crop_pct")
    if isinstance(size, Mapping) and size.get("height") == size.get("width"):
        shortest = size.get("height", shortest)
    if processor.get("do_center_crop") and isinstance(shortest, int):
        made = replace(made, resize=Resize.CENTRE_CROP, crop_from=shortest)
    elif share and isinstance(shortest, int) and shortest < _LEAST_UNCROPPED:  # ConvNeXT's
        made = replace(made, resize=Resize.CENTRE_CROP, crop_from=int(shortest / float(share)))
    elif isinstance(size, Mapping) and "shortest_edge" in size and not share:
        notes.append(_KEEPS_SHAPE)
    does_rescale = processor.get("do_rescale", True)
    if does_rescale:
        made = replace(made, scale=float(processor.get("rescale_factor", 1 / 255)))
    mean, std = processor.get("image_mean"), processor.get("image_std")
    if processor.get("do_normalize", True) and mean and std:
        made = replace(made, mean=tuple(map(float, mean)), std=tuple(map(float, std)))
    if not all(number > 0 for number in made.std):
        raise ValueError(f"image_std is {std}")
    if does_rescale and processor.get("rescale_offset"):  # EfficientNet's: value * scale - 1
        made = replace(made, mean=tuple(1 + number for number in made.mean))
    if processor.get("include_top") and std:  # EfficientNet's classifiers divide twice
        made = replace(made, std=tuple(mine * float(value) for mine, value in zip(made.std, std, strict=True)))
    return made, tuple(notes)
