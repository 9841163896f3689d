"""Networks of Hugging Face transformers, from a folder or by id, and what their configuration tells of a recipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError, Note, NoteKind, UnavailableError, UnsupportedError
from edgeopt.pipeline.export.from_torch import said, torch_of_export
from edgeopt.pipeline.export.network import Network, NetworkInput
from edgeopt.pipeline.export.source import Source
from edgeopt.recipes.preprocess import Colour, Input, Preprocess, Resize
from edgeopt.recipes.recipe import NO_DECODER, Evaluation, Postprocess, Recipe
from edgeopt.system.optional import require

_TOKENS = 128
"""Length of a text where none is asked for."""
_PATIENCE_S = 10
"""For the first answer about an id."""
_SIDE = 224
"""Pixels of a picture's side where no configuration tells them."""
_WAVEFORM = 16_000
"""Samples of a second of speech."""
_LEFT_OUT = ("loss", "past_key_values", "hidden_states", "attentions", "cross_attentions")
_TASKS = {
    "ForImageClassification": ("classification", "logits", "top1"),
    "ForSemanticSegmentation": ("segmentation", "argmax", "mIoU"),
    "DetrForObjectDetection": ("detection", "rtdetr", "AP"),
    "YolosForObjectDetection": ("detection", "detr", "AP"),
}
"""End of a class's name to task, decoder and metric of its recipe."""
_WITH_BACKGROUND = ("DetrForObjectDetection", "TableTransformerForObjectDetection")
"""Classes whose last class is no object; other DETRs have a sigmoid for each."""
_OTHER = ("tensors", NO_DECODER, "agreement")


def open_pretrained(source: Source, inputs: Sequence[NetworkInput]) -> Network:
    """Return a pretrained network in float32, in the class that its configuration names; no code beside it is run.

    Raises:
        MissingDependencyError: If torch or transformers is not installed.
        UnavailableError: If an id is not in the cache and cannot be fetched.
        InvalidFileError: If the folder holds no network that transformers reads.
        UnsupportedError: If it writes token after token, or its class is not in transformers.
    """
    torch = torch_of_export()
    transformers = require("transformers", extra="export", purpose="a network of Hugging Face")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    told = _why_offline(source)
    options: dict[str, Any] = {"local_files_only": bool(told) or Path(source.where).is_dir()}
    read = transformers.AutoConfig.from_pretrained
    config = _opened(source, "configuration", lambda: read(source.where, **options), told)
    class_name = _class_of(source, config, transformers)
    made = getattr(transformers, class_name)
    options |= {"dtype": torch.float32, "attn_implementation": "eager"}
    module = _opened(source, "weights", lambda: made.from_pretrained(source.where, **options), told).eval()
    notes = []
    if getattr(config, "is_encoder_decoder", False) and module.main_input_name != "pixel_values":  # a DETR goes whole
        module = module.get_encoder().eval()
        notes.append(Note(NoteKind.INFO, "its encoder alone is exported", "a decoder asks token after token"))
    processor = _processor(source, transformers)
    network_inputs = tuple(inputs) or _inputs(module, config, processor)
    recipe, more = _recipe(source, class_name, config, processor, network_inputs)
    return Network(
        source.name,
        f"PyTorch {torch.__version__}, transformers {transformers.__version__}",
        _by_position(torch, module, [one.name for one in network_inputs]),
        network_inputs,
        recipe=recipe,
        notes=(*notes, *more),
    )


def _why_offline(source: Source) -> str:
    """Return why an id cannot be fetched, asked once and shortly; empty for a folder, or where it can."""
    if Path(source.where).is_dir():
        return ""
    hub = require("huggingface_hub", extra="export", purpose="a network of Hugging Face")
    try:
        hub.HfApi().model_info(source.where, timeout=_PATIENCE_S)
    except Exception as error:  # any: no network, no such id, a gate
        return said(error)
    return ""


def _opened(source: Source, what: str, load: Callable[[], Any], offline: str) -> Any:
    try:
        return load()
    except Exception as error:
        if Path(source.where).is_dir():
            problem = f"{source}: its {what} cannot be read: {said(error)}"
            raise InvalidFileError(problem, remedy="name a folder that save_pretrained wrote") from error
        raise UnavailableError(
            f"{source} is no folder here, and cannot be fetched as an id: {offline or said(error)}",
            remedy="name a folder that save_pretrained wrote, or connect to the network and correct the id",
        ) from error


def _class_of(source: Source, config: Any, transformers: Any) -> str:
    """Return the name of the class that the configuration names.

    Raises:
        UnsupportedError: If transformers has none of that name, or it writes token after token.
    """
    names = getattr(config, "architectures", None) or []
    name = names[0] if names else "AutoModel"
    if not hasattr(transformers, name):
        raise UnsupportedError(
            f"{source} is a {name}, which transformers {transformers.__version__} does not have",
            remedy="code beside weights is never run; name code that you trust: torch:package.module:factory",
        )
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        raise UnsupportedError(
            f"{source} is a {name}, which writes token after token",
            remedy="name its body where an embedding is wanted: torch:package.module:factory",
        )
    return str(name)


def _processor(source: Source, transformers: Any) -> Mapping[str, Any]:
    """Return `preprocessor_config.json` as it stands; empty where there is none."""
    folder = Path(source.where)
    file = folder / "preprocessor_config.json"
    if not folder.is_dir():
        found = transformers.utils.cached_file(
            source.where, file.name, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_gated_repo=False
        )
        if found is None:
            return {}
        file = Path(found)
    if not file.is_file():
        return {}
    try:
        values = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise InvalidFileError(f"{file} is no JSON: {error}", remedy="copy the folder again") from error
    values = values.get("image_processor", values) if isinstance(values, dict) else None
    if not isinstance(values, dict):
        raise InvalidFileError(f"{file} holds no settings", remedy="copy the folder again")
    return values


def _inputs(module: Any, config: Any, processor: Mapping[str, Any]) -> tuple[NetworkInput, ...]:
    """Return what a network is asked, by the name of its main input.

    Raises:
        UnsupportedError: If that name is not known here.
    """
    config = getattr(module, "config", config)
    main = getattr(module, "main_input_name", "")
    if main == "pixel_values":
        height, width = _size(config, processor)
        return (NetworkInput(main, (1, int(getattr(config, "num_channels", 3)), height, width)),)
    if main == "input_ids":
        return _text_inputs(config)
    if main == "input_features" and hasattr(config, "num_mel_bins"):
        length = 2 * int(getattr(config, "max_source_positions", 1500))
        return (NetworkInput(main, (1, int(config.num_mel_bins), length)),)
    if main == "input_values":
        return (NetworkInput(main, (1, _WAVEFORM)),)
    raise UnsupportedError(
        f"what {type(module).__name__} takes is not known here: its main input is {main or 'not named'}",
        remedy="add --input NAME=1x3x224x224 for each input, named as forward names it",
    )


def _text_inputs(config: Any) -> tuple[NetworkInput, ...]:
    shape = (1, min(_TOKENS, int(getattr(config, "max_position_embeddings", _TOKENS) or _TOKENS)))
    inputs = [
        NetworkInput("input_ids", shape, "int64", below=int(config.vocab_size)),
        NetworkInput("attention_mask", shape, "int64"),
    ]
    kinds = int(getattr(config, "type_vocab_size", 0) or 0)
    if kinds > 1:
        inputs.append(NetworkInput("token_type_ids", shape, "int64", below=kinds))
    return tuple(inputs)


def _size(config: Any, processor: Mapping[str, Any]) -> tuple[int, int]:
    """Return height and width in pixels: after the processor's crop or resize, or the configuration's."""
    does_crop = processor.get("do_center_crop") and processor.get("crop_size")
    asked = processor.get("crop_size") if does_crop else processor.get("size")
    for size in (asked, getattr(config, "image_size", 0)):
        if isinstance(size, Mapping):
            shortest = size.get("shortest_edge")
            sides: list[Any] = [size.get("height", shortest), size.get("width", shortest)]
        else:
            sides = list(size) if isinstance(size, list | tuple) else [size, size]
        if len(sides) == 2 and all(isinstance(side, int) and side > 0 for side in sides):
            return sides[0], sides[1]
    return _SIDE, _SIDE


def _labels(config: Any) -> tuple[str, ...]:
    """Return class names; none where the configuration only numbers them."""
    names = [str(name) for _, name in sorted((getattr(config, "id2label", None) or {}).items())]
    is_numbered = all(name == f"LABEL_{i}" for i, name in enumerate(names))
    return () if is_numbered else tuple(" ".join(name.split()) for name in names)


def _recipe(
    source: Source, class_name: str, config: Any, processor: Mapping[str, Any], inputs: Sequence[NetworkInput]
) -> tuple[Recipe | None, tuple[Note, ...]]:
    """Return the recipe that the processor's configuration tells, and what it cannot tell."""
    task, decoder, metric = next((one for end, one in _TASKS.items() if class_name.endswith(end)), _OTHER)
    if class_name in _WITH_BACKGROUND:
        task, decoder, metric = _TASKS["YolosForObjectDetection"]
    recipe = Recipe(
        name=source.name,
        task=task,
        description=f"{class_name} of Hugging Face transformers",
        license="that of the weights",
        source=f"hf:{source.where}",
        postprocess=Postprocess(decoder),
        evaluation=Evaluation(metric),
        class_names=() if task == "tensors" else _labels(config),
    )
    if [one.name for one in inputs] != ["pixel_values"]:
        return recipe, ()
    if not processor:
        told = "no preprocessor_config.json tells mean and std, so no recipe is written"
        return None, (Note(NoteKind.WARNING, told, "write a recipe.toml, or pass --recipe"),)
    preprocess, notes = _preprocess(processor)
    return replace(recipe, input=Input(size=inputs[0].shape[2:]), preprocess=preprocess), notes


def _preprocess(processor: Mapping[str, Any]) -> tuple[Preprocess, tuple[Note, ...]]:
    """Return `[preprocess]`: a processor too computes (value * scale - mean) / std."""
    notes = []
    size = processor.get("size")
    shortest = size.get("shortest_edge") if isinstance(size, Mapping) else size
    made = Preprocess(colour=Colour.BGR if processor.get("do_flip_channel_order") else Colour.RGB)
    if processor.get("do_center_crop") and isinstance(shortest, int):
        made = replace(made, resize=Resize.CENTRE_CROP, crop_from=shortest)
    elif isinstance(size, Mapping) and "shortest_edge" in size:
        told = "the processor keeps the shape of a picture, which a fixed input cannot: the recipe stretches"
        notes.append(Note(NoteKind.WARNING, told, 'or write resize = "letterbox"'))
    if processor.get("do_rescale", True):
        made = replace(made, scale=float(processor.get("rescale_factor", 1 / 255)))
    mean, std = processor.get("image_mean"), processor.get("image_std")
    if processor.get("do_normalize", True) and mean and std:
        made = replace(made, mean=tuple(map(float, mean)), std=tuple(map(float, std)))
    return made, tuple(notes)


def _by_position(torch: Any, module: Any, names: Sequence[str]) -> Any:
    """Return a module that takes a tensor for each name in order, and returns a dictionary of tensors."""

    class ByPosition(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *given: Any) -> dict[str, Any]:
            answer = self.inner(**dict(zip(names, given, strict=True)), return_dict=True)
            tensors = {name: one for name, one in answer.items() if isinstance(one, torch.Tensor)}
            known = {name: one for name, one in tensors.items() if name not in _LEFT_OUT}
            if "logits" not in known:
                return known
            return {name: one for name, one in known.items() if not name.endswith("last_hidden_state")}

    return ByPosition().eval()
