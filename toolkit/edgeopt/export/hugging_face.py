"""Networks of Hugging Face transformers, from a folder or by id, and what their configuration tells of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError, Note, NoteKind, UnavailableError, UnsupportedError
from edgeopt.export.from_torch import said, torch_of_export
from edgeopt.export.hub import why_offline
from edgeopt.export.network import Network, NetworkInput
from edgeopt.export.source import NetworkSource
from edgeopt.graph.files.exported_folder import WEIGHTS, exported_in
from edgeopt.graph.model import load_model
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.drafting.hugging_face import (
    COMPANIONS,
    PICTURE,
    PROCESSORS,
    Configuration,
    read_configuration,
    read_processor,
    recipe_told,
    shape_of,
)
from edgeopt.recipes.drafting.optimum_tasks import GENERATION, WITH_PAST, task_of_class
from edgeopt.recipes.drafting.text_drafting import text_recipe
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.texts.alphabet import Alphabet
from edgeopt.recipes.texts.heard_letters import VOCABULARY, letters_in
from edgeopt.system.declared.optional import require
from edgeopt.system.disk.links import files_of

_TOKENS = "input_ids"
_WITH_VECTOR, _ALONE = "ModelWithProjection", "Model"


def tower_of(class_name: str, transformers: Any, config: Any, inputs: Sequence[str]) -> str:
    """Return the class to open: of a network of two towers the one that takes these inputs, else the class itself.

    Args:
        class_name: That the configuration names.
        transformers: The package.
        config: Of the network.
        inputs: Names that were asked for; empty: none.

    Raises:
        UnsupportedError: If there are two towers and nothing tells which.
    """
    parts = [getattr(config, word, None) for word in ("vision_config", "text_config")]
    kind = class_name.removesuffix(_ALONE)
    towers = {
        name: next((word for end in (_WITH_VECTOR, _ALONE) if hasattr(transformers, word := f"{kind}{tower}{end}")), "")
        for name, tower in ((PICTURE, "Vision"), (_TOKENS, "Text"))
    }
    if None in parts or kind == class_name or not all(towers.values()):
        return class_name
    asked = {*inputs} & {*towers}
    if len(asked) == 2:
        return class_name
    if not asked:
        side, length = getattr(parts[0], "image_size", 224), getattr(parts[1], "max_position_embeddings", 77)
        raise UnsupportedError(
            f"{class_name} is two towers, one that sees and one that reads, and each is exported by itself",
            remedy=f"add --input {PICTURE}=1x3x{side}x{side}, or --input {_TOKENS}=1x{length}:int64",
        )
    return towers[asked.pop()]


_MOST_TOLD = 3
"""Names of weights in a message."""
_TRAINED = "copy all files of weights again, or correct architectures in config.json"
_LEFT_OUT = ("loss", "past_key_values", "hidden_states", "attentions", "cross_attentions")


def open_pretrained(source: NetworkSource, inputs: Sequence[NetworkInput]) -> Network:
    """Return a pretrained network in float32, in the class that its configuration names; no code beside it is run.

    Raises:
        MissingDependencyError: If torch or transformers is not installed.
        UnavailableError: If an id is not in the cache and cannot be fetched.
        InvalidFileError: If the folder holds no network that transformers reads.
        UnsupportedError: If it writes token after token, or its class is not in transformers.
    """
    torch = torch_of_export()
    _require_weights(Path(source.where))
    transformers = require("transformers", extra="export", purpose="a network of Hugging Face")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    text = "" if Path(source.where).is_dir() else why_offline(source.where)
    options: dict[str, Any] = {"local_files_only": bool(text) or Path(source.where).is_dir()}
    read = transformers.AutoConfig.from_pretrained
    config = _opened(source, "configuration", lambda: read(source.where, **options), text)
    class_name = tower_of(
        _class_of(source, config, transformers), transformers, config, [input_.name for input_ in inputs]
    )
    options |= {"dtype": torch.float32, "attn_implementation": "eager"}
    module, notes = _with_weights(source, getattr(transformers, class_name), options, text)
    if getattr(config, "is_encoder_decoder", False) and module.main_input_name != "pixel_values":  # a DETR goes whole
        module = module.get_encoder().eval()
        remedy = "with tokenizer.json in the folder, and without --task, some decoders are exported too"
        notes.append(Note(NoteKind.INFO, "its encoder alone is exported", remedy))
    told_beside = _configuration(source, transformers, class_name, getattr(module, "config", config))
    network_inputs = tuple(inputs) or _inputs(module, told_beside)
    recipe, more = _recipe(source, told_beside, network_inputs)
    return Network(
        source.name,
        f"PyTorch {torch.__version__}, transformers {transformers.__version__}",
        _by_position(torch, module, [network_input.name for network_input in network_inputs]),
        network_inputs,
        recipe=recipe,
        companions=_files(source, transformers, COMPANIONS),
        notes=(*notes, *more),
    )


def _require_weights(folder: Path) -> None:
    """Raise InvalidFileError if a folder holds an ONNX file and no weights: it is exported already."""
    if any(True for weight in WEIGHTS for _ in folder.glob(weight)) or not (file := exported_in(folder)):
        return
    model, configuration = load_model(file), read_configuration(folder)
    names = [one.name for one in model.inputs], [one.name for one in model.outputs]
    task = configuration.task_of(*names) if configuration else None
    raise InvalidFileError(
        f"{folder} holds {file.name} already" + (f", exported for {task.name}" if task else "") + ", and no weights",
        remedy=f"edgeopt optimize {folder} takes it",
    )


def _with_weights(source: NetworkSource, made: Any, options: dict[str, Any], offline: str) -> tuple[Any, list[Note]]:
    """Return a network with all its weights; a pooling that none were stored for is left out, with a note.

    Raises:
        InvalidFileError: If weights of another part are missing: they would be random numbers.
    """
    notes = []
    asked = {**options, "output_loading_info": True}
    module, info = _opened(source, "weights", lambda: made.from_pretrained(source.where, **asked), offline)
    missing = sorted(info["missing_keys"])
    if missing and all("pooler." in value for value in missing) and "add_pooling_layer" in signature(made).parameters:
        asked |= {"add_pooling_layer": False}
        module, info = _opened(source, "weights", lambda: made.from_pretrained(source.where, **asked), offline)
        missing = sorted(info["missing_keys"])
        notes.append(Note(NoteKind.INFO, "pooler_output is left out", "the weights have none"))
    if missing:
        text = ", ".join(missing[:_MOST_TOLD]) + (
            f" and {len(missing) - _MOST_TOLD} more" if missing[_MOST_TOLD:] else ""
        )
        raise InvalidFileError(
            f"{source} has no weights of a {made.__name__} for {text}",
            remedy="leave --task out, or name the one that it was trained for" if source.task else _TRAINED,
        )
    if getattr(module.config, "use_cache", False):
        module.config.use_cache = False
    return module.eval(), notes


def _opened(source: NetworkSource, what: str, load: Callable[[], Any], offline: str) -> Any:
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


def _class_of(source: NetworkSource, config: Any, transformers: Any) -> str:
    """Return the name of the class that the configuration names, or of the one for the task that is asked.

    Raises:
        UnsupportedError: If transformers has none, or it writes token after token.
    """
    names = getattr(config, "architectures", None) or []
    name = names[0] if names else "AutoModel"
    if source.task:
        fitting = [class_ for each in source.task.opened_by for class_ in _classes(transformers, each, config)]
        if not fitting:
            own = task_of_class(name)
            raise UnsupportedError(
                f"transformers has no {config.model_type} for the task {source.task.name}",
                remedy=f"leave --task out: a {name} is for {own.name}" if own else "leave --task out",
            )
        name = name if name in fitting else fitting[0]
    if not hasattr(transformers, name):
        raise UnsupportedError(
            f"{source} is a {name}, which transformers {transformers.__version__} does not have",
            remedy="code beside weights is never run; name code that you trust: torch:package.module:factory",
        )
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        raise UnsupportedError(
            f"{source} is a {name}, which writes token after token, and its type is not written here",
            remedy=f"optimum-cli export onnx --task {GENERATION}{WITH_PAST} writes it, and edgeopt takes its folder; "
            "its body is --task feature-extraction",
        )
    return str(name)


def _classes(transformers: Any, opener: str, config: Any) -> list[str]:
    """Return the names of the classes that one of transformers' `AutoModelFor...` has for a configuration."""
    result = getattr(getattr(transformers, opener, None), "_model_mapping", {}).get(type(config), None)
    return [value.__name__ for value in (result if isinstance(result, tuple) else (result,)) if value is not None]


def _configuration(source: NetworkSource, transformers: Any, class_name: str, config: Any) -> Configuration:
    """Return the configurations of the network and of its processor, whose defaults the first has written out."""
    paths, letters = _files(source, transformers, PROCESSORS), _files(source, transformers, (VOCABULARY,))
    values = {**config.to_dict(), "architectures": [class_name]}
    alphabet = letters_in(letters[0].parent, values) if letters else Alphabet()
    return Configuration(values, read_processor(paths[0]) if paths else {}, alphabet)


def _files(source: NetworkSource, transformers: Any, names: Sequence[str]) -> tuple[Path, ...]:
    """Return those of these files that a source has; of an id in the cache."""
    if Path(source.where).is_dir():
        return tuple(files_of(Path(source.where), names))
    may_lack = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_gated_repo": False}
    result = (transformers.utils.cached_file(source.where, name, **may_lack) for name in names)
    return tuple(Path(value) for value in result if value is not None)


def _inputs(module: Any, configuration: Configuration) -> tuple[NetworkInput, ...]:
    """Return what a network is asked, by the name of its main input.

    Raises:
        UnsupportedError: If that name is not known here.
    """
    main = getattr(module, "main_input_name", "")
    shape = shape_of(main, configuration)
    if main == "input_ids" and shape and "vocab_size" in configuration.values:
        kinds = int(configuration.values.get("type_vocab_size") or 0)
        inputs = [
            NetworkInput(main, shape, "int64", below=int(configuration.values["vocab_size"])),
            NetworkInput("attention_mask", shape, "int64"),
        ]
        return (*inputs, NetworkInput("token_type_ids", shape, "int64", below=kinds)) if kinds > 1 else tuple(inputs)
    if shape and main != "input_ids":
        return (NetworkInput(main, shape),)
    raise UnsupportedError(
        f"what {type(module).__name__} takes is not known here: its main input is {main or 'not named'}",
        remedy="add --input NAME=1x3x224x224 for each input, named as forward names it",
    )


def _recipe(
    source: NetworkSource, configuration: Configuration, inputs: Sequence[NetworkInput]
) -> tuple[Recipe | None, tuple[Note, ...]]:
    """Return the recipe that the configurations tell, and what they cannot tell."""
    specs = [TensorSpec(input_.name, input_.dtype, input_.shape) for input_ in inputs]
    if of_texts := text_recipe(Path(source.where), configuration, specs, None):
        return replace(of_texts[0], name=source.name, source=f"hf:{source.where}"), ()
    return recipe_told(configuration, specs, None, name=source.name, source=f"hf:{source.where}")


def _by_position(torch: Any, module: Any, names: Sequence[str]) -> Any:
    """Return a module that takes a tensor for each name in order, and returns a dictionary of tensors."""

    class ByPosition(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *given: Any) -> dict[str, Any]:
            answer = self.inner(**dict(zip(names, given, strict=True)), return_dict=True)
            tensors = {name: value for name, value in answer.items() if isinstance(value, torch.Tensor)}
            known = {name: tensor for name, tensor in tensors.items() if name not in _LEFT_OUT}
            if "logits" not in known:
                return known
            return {name: value for name, value in known.items() if not name.endswith("last_hidden_state")}

    return ByPosition().eval()
