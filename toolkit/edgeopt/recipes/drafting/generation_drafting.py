"""The recipe of a language model that another tool exported: from the configurations beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError
from edgeopt.graph.files.exported_folder import folder_name
from edgeopt.recipes.recipe import NO_DECODER, Evaluation, Postprocess, Recipe
from edgeopt.recipes.texts.generation import GENERATION, GenerationTable
from edgeopt.recipes.texts.tokenizer import Tokenizer
from edgeopt.system.disk.files import read_text

TOKENIZER = "tokenizer.json"
_SETTINGS = "tokenizer_config.json"
_GENAI, _HUGGING_FACE = "genai_config.json", "config.json"
_REMEDY = "copy the folder again"
_CONTEXT = 2048
"""Where a configuration tells none."""


def drafted_generation(folder: Path) -> Recipe | None:
    """Return the recipe that the files beside a decoder tell; None where they tell of none.

    Args:
        folder: Of onnxruntime-genai's builder (`genai_config.json`), of `optimum-cli export onnx` or `save_pretrained`
            (`config.json`), each with `tokenizer.json`.

    Raises:
        InvalidFileError: If one of them is damaged.
    """
    if not (folder / TOKENIZER).is_file():
        return None
    generation = _of_genai(folder) or _of_hugging_face(folder)
    if generation is None:
        return None
    return Recipe(
        name=folder_name(folder),
        task=GENERATION,
        description="language model",
        license="that of its source",
        source=str(folder),
        postprocess=Postprocess(NO_DECODER),
        evaluation=Evaluation("agreement"),
        tokenizer=Tokenizer(TOKENIZER),
        generation=replace(generation, begin=begin_of(folder, generation.begin)),
        folder=folder,
    )


def begin_of(folder: Path, first: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tokens before every prompt, as the tokenizer beside the model adds them.

    Args:
        folder: Of the model.
        first: The first token of a text, by the model's configuration.

    Its settings say whether that is added. Where they say nothing, as those of Llama 3, `tokenizer.json` itself does:
    its template of one text begins with special tokens.

    Raises:
        InvalidFileError: If a file is damaged.
    """
    file = folder / _SETTINGS
    adds = _read(file).get("add_bos_token") if file.is_file() else None
    if isinstance(adds, bool):
        return first if adds else ()
    return _of_template(_read(folder / TOKENIZER)) if (folder / TOKENIZER).is_file() else ()


def _of_template(tokenizer: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the special tokens that a tokenizer's template writes before a text."""
    whole = tokenizer.get("post_processor")
    steps = whole.get("processors", [whole]) if isinstance(whole, dict) else []
    result = list[int]()
    for step in steps:
        if not isinstance(step, dict) or step.get("type") != "TemplateProcessing":
            continue
        try:
            for piece in step["single"]:
                if "SpecialToken" not in piece:
                    break
                result += [int(number) for number in step["special_tokens"][piece["SpecialToken"]["id"]]["ids"]]
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidFileError(f"{TOKENIZER} has a template that is none: {error}", remedy=_REMEDY) from error
    return tuple(result)


def _of_genai(folder: Path) -> GenerationTable | None:
    file = folder / _GENAI
    if not file.is_file():
        return None
    model = _read(file).get("model")
    values = model if isinstance(model, dict) else {}
    decoder = values.get("decoder")
    head = decoder.get("head_size", 0) if isinstance(decoder, dict) else 0
    return replace(_generation(file, values, "context_length"), head=head if isinstance(head, int) else 0)


def _of_hugging_face(folder: Path) -> GenerationTable | None:
    file = folder / _HUGGING_FACE
    values = _read(file) if file.is_file() else {}
    named = str((values.get("architectures") or [""])[0])
    if not named.endswith(("ForCausalLM", "LMHeadModel")):
        return None
    context = "max_position_embeddings" if "max_position_embeddings" in values else "n_positions"
    return _generation(file, values, context)


def _generation(file: Path, values: Mapping[str, Any], context: str) -> GenerationTable:
    try:
        end, begin = values.get("eos_token_id"), values.get("bos_token_id")
        ends = end if isinstance(end, list) else [end] if end is not None else []
        first = () if begin is None or isinstance(begin, list) else (int(begin),)
        return GenerationTable(int(values.get(context) or _CONTEXT), tuple(int(other) for other in ends), first)
    except (TypeError, ValueError) as error:
        raise InvalidFileError(f"{file} holds no number where a token or a length is", remedy=_REMEDY) from error


def _read(file: Path) -> Mapping[str, Any]:
    try:  # not read_json: transformers writes a length of 10^30 where there is no limit
        values = json.loads(read_text(file, remedy=_REMEDY))
    except (ValueError, RecursionError) as error:
        raise InvalidFileError(f"{file} is no JSON", remedy=_REMEDY) from error
    if not isinstance(values, dict):
        raise InvalidFileError(f"{file} is no configuration", remedy=_REMEDY)
    return values
