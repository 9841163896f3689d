"""A recipe of texts from what lies beside a model: its tokenizer, its configuration, its pooling."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgeopt.graph.files.exported_folder import folder_name
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.drafting.hugging_face import CONFIGURATION, Configuration, shape_of
from edgeopt.recipes.recipe import NO_DECODER, Evaluation, Postprocess, Recipe
from edgeopt.recipes.texts.text import Pooling, Text
from edgeopt.recipes.texts.tokenizer import Tokenizer
from edgeopt.system.toml import read_json

TOKENIZER = "tokenizer.json"
NOT_KNOWN = "not known: "
"""Begins the comment of what nobody told."""
_POOLING = "1_Pooling/config.json"
_IDS = ("input_ids", "ids", "tokens")
"""Names of the input of tokens' numbers, as exporters write them."""
_LENGTH = 128
"""Tokens where nothing tells how many."""
_MANY_LABELS = "multi_label_classification"
"""A text has several classes at once, which no task reads."""
_EMBEDDING = ("embedding", NO_DECODER, "recall1")
_RELEVANCE = ("tensors", NO_DECODER, "agreement")
"""One number for two texts, as cross-encoders give it: how well the second answers the first."""
_TASKS = {
    "text-classification": ("text_classification", "logits", "top1"),
    "token-classification": ("token_classification", "logits", "entity_F1"),
    "feature-extraction": _EMBEDDING,
}
"""Optimum's task to task, decoder and metric."""
_SCORES = ("logits", "probabilities", "scores")
_VECTORS = ("last_hidden_state", "pooler_output", "sentence_embedding", "token_embeddings", "embedding", "text_embeds")
"""Names of outputs, as exporters write them."""


def takes_tokens(inputs: Sequence[TensorSpec]) -> str:
    """Return the name of the input that takes tokens; empty where none does."""
    fitting = [spec.name for spec in inputs if len(spec.shape) == 2 and spec.dtype in ("int64", "int32")]
    return next((name for name in _IDS if name in fitting), "")


def text_recipe(
    folder: Path,
    configuration: Configuration | None,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec] | None,
) -> tuple[Recipe, dict[str, str]] | None:
    """Return a recipe of texts and where each of its values is from; None where the model or the folder is of none.

    Args:
        folder: Holds `tokenizer.json`.
        configuration: The configuration there; None: there is none.
        inputs: Of the model.
        outputs: Of the model: they tell the task where no configuration does; None: not known.

    Raises:
        InvalidFileError: If the pooling of a sentence model is no JSON.
    """
    ids = takes_tokens(inputs)
    values = configuration.values if configuration else {}
    if not ids or not (folder / TOKENIZER).is_file() or values.get("problem_type") == _MANY_LABELS:
        return None
    named, names = (configuration.class_name, configuration.class_names) if configuration else ("", ())
    kind = _kind(configuration, inputs, outputs, names)
    if kind is None:
        return None
    task, decoder, metric = kind
    pooling = _pooling(folder / _POOLING) if task == "embedding" else Pooling.USUAL
    own = next(spec for spec in inputs if spec.name == ids).shape[1]
    comments = {
        "task": f"{CONFIGURATION} names {named}"
        if named
        else f"from the outputs: {', '.join(map(str, outputs or ()))}",
        "tokenizer.file": "beside the model",
        "tokenizer.length": "from the model" if isinstance(own, int) else f"{NOT_KNOWN}the model takes any number",
    }
    if task == "embedding":
        guess = f"{NOT_KNOWN}mean or first, where the output of one vector is not meant to be compared"
        comments["text.pooling"] = guess if pooling is Pooling.USUAL else f"{_POOLING} names it"
    is_pair = task == "tensors"
    if is_pair:
        comments["tokenizer.pairs"] = f"{NOT_KNOWN}false where the model judges one text"
    if task not in ("embedding", "tensors"):
        comments["labels"] = f"id2label of {CONFIGURATION}" if names else f"{NOT_KNOWN}names of the classes, one a line"
    recipe = Recipe(
        name=folder_name(folder),
        task=task,
        description=f"{named or 'a model'} of texts",
        license="that of the weights",
        source=folder.name,
        postprocess=Postprocess(decoder),
        evaluation=Evaluation(metric),
        tokenizer=Tokenizer(
            file=TOKENIZER, ids=ids, length=0 if isinstance(own, int) else _length(configuration), pairs=is_pair
        ),
        text=Text(pooling),
        class_names=names if task not in ("embedding", "tensors") else (),
        folder=folder,
    )
    return recipe, comments


def _kind(
    configuration: Configuration | None,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec] | None,
    names: Sequence[str],
) -> tuple[str, str, str] | None:
    """Return task, decoder and metric; None where no task of texts reads such outputs."""
    if configuration and configuration.class_name:
        shown = None if outputs is None else [output.name for output in outputs]
        task = configuration.task_of([spec.name for spec in inputs], shown)
        result = _TASKS.get(task.name) if task else None
        if result and result[0] == "token_classification" and not names:
            return None  # spans need the names of tags
        is_one_number = (
            result is not None and result[0] == "text_classification" and _is_one_number(outputs, configuration)
        )
        return _RELEVANCE if is_one_number else result
    if not outputs:
        return None
    first = outputs[0]
    if len(first.shape) == 2 and first.name in _SCORES and first.shape[1] == 1:
        return _RELEVANCE
    if len(first.shape) == 2 and first.name in _SCORES:
        return "text_classification", "probabilities" if first.op == "Softmax" else "logits", "top1"
    has_vectors = any(len(output.shape) in (2, 3) and output.name in _VECTORS for output in outputs)
    return _EMBEDDING if has_vectors else None


def _is_one_number(outputs: Sequence[TensorSpec] | None, configuration: Configuration) -> bool:
    """Return whether a classifier has one class: then its only score says how well two texts fit each other."""
    labels = configuration.values.get("id2label")
    return outputs[0].shape[-1:] == (1,) if outputs else isinstance(labels, dict) and len(labels) == 1


def _length(configuration: Configuration | None) -> int:
    """Return how many tokens are taken where the model takes any number."""
    shape = shape_of("input_ids", configuration) if configuration else ()
    return shape[1] if shape else _LENGTH


def _pooling(path: Path) -> Pooling:
    """Return the pooling that sentence-transformers wrote; the usual one where it wrote none."""
    values = read_json(path, remedy="copy the folder of the model again") if path.is_file() else {}
    result = values if isinstance(values, dict) else {}
    if result.get("pooling_mode_cls_token") is True:
        return Pooling.FIRST
    return Pooling.MEAN if result.get("pooling_mode_mean_tokens") is True else Pooling.USUAL
