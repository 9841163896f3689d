"""Networks of Hugging Face transformers, from a folder or by id, and what their configuration tells of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError, Note, NoteKind, UnavailableError, UnsupportedError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.pipeline.export.from_torch import said, torch_of_export
from edgeopt.pipeline.export.network import Network, NetworkInput
from edgeopt.pipeline.export.source import Source
from edgeopt.recipes.hugging_face import COMPANIONS, PROCESSORS, Configuration, read_processor, recipe_told, shape_of
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.text_drafting import text_recipe
from edgeopt.system.optional import require

_PATIENCE_S = 10
"""For the first answer about an id."""
_LEFT_OUT = ("loss", "past_key_values", "hidden_states", "attentions", "cross_attentions")


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
    told_beside = _configuration(source, transformers, class_name, getattr(module, "config", config))
    network_inputs = tuple(inputs) or _inputs(module, told_beside)
    recipe, more = _recipe(source, told_beside, network_inputs)
    return Network(
        source.name,
        f"PyTorch {torch.__version__}, transformers {transformers.__version__}",
        _by_position(torch, module, [one.name for one in network_inputs]),
        network_inputs,
        recipe=recipe,
        companions=_files(source, transformers, COMPANIONS),
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


def _configuration(source: Source, transformers: Any, class_name: str, config: Any) -> Configuration:
    """Return the configurations of the network and of its processor, whose defaults the first has written out."""
    found = _files(source, transformers, PROCESSORS)
    values = {**config.to_dict(), "architectures": [class_name]}
    return Configuration(values, read_processor(found[0]) if found else {})


def _files(source: Source, transformers: Any, names: Sequence[str]) -> tuple[Path, ...]:
    """Return those of these files that a source has; of an id in the cache."""
    if Path(source.where).is_dir():
        return tuple(file for one in names if (file := Path(source.where) / one).is_file())
    may_lack = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_gated_repo": False}
    found = (transformers.utils.cached_file(source.where, one, **may_lack) for one in names)
    return tuple(Path(one) for one in found if one is not None)


def _inputs(module: Any, told: Configuration) -> tuple[NetworkInput, ...]:
    """Return what a network is asked, by the name of its main input.

    Raises:
        UnsupportedError: If that name is not known here.
    """
    main = getattr(module, "main_input_name", "")
    shape = shape_of(main, told)
    if main == "input_ids" and shape:
        kinds = int(told.values.get("type_vocab_size") or 0)
        inputs = [
            NetworkInput(main, shape, "int64", below=int(told.values["vocab_size"])),
            NetworkInput("attention_mask", shape, "int64"),
        ]
        return (*inputs, NetworkInput("token_type_ids", shape, "int64", below=kinds)) if kinds > 1 else tuple(inputs)
    if shape:
        return (NetworkInput(main, shape),)
    raise UnsupportedError(
        f"what {type(module).__name__} takes is not known here: its main input is {main or 'not named'}",
        remedy="add --input NAME=1x3x224x224 for each input, named as forward names it",
    )


def _recipe(
    source: Source, told: Configuration, inputs: Sequence[NetworkInput]
) -> tuple[Recipe | None, tuple[Note, ...]]:
    """Return the recipe that the configurations tell, and what they cannot tell."""
    asked = [TensorSpec(one.name, one.dtype, one.shape) for one in inputs]
    if of_texts := text_recipe(Path(source.where), told, asked, None):
        return replace(of_texts[0], name=source.name, source=f"hf:{source.where}"), ()
    return recipe_told(told, asked, None, name=source.name, source=f"hf:{source.where}")


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
